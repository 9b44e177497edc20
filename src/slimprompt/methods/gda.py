"""Gaussian discriminant analysis beside the zero-shot classifier, in closed form.

logits_k = scale · f t_k + α (f Σ̂⁻¹ μ_k + log p_k − ½ μ_kᵀ Σ̂⁻¹ μ_k), with class means μ_k, one covariance Σ̂ of the centred features
of all N views, p_k = 1 / n_classes, and the ridge estimate Σ̂⁻¹ = d · pinv((N − 1) Σ̂ + tr(Σ̂) I), where d is the dimension.

Wang et al., "A Hard-to-Beat Baseline for Training-Free CLIP-Based Adaptation" (ICLR 2024; mrflogs/ICLR24,
`main_few_shots.py`). They choose α from 1e-4, 1e-3, …, 100 on the validation images (on ImageNet on the test images); here it is
chosen from the same values by cross-validation inside the training images. With one image per class, α = 0.001, which their
log shows for one image per class of Caltech101. They use 10 random crops of 50 to 100 % of the image; here it is the eval view
and the train views of the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from slimprompt.methods.cross_validation import select
from slimprompt.methods.head import FittedHead, Head
from slimprompt.methods.task import Task

ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
DEFAULT_ALPHA = 1e-3


def fit(task: Task, *, alpha: float | None = None) -> FittedHead:
    """Fit class means and covariance, and choose α unless it is given."""
    task.require_every_class("gda")
    views, targets = task.view_features.cpu().double(), task.targets.cpu()
    scale, texts = task.bank.backbone.logit_scale, task.class_features.cpu().double()
    n_classes = len(task.class_names)

    def logits_of(kept: Tensor, held_out: Tensor) -> Iterator[Tensor]:
        weights, bias = discriminant(views[:, kept], targets[kept], n_classes)
        features = views[0, held_out]
        zero_shot, gaussian = scale * features @ texts.T, features @ weights.T + bias
        for alpha in ALPHAS:
            yield (zero_shot + alpha * gaussian).to(task.targets.device, torch.float32)

    alpha = select(task, ALPHAS, logits_of, DEFAULT_ALPHA) if alpha is None else alpha
    weights, bias = discriminant(views, targets, n_classes)
    summed, offset = (
        part.to(task.targets.device, torch.float32) for part in (texts + alpha / scale * weights, alpha * bias)
    )
    head = Head(task.class_names, summed, scale, offset)
    return FittedHead(head, weights.numel() + bias.numel(), {"alpha": alpha})


def discriminant(views: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """W = μ Σ̂⁻¹ (n_classes, embed_dim) and b = log p − ½ diag(μ Σ̂⁻¹ μᵀ) (n_classes,), in double precision.

    From unit-length features (n_views, n_images, embed_dim) and labels (n_images,), among which every class occurs.
    """
    width = views.shape[-1]
    counts = labels.bincount(minlength=n_classes)[:, None]
    means = views.new_zeros(n_classes, width).index_add_(0, labels, views.mean(0)) / counts
    centred = (views - means[labels]).reshape(-1, width)  # (n_views · n_images, embed_dim)
    scatter = centred.T @ centred  # (N − 1) Σ̂
    trace = scatter.trace() / max(1, len(centred) - 1)
    inverse = width * torch.linalg.pinv(scatter + trace * torch.eye(width, dtype=views.dtype), hermitian=True)
    weights = means @ inverse
    return weights, -math.log(n_classes) - (weights * means).sum(1) / 2
