"""The pocket world: drawn benchmarks whose class combinations and style mixtures pre-training never saw.

Pre-training draws from `seen_scene` and `seen_style`; a benchmark takes its classes from the other fifth of the
combinations shape × colour × texture and its style from `HELD_OUT_STYLES`, so the two never meet.
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
from slimprompt.pocket.captions import article, class_name, style_words
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
    draw,
)
from slimprompt.seeds import stream_seed
from slimprompt.storage import draft_folder, publish

#: Side of a benchmark picture; larger than the pocket models' input, so that random crops make sense.
IMAGE_SIZE = 64

_SHAPES, _COLOURS = tuple(OUTLINES), tuple(COLOURS)
_SIZES, _BACKGROUNDS = tuple(SIZES), tuple(BACKGROUNDS)


def held_out(shape: str, colour: str, texture: str) -> bool:
    """(shape + colour + 2 texture) mod 5 = 0 on the words' places in their tables: a fifth of the combinations.

    Like a Latin square it leaves every pair of properties in pre-training; only the triple is new.
    """
    return (_SHAPES.index(shape) + _COLOURS.index(colour) + 2 * TEXTURES.index(texture)) % 5 == 0


@dataclass(frozen=True)
class PocketClass:
    """One class: a held-out combination, and the size or ground its pictures keep if its name mentions them."""

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
        """A scene of this class; what the name does not mention varies."""
        size = self.size or _SIZES[rng.integers(len(_SIZES))]
        background = self.background or _BACKGROUNDS[rng.integers(len(_BACKGROUNDS))]
        return Scene(self.shape, self.colour, self.texture, size, background)


@dataclass(frozen=True)
class PocketBenchmark:
    """A drawn benchmark: `n_classes` held-out combinations in one held-out style."""

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
        """The classes in label order, a function of the benchmark's name and number of classes."""
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
        """Numbers of each class's pictures in train, val and test."""
        train, val = self.train, self.train + self.val
        return {"train": range(train), "val": range(train, val), "test": range(val, val + self.test)}

    def picture(self, label: int, number: int) -> NDArray[np.uint8]:
        """ImageSource `number` of a class, (64, 64, 3) uint8; always the same one."""
        rng = np.random.default_rng(stream_seed(0, "pocket picture", self.name, label, number))
        return draw(self.classes[label].scene(rng), self.style, IMAGE_SIZE, rng)

    @property
    def style_template(self) -> str:
        """The template that names the style: what a good context has to find."""
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
    """A random scene for pre-training: never a held-out combination."""
    while True:
        shape, colour, texture = _any(_SHAPES, rng), _any(_COLOURS, rng), _any(TEXTURES, rng)
        if not held_out(shape, colour, texture):
            return Scene(shape, colour, texture, _any(_SIZES, rng), _any(_BACKGROUNDS, rng))


def seen_style(rng: np.random.Generator) -> Style:
    """A random style for pre-training: a medium with up to two modifiers, never a benchmark's mixture."""
    while True:
        count = int(rng.choice(3, p=(0.30, 0.40, 0.30)))
        modifiers = rng.choice(len(MODIFIERS), size=count, replace=False)
        style = Style(_any(tuple(MEDIA), rng), frozenset(tuple(MODIFIERS)[i] for i in modifiers))
        if style not in HELD_OUT_STYLES:
            return style


def _any(words: tuple[str, ...], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def render_benchmark(name: str, root: str | Path) -> Path:
    """Draw a benchmark into `root/name` and return that folder; the same bytes each time.

    It holds `images/<class>/<number>.png` and `split.json`: {"train": [[path, label, class name], …], "val", "test"}.
    The folder appears whole or not at all; one that is already there is returned as it is.
    """
    if name not in POCKET_BENCHMARKS:
        raise unknown("pocket benchmark", name, POCKET_BENCHMARKS)
    target = Path(root) / name
    if (target / "split.json").is_file():
        return target
    with draft_folder(target) as draft:
        _write(POCKET_BENCHMARKS[name], draft)
        if not (target / "split.json").is_file():  # else another process was faster, with the same bytes
            publish(draft, target)
    return target


def _write(benchmark: PocketBenchmark, folder: Path) -> None:
    split: dict[str, list[list[object]]] = {"train": [], "val": [], "test": []}
    for label, name in enumerate(benchmark.class_names):
        place = name.replace(" ", "_")
        (folder / "images" / place).mkdir(parents=True)
        for part, numbers in benchmark.numbers.items():
            for number in numbers:
                path = f"{place}/{number:03d}.png"
                Image.fromarray(benchmark.picture(label, number)).save(folder / "images" / path, compress_level=1)
                split[part].append([path, label, name])
    (folder / "split.json").write_text(json.dumps(split, indent=0) + "\n", encoding="utf-8")
