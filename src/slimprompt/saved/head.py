"""Saved heads: `head.safetensors` (the tensors of the head) and `head.json`, validated as a whole when they are read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, FiniteFloat, field_validator
from torch import Tensor

from slimprompt import __version__
from slimprompt.errors import choose
from slimprompt.methods.head import AnyHead, CacheHead, Head
from slimprompt.methods.table import METHODS
from slimprompt.saved.files import ClassNames, Description, SavedBackbone, SavedFiles

HEAD_FILES = SavedFiles("head")
_KINDS: dict[str, type[Head] | type[CacheHead]] = {"linear": Head, "cache": CacheHead}


class HeadDescription(Description):
    """The entries of `head.json`."""

    method: str
    class_names: ClassNames
    backbone: SavedBackbone
    kind: Literal["linear", "cache"]
    numbers: dict[str, FiniteFloat]
    """The fields of the head that are numbers."""
    n_trained: int = Field(ge=0)
    settings: dict[str, FiniteFloat]
    templates: list[str] = Field(min_length=1)
    views: int = Field(ge=0)
    seed: int = Field(ge=0)
    tensors_sha256: str

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        choose("method", name, METHODS)
        return name


def read_head(folder: Path) -> tuple[HeadDescription, AnyHead]:
    """Read and validate a saved head; an `InputError` that names the file and the field if it is damaged."""
    description, _, tensors = HEAD_FILES.read(folder, HeadDescription)
    path = folder / HEAD_FILES.tensors
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise HEAD_FILES.damaged(path, f"{name}: it holds numbers that are not finite")
    parts: dict[str, Any] = {**tensors, **description.numbers}
    try:
        head = _KINDS[description.kind](class_names=tuple(description.class_names), **parts)
    except TypeError as error:
        raise HEAD_FILES.damaged(path, str(error)) from None
    if problem := _problem(head):
        raise HEAD_FILES.damaged(path, problem)
    return description, head


def _problem(head: AnyHead) -> str:
    """What is wrong with the tensors of a head; empty if it can be used."""
    n_classes, shape = len(head.class_names), tuple(head.weights.shape)
    if len(shape) != 2 or shape[0] != n_classes:
        return f"weights: {n_classes} class names, but the shape is {shape}"
    if isinstance(head, Head):
        if head.bias is not None and head.bias.shape != (n_classes,):
            return f"bias: {n_classes} class names, but the shape is {tuple(head.bias.shape)}"
        return ""
    if head.keys.ndim != 2 or head.keys.shape[1] != shape[1] or head.labels.shape != head.keys.shape[:1]:
        return f"keys and labels: the shapes {tuple(head.keys.shape)} and {tuple(head.labels.shape)} do not fit the weights {shape}"
    if head.labels.is_floating_point() or (
        len(head.labels) and not 0 <= int(head.labels.min()) <= int(head.labels.max()) < n_classes
    ):
        return f"labels: expected whole numbers from 0 to {n_classes - 1}"
    return ""


def write_head(folder: Path, entries: dict[str, Any], head: AnyHead) -> None:
    """Write a head.

    Parameters
    ----------
    folder
        Where to write; a symbolic link is followed. Other files there are left alone.
    entries
        The entries of `head.json`, except for those that are known from the head and the program.
    head
        Its tensors and numbers.
    """
    kind, numbers, tensors = head_parts(head)
    known = {
        "slimprompt": __version__,
        "class_names": list(head.class_names),
        "kind": kind,
        "numbers": numbers,
    }
    HEAD_FILES.write(folder, known | entries, tensors)


def head_parts(head: AnyHead) -> tuple[str, dict[str, float], dict[str, Tensor]]:
    """The kind of a head, its numbers and its tensors: with the names of its classes, all that it consists of."""
    values = {field.name: getattr(head, field.name) for field in fields(head)}
    return (
        next(kind for kind, of in _KINDS.items() if isinstance(head, of)),
        {name: value for name, value in values.items() if isinstance(value, float)},
        {name: value for name, value in values.items() if isinstance(value, Tensor)},
    )
