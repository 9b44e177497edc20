"""Rendered pocket images of which some are mislabelled or copied."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image, ImageEnhance

from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.images.bank import FeatureBank
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

N_CLASSES, N_TRAIN, N_TEST = 10, 24, 6


class Planted(NamedTuple):
    """A folder train|test/<class>/<image>, with what was planted there."""

    folder: Path
    moved: dict[Path, str]
    """Image in the folder of a wrong class → its true class."""
    exact: set[frozenset[Path]]
    """A file and its copy in another class."""
    leaked: set[frozenset[Path]]
    """A train image and a brighter copy of it in the same class of test."""


@pytest.fixture(scope="session")
def pocket() -> Backbone:
    return load_backbone("pocket", device="cpu")


@pytest.fixture(scope="session")
def pocket_bank(pocket: Backbone) -> FeatureBank:
    return FeatureBank(pocket, None)


def render_folder(folder: Path) -> list[Path]:
    """Render 10 classes of pocket images; returns the class folders of train."""
    world = POCKET_BENCHMARKS["pocket-negative"]
    for label, name in enumerate(world.class_names[:N_CLASSES]):
        for number in range(N_TRAIN + N_TEST):
            split = "train" if number < N_TRAIN else "test"
            path = folder / split / name / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(world.image(label, number)).save(path, compress_level=1)
    return sorted((folder / "train").iterdir())


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """12 of 240 train images have a wrong label; 4 are also in another class and 4 brighter in test."""
    folder = tmp_path_factory.mktemp("planted")
    classes, stream = render_folder(folder), random.Random(0)
    files = stream.sample(sorted(folder.glob("train/*/*.png")), 20)
    moved, exact, leaked = {}, set(), set()
    for number, path in enumerate(files):
        other = stream.choice([one for one in classes if one != path.parent])
        target = other / f"{path.parent.name} {path.name}"
        if number < 12:
            path.rename(target)
            moved[target] = path.parent.name
        elif number < 16:
            shutil.copy(path, target)
            exact.add(frozenset((path, target)))
        else:
            target = folder / "test" / path.parent.name / f"brighter {path.name}"
            ImageEnhance.Brightness(Image.open(path)).enhance(1.02).save(target)
            leaked.add(frozenset((path, target)))
    return Planted(folder, moved, exact, leaked)
