"""Gradient descent on image features, which the trained heads share.

The randomness of a method comes from the stream "head order" of the task's seed. It does not depend on the order of the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from slimprompt.errors import InputError
from slimprompt.methods.task import Task
from slimprompt.seeds import stream_seed


class Step(NamedTuple):
    """One step of descent: its learning rate, image features (batch, embed_dim) and their labels (batch,)."""

    lr: float
    features: Tensor
    labels: Tensor


def order_of(task: Task) -> torch.Generator:
    """The random stream of the order of batches."""
    return torch.Generator().manual_seed(stream_seed(task.seed, "head order"))


def minimise(loss: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer, steps: Iterable[Step]) -> None:
    """Minimise a loss over the parameters of an optimizer, in place.

    `loss` maps features and labels of a batch to the loss; `steps` are the batches with their learning rates.
    """
    group = optimizer.param_groups[0]
    for step in steps:
        group["lr"] = step.lr
        optimizer.zero_grad()
        loss(step.features, step.labels).backward()
        optimizer.step()
    if not all(parameter.isfinite().all() for parameter in group["params"]):
        raise InputError(
            "training a head diverged: its weights are not finite. Check the image features for values that are not finite"
        )


def pooled_views(task: Task, epochs: int, batch_size: int, lr_at: Callable[[int], float]) -> Iterator[Step]:
    """Batches from all views of all images, shuffled anew in each epoch.

    An epoch has as many batches as the images would fill, at least one, so it sees a part of the views.
    """
    n_views, n_images, embed_dim = task.view_features.shape
    features = task.view_features.reshape(-1, embed_dim)
    labels, order = task.targets.repeat(n_views), order_of(task)
    for epoch in range(epochs):
        shuffled = torch.randperm(len(labels), generator=order).to(labels.device)
        for batch in shuffled.split(batch_size)[: max(1, n_images // batch_size)]:
            yield Step(lr_at(epoch), features.index_select(0, batch), labels.index_select(0, batch))


def one_view_each(task: Task, epochs: int, batch_size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(epoch, features, labels) of batches in which every image occurs once per epoch, in a random view."""
    n_views, n_images, _ = task.view_features.shape
    order = order_of(task)
    for epoch in range(epochs):
        shuffled = torch.randperm(n_images, generator=order).to(task.targets.device)
        views = torch.randint(n_views, (n_images,), generator=order).to(task.targets.device)
        for batch in shuffled.split(batch_size):
            yield epoch, task.view_features[views[batch], batch], task.targets[batch]
