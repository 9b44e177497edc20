"""The common form of all image collections: class names and labelled items in train, val and test."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from slimprompt.errors import InputError, first_few
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
    """

    name: str
    images: Path
    class_names: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()
    templates: tuple[str, ...] = ("a photo of a {}.",)
    decode: Decode = "upright"

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


def missing_images(benchmark: Benchmark) -> list[str]:
    """Paths of the items whose image file does not exist, in the order of train, val, test.

    Folders are listed instead of asking for each file: ImageNet has 1.3 million files in 2,000 folders.
    """
    listed: dict[str, frozenset[str]] = {}
    missing = []
    for item in benchmark.items:
        folder, _, name = item.path.rpartition("/")
        if folder not in listed:
            listed[folder] = _names_in(os.path.join(benchmark.images, folder))
        if name not in listed[folder]:
            missing.append(item.path)
    return missing


def _names_in(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def check_images(benchmark: Benchmark) -> None:
    """Raise an `InputError` if image files are missing. Fast, because no image is opened."""
    if missing := missing_images(benchmark):
        raise InputError(
            f"{len(missing):,} of {len(benchmark.items):,} images of {benchmark.name} are missing in "
            f"{benchmark.images}: {first_few(missing)}. "
            f"Complete the download, then run `slimprompt data check {benchmark.name}`"
        )
