"""What every source of images becomes: named classes and items (path, label, class name) in train, val and test."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Item(NamedTuple):
    """One labelled image; `path` is relative to the images folder of its benchmark, with forward slashes."""

    path: str
    label: int
    class_name: str


@dataclass(frozen=True)
class Benchmark:
    """A labelled image collection; only annotations, no picture is opened to make one.

    `class_names[label]` is the name used in prompts. `images` is the folder that the items' paths are relative to.
    `templates` are the hand-written zero-shot prompts with one `{}` each; the first is the benchmark's own.
    """

    name: str
    images: Path
    class_names: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()
    templates: tuple[str, ...] = field(default=("a photo of a {}.",))

    def path(self, item: Item) -> Path:
        """Where the picture of `item` is."""
        return self.images / item.path
