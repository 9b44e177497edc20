"""The pocket benchmarks: rendered images of classes and styles that are held out from pre-training.

Pre-training samples from `seen_scene` and `seen_style`. The classes of a benchmark come from the held-out fifth of the
combinations shape × colour × texture, and its style from `HELD_OUT_STYLES`, so the two do not overlap.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from slimprompt.errors import unknown
from slimprompt.files import draft_folder, publish
from slimprompt.pocket.captions import article, class_name, pick, style_words
from slimprompt.pocket.images import (
    BACKGROUNDS,
    COLOURS,
    MEDIA,
    MODIFIERS,
    OUTLINES,
    SIZES,
    TEXTURES,
    Scene,
    Style,
    render,
)
from slimprompt.seeds import stream_seed

#: Height and width of the images; larger than the input of the model `pocket`, so that random crops are useful.
IMAGE_SIZE = 64

_SHAPES, _COLOURS = tuple(OUTLINES), tuple(COLOURS)
_SIZES, _BACKGROUNDS = tuple(SIZES), tuple(BACKGROUNDS)


def held_out(shape: str, colour: str, texture: str) -> bool:
    """Whether (i + j + 2k) mod 5 = 0, where i, j and k are the indices of shape, colour and texture in their tables.

    This holds out a fifth of the combinations. Like a Latin square, it leaves every pair of properties in pre-training;
    only the triples are new.
    """
    return (_SHAPES.index(shape) + _COLOURS.index(colour) + 2 * TEXTURES.index(texture)) % 5 == 0


@dataclass(frozen=True)
class PocketClass:
    """One class: a held-out combination, optionally with a fixed size or background."""

    shape: str
    colour: str
    texture: str
    size: str | None
    background: str | None

    @property
    def name(self) -> str:
        """The name used in prompts."""
        scene = Scene(self.shape, self.colour, self.texture, self.size or "", self.background or "")
        return class_name(scene, size=self.size is not None, background=self.background is not None)

    def scene(self, rng: np.random.Generator) -> Scene:
        """Sample a scene of this class."""
        size = self.size or _SIZES[rng.integers(len(_SIZES))]
        background = self.background or _BACKGROUNDS[rng.integers(len(_BACKGROUNDS))]
        return Scene(self.shape, self.colour, self.texture, size, background)


@dataclass(frozen=True)
class PocketBenchmark:
    """A rendered benchmark: `n_classes` held-out combinations in one held-out style."""

    name: str
    title: str
    style: Style
    n_classes: int
    train: int = 24
    val: int = 4
    test: int = 24
    templates: tuple[str, ...] = ("a photo of a {}.",)

    @cached_property
    def classes(self) -> tuple[PocketClass, ...]:
        """The classes in label order; they depend only on the name and the number of classes."""
        rng = np.random.default_rng(stream_seed(0, "pocket classes", self.name))
        free = [combination for combination in product(_SHAPES, _COLOURS, TEXTURES) if held_out(*combination)]
        classes = []
        for index in rng.permutation(len(free))[: self.n_classes]:
            shape, colour, texture = free[index]
            size = str(rng.choice(("small", "large"))) if rng.random() < 0.25 else None
            background = str(rng.choice(_BACKGROUNDS)) if rng.random() < 0.25 else None
            classes.append(PocketClass(shape, colour, texture, size, background))
        return tuple(classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """`class_names[label]`."""
        return tuple(c.name for c in self.classes)

    @property
    def numbers(self) -> dict[str, range]:
        """Split → numbers of its images within each class."""
        train, val = self.train, self.train + self.val
        return {"train": range(train), "val": range(train, val), "test": range(val, val + self.test)}

    def image(self, label: int, number: int) -> NDArray[np.uint8]:
        """Image `number` of class `label`, (64, 64, 3) uint8; always the same bytes."""
        # The name of the stream decides the bytes of all images and must not change.
        rng = np.random.default_rng(stream_seed(0, "pocket picture", self.name, label, number))
        return render(self.classes[label].scene(rng), self.style, IMAGE_SIZE, rng)

    @property
    def style_template(self) -> str:
        """The template that names the style, such as "a dark, noisy sketch of a {}."."""
        return f"{article(style_words(self.style))} of a {{}}."


def _benchmark(name: str, title: str, medium: str, modifiers: tuple[str, ...], n_classes: int) -> PocketBenchmark:
    return PocketBenchmark(f"pocket-{name}", title, Style(medium, frozenset(modifiers)), n_classes)


POCKET_BENCHMARKS: dict[str, PocketBenchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _benchmark("sketch", "dark, noisy pencil sketches", "sketch", ("dark", "noisy"), 24),
        _benchmark("negative", "blurry photographic negatives", "photo", ("negative", "blurry"), 20),
        _benchmark("mosaic", "faded, pixelated paintings", "painting", ("faded", "pixelated"), 32),
        _benchmark("comic", "noisy negatives of cartoons", "cartoon", ("negative", "noisy"), 40),
        _benchmark("night", "dark, pixelated photos", "photo", ("dark", "pixelated"), 30),
        _benchmark("gallery", "dark, blurry paintings", "painting", ("dark", "blurry"), 36),
    )
}
HELD_OUT_STYLES: frozenset[Style] = frozenset(benchmark.style for benchmark in POCKET_BENCHMARKS.values())


def seen_scene(rng: np.random.Generator) -> Scene:
    """Sample a scene for pre-training; never a held-out combination."""
    while True:
        shape, colour, texture = pick(_SHAPES, rng), pick(_COLOURS, rng), pick(TEXTURES, rng)
        if not held_out(shape, colour, texture):
            return Scene(shape, colour, texture, pick(_SIZES, rng), pick(_BACKGROUNDS, rng))


def seen_style(rng: np.random.Generator) -> Style:
    """Sample a style for pre-training: a medium with up to two modifiers, never the style of a benchmark."""
    while True:
        count = int(rng.choice(3, p=(0.30, 0.40, 0.30)))
        modifiers = rng.choice(len(MODIFIERS), size=count, replace=False)
        style = Style(pick(tuple(MEDIA), rng), frozenset(tuple(MODIFIERS)[i] for i in modifiers))
        if style not in HELD_OUT_STYLES:
            return style


def render_benchmark(benchmark: str | PocketBenchmark, root: str | Path) -> Path:
    """Render a benchmark to the folder `root/name`; always the same bytes.

    The folder contains `images/<class>/<number>.png` and a split file `split.json` in CoOp's format. It is written
    completely or not at all, and a folder that exists is not changed.
    """
    if isinstance(benchmark, str):
        if benchmark not in POCKET_BENCHMARKS:
            raise unknown("pocket benchmark", benchmark, POCKET_BENCHMARKS)
        benchmark = POCKET_BENCHMARKS[benchmark]
    target = Path(root) / benchmark.name
    if (target / "split.json").is_file():
        return target
    with draft_folder(target) as draft:
        _write(benchmark, draft)
        if not (target / "split.json").is_file():  # else another process has written the same bytes
            publish(draft, target)
    return target


def _write(benchmark: PocketBenchmark, folder: Path) -> None:
    entries: dict[str, list[list[object]]] = {split: [] for split in benchmark.numbers}
    for label, name in enumerate(benchmark.class_names):
        class_folder = name.replace(" ", "_")
        (folder / "images" / class_folder).mkdir(parents=True)
        for split, numbers in benchmark.numbers.items():
            for number in numbers:
                path = f"{class_folder}/{number:03d}.png"
                Image.fromarray(benchmark.image(label, number)).save(folder / "images" / path, compress_level=1)
                entries[split].append([path, label, name])
    (folder / "split.json").write_text(json.dumps(entries, indent=0) + "\n", encoding="utf-8")
