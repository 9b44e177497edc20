"""Rendered pocket images, and a prompt and a head on the embedded model."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from slimprompt import Classifier
from slimprompt.clip.backbone import load_backbone
from slimprompt.collections.predict import PredictionSpec
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

N_CLASSES, N_IMAGES = 3, 6


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """images/<class>/<number>.png: three classes of six images."""
    folder, world = tmp_path_factory.mktemp("rendered") / "images", POCKET_BENCHMARKS["pocket-sketch"]
    for label, name in enumerate(world.class_names[:N_CLASSES]):
        for number in range(N_IMAGES):
            path = folder / name / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(world.image(label, number)).save(path, compress_level=1)
    return folder


@pytest.fixture(scope="session")
def paths(images: Path) -> list[Path]:
    """All images, in sorted order."""
    return sorted(images.rglob("*.png"))


@pytest.fixture(scope="session")
def models(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved prompt and a saved head."""
    root, backbone = tmp_path_factory.mktemp("models"), load_backbone("pocket", device="cpu")
    labels = [path.parent.name for path in paths]
    recipe = {"epochs": 2, "views": 1}
    prompt = Classifier(backbone, n_ctx=4, rank=2, recipe=recipe, cache=False, calibrate=True)
    prompt.fit(paths, labels).save(root / "prompt")
    Classifier(backbone, method="gda", views=1, cache=False).fit(paths, labels).save(root / "head")
    return root


@pytest.fixture
def spec(models: Path) -> PredictionSpec:
    return PredictionSpec(str(models / "prompt"), device="cpu", batch_size=4)
