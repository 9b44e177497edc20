"""The zero-shot initialised linear probe, and CLAP, which adds a penalty to it."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from slimprompt.methods import clap, zs_linear_probe
from tests.methods.conftest import cosine_gradient


def test_two_steps_by_hand(make_task) -> None:
    """An epoch at 1e-5, then one at 0.1, with momentum 0.9; 36 views fit in one batch."""
    task = make_task(3, 4, views=2)
    start = task.template_features.mean(0).double().numpy()
    velocity = cosine_gradient(task, start)
    weights = start - 1e-5 * velocity
    velocity = 0.9 * velocity + cosine_gradient(task, weights)
    weights = weights - 0.1 * velocity
    found = zs_linear_probe.fit(task, epochs=2)
    expected = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    np.testing.assert_allclose(found.head.weights.double().numpy(), expected, atol=1e-5)
    assert found.head.scale == task.bank.backbone.logit_scale and found.n_trained == 3 * 24


def test_penalties_are_the_mean_zero_shot_probabilities(make_task) -> None:
    task = make_task(labels=[0, 0, 1, 2, 2, 2], views=1)
    scale, texts = task.bank.backbone.logit_scale, task.class_features.double().numpy()
    probabilities = softmax(scale * task.view_features.double().numpy() @ texts.T, axis=-1)
    labels = np.array(task.labels)
    expected = [probabilities[:, labels == label, label].mean() for label in range(3)]
    np.testing.assert_allclose(clap.penalties(task).numpy(), expected, rtol=1e-4)


def test_clap_converges_to_the_minimum_that_scipy_finds(make_task) -> None:
    task = make_task(3, 4, views=1)
    scale, start = task.bank.backbone.logit_scale, task.template_features.mean(0).double().numpy()
    features, labels = task.view_features.double().numpy().reshape(-1, 24), np.tile(task.labels, 2)
    penalty = clap.penalties(task).double().numpy()

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(start.shape)
        unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
        losses = -log_softmax(scale * features @ unit.T, axis=1)[np.arange(len(labels)), labels]
        value = losses.mean() + (penalty * ((weights - start) ** 2).sum(1)).mean()
        gradient = cosine_gradient(task, weights) + 2 * penalty[:, None] * (weights - start) / len(start)
        return float(value), gradient.ravel()

    best = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14})
    found = clap.fit(task, epochs=2000).head.weights.double().numpy()
    expected = best.x.reshape(start.shape)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    free = zs_linear_probe.fit(task).head.weights.double().numpy()
    assert np.abs(free - expected).max() > 0.02  # the penalty makes a difference
