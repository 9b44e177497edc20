"""A tiny open_clip model with random weights and a folder of drawn pictures: what most tests run on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image, ImageDraw

from slimprompt.backbone import Backbone, load_backbone

TINY = "tiny-for-tests"
TINY_CONFIG = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 40, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 3},
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or left in the user's cache."""
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def model_config(tmp_path_factory: pytest.TempPathFactory):
    """Registers an open_clip architecture under a name."""

    def register(name: str, config: dict) -> str:
        path = tmp_path_factory.mktemp("configs") / f"{name}.json"
        path.write_text(json.dumps(config))
        open_clip.add_model_config(path)
        return name

    return register


@pytest.fixture(scope="session")
def tiny(model_config) -> Backbone:
    return load_backbone(model_config(TINY, TINY_CONFIG), seed=0, device="cpu")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real benchmarks, where there is one."""
    root = os.environ.get("SLIMPROMPT_DATA")
    if not root:
        pytest.skip("SLIMPROMPT_DATA is not set: the real benchmark files are not here")
    return Path(root)


def draw(path: Path, colour: str, number: int, size: int = 40) -> Path:
    """A disc of one colour, somewhere on grey."""
    image = Image.new("RGB", (size, size), (128, 128, 128 + number % 8))
    x, y = 4 + number * 3 % 12, 4 + number * 5 % 12
    ImageDraw.Draw(image).ellipse((x, y, x + 20, y + 20), fill=colour)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/<class>/<image>: three classes of six pictures."""
    root = tmp_path_factory.mktemp("photos")
    for colour in ("red", "green", "blue"):
        for number in range(6):
            draw(root / f"{colour} disc" / f"{number}.png", colour, number)
    return root
