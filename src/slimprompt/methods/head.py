"""What every method ends in: a classifier on image features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.errors import InputError
from slimprompt.training.evaluation import EvalSet

#: Images whose affinities to the keys of a `CacheHead` are computed at once.
_CHUNK = 4096
#: Products of numbers up to this size are finite in fp32; larger ones are damage.
_LARGEST = 1e12


class _HeadBase:
    """What all heads can do."""

    class_names: tuple[str, ...]

    def logits(self, features: Tensor) -> Tensor:
        """(n_images, n_classes)."""
        raise NotImplementedError

    def correct(self, eval_set: EvalSet) -> Tensor:
        """Whether each image of an eval set with the same classes is classified correctly, (n_images,)."""
        if eval_set.class_names != self.class_names:
            raise InputError("the eval set has other classes than the head")
        return self.logits(eval_set.features).argmax(1).cpu() == eval_set.labels.cpu()

    def to(self, device: torch.device | str) -> Any:
        """The same head with its tensors on a device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)  # type: ignore[type-var]


@dataclass(frozen=True)
class Head(_HeadBase):
    """logits = scale · f Wᵀ + b for unit-length image features f (n_images, embed_dim)."""

    class_names: tuple[str, ...]
    weights: Tensor
    """W (n_classes, embed_dim); unit-length class features for methods on cosine similarity."""
    scale: float
    bias: Tensor | None = None
    """b (n_classes,), or None."""

    def logits(self, features: Tensor) -> Tensor:
        """(n_images, n_classes)."""
        logits = self.scale * features @ self.weights.T.to(features.device)
        return logits if self.bias is None else logits + self.bias.to(features.device)

    def of_classes(self, class_names: Sequence[str]) -> Head:
        """The same head on some of its classes, in this order."""
        rows = [self.class_names.index(name) for name in class_names]
        return Head(tuple(class_names), self.weights[rows], self.scale, None if self.bias is None else self.bias[rows])


@dataclass(frozen=True)
class CacheHead(_HeadBase):
    """logits = scale · f Wᵀ + α · exp(−β (1 − f Kᵀ)) Y for unit-length image features f (n_images, embed_dim)."""

    class_names: tuple[str, ...]
    weights: Tensor
    """W (n_classes, embed_dim), unit-length class features."""
    scale: float
    keys: Tensor
    """K (n_keys, embed_dim), one key per training image."""
    labels: Tensor
    """Class of each key, (n_keys,); Y (n_keys, n_classes) is their one-hot matrix."""
    alpha: float
    beta: float

    def logits(self, features: Tensor) -> Tensor:
        """(n_images, n_classes)."""
        keys, weights = self.keys.to(features.device), self.weights.to(features.device)
        values = F.one_hot(self.labels, len(self.class_names)).to(features)  # (n_keys, n_classes)
        parts = []
        for part in features.split(_CHUNK):
            affinities = torch.exp(-self.beta * (1 - part @ keys.T))  # (n_images, n_keys)
            parts.append(self.scale * part @ weights.T + self.alpha * affinities @ values)
        return torch.cat(parts)

    def of_classes(self, class_names: Sequence[str]) -> CacheHead:
        """The same head on some of its classes, in this order."""
        rows = [self.class_names.index(name) for name in class_names]
        place = torch.full((len(self.class_names),), -1, device=self.labels.device)
        place[rows] = torch.arange(len(rows), device=place.device)
        labels = place[self.labels]  # -1: the class is left out
        return replace(
            self,
            class_names=tuple(class_names),
            weights=self.weights[rows],
            keys=self.keys[labels >= 0],
            labels=labels[labels >= 0],
        )


#: The head of any method.
AnyHead = Head | CacheHead


@dataclass(frozen=True)
class FittedHead:
    """The result of fitting a method."""

    head: AnyHead
    n_trained: int
    """How many numbers of the head come from the training images; settings such as α do not count."""
    settings: dict[str, float] = field(default_factory=dict)
    """Settings that were chosen by cross-validation inside the training images, or their fixed values; given to the method as keyword
    arguments, they give this head again."""
    head_for: Callable[[Sequence[str], Sequence[str]], AnyHead] | None = None
    """(class names, their zero-shot templates) → the head for these classes, which may be new; None if the method learned its
    classes from their images."""


def head_problem(head: AnyHead) -> str:
    """What is wrong with the fields of a head; empty if it can be used."""
    for name, kind in {one.name: one.type for one in fields(head)}.items():
        value = getattr(head, name)
        if name == "class_names" or (name == "bias" and value is None):
            continue
        expected = float if kind == "float" else Tensor
        if not isinstance(value, expected):
            return f"{name}: expected a {expected.__name__}, not a {type(value).__name__}"
        numbers = torch.as_tensor(value, dtype=torch.float64)
        if isinstance(value, Tensor) and name != "labels" and value.dtype != torch.float32:
            return f"{name}: its numbers are {value.dtype}"
        if not numbers.isfinite().all():
            return f"{name}: it holds numbers that are not finite"
        if numbers.numel() and (largest := float(numbers.abs().max())) > _LARGEST:
            return f"{name}: its largest number is {largest:.1e}"
    if isinstance(head, CacheHead) and head.beta < 0:
        return f"beta: {head.beta} is negative"
    return _wrong_shape(head)


def _wrong_shape(head: AnyHead) -> str:
    n_classes, weights = len(head.class_names), head.weights
    if weights.ndim != 2 or len(weights) != n_classes:
        return f"weights: {n_classes} class names, but the shape is {tuple(weights.shape)}"
    if isinstance(head, Head):
        if head.bias is not None and head.bias.shape != (n_classes,):
            return f"bias: {n_classes} class names, but the shape is {tuple(head.bias.shape)}"
        return ""
    if head.labels.ndim != 1 or head.keys.shape != (len(head.labels), weights.shape[1]):
        shape, n_labels = tuple(head.keys.shape), head.labels.numel()
        return f"keys: the shape is {shape}, but {n_labels} labels and width {weights.shape[1]} are given"
    whole = head.labels.dtype == torch.int64 and bool(((head.labels >= 0) & (head.labels < n_classes)).all())
    return "" if whole else f"labels: they are not whole numbers from 0 to {n_classes - 1}"
