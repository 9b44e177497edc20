"""The common form of all image collections: class names and labelled items in train, val and test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from slimprompt.images.decode import Decode

#: The splits of a benchmark, in the order used everywhere.
SPLITS = ("train", "val", "test")


class Item(NamedTuple):
    """One labelled image; `path` is relative to the image folder of its benchmark and uses forward slashes."""

    path: str
    label: int
    class_name: str


@dataclass(frozen=True)
class Benchmark:
    """A labelled image collection. It holds annotations only; no image is opened to create one.

    Attributes
    ----------
    name
        Short name used in records and messages.
    images
        Folder that the paths of the items are relative to.
    class_names
        `class_names[label]` is the name used in prompts.
    train, val, test
        Items of each split; `val` and `test` may be empty, and `train` if the benchmark is only evaluated on.
    templates
        Hand-written zero-shot prompts, each with one `{}`; the first is the benchmark's own.
    decode
        How the image files are read; see `slimprompt.images.decode.open_image`.
    listed
        Whether the items were found by listing the image folders, so that their files exist.
    """

    name: str
    images: Path
    class_names: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()
    templates: tuple[str, ...] = ("a photo of a {}.",)
    decode: Decode = "upright"
    listed: bool = False

    @property
    def items(self) -> tuple[Item, ...]:
        """All items: train, then val, then test."""
        return (*self.train, *self.val, *self.test)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of items in train, val and test."""
        return len(self.train), len(self.val), len(self.test)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the class names and of the items, in their order; equal wherever the files are."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for split in SPLITS:
            digest.update(f"\n{split}".encode())
            for entry in self._fingerprint_entries(getattr(self, split)):
                digest.update(repr(entry).encode())
        return digest.hexdigest()[:16]

    def _fingerprint_entries(self, items: tuple[Item, ...]) -> Iterator[tuple[object, ...]]:
        """What the fingerprint covers of each item."""
        return ((item.path, item.label) for item in items)

    def path(self, item: Item) -> Path:
        """Path of the image file of `item`."""
        return self.images / item.path
