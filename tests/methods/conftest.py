"""Small tasks on the tiny model: noisy images of one colour per class."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from slimprompt.clip.backbone import Backbone
from slimprompt.images.bank import FeatureBank
from slimprompt.methods.task import Task

MakeTask = Callable[..., Task]


def noisy_images(labels: Sequence[int], n_classes: int, seed: int = 0) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    colours = rng.integers(0, 256, size=(n_classes, 3))
    noise = rng.normal(0, 40, size=(len(labels), 32, 32, 3))
    pixels = np.clip(colours[list(labels)][:, None, None] + noise, 0, 255).astype(np.uint8)
    return [Image.fromarray(image) for image in pixels]


def cosine_gradient(task: Task, weights: np.ndarray) -> np.ndarray:
    """Gradient of the mean cross-entropy of scale · cos(feature, weights) over all views of a task, written out."""
    features = task.view_features.double().numpy().reshape(-1, weights.shape[1])
    labels = np.tile(task.labels, len(task.view_features))
    scale, lengths = task.bank.backbone.logit_scale, np.linalg.norm(weights, axis=1, keepdims=True)
    unit = weights / lengths
    errors = softmax(scale * features @ unit.T, axis=1) - np.eye(len(weights))[labels]
    of_unit = scale * errors.T @ features / len(labels)
    return (of_unit - (of_unit * unit).sum(1, keepdims=True) * unit) / lengths


@pytest.fixture(scope="session")
def make_task(tiny: Backbone) -> MakeTask:
    """A task of `n_classes` classes with `shots` images each, or with the given labels."""
    bank = FeatureBank(tiny, None, show_progress=False)

    def make(n_classes: int = 3, shots: int = 4, *, labels: Sequence[int] | None = None, **fields: object) -> Task:
        labels = list(labels) if labels is not None else [label for label in range(n_classes) for _ in range(shots)]
        names = tuple(f"thing {number}" for number in range(n_classes))
        chosen = {"seed": 1, "views": 2, **fields}
        return Task(bank, noisy_images(labels, n_classes), labels, names, **chosen)

    return make
