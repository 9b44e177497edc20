"""Small image folders and the data root of real benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slimprompt.data.benchmark import Benchmark, Item


@pytest.fixture
def draw_image() -> Callable[[Path, int], Path]:
    """Writes a small picture whose content depends on a number."""

    def write(path: Path, number: int = 0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return write


@pytest.fixture
def dtd_root(tmp_path: Path) -> Path:
    """A data root with a split file of DTD's 47 classes, 4 train, 2 val and 2 test items each, and no pictures."""
    split: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    for label in range(47):
        for number, part in enumerate(["train"] * 4 + ["val"] * 2 + ["test"] * 2):
            split[part].append([f"class{label}/{number}.jpg", label, f"class_{label}"])
    folder = tmp_path / "root" / "dtd"
    folder.mkdir(parents=True)
    (folder / "split_zhou_DescribableTextures.json").write_text(json.dumps(split))
    return tmp_path / "root"


@pytest.fixture
def small(tmp_path: Path, draw_image: Callable[[Path, int], Path]) -> Benchmark:
    """Three classes with pictures: 5 train, 2 val and 2 test items each."""
    names = ("cat", "dog", "eel")
    parts: dict[str, list[Item]] = {"train": [], "val": [], "test": []}
    for label, name in enumerate(names):
        for number, part in enumerate(["train"] * 5 + ["val"] * 2 + ["test"] * 2):
            path = f"{name}/{number}.png"
            draw_image(tmp_path / "images" / path, 10 * label + number)
            parts[part].append(Item(path, label, name))
    return Benchmark("small", tmp_path / "images", names, *(tuple(parts[part]) for part in ("train", "val", "test")))
