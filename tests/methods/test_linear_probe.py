from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from slimprompt.methods import linear_probe


@pytest.mark.parametrize("n_classes", [2, 3])
def test_equals_scipy_on_the_same_objective(make_task, n_classes: int) -> None:
    task = make_task(n_classes, 6)
    fitted = linear_probe.fit(task)
    strength = fitted.settings["C"]
    assert strength in linear_probe.STRENGTHS
    features, labels = task.eval_features.double().numpy(), np.array(task.labels)

    # C Σ cross-entropy + ½ ‖W‖²; two classes have one weight vector, the difference of their logits
    def logits_of(flat: np.ndarray) -> np.ndarray:
        table = flat.reshape(-1, 25)
        logits = features @ table[:, :24].T + table[:, 24]
        return np.hstack([np.zeros_like(logits), logits]) if n_classes == 2 else logits

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        table, logits = flat.reshape(-1, 25), logits_of(flat)
        value = -strength * log_softmax(logits, axis=1)[np.arange(len(labels)), labels].sum()
        errors = strength * (softmax(logits, axis=1) - np.eye(n_classes)[labels])[:, -len(table) :]
        gradient = np.hstack([errors.T @ features + table[:, :24], errors.sum(0)[:, None]])
        return float(value + (table[:, :24] ** 2).sum() / 2), gradient.ravel()

    rows = 1 if n_classes == 2 else n_classes
    best = minimize(objective, np.zeros(rows * 25), jac=True, method="BFGS", options={"gtol": 1e-7})
    expected = logits_of(best.x)
    found = fitted.head.logits(task.eval_features).double().numpy()
    np.testing.assert_allclose(softmax(found, axis=1), softmax(expected, axis=1), atol=2e-3)
    assert fitted.n_trained == n_classes * 24 + n_classes
