"""Linear probe: logistic regression on image features, without the text tower.

logits = f Wᵀ + b minimises C · Σ cross-entropy + ½ ‖W‖² over the eval views of the training images.

C is chosen by cross-validation inside the training images. CLIP (Radford et al. 2021) and CoOp's code (`lpclip/linear_probe.py`)
search a log-spaced range on validation images instead, from 1e-6 to 1e6 with a binary search, on features that are not of unit
length; below 1e-2 and above 1e4 the ranking of the classes hardly changes on unit-length features. The solver and its limit of
1,000 iterations are theirs. With one image per class, C = 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slimprompt.methods.cross_validation import select
from slimprompt.methods.head import FittedHead, Head
from slimprompt.methods.logistic import quiet_single_thread
from slimprompt.methods.task import Task

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

STRENGTHS = (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
DEFAULT_STRENGTH = 1.0


def fit(task: Task, *, C: float | None = None) -> FittedHead:
    """Fit the linear probe of a task, and choose C unless it is given."""
    task.require_every_class("linear-probe")
    features = task.eval_features.cpu().double().numpy()
    labels, device = np.array(task.labels), task.targets.device

    def logits_of(kept: Tensor, held_out: Tensor) -> Iterator[Tensor]:
        model = _model(1.0, warm_start=True)
        for strength in STRENGTHS:
            weights, bias = _solve(model.set_params(C=strength), features[kept], labels[kept])
            yield (torch.from_numpy(features)[held_out] @ weights.T + bias).to(device)

    with quiet_single_thread():  # the published protocol also stops after 1,000 iterations
        strength = select(task, STRENGTHS, logits_of, DEFAULT_STRENGTH) if C is None else C
        weights, bias = _solve(_model(strength), features, labels)
    head = Head(task.class_names, weights.float().to(device), 1.0, bias.float().to(device))
    return FittedHead(head, weights.numel() + bias.numel(), {"C": strength})


def _model(strength: float, *, warm_start: bool = False) -> LogisticRegression:
    from sklearn.linear_model import LogisticRegression  # slow to import, and not needed to predict

    return LogisticRegression(C=strength, max_iter=1000, warm_start=warm_start)


def _solve(model: LogisticRegression, features: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    """W (n_classes, embed_dim) and b (n_classes,)."""
    model.fit(features, labels)
    weights, bias = torch.from_numpy(model.coef_.copy()), torch.from_numpy(model.intercept_.copy())
    if len(weights) == 1:  # two classes: scikit-learn stores the difference of their logits
        weights, bias = torch.cat([-weights, weights]) / 2, torch.cat([-bias, bias]) / 2
    return weights, bias
