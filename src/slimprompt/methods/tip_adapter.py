"""Tip-Adapter: training images as keys of a cache beside the zero-shot classifier; and Tip-Adapter-F, which trains the keys.

logits = scale · f Tᵀ + α · exp(−β (1 − f Kᵀ)) Y. A key is the normalised mean of the views of a training image; Y holds the
one-hot labels.

Zhang et al. (ECCV 2022; gaopengcuhk/Tip-Adapter, `main.py` and `configs/`). Differences from their code:

- They search α in [0.1, 3] and β in [0.1, 7] on the validation images (on ImageNet on the test images). Here `tip-adapter`
  chooses them from a grid over these ranges by cross-validation inside the training images; with one image per class they are
  the published starting values, α = 1.17 and β = 1. `tip-adapter-f` keeps the starting values that its keys were trained with.
- Tip-Adapter-F keeps the epoch with the best accuracy on the test images and reports the better of two test accuracies. Here
  the last epoch is the result.
- They average 10 random crops of 50 to 100 % of the image; here it is the eval view and the train views of the task.
- Their factor 100 is the scale of CLIP's own logits; here it is the scale of the backbone.

Training as published: 20 epochs of AdamW, learning rate 0.001 with a cosine schedule over the steps, weight decay 0.01, ε = 1e-4,
batches of 256 images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.methods.cross_validation import select
from slimprompt.methods.descent import Step, minimise, one_view_each
from slimprompt.methods.head import CacheHead, FittedHead
from slimprompt.methods.task import Task
from slimprompt.training.optimizers import AdamW

#: The published starting values of α and β.
DEFAULT = (1.17, 1.0)
#: Candidates over the published ranges.
ALPHAS, BETAS = (0.1, 0.3, 1.17, 3.0), (0.1, 0.3, 1.0, 3.0, 7.0)
EPOCHS, BATCH_SIZE, LR, WEIGHT_DECAY, EPSILON = 20, 256, 1e-3, 0.01, 1e-4


def fit(task: Task, *, alpha: float | None = None, beta: float | None = None) -> FittedHead:
    """Tip-Adapter without training; α and β are chosen where they are not given."""
    alphas, betas = (ALPHAS if alpha is None else (alpha,)), (BETAS if beta is None else (beta,))
    candidates = tuple(product(alphas, betas))
    default = (DEFAULT[0] if alpha is None else alpha, DEFAULT[1] if beta is None else beta)

    def logits_of(kept: Tensor, held_out: Tensor) -> Iterator[Tensor]:
        here = task.targets.device
        kept, held_out = kept.to(here), held_out.to(here)
        for alpha, beta in candidates:
            yield _head(task, kept, alpha, beta).logits(task.eval_features[held_out])

    alpha, beta = select(task, candidates, logits_of, default) if len(candidates) > 1 else default
    head = _head(task, torch.arange(len(task.labels), device=task.targets.device), alpha, beta)
    return FittedHead(head, head.keys.numel(), {"alpha": alpha, "beta": beta})


def fit_keys(task: Task, *, epochs: int = EPOCHS, alpha: float = DEFAULT[0], beta: float = DEFAULT[1]) -> FittedHead:
    """Tip-Adapter-F: the keys are trained by cross-entropy."""
    start = _head(task, torch.arange(len(task.labels), device=task.targets.device), alpha, beta)
    keys = start.keys.clone().requires_grad_()
    values = F.one_hot(start.labels, len(task.class_names)).to(keys)  # (n_images, n_classes)

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        affinities = torch.exp(-beta * (1 - features @ keys.T))  # (batch, n_images)
        return F.cross_entropy(start.scale * features @ start.weights.T + alpha * affinities @ values, labels)

    def steps() -> Iterator[Step]:
        total = epochs * math.ceil(len(task.labels) / BATCH_SIZE)
        for number, (_, features, labels) in enumerate(one_view_each(task, epochs, BATCH_SIZE)):
            yield Step(LR / 2 * (1 + math.cos(math.pi * number / total)), features, labels)

    minimise(loss, AdamW([keys], eps=EPSILON, weight_decay=WEIGHT_DECAY), steps())
    head = CacheHead(task.class_names, start.weights, start.scale, keys.detach(), start.labels, alpha, beta)
    return FittedHead(head, keys.numel(), {"alpha": alpha, "beta": beta})


def _head(task: Task, images: Tensor, alpha: float, beta: float) -> CacheHead:
    """The cache of some of the training images."""
    keys = F.normalize(task.view_features[:, images].mean(0), dim=-1)  # (n_images, embed_dim)
    scale = task.bank.backbone.logit_scale
    return CacheHead(task.class_names, task.class_features, scale, keys, task.targets[images], alpha, beta)
