"""The loss of a training step, and what keeps a prompt close to zero-shot: KgCoOp's distance, ProGrad's projection.

The latter two use the class features of the training step, so they need no text pass of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def balanced_weights(labels: Tensor) -> Tensor:
    """w_k = n / (K n_k) for n labels of K classes, n_k of class k; 0 for a class without images. (largest label + 1,)."""
    counts = labels.bincount()
    return torch.where(counts > 0, len(labels) / ((counts > 0).sum() * counts.clamp(min=1)), 0.0)


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ_i w_i (−log p_i) / Σ_i w_i over the images i; the mean without weights.

    logits (batch, n_classes), targets (batch,), weights (batch,), of which one is above 0 or the loss is 0.
    """
    if weights is None:
        return F.cross_entropy(logits, targets)
    return (weights * F.cross_entropy(logits, targets, reduction="none")).sum() / weights.sum().clamp(min=1e-12)


def feature_distance(text: Tensor, zero_shot: Tensor) -> Tensor:
    """mean_k (1 − cos(t_k, t_k⁰)) for unit-length class features t, t⁰ (n_classes, embed_dim)."""
    return 1 - (text * zero_shot).sum(-1).mean()


def kl_to_zero_shot(logits: Tensor, zero_shot_logits: Tensor) -> Tensor:
    """mean over images of KL(zero-shot ‖ prompt), up to a constant, from logits (batch, n_classes).

    The constant is the entropy of the zero-shot predictions, which has no gradient.
    """
    return F.cross_entropy(logits, zero_shot_logits.softmax(-1))


def prograd_backward(loss: Tensor, zero_shot_kl: Tensor, factors: Sequence[Sequence[Tensor]]) -> None:
    """Gradients of `loss` without what would raise `zero_shot_kl`: two backward passes through one forward pass.

    With g = ∇loss and d = ∇zero_shot_kl over all trained factors of a prompt together: g ← g − min(0, g·d) / ‖d‖² d. A step along
    −g then does not raise `zero_shot_kl` to first order. `loss` and `zero_shot_kl` have one value per prompt; `grad` of its factors is set.
    """
    directions = iter(
        torch.autograd.grad(zero_shot_kl.sum(), [one for own in factors for one in own], retain_graph=True)
    )
    loss.sum().backward()
    for own in factors:
        gradient = [factor.grad for factor in own if factor.grad is not None]
        direction = [next(directions) for _ in own]
        conflict = _dot(gradient, direction).clamp(max=0) / _dot(direction, direction).clamp(min=1e-30)
        for g, d in zip(gradient, direction, strict=True):
            g -= conflict * d


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(one, other, strict=True)]).sum()
