from __future__ import annotations

import json
from pathlib import Path

import pytest

from slimprompt import Backbone, Classifier, FeatureBank
from slimprompt.data import Benchmark, base_new, few_shot, short_classes
from slimprompt.data.benchmark import SPLITS
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.readers import leaves_root, read_split_file, variant_lists
from slimprompt.errors import InputError
from slimprompt.fit import labelled_images
from slimprompt.methods.task import make_task
from tests.conftest import draw


def written(path: Path, split: object) -> Path:
    path.write_text(split if isinstance(split, str) else json.dumps(split))
    return path


def test_split_file(tmp_path: Path) -> None:
    split = {"train": [["b/1.jpg", 1, "dog"], ["a/1.jpg", 0, "cat"]], "val": [], "test": [["a/2.jpg", 0, "cat"]]}
    names, train, val, test = read_split_file(written(tmp_path / "split.json", split))
    assert names == ("cat", "dog")
    assert [tuple(item) for item in train] == [("b/1.jpg", 1, "dog"), ("a/1.jpg", 0, "cat")]
    assert val == ()
    assert [item.path for item in test] == ["a/2.jpg"]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ('{"train": [', "cannot read the split file"),
        ([], "is not a split file"),
        ({"train": [], "test": []}, "is not a split file"),
        ({"train": [["a.jpg", 0]], "val": [], "test": []}, r"train\[0\]: expected \[path, label, class name\]"),
        ({"train": [["a.jpg", "0", "cat"]], "val": [], "test": []}, r"train\[0\]: expected"),
        ({"train": [["a.jpg", True, "cat"]], "val": [], "test": []}, r"train\[0\]: expected"),
        ({"train": [["a.jpg", -1, "cat"]], "val": [], "test": []}, "expected a label ≥ 0"),
        ({"train": [["a.jpg", 0, " "]], "val": [], "test": []}, "a class name that is not empty"),
        (
            {"train": [["a.jpg", 0, "cat"], ["b.jpg", 0, "dog"]], "val": [], "test": []},
            "label 0 is both 'cat' and 'dog'",
        ),
        ({"train": [["a.jpg", 0, "cat"], ["b.jpg", 2, "dog"]], "val": [], "test": []}, "without a gap"),
        (
            {"train": [["a.jpg", 0, "cat"]], "val": [["../b.jpg", 0, "cat"]], "test": []},
            r"val\[0\].*leaves the images folder",
        ),
        ({"train": [["/etc/passwd", 0, "cat"]], "val": [], "test": []}, "leaves the images folder"),
    ],
)
def test_bad_split_files(split: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_split_file(written(tmp_path / "split.json", split))


@pytest.mark.parametrize(
    "path", ["", "/a.jpg", "..", "../a.jpg", "a/../../b.jpg", "a/..", r"..\a.jpg", r"C:\a.jpg", "c:a", "a\0b"]
)
def test_paths_that_leave_the_folder(path: str) -> None:
    assert leaves_root(path)


@pytest.mark.parametrize("path", ["a.jpg", "a/b/c.jpg", "a..b/c.jpg", "...jpg", "a b/ä.jpg"])
def test_paths_inside_the_folder(path: str) -> None:
    assert not leaves_root(path)


def test_damaged_annotations(tmp_path: Path) -> None:
    (tmp_path / "variants.txt").mkdir()
    with pytest.raises(InputError, match=r"variants\.txt"):
        variant_lists().read(tmp_path)


def test_unknown_variant(tmp_path: Path) -> None:
    (tmp_path / "variants.txt").write_text("707-320\n")
    for name in SPLITS:
        (tmp_path / f"images_variant_{name}.txt").write_text("0001 707-320\n0002 DC-3\n")
    with pytest.raises(InputError, match=r"'DC-3', which is not in variants.txt"):
        BENCHMARKS["fgvc_aircraft"].source.read(tmp_path)


IMAGENET_NAMES = "n01440764 tench\nn02012849 crane\nn03126707 crane\nn07747607 orange\n"


def make_tree(root: Path, files: dict[str, list[str]], names: str = IMAGENET_NAMES) -> Path:
    """Files that are empty: a reader that opened one would fail."""
    for folder, images in files.items():
        (root / folder).mkdir(parents=True)
        for image in images:
            (root / folder / image).touch()
    (root / "classnames.txt").write_text(names)
    return root


def test_imagenet_folders(tmp_path: Path) -> None:
    """Labels in the order of the ids, images in the order of their names; the validation images are the test split."""
    make_tree(
        tmp_path,
        {
            "images/train/n03126707": ["n03126707_2.JPEG", "n03126707_10.JPEG", "notes.txt", ".hidden.JPEG"],
            "images/train/n01440764": ["n01440764_1.JPEG"],
            "images/val/n01440764": ["ILSVRC2012_val_00000293.JPEG"],
            "images/val/n03126707": ["ILSVRC2012_val_00000007.JPEG"],
        },
    )
    source = BENCHMARKS["imagenet"].source
    assert source.missing(tmp_path) == []
    assert source.missing(tmp_path / "images") == ["classnames.txt", "images/train", "images/val"]
    names, train, val, test = source.read(tmp_path)
    assert names == ("tench", "crane")
    assert [tuple(item) for item in train] == [
        ("train/n01440764/n01440764_1.JPEG", 0, "tench"),
        ("train/n03126707/n03126707_10.JPEG", 1, "crane"),
        ("train/n03126707/n03126707_2.JPEG", 1, "crane"),
    ]
    assert val == ()
    assert [(item.path, item.label) for item in test] == [
        ("val/n01440764/ILSVRC2012_val_00000293.JPEG", 0),
        ("val/n03126707/ILSVRC2012_val_00000007.JPEG", 1),
    ]


@pytest.mark.parametrize(
    ("name", "images"), [("imagenet_sketch", "images"), ("imagenet_a", "imagenet-a"), ("imagenet_r", "imagenet-r")]
)
def test_imagenet_variants(name: str, images: str, tmp_path: Path) -> None:
    """The classes are those that have a folder, although the list of names is ImageNet's."""
    info = BENCHMARKS[name]
    folder = make_tree(
        tmp_path / info.folder, {f"{images}/n07747607": ["1.jpg"], f"{images}/n02012849": ["2.jpg", "1.jpg"]}
    )
    (folder / images / "README.txt").touch()
    expected = (("crane", "orange"), (), ())
    *annotations, test = info.source.read(folder)
    assert tuple(annotations) == expected
    assert [tuple(item) for item in test] == [
        ("n02012849/1.jpg", 0, "crane"),
        ("n02012849/2.jpg", 0, "crane"),
        ("n07747607/1.jpg", 1, "orange"),
    ]
    # The folder may be a link to another disk.
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert info.source.missing(folder) == [] and info.source.read(folder).test == test


def test_imagenetv2_folders_are_numbers(tmp_path: Path) -> None:
    images = BENCHMARKS["imagenetv2"].images
    tree = {f"{images}/{number}": [f"{number}.jpeg"] for number in (3, 0, 2, 1)}
    names, _, _, test = BENCHMARKS["imagenetv2"].source.read(make_tree(tmp_path, tree))
    assert names == ("tench", "crane", "crane", "orange"), "two classes may have one name"
    assert [tuple(item) for item in test] == [
        ("0/0.jpeg", 0, "tench"),
        ("1/1.jpeg", 1, "crane"),
        ("2/2.jpeg", 2, "crane"),
        ("3/3.jpeg", 3, "orange"),
    ]


@pytest.mark.parametrize(
    ("files", "names", "message"),
    [
        ({"images/n01440764": ["1.jpg"], "images/n99999999": []}, IMAGENET_NAMES, r"n99999999 is not a class of class"),
        ({"images": ["1.jpg"]}, IMAGENET_NAMES, r"no class folders in .*images: expected .*images/<class>/<image>"),
        ({"images/n01440764": ["1.jpg"]}, "n01440764 tench\ntench\n", r"line 2: expected <WordNet id> <class name>"),
        ({"images/n01440764": ["1.jpg"]}, "n01440764\n", r"line 1: expected <WordNet id> <class name>"),
    ],
)
def test_damaged_imagenet_folders(files: dict[str, list[str]], names: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        BENCHMARKS["imagenet_sketch"].source.read(make_tree(tmp_path, files, names))


def test_two_classes_of_one_name_stay_apart(tiny: Backbone, tmp_path: Path) -> None:
    """As in ImageNet, where classes are told apart by their labels; equal names are equal texts."""
    rows = {split: [] for split in ("train", "val", "test")}
    for label, colour in enumerate(("red", "blue", "green")):
        for number, split in enumerate(("train", "train", "val", "test")):
            path = f"{label}/{number}.png"
            draw(tmp_path / path, colour, number)
            rows[split].append([path, label, "eel" if label == 2 else "crane"])
    (tmp_path / "split.json").write_text(json.dumps(rows))
    read = read_split_file(tmp_path / "split.json")
    benchmark = Benchmark("birds", tmp_path, *read)
    assert benchmark.class_names == ("crane", "crane", "eel")
    sample = few_shot(benchmark, 1, seed=1)
    assert [item.label for item in sample.train] == [item.label for item in sample.val] == [0, 1, 2]
    assert [len(part.class_names) for part in base_new(sample)] == [2, 1]
    assert short_classes(benchmark, 3) == [("crane", 2), ("crane", 2), ("eel", 2)]
    task = make_task(FeatureBank(tiny, None), labelled_images(sample, sample.train), seed=1)
    assert task.class_names == ("crane", "crane", "eel") and task.targets.tolist() == [0, 1, 2]
    first, second, other = task.class_features
    assert first.equal(second) and not first.equal(other)
    fitted = Classifier(tiny, rank=2, n_ctx=4, recipe={"epochs": 2, "views": 0}).fit_task(task)
    assert fitted.head_.logits(task.eval_features).shape == (3, 3)
