"""Choosing a setting inside the training images: stratified folds, nothing is chosen on images that are evaluated on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.methods.task import Task
from slimprompt.seeds import stream_seed

S = TypeVar("S")

#: Largest number of folds.
FOLDS = 4


def folds(labels: Sequence[int], seed: int, n_folds: int = FOLDS) -> list[tuple[Tensor, Tensor]]:
    """Stratified folds: (indices of the images to fit on, indices of the images held out) of each.

    The images of a class are dealt out to min(n_folds, images of the largest class) folds in random order. An image without another
    of its class is never held out, so every class stays in every fit. There are no folds if all classes have a single image.
    """
    sizes = Counter(labels)
    n_folds = min(n_folds, max(sizes.values()))
    if n_folds < 2:
        return []
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(stream_seed(seed, "folds")))
    fold_of, dealt = torch.full((len(labels),), -1), Counter[int]()
    for image in order.tolist():
        if sizes[labels[image]] > 1:
            fold_of[image] = dealt[labels[image]] % n_folds
            dealt[labels[image]] += 1
    parts = [(fold_of != fold, fold_of == fold) for fold in range(n_folds)]
    return [(kept.nonzero()[:, 0], held_out.nonzero()[:, 0]) for kept, held_out in parts]


def select(
    task: Task,
    candidates: Sequence[S],
    logits_of: Callable[[Tensor, Tensor], Iterable[Tensor]],
    default: S,
) -> S:
    """The candidate with the best accuracy on held-out training images; the lower cross-entropy decides between equals.

    `logits_of` maps the indices of the images to fit on and of those held out to the logits (n_held_out, n_classes) of each candidate in
    turn. `default` is the candidate for a task whose classes have one image each, where none can be held out.
    """
    parts = folds(task.labels, task.seed)
    if not parts:
        return default
    correct, losses = [0] * len(candidates), [0.0] * len(candidates)
    for kept, held_out in parts:
        targets = task.targets[held_out.to(task.targets.device)]
        for index, logits in enumerate(logits_of(kept, held_out)):
            correct[index] += int((logits.argmax(1) == targets).sum())
            losses[index] += float(F.cross_entropy(logits.float(), targets, reduction="sum"))
    best = max(range(len(candidates)), key=lambda index: (correct[index], -losses[index]))
    return candidates[best]
