"""Cross-modal linear probe: class weights trained on images and on the texts of the templates as further examples.

logits = scale · f w_k, with w_k trained by cross-entropy from the zero-shot class features. One half of each batch are image
features, the other half the unit-length text features of the classes in the templates.

Lin et al., "Multimodality Helps Unimodality" (CVPR 2023; linzhiqiu/cross_modal_adaptation, `engine/optimizer/default.py`): AdamW
with a cosine schedule over the steps after a linear warm-up of 50 steps from 1e-5. They choose the learning rate (1e-3 or 1e-4),
the weight decay (0, 1e-4 or 0.01), the batch size (8 or 32) and the step at which to stop, up to 12,800, on validation images.
Here they are fixed to 1e-3, 0.01, 32 and the last of 1,280 steps: the sum of the learning rates is that of 12,800 steps at 1e-4.
They use the centre crop and its mirror image; here it is the eval view and the train views of the task. Their factor 100 is the
scale of CLIP's own logits; here it is that of the backbone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.methods.descent import Step, minimise, order_of
from slimprompt.methods.head import FittedHead, Head
from slimprompt.methods.task import Task
from slimprompt.training.optimizers import AdamW

STEPS, BATCH_SIZE, LR, WEIGHT_DECAY, WARMUP_STEPS, WARMUP_LR = 1280, 32, 1e-3, 0.01, 50, 1e-5


def fit(task: Task, *, steps: int = STEPS) -> FittedHead:
    """Train the class weights of a task on its images and on the texts of its templates."""
    scale = task.bank.backbone.logit_scale
    weights = task.class_features.clone().requires_grad_()

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scale * features @ weights.T, labels)

    minimise(loss, AdamW([weights], weight_decay=WEIGHT_DECAY), _steps(task, steps))
    return FittedHead(Head(task.class_names, weights.detach(), scale), weights.numel())


def lr_at(step: int, steps: int) -> float:
    """Learning rate of a 0-based step."""
    if step < WARMUP_STEPS:
        return WARMUP_LR + (LR - WARMUP_LR) * step / WARMUP_STEPS
    return LR / 2 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / steps))


def _steps(task: Task, steps: int) -> Iterator[Step]:
    width, order = task.view_features.shape[-1], order_of(task)
    texts = F.normalize(task.template_features, dim=-1).reshape(-1, width)
    text_labels = torch.arange(len(task.class_names), device=task.targets.device).repeat(len(task.templates))
    images = _endless(task.view_features.reshape(-1, width), task.targets.repeat(1 + task.views), order)
    examples = _endless(texts, text_labels, order)
    for step in range(steps):
        parts = next(images), next(examples)
        features, labels = (torch.cat(pair) for pair in zip(*parts, strict=True))
        yield Step(lr_at(step, steps), features, labels)


def _endless(features: Tensor, labels: Tensor, order: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Half batches without end: all examples in random order, again and again; a last partial one is dropped."""
    size = min(BATCH_SIZE // 2, len(labels))
    while True:
        for batch in torch.randperm(len(labels), generator=order).to(labels.device).split(size):
            if len(batch) == size:
                yield features.index_select(0, batch), labels.index_select(0, batch)
