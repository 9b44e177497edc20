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
from slimprompt.saved_files import ClassNames, Description, SavedBackbone, SavedFiles

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
    n_classes = len(description.class_names)
    if head.weights.ndim != 2 or len(head.weights) != n_classes:
        raise HEAD_FILES.damaged(
            path, f"weights: {n_classes} class names, but the shape is {tuple(head.weights.shape)}"
        )
    return description, head


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
