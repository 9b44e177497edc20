from __future__ import annotations

import numpy as np

from slimprompt.methods import task_residual
from tests.methods.conftest import cosine_gradient


def test_two_steps_by_hand(make_task) -> None:
    """An epoch at 1e-5, then one at 0.002, of Adam with an L2 penalty of 5e-4, written out; 12 images are one batch."""
    task = make_task(3, 4, views=0)
    start = task.template_features.mean(0).double().numpy()
    residual, mean, square = np.zeros_like(start), np.zeros_like(start), np.zeros_like(start)
    for number, lr in enumerate((1e-5, 2e-3), start=1):
        gradient = 0.5 * cosine_gradient(task, start + 0.5 * residual) + 5e-4 * residual
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        corrected = mean / (1 - 0.9**number), square / (1 - 0.999**number)
        residual = residual - lr * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    weights = start + 0.5 * residual
    found = task_residual.fit(task, epochs=2)
    expected = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    np.testing.assert_allclose(found.head.weights.double().numpy(), expected, atol=1e-6)
    assert np.abs(expected - start / np.linalg.norm(start, axis=1, keepdims=True)).max() > 1e-4
    assert found.n_trained == 3 * 24


def test_epochs_depend_on_the_number_of_images(make_task, monkeypatch) -> None:
    """100 epochs up to 4 images per class, 200 above."""
    counted, views = [], task_residual.one_view_each
    monkeypatch.setattr(
        task_residual, "one_view_each", lambda task, epochs, size: counted.append(epochs) or views(task, epochs, size)
    )
    for shots in (1, 4, 5):
        task_residual.fit(make_task(2, shots, views=0))
    assert counted == [100, 100, 200]
