"""Classifiers to export: prompts that were not trained, which is enough to compare computations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from slimprompt import Backbone, Classifier, Prompt, load_backbone
from slimprompt.calibration import Calibration
from slimprompt.prompts.spec import make_spec
from slimprompt.training.recipe import RECIPES
from tests.conftest import TINY_CONFIG

NAMES = ("blue disc", "green disc", "red disc", "Käse & Brot")


@pytest.fixture(scope="session")
def images(photos: Path) -> list[Path]:
    return sorted(photos.glob("*/*.png"))


@pytest.fixture(scope="session")
def one_layer(model_config: Callable[[str, dict], str]) -> Backbone:
    """The tiny model with one layer of its image tower: the time of an ONNX export grows with the layers."""
    config = TINY_CONFIG | {"vision_cfg": TINY_CONFIG["vision_cfg"] | {"layers": 1}}
    return load_backbone(model_config("one-layer-for-tests", config), seed=0, device="cpu")


@pytest.fixture(scope="session")
def prompt_classifier() -> Callable[[Backbone], Classifier]:
    """A random prompt with a temperature."""

    def make(backbone: Backbone) -> Classifier:
        generator = torch.Generator().manual_seed(1)
        basis, coefficients = (torch.randn(shape, generator=generator) for shape in ((4, 2), (2, backbone.text_width)))
        prompt = Prompt(basis, 0.02 * coefficients, trainable="A")
        classifier = Classifier.of_prompt(backbone, prompt, make_spec(rank=2, n_ctx=4), NAMES)
        classifier.recipe_, classifier.calibration_ = RECIPES["fast"], Calibration(0.7, (0.4, 0.5))
        return classifier

    return make
