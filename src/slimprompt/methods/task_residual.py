"""Task residual: a trained addition to the text features.

logits = scale · cos(f, t_k + α x_k), with x trained by cross-entropy from 0. t_k is the mean over the templates of the text
features as the model gives them, not scaled to unit length.

Yu et al., "Task Residual for Tuning Vision-Language Models" (CVPR 2023; geekyutao/TaskRes, `train_regular.sh`): α = 0.5, Adam with
learning rate 0.002 and a cosine schedule after one epoch at 1e-5, weight decay 5e-4 (Dassl's default), batches of 256; 100 epochs up to 4 images per class and 200 above. Their exceptions for two datasets (α = 1 on Oxford Flowers, learning
rate 2e-4 on ImageNet) are not used. They sample a new view of each image in each epoch; here it is one of the task's views.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.methods.descent import Step, minimise, one_view_each
from slimprompt.methods.head import FittedHead, Head
from slimprompt.methods.task import Task
from slimprompt.training.optimizers import Adam
from slimprompt.training.recipe import Recipe

ALPHA, LR, BATCH_SIZE, WEIGHT_DECAY = 0.5, 2e-3, 256, 5e-4


def fit(task: Task, *, epochs: int | None = None) -> FittedHead:
    """Train the residuals of a task; by default for the published number of epochs."""
    epochs = epochs or (100 if task.shots <= 4 else 200)
    scale, start = task.bank.backbone.logit_scale, task.template_features.mean(0)  # (n_classes, embed_dim)
    residual = torch.zeros_like(start).requires_grad_()

    def class_features() -> Tensor:
        return F.normalize(start + ALPHA * residual, dim=-1)

    def steps() -> Iterator[Step]:
        schedule = Recipe(epochs=epochs, lr=LR)
        smallest = min(BATCH_SIZE, len(task.labels))  # as in prompt learning, a last partial batch is dropped
        for epoch, features, labels in one_view_each(task, epochs, BATCH_SIZE):
            if len(labels) >= smallest:
                yield Step(schedule.lr_at(epoch), features, labels)

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scale * features @ class_features().T, labels)

    minimise(loss, Adam([residual], weight_decay=WEIGHT_DECAY), steps())
    return FittedHead(Head(task.class_names, class_features().detach(), scale), residual.numel())
