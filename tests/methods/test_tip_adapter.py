from __future__ import annotations

import numpy as np
import torch
from scipy.special import softmax

from slimprompt.methods import tip_adapter


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_logits_are_the_published_formula(make_task) -> None:
    task = make_task(labels=[0, 1, 1, 2, 2, 2], views=3)
    fitted = tip_adapter.fit(task)
    alpha, beta = fitted.settings["alpha"], fitted.settings["beta"]
    assert alpha in tip_adapter.ALPHAS and beta in tip_adapter.BETAS
    features = unit(np.random.default_rng(0).normal(size=(7, 24)))
    keys, values = unit(task.view_features.double().numpy().mean(0)), np.eye(3)[list(task.labels)]
    zero_shot = task.bank.backbone.logit_scale * features @ task.class_features.double().numpy().T
    expected = zero_shot + alpha * np.exp(-beta * (1 - features @ keys.T)) @ values
    found = fitted.head.logits(torch.from_numpy(features).float())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert fitted.n_trained == 6 * 24


def test_one_shot_uses_the_published_starting_values(make_task) -> None:
    assert tip_adapter.fit(make_task(3, 1)).settings == {"alpha": 1.17, "beta": 1.0}


def test_keys_take_the_first_step_of_adamw(make_task) -> None:
    """One epoch over the eval views: k ← k (1 − lr · wd) − lr · g / (|g| + ε), with g written out."""
    task = make_task(3, 4, views=0)
    (alpha, beta), scale = tip_adapter.DEFAULT, task.bank.backbone.logit_scale
    features, values = task.eval_features.double().numpy(), np.eye(3)[list(task.labels)]
    affinities = np.exp(-beta * (1 - features @ features.T))  # without train views the keys are the features
    logits = scale * features @ task.class_features.double().numpy().T + alpha * affinities @ values
    errors = (softmax(logits, axis=1) - values) / len(features)
    gradient = (alpha * beta * affinities * (errors @ values.T)).T @ features
    expected = features * (1 - 1e-3 * 0.01) - 1e-3 * gradient / (np.abs(gradient) + 1e-4)
    fitted = tip_adapter.fit_keys(task, epochs=1)
    np.testing.assert_allclose(fitted.head.keys.double().numpy(), expected, atol=2e-6)
