"""A prompt for the examples: the pocket model and a few rendered discs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimprompt import PromptClassifier


@pytest.fixture(scope="session")
def examples() -> Path:
    return Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def classifier(photos: Path) -> PromptClassifier:
    paths = sorted(photos.glob("*/*.png"))
    labels = [path.parent.name for path in paths]
    return PromptClassifier("pocket", device="cpu", cache=False, recipe={"epochs": 2, "views": 0}).fit(paths, labels)
