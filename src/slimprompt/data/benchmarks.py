"""The table of known benchmarks: one row of facts each. To add a benchmark, add a row to `_PUBLISHED`."""

from __future__ import annotations

from dataclasses import dataclass

from slimprompt.data.readers import Source, split_file, variant_lists, wordnet_folders
from slimprompt.images.decode import Decode
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

#: General prompts that an ensemble averages with a benchmark's own prompt.
GENERAL_TEMPLATES = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)


@dataclass(frozen=True)
class BenchmarkInfo:
    """Facts about one benchmark."""

    name: str
    """CoOp's name, used everywhere in this package."""
    title: str
    """Name in published tables."""
    folder: str
    """Folder of the benchmark, relative to the data root."""
    images: str
    """Image folder, relative to `folder`; the paths of the items are relative to it."""
    classes: int
    sizes: tuple[int, int, int]
    """Number of items in train, val and test of the published split."""
    source: Source
    """The annotation files and their reader."""
    licence: str
    size: str
    """Approximate download size."""
    site: str
    """Home page, with the terms of use."""
    templates: tuple[str, ...] = ("a photo of a {}.", *GENERAL_TEMPLATES)
    """Zero-shot prompts; the first is the benchmark's own."""
    torchvision: tuple[str, str] | None = None
    """Class in `torchvision.datasets` that downloads the files, and the folder that it extracts them to."""
    manual: str = ""
    """Instructions for the steps that cannot be automated."""
    rendered: bool = False
    """Whether this package renders the images when they are first needed."""

    @property
    def evaluation_only(self) -> bool:
        """Whether there is no train split."""
        return self.sizes[0] == 0

    @property
    def decode(self) -> Decode:
        """How the images are read: published benchmarks as CoOp reads them."""
        return "upright" if self.rendered else "plain"


_PUBLISHED = (
    BenchmarkInfo(
        name="caltech101",
        title="Caltech101",
        folder="caltech-101",
        images="101_ObjectCategories",
        classes=100,
        sizes=(4128, 1649, 2465),
        source=split_file("split_zhou_Caltech101.json", "1hyarUivQE36mY6jSomru6Fjd-JzwcCzN"),
        licence="CC BY 4.0",
        size="140 MB",
        site="https://data.caltech.edu/records/mzrjq-6wc02",
        torchvision=("Caltech101", "caltech101"),
    ),
    BenchmarkInfo(
        name="dtd",
        title="DTD",
        templates=("{} texture.", *GENERAL_TEMPLATES),
        folder="dtd",
        images="images",
        classes=47,
        sizes=(2820, 1128, 1692),
        source=split_file("split_zhou_DescribableTextures.json", "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x"),
        licence="research only",
        size="600 MB",
        site="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        torchvision=("DTD", "dtd/dtd"),
    ),
    BenchmarkInfo(
        name="fgvc_aircraft",
        title="FGVC Aircraft",
        templates=("a photo of a {}, a type of aircraft.", *GENERAL_TEMPLATES),
        folder="fgvc_aircraft",
        images="images",
        classes=100,
        sizes=(3334, 3333, 3333),
        source=variant_lists(),
        licence="non-commercial",
        size="2.6 GB",
        site="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        torchvision=("FGVCAircraft", "fgvc-aircraft-2013b/data"),
    ),
    BenchmarkInfo(
        name="food101",
        title="Food101",
        templates=("a photo of {}, a type of food.", *GENERAL_TEMPLATES),
        folder="food-101",
        images="images",
        classes=101,
        sizes=(50500, 20200, 30300),
        source=split_file("split_zhou_Food101.json", "1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl"),
        licence="scientific fair use",
        size="4.7 GB",
        site="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        torchvision=("Food101", "food-101"),
    ),
    BenchmarkInfo(
        name="oxford_flowers",
        title="Oxford Flowers",
        templates=("a photo of a {}, a type of flower.", *GENERAL_TEMPLATES),
        folder="oxford_flowers",
        images="jpg",
        classes=102,
        sizes=(4093, 1633, 2463),
        source=split_file("split_zhou_OxfordFlowers.json", "1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT"),
        licence="none stated",
        size="330 MB",
        site="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        torchvision=("Flowers102", "flowers-102"),
    ),
    BenchmarkInfo(
        name="oxford_pets",
        title="Oxford Pets",
        templates=("a photo of a {}, a type of pet.", *GENERAL_TEMPLATES),
        folder="oxford_pets",
        images="images",
        classes=37,
        sizes=(2944, 736, 3669),
        source=split_file("split_zhou_OxfordPets.json", "1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs"),
        licence="CC BY-SA 4.0",
        size="800 MB",
        site="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        torchvision=("OxfordIIITPet", "oxford-iiit-pet"),
    ),
    BenchmarkInfo(
        name="ucf101",
        title="UCF101",
        templates=("a photo of a person doing {}.", *GENERAL_TEMPLATES),
        folder="ucf101",
        images="UCF-101-midframes",
        classes=101,
        sizes=(7639, 1898, 3783),
        source=split_file("split_zhou_UCF101.json", "1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y"),
        licence="none stated",
        size="6.5 GB",
        site="https://www.crcv.ucf.edu/data/UCF101.php",
        manual=(
            "Download the videos (a RAR archive) from https://www.crcv.ucf.edu/data/UCF101.php, extract them, and run "
            "`slimprompt data extract-midframes UCF-101`. Alternatively, download CoOp's UCF-101-midframes.zip, which is "
            "linked in the DATASETS.md of its repository, and extract it in the folder ucf101."
        ),
    ),
    BenchmarkInfo(
        name="eurosat",
        title="EuroSAT",
        templates=("a centered satellite photo of {}.", *GENERAL_TEMPLATES),
        folder="eurosat",
        images="2750",
        classes=10,
        sizes=(13500, 5400, 8100),
        source=split_file("split_zhou_EuroSAT.json", "1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o"),
        licence="MIT",
        size="90 MB",
        site="https://github.com/phelber/EuroSAT",
        torchvision=("EuroSAT", "eurosat"),
    ),
    BenchmarkInfo(
        name="stanford_cars",
        title="Stanford Cars",
        folder="stanford_cars",
        images=".",
        classes=196,
        sizes=(6509, 1635, 8041),
        source=split_file("split_zhou_StanfordCars.json", "1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT"),
        licence="non-commercial",
        size="1.9 GB",
        site="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        manual=(
            "The original server no longer provides the images. Copy the folders cars_train and cars_test from a copy "
            "that you are allowed to use into the folder stanford_cars."
        ),
    ),
    BenchmarkInfo(
        name="sun397",
        title="SUN397",
        folder="sun397",
        images="SUN397",
        classes=397,
        sizes=(15880, 3970, 19850),
        source=split_file("split_zhou_SUN397.json", "1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq"),
        licence="none stated",
        size="37 GB",
        site="https://vision.princeton.edu/projects/2010/SUN/",
        torchvision=("SUN397", "."),
    ),
    BenchmarkInfo(
        name="imagenet",
        title="ImageNet",
        folder="imagenet",
        images="images",
        classes=1000,
        sizes=(1_281_167, 0, 50_000),  # CoOp evaluates on the validation images and selects nothing on them
        source=wordnet_folders("images", train="train", test="val"),
        licence="non-commercial",
        size="144 GB",
        site="https://www.image-net.org/",
        manual=(
            "Register at https://www.image-net.org/, download the train and validation images of ILSVRC 2012 and extract "
            "them to imagenet/images/train/<WordNet id>/ and imagenet/images/val/<WordNet id>/."
        ),
    ),
    BenchmarkInfo(
        name="imagenetv2",
        title="ImageNetV2",
        folder="imagenetv2",
        images="imagenetv2-matched-frequency-format-val",
        classes=1000,
        sizes=(0, 0, 10_000),
        source=wordnet_folders("imagenetv2-matched-frequency-format-val", numbered=True),
        licence="MIT",
        size="1.3 GB",
        site="https://github.com/modestyachts/ImageNetV2",
    ),
    BenchmarkInfo(
        name="imagenet_sketch",
        title="ImageNet-Sketch",
        folder="imagenet-sketch",
        images="images",
        classes=1000,
        sizes=(0, 0, 50_889),
        source=wordnet_folders("images"),
        licence="MIT",
        size="7.1 GB",
        site="https://github.com/HaohanWang/ImageNet-Sketch",
    ),
    BenchmarkInfo(
        name="imagenet_a",
        title="ImageNet-A",
        folder="imagenet-adversarial",
        images="imagenet-a",
        classes=200,
        sizes=(0, 0, 7_500),
        source=wordnet_folders("imagenet-a"),
        licence="MIT",
        size="700 MB",
        site="https://github.com/hendrycks/natural-adv-examples",
    ),
    BenchmarkInfo(
        name="imagenet_r",
        title="ImageNet-R",
        folder="imagenet-rendition",
        images="imagenet-r",
        classes=200,
        sizes=(0, 0, 30_000),
        source=wordnet_folders("imagenet-r"),
        licence="MIT",
        size="2.2 GB",
        site="https://github.com/hendrycks/imagenet-r",
    ),
)

_RENDERED = tuple(
    BenchmarkInfo(
        name=pocket.name,
        title=pocket.name,
        folder=pocket.name,
        images="images",
        classes=pocket.n_classes,
        sizes=(pocket.n_classes * pocket.train, pocket.n_classes * pocket.val, pocket.n_classes * pocket.test),
        templates=pocket.templates,
        source=split_file("split.json"),
        licence="MIT",
        size="< 25 MB",
        site="",
        rendered=True,
    )
    for pocket in POCKET_BENCHMARKS.values()
)

#: Every known benchmark by name.
BENCHMARKS: dict[str, BenchmarkInfo] = {info.name: info for info in (*_PUBLISHED, *_RENDERED)}
