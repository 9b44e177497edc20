from __future__ import annotations

import numpy as np
import torch

from slimprompt.methods import gda


def published(views: np.ndarray, labels: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """W (embed_dim, n_classes) and b as the formula says, with numpy's covariance."""
    flat, tiled = views.reshape(-1, views.shape[-1]), np.tile(labels, len(views))
    means = np.stack([flat[tiled == label].mean(0) for label in range(n_classes)])
    centred = flat - means[tiled]
    n, width = centred.shape
    covariance = np.cov(centred.T)
    inverse = width * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(width))
    quadratic = np.einsum("kd,de,ke->k", means, inverse, means)
    return inverse @ means.T, np.log(1 / n_classes) - quadratic / 2


def test_logits_are_the_published_formula(make_task) -> None:
    task = make_task(labels=[0, 0, 0, 1, 1, 2, 2, 2, 2], views=3)
    fitted = gda.fit(task)
    alpha = fitted.settings["alpha"]
    assert alpha in gda.ALPHAS
    weights, bias = published(task.view_features.double().numpy(), np.array(task.labels), 3)
    features = np.random.default_rng(0).normal(size=(7, 24))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    zero_shot = task.bank.backbone.logit_scale * features @ task.class_features.double().numpy().T
    expected = zero_shot + alpha * (features @ weights + bias)
    found = fitted.head.logits(torch.from_numpy(features).float())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert fitted.n_trained == 3 * 24 + 3


def test_one_shot_uses_the_default_and_stays_finite(make_task) -> None:
    fitted = gda.fit(make_task(3, 1, views=0))  # one view of one image: the covariance is zero
    assert fitted.settings == {"alpha": gda.DEFAULT_ALPHA}
    assert torch.isfinite(fitted.head.weights).all()


def test_held_out_images_decide_alpha(make_task) -> None:
    """The colours of the classes are easy to learn and their names say nothing, so zero-shot should get little weight."""
    task = make_task(4, 8)
    fitted = gda.fit(task)
    assert fitted.settings["alpha"] >= 0.1
    assert (fitted.head.logits(task.eval_features).argmax(1) == task.targets).double().mean() > 0.9
