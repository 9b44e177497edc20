"""Saved heads: `head.safetensors` (the tensors of the head) and `head.json`, validated as a whole when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, FiniteFloat, field_validator
from torch import Tensor

from slimprompt import __version__
from slimprompt.methods.head import AnyHead, CacheHead, Head, head_problem
from slimprompt.methods.table import find_method
from slimprompt.saved.files import ClassNames, Description, SavedBackbone, SavedFiles

HEAD_FILES = SavedFiles("head")
_KINDS: dict[str, type[Head] | type[CacheHead]] = {"linear": Head, "cache": CacheHead}


class HeadDescription(Description):
    """The entries of `head.json`."""

    method: str
    class_names: ClassNames
    """The classes it was fitted on, in order."""
    backbone: SavedBackbone
    """The weights that it belongs to."""
    kind: Literal["linear", "cache"]
    numbers: dict[str, FiniteFloat]
    """The fields of the head that are numbers."""
    n_trained: int = Field(ge=0)
    """How many numbers come from the training images."""
    settings: dict[str, FiniteFloat]
    """Settings that were chosen by cross-validation, or their fixed values."""
    templates: list[str] = Field(min_length=1)
    """Zero-shot templates that it was fitted with."""
    views: int = Field(ge=0)
    """Train views of each image, beside the eval view."""
    seed: int = Field(ge=0)
    tensors_sha256: str
    """Hash of `head.safetensors`."""

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        find_method(name)
        return name


def read_head(folder: Path) -> tuple[HeadDescription, AnyHead]:
    """Read and validate a saved head; an `InputError` that names the file and the field if it is damaged."""
    description, _, tensors = HEAD_FILES.read(folder, HeadDescription)
    path = folder / HEAD_FILES.tensors
    for name in tensors.keys() & description.numbers.keys():
        raise HEAD_FILES.damaged(path, f"{name}: it is both a tensor and a number")
    parts: dict[str, Any] = {**tensors, **description.numbers}
    try:
        head = _KINDS[description.kind](class_names=tuple(description.class_names), **parts)
    except TypeError as error:
        raise HEAD_FILES.damaged(path, str(error)) from None
    if reason := head_problem(head):
        in_tensors = reason.partition(":")[0] in tensors
        raise HEAD_FILES.damaged(path if in_tensors else folder / HEAD_FILES.description, reason)
    return description, head


def write_head(folder: Path, entries: dict[str, Any], head: AnyHead, facts: Mapping[str, Any] | None = None) -> None:
    """Write a head.

    Parameters
    ----------
    folder
        Where to write; a symbolic link is followed. Other files there are left alone.
    entries
        The entries of `head.json`, except for those that are known from the head and the program.
    head
        Its tensors and numbers.
    facts
        Further entries, under names that the description does not have, or `HeadDescription.FACTS`.
    """
    kind, numbers, tensors = head_parts(head)
    known = {
        "slimprompt": __version__,
        "class_names": list(head.class_names),
        "kind": kind,
        "numbers": numbers,
    }
    HEAD_FILES.write(folder, HeadDescription, known | entries, tensors, facts)


def head_parts(head: AnyHead) -> tuple[str, dict[str, float], dict[str, Tensor]]:
    """The kind of a head, its numbers and its tensors: with the names of its classes, all that it consists of."""
    values = {field.name: getattr(head, field.name) for field in fields(head)}
    return (
        next(kind for kind, of in _KINDS.items() if isinstance(head, of)),
        {name: value for name, value in values.items() if isinstance(value, float)},
        {name: value for name, value in values.items() if isinstance(value, Tensor)},
    )
