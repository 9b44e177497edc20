"""Fixtures for the data tests: an annotated benchmark without images, and a small one with images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slimprompt.data.benchmark import SPLITS, Benchmark, Item
from tests.conftest import draw


@pytest.fixture
def dtd_root(tmp_path: Path) -> Path:
    """A data root with a split file of DTD's 47 classes, 4 train, 2 val and 2 test items each, and no images."""
    split: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    for label in range(47):
        for number, name in enumerate(["train"] * 4 + ["val"] * 2 + ["test"] * 2):
            split[name].append([f"class{label}/{number}.jpg", label, f"class_{label}"])
    folder = tmp_path / "root" / "dtd"
    folder.mkdir(parents=True)
    (folder / "split_zhou_DescribableTextures.json").write_text(json.dumps(split))
    return tmp_path / "root"


@pytest.fixture
def small(tmp_path: Path) -> Benchmark:
    """Three classes with images: 5 train, 2 val and 2 test items each."""
    colour_of = {"cat": "red", "dog": "green", "eel": "blue"}
    items: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for label, (name, colour) in enumerate(colour_of.items()):
        for number, split in enumerate(["train"] * 5 + ["val"] * 2 + ["test"] * 2):
            path = f"{name}/{number}.png"
            draw(tmp_path / "images" / path, colour, number)
            items[split].append(Item(path, label, name))
    return Benchmark("small", tmp_path / "images", tuple(colour_of), *(tuple(items[split]) for split in SPLITS))
