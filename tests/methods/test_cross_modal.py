from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from slimprompt.methods import cross_modal


def test_the_first_step_is_that_of_adamw_on_images_and_texts(make_task) -> None:
    """12 images and 3 texts are one batch: w ← w (1 − lr · wd) − lr · g / (|g| + ε) at the warm-up rate 1e-5."""
    task = make_task(3, 4, views=0)
    scale, start = task.bank.backbone.logit_scale, task.class_features.double().numpy()
    features = np.vstack([task.eval_features.double().numpy(), start])
    labels = np.array([*task.labels, 0, 1, 2])
    errors = softmax(scale * features @ start.T, axis=1) - np.eye(3)[labels]
    gradient = scale * errors.T @ features / len(labels)
    expected = start * (1 - 1e-5 * 0.01) - 1e-5 * gradient / (np.abs(gradient) + 1e-8)
    found = cross_modal.fit(task, steps=1)
    np.testing.assert_allclose(found.head.weights.double().numpy(), expected, atol=1e-7)
    assert found.n_trained == 3 * 24


def test_batches_are_half_images_and_half_texts(make_task) -> None:
    task = make_task(20, 2, views=1)
    steps = list(cross_modal._steps(task, 60))
    assert {len(step.labels) for step in steps} == {32}
    texts = torch.nn.functional.normalize(task.template_features[0], dim=-1)
    for step in steps:
        torch.testing.assert_close(step.features[16:], texts[step.labels[16:]])
    assert steps[0].lr == 1e-5 and steps[50].lr == pytest.approx(1e-3) and steps[59].lr < 1e-3
