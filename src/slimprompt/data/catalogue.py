"""The benchmarks as rows of facts, and the one reader that serves them all."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from slimprompt.data.benchmark import Benchmark
from slimprompt.data.folder import load_folder
from slimprompt.data.splits import (
    Source,
    Split,
    action_lists,
    class_folders,
    flower_labels,
    pet_lists,
    split_file,
    variant_lists,
)
from slimprompt.errors import InputError, unknown
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS, render_benchmark
from slimprompt.storage import cache_dir

#: The environment variable that names the folder with all the benchmarks' folders in it.
DATA_ROOT = "SLIMPROMPT_DATA"

#: General prompts that are averaged with a benchmark's own one in an ensemble.
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
class Download:
    """How torchvision fetches a benchmark, and which of the unpacked pieces belong in the benchmark's folder."""

    dataset: str
    """Name of the class in `torchvision.datasets`."""
    unpacked: str
    """Folder, below the download's root, in which the pieces are after unpacking."""
    pieces: tuple[str, ...]
    """Files and folders to move into the benchmark's folder, the images first."""


@dataclass(frozen=True)
class BenchmarkInfo:
    """One benchmark: where its files are, how large it is, what it may be used for."""

    name: str
    """CoOp's name, used everywhere in this package."""
    title: str
    """The name in published tables."""
    folder: str
    """Below the data root."""
    images: str
    """Below the benchmark's folder; the items' paths are relative to it."""
    classes: int
    sizes: tuple[int, int, int]
    """Items in train, val, test of the published split."""
    templates: tuple[str, ...]
    """Zero-shot prompts; the first is the benchmark's own."""
    sources: tuple[Source, ...]
    """Where the split is found, in order of preference."""
    licence: str
    size: str
    """Roughly what is downloaded."""
    site: str
    """Home page, with the terms of use."""
    download: Download | None = None
    manual: str = ""
    """What has to be done by hand."""
    drive_files: tuple[tuple[str, str], ...] = ()
    """(file name, Google Drive id) of the annotation files that CoOp's authors publish there."""
    drawn: bool = False
    """Whether it is drawn by this package when it is not there."""


_PUBLISHED = (
    BenchmarkInfo(
        name="caltech101",
        title="Caltech101",
        templates=("a photo of a {}.", *GENERAL_TEMPLATES),
        folder="caltech-101",
        images="101_ObjectCategories",
        classes=100,
        sizes=(4128, 1649, 2465),
        sources=(
            split_file("split_zhou_Caltech101.json"),
            class_folders(
                "101_ObjectCategories",
                ignored=("BACKGROUND_Google", "Faces_easy"),
                renamed={"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"},
            ),
        ),
        licence="CC BY 4.0",
        size="140 MB",
        site="https://data.caltech.edu/records/mzrjq-6wc02",
        download=Download("Caltech101", "caltech101", ("101_ObjectCategories",)),
        drive_files=(("split_zhou_Caltech101.json", "1hyarUivQE36mY6jSomru6Fjd-JzwcCzN"),),
    ),
    BenchmarkInfo(
        name="dtd",
        title="DTD",
        templates=("{} texture.", *GENERAL_TEMPLATES),
        folder="dtd",
        images="images",
        classes=47,
        sizes=(2820, 1128, 1692),
        sources=(split_file("split_zhou_DescribableTextures.json"), class_folders("images")),
        licence="research only",
        size="600 MB",
        site="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        download=Download("DTD", "dtd/dtd", ("images", "labels")),
        drive_files=(("split_zhou_DescribableTextures.json", "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x"),),
    ),
    BenchmarkInfo(
        name="fgvc_aircraft",
        title="FGVC Aircraft",
        templates=("a photo of a {}, a type of aircraft.", *GENERAL_TEMPLATES),
        folder="fgvc_aircraft",
        images="images",
        classes=100,
        sizes=(3334, 3333, 3333),
        sources=(variant_lists(),),
        licence="non-commercial",
        size="2.6 GB",
        site="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        download=Download("FGVCAircraft", "fgvc-aircraft-2013b/data", ("images", *variant_lists().needs)),
    ),
    BenchmarkInfo(
        name="food101",
        title="Food101",
        templates=("a photo of {}, a type of food.", *GENERAL_TEMPLATES),
        folder="food-101",
        images="images",
        classes=101,
        sizes=(50500, 20200, 30300),
        sources=(split_file("split_zhou_Food101.json"), class_folders("images")),
        licence="scientific fair use",
        size="4.7 GB",
        site="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        download=Download("Food101", "food-101", ("images", "meta")),
        drive_files=(("split_zhou_Food101.json", "1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl"),),
    ),
    BenchmarkInfo(
        name="oxford_flowers",
        title="Oxford Flowers",
        templates=("a photo of a {}, a type of flower.", *GENERAL_TEMPLATES),
        folder="oxford_flowers",
        images="jpg",
        classes=102,
        sizes=(4093, 1633, 2463),
        sources=(split_file("split_zhou_OxfordFlowers.json"), flower_labels()),
        licence="none stated",
        size="330 MB",
        site="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
        download=Download("Flowers102", "flowers-102", ("jpg", "imagelabels.mat", "setid.mat")),
        drive_files=(
            ("split_zhou_OxfordFlowers.json", "1Pp0sRXzZFZq15zVOzKjKBu4A9i01nozT"),
            ("cat_to_name.json", "1AkcxCXeK_RCGCEC_GvmWxjcjaNhu-at0"),
        ),
    ),
    BenchmarkInfo(
        name="oxford_pets",
        title="Oxford Pets",
        templates=("a photo of a {}, a type of pet.", *GENERAL_TEMPLATES),
        folder="oxford_pets",
        images="images",
        classes=37,
        sizes=(2944, 736, 3669),
        sources=(split_file("split_zhou_OxfordPets.json"), pet_lists()),
        licence="CC BY-SA 4.0",
        size="800 MB",
        site="https://www.robots.ox.ac.uk/~vgg/data/pets/",
        download=Download("OxfordIIITPet", "oxford-iiit-pet", ("images", "annotations")),
        drive_files=(("split_zhou_OxfordPets.json", "1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs"),),
    ),
    BenchmarkInfo(
        name="ucf101",
        title="UCF101",
        templates=("a photo of a person doing {}.", *GENERAL_TEMPLATES),
        folder="ucf101",
        images="UCF-101-midframes",
        classes=101,
        sizes=(7639, 1898, 3783),
        sources=(split_file("split_zhou_UCF101.json"), action_lists()),
        licence="none stated",
        size="6.5 GB",
        site="https://www.crcv.ucf.edu/data/UCF101.php",
        manual=(
            "Fetch the videos (a RAR archive) from https://www.crcv.ucf.edu/data/UCF101.php, unpack them, and take the "
            "middle frames out of them: slimprompt data extract-midframes UCF-101. Or fetch CoOp's "
            "UCF-101-midframes.zip, linked in the DATASETS.md of its repository, and unpack it in the folder ucf101."
        ),
        drive_files=(("split_zhou_UCF101.json", "1I0S0q91hJfsV9Gf4xDIjgDq4AqBNJb1y"),),
    ),
    BenchmarkInfo(
        name="eurosat",
        title="EuroSAT",
        templates=("a centered satellite photo of {}.", *GENERAL_TEMPLATES),
        folder="eurosat",
        images="2750",
        classes=10,
        sizes=(13500, 5400, 8100),
        sources=(
            split_file("split_zhou_EuroSAT.json"),
            class_folders(
                "2750",
                renamed={
                    "AnnualCrop": "Annual Crop Land",
                    "HerbaceousVegetation": "Herbaceous Vegetation Land",
                    "Highway": "Highway or Road",
                    "Industrial": "Industrial Buildings",
                    "Pasture": "Pasture Land",
                    "PermanentCrop": "Permanent Crop Land",
                    "Residential": "Residential Buildings",
                    "SeaLake": "Sea or Lake",
                },
            ),
        ),
        licence="MIT",
        size="90 MB",
        site="https://github.com/phelber/EuroSAT",
        download=Download("EuroSAT", "eurosat", ("2750",)),
        drive_files=(("split_zhou_EuroSAT.json", "1Ip7yaCWFi0eaOFUGga0lUdVi_DDQth1o"),),
    ),
    BenchmarkInfo(
        name="stanford_cars",
        title="Stanford Cars",
        templates=("a photo of a {}.", *GENERAL_TEMPLATES),
        folder="stanford_cars",
        images=".",
        classes=196,
        sizes=(6509, 1635, 8041),
        sources=(split_file("split_zhou_StanfordCars.json"),),
        licence="non-commercial",
        size="1.9 GB",
        site="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        manual=(
            "The original server no longer offers the pictures. From a copy that you may use, put the folders "
            "cars_train and cars_test into the folder stanford_cars."
        ),
        drive_files=(("split_zhou_StanfordCars.json", "1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT"),),
    ),
    BenchmarkInfo(
        name="sun397",
        title="SUN397",
        templates=("a photo of a {}.", *GENERAL_TEMPLATES),
        folder="sun397",
        images="SUN397",
        classes=397,
        sizes=(15880, 3970, 19850),
        sources=(split_file("split_zhou_SUN397.json"),),
        licence="none stated",
        size="37 GB",
        site="https://vision.princeton.edu/projects/2010/SUN/",
        download=Download("SUN397", ".", ("SUN397",)),
        drive_files=(("split_zhou_SUN397.json", "1y2RD81BYuiyvebdN-JymPfyWYcd8_MUq"),),
    ),
)

_POCKET = tuple(
    BenchmarkInfo(
        name=pocket.name,
        title=pocket.name,
        folder=pocket.name,
        images="images",
        classes=pocket.n_classes,
        sizes=(pocket.n_classes * pocket.train, pocket.n_classes * pocket.val, pocket.n_classes * pocket.test),
        templates=pocket.templates,
        sources=(split_file("split.json"),),
        licence="MIT",
        size="< 25 MB",
        site="",
        drawn=True,
    )
    for pocket in POCKET_BENCHMARKS.values()
)

#: Every known benchmark by name.
CATALOGUE: dict[str, BenchmarkInfo] = {row.name: row for row in (*_PUBLISHED, *_POCKET)}


def benchmark_info(name: str) -> BenchmarkInfo:
    """The row of a benchmark by its name or published title, whatever the case and punctuation.

    >>> benchmark_info("Oxford Pets").name
    'oxford_pets'
    """
    key = _key(name)
    for row in CATALOGUE.values():
        if key and key in (_key(row.name), _key(row.title)):
            return row
    raise unknown("benchmark", name, CATALOGUE, next_step="For your own images give their folder instead.")


def _key(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def benchmark_folder(row: BenchmarkInfo, root: str | Path | None = None, cache: Path | None = None) -> Path:
    """`<data root>/<folder of the row>`.

    The data root is the one given, else the environment variable SLIMPROMPT_DATA. Rendered benchmarks are stored in the
    cache directory unless a root is given.
    """
    if root is None and row.drawn:
        return (cache or cache_dir()) / "data" / row.folder
    root = root if root is not None else os.environ.get(DATA_ROOT) or None
    if root is None:
        raise InputError(
            f"no data root for {row.name}: give the folder that holds {row.folder}/ (--data-root in a command, root= "
            f"in Python), or set the environment variable {DATA_ROOT}"
        )
    base = Path(root).expanduser()
    if not base.is_dir() and not row.drawn:
        raise InputError(
            f"the data root {base} is not a folder; it should hold {row.folder}/ with the files of {row.title}"
        )
    return base / row.folder


def dataset_name(given: str) -> str:
    """The name of a benchmark in any spelling; the path of an existing folder or CSV file is returned unchanged."""
    try:
        return benchmark_info(given).name
    except InputError:
        if Path(given).exists():
            return given
        raise


def open_dataset(given: str, root: str | Path | None = None, cache: Path | None = None) -> Benchmark:
    """A benchmark by its name, or a folder or CSV file of the user's own images."""
    name = dataset_name(given)
    return load_benchmark(name, root, cache) if name in CATALOGUE else load_folder(name)


def load_benchmark(name: str, root: str | Path | None = None, cache: Path | None = None) -> Benchmark:
    """Classes and items of a benchmark, from its annotation files alone; no picture needs to be there yet.

    A drawn benchmark that is not there is drawn first. A split that is not the published one, because it had to be
    dealt here or has other sizes, is announced with a warning.
    """
    row = benchmark_info(name)
    folder = benchmark_folder(row, root, cache)
    if row.drawn and find_source(row, folder) is None:
        render_benchmark(row.name, folder.parent)
    split = _read_split(row, folder)
    return Benchmark(
        name=row.name,
        images=folder / row.images,
        class_names=split.class_names,
        train=split.train,
        val=split.val,
        test=split.test,
        templates=row.templates,
    )


def _read_split(row: BenchmarkInfo, folder: Path) -> Split:
    source = find_source(row, folder)
    if source is None:
        looked_for = " or ".join(" + ".join(source.needs) for source in row.sources)
        raise InputError(
            f"no annotation files of {row.title} in {folder}: looked for {looked_for}. "
            f"Run `slimprompt data download {row.name}` or see {row.site}"
        )
    split = source.read(folder)
    if len(split.class_names) != row.classes:
        raise InputError(
            f"{row.title} has {row.classes} classes, but {' + '.join(source.needs)} in {folder} gives "
            f"{len(split.class_names)}; is the download complete, and the file of this benchmark?"
        )
    untrained = set(range(len(split.class_names))) - {item.label for item in split.train}
    if untrained:
        names = ", ".join(repr(split.class_names[label]) for label in sorted(untrained)[:3])
        raise InputError(f"{len(untrained)} classes of {row.title} in {folder} have no training items: {names}")
    sizes = (len(split.train), len(split.val), len(split.test))
    notes = []
    if source.drawn_here:
        notes.append(f"{row.sources[0].needs[0]} is not in {folder}, so this is our {source.kind}")
    if sizes != row.sizes:
        notes.append(f"train, val and test have {sizes} items where the published split has {row.sizes}")
    if notes:
        message = f"{row.title}: {'; '.join(notes)}. Results on it are not comparable with published ones"
        warnings.warn(message, stacklevel=3)
    return split


def find_source(row: BenchmarkInfo, folder: Path) -> Source | None:
    """The first source of the row whose files are all in `folder`."""
    return next((source for source in row.sources if not source.missing(folder)), None)
