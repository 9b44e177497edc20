"""Rendered images of the pocket world: one object on a background, in a style.

image = modifiers(medium(object over background)), (size, size, 3) uint8, a function of (scene, style, size, rng) only.
Outlines are polygons in the unit disc, so one routine renders every shape; to add a shape, add an entry to `OUTLINES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Floats = NDArray[np.float32]

#: Outlines are rendered at this multiple of the size and averaged down, for smooth edges.
_SUPERSAMPLING = 4


@dataclass(frozen=True)
class Scene:
    """Content of an image; each field is a key of one of the tables below."""

    shape: str
    colour: str
    texture: str
    size: str
    background: str


@dataclass(frozen=True)
class Style:
    """Appearance of an image: one medium and any number of modifiers, applied in the order of `MODIFIERS`."""

    medium: str = "photo"
    modifiers: frozenset[str] = frozenset()


def _ellipse(x: float, y: float, rx: float, ry: float, points: int = 40) -> list[tuple[float, float]]:
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    return list(zip(x + rx * np.cos(angle), y + ry * np.sin(angle), strict=True))


def _spikes(n: int, inner: float) -> list[tuple[float, float]]:
    angle = np.pi * np.arange(2 * n) / n - np.pi / 2
    radius = np.where(np.arange(2 * n) % 2 == 0, 1.0, inner)
    return list(zip(radius * np.cos(angle), radius * np.sin(angle), strict=True))


def _heart() -> list[tuple[float, float]]:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return list(zip(x / 17, -(y + 2.5) / 15, strict=True))


def _petals() -> list[tuple[float, float]]:
    t = np.linspace(0, 2 * np.pi, 80, endpoint=False)
    radius = 0.68 + 0.32 * np.cos(5 * t)
    return list(zip(radius * np.sin(t), -radius * np.cos(t), strict=True))


def _crescent() -> list[tuple[float, float]]:
    outer = [(np.cos(a), np.sin(a)) for a in np.linspace(0.25 * np.pi, 1.75 * np.pi, 36)]
    inner = [(0.42 + 0.76 * np.cos(a), 0.76 * np.sin(a)) for a in np.linspace(1.61 * np.pi, 0.39 * np.pi, 30)]
    return [(x + 0.15, y) for x, y in outer + inner]


def _fish() -> list[tuple[float, float]]:
    body = [(-0.25 + 0.72 * np.cos(a), 0.5 * np.sin(a)) for a in np.linspace(0.12 * np.pi, 1.88 * np.pi, 36)]
    return [*body, (0.98, -0.55), (0.8, 0.0), (0.98, 0.55)]


#: Shape → polygons in the unit disc (y points down); a second polygon is a hole.
OUTLINES: dict[str, list[list[tuple[float, float]]]] = {
    "circle": [_ellipse(0, 0, 0.92, 0.92)],
    "square": [[(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]],
    "triangle": [[(0, -0.95), (0.95, 0.75), (-0.95, 0.75)]],
    "star": [_spikes(5, 0.42)],
    "heart": [_heart()],
    "cross": [
        [
            (-0.3, -0.95), (0.3, -0.95), (0.3, -0.3), (0.95, -0.3), (0.95, 0.3), (0.3, 0.3),
            (0.3, 0.95), (-0.3, 0.95), (-0.3, 0.3), (-0.95, 0.3), (-0.95, -0.3), (-0.3, -0.3),
        ]
    ],
    "ring": [_ellipse(0, 0, 0.98, 0.98), _ellipse(0, 0, 0.45, 0.45)],
    "diamond": [[(0, -1.0), (0.66, 0), (0, 1.0), (-0.66, 0)]],
    "crescent": [_crescent()],
    "arrow": [[(0.98, 0), (0.2, -0.8), (0.2, -0.3), (-0.98, -0.3), (-0.98, 0.3), (0.2, 0.3), (0.2, 0.8)]],
    "flower": [_petals(), _ellipse(0, 0, 0.2, 0.2, 16)],
    "fish": [_fish()],
    "house": [
        [(0, -1.0), (0.9, -0.15), (0.65, -0.15), (0.65, 0.85), (-0.65, 0.85), (-0.65, -0.15), (-0.9, -0.15)],
        [(-0.2, 0.85), (-0.2, 0.3), (0.2, 0.3), (0.2, 0.85)],
    ],
    "lightning bolt": [
        [(0.15, -1.0), (-0.6, 0.15), (-0.08, 0.15), (-0.3, 1.0), (0.62, -0.25), (0.08, -0.25), (0.55, -1.0)]
    ],
}  # fmt: skip

#: Colour → sRGB in [0, 1].
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.08, 0.10),
    "orange": (0.98, 0.52, 0.05),
    "yellow": (0.98, 0.90, 0.12),
    "green": (0.10, 0.62, 0.16),
    "cyan": (0.15, 0.85, 0.88),
    "blue": (0.10, 0.22, 0.85),
    "purple": (0.50, 0.12, 0.68),
    "pink": (0.98, 0.55, 0.75),
    "brown": (0.45, 0.26, 0.11),
    "white": (0.97, 0.97, 0.97),
    "gray": (0.52, 0.52, 0.54),
    "black": (0.07, 0.07, 0.08),
}

TEXTURES: tuple[str, ...] = ("plain", "striped", "dotted", "checkered", "hollow")

#: Size → range of the object's radius, as a fraction of half the image size.
SIZES: dict[str, tuple[float, float]] = {"small": (0.42, 0.52), "medium": (0.58, 0.70), "large": (0.78, 0.90)}

#: Background → (mean colour, strength of the grain, strength of the waves).
BACKGROUNDS: dict[str, tuple[tuple[float, float, float], float, float]] = {
    "snow": ((0.90, 0.92, 0.95), 0.02, 0.02),
    "grass": ((0.36, 0.55, 0.24), 0.10, 0.02),
    "sand": ((0.83, 0.73, 0.52), 0.05, 0.03),
    "wood": ((0.58, 0.40, 0.25), 0.02, 0.10),
    "stone": ((0.47, 0.47, 0.46), 0.07, 0.04),
    "water": ((0.35, 0.55, 0.75), 0.01, 0.09),
}


def render(scene: Scene, style: Style, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Render an image, (size, size, 3) uint8. The same arguments and generator state give the same bytes."""
    radius = rng.uniform(*SIZES[scene.size])
    outlines = _placed(scene.shape, radius, size, rng)
    if scene.texture == "hollow":
        mask = _stroked(outlines, size, width=0.16, joint="curve")
        edge = np.zeros_like(mask)
    else:
        mask = _filled(outlines, size)
        edge = _stroked(outlines, size, width=0.05)
    surface = _surface(scene, radius, size, rng)
    image = MEDIA[style.medium](scene, surface, mask, edge, rng)
    for name, modify in MODIFIERS.items():
        if name in style.modifiers:
            image = modify(np.clip(image, 0, 1), rng)
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def _placed(shape: str, radius: float, size: int, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """The outlines in supersampled pixel coordinates, with a small random rotation, stretch and shift."""
    angle = rng.uniform(-0.3, 0.3)
    stretch = rng.uniform(0.9, 1.1)
    mirror = rng.choice((-1.0, 1.0))
    slack = max(0.0, 1.0 - radius) * 0.8
    centre = 1.0 + rng.uniform(-slack, slack, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.diag([mirror * stretch, 1 / stretch]) * radius
    half = size * _SUPERSAMPLING / 2
    return [(np.asarray(outline) @ matrix.T + centre) * half for outline in OUTLINES[shape]]


def _flat(outline: NDArray[np.float64]) -> list[float]:
    return [float(value) for value in outline.ravel()]


def _filled(outlines: list[NDArray[np.float64]], size: int) -> Floats:
    """Coverage of each pixel by the shape, (size, size) in [0, 1]."""
    canvas = Image.new("L", (size * _SUPERSAMPLING,) * 2)
    pen = ImageDraw.Draw(canvas)
    for number, outline in enumerate(outlines):
        pen.polygon(_flat(outline), fill=255 if number == 0 else 0)
    return _floats(canvas.reduce(_SUPERSAMPLING))


def _stroked(
    outlines: list[NDArray[np.float64]], size: int, width: float, joint: Literal["curve"] | None = None
) -> Floats:
    """Coverage of each pixel by the outline; `width` is a fraction of half the image size."""
    canvas = Image.new("L", (size * _SUPERSAMPLING,) * 2)
    pen = ImageDraw.Draw(canvas)
    pixels = max(1, round(width * size * _SUPERSAMPLING / 2))
    for outline in outlines:
        closed = _flat(np.concatenate([outline, outline[:2]]))
        pen.line(closed, fill=255, width=pixels, joint=joint)
    return _floats(canvas.reduce(_SUPERSAMPLING))


def _grid(size: int) -> tuple[Floats, Floats]:
    """Pixel centres in [-1, 1]: x (1, size) and y (size, 1)."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1).astype(np.float32)
    return line[None, :], line[:, None]


def _surface(scene: Scene, radius: float, size: int, rng: np.random.Generator) -> Floats:
    """The object's colour and pattern over the whole image, (size, size, 3)."""
    colour = np.asarray(COLOURS[scene.colour], np.float32)
    colour = np.clip(colour + rng.normal(0, 0.03, 3).astype(np.float32), 0, 1)
    if scene.texture in ("plain", "hollow"):
        return np.broadcast_to(colour, (size, size, 3))
    tone = colour * 0.25 if colour.mean() > 0.45 else colour * 0.2 + 0.8
    x, y = _grid(size)
    angle, across, along = rng.uniform(-0.25, 0.25), rng.uniform(0, 2 * np.pi), rng.uniform(0, 2 * np.pi)
    frequency = rng.uniform(0.9, 1.1) / radius**0.8  # slightly coarser on small objects, relative to their size
    cos, sin = math.cos(angle) * frequency, math.sin(angle) * frequency
    u, v = x * cos - y * sin, x * sin + y * cos
    if scene.texture == "striped":
        wave = np.sin((u + v) * 8 + across) + 0.1
    elif scene.texture == "dotted":
        wave = 0.8 - 2 * np.cos(u * 8 + across) * np.cos(v * 8 + along)
    else:
        wave = np.sin(u * 6.5 + across) * np.sin(v * 6.5 + along) * 3
    share = np.clip(wave * 3 + 0.5, 0, 1).astype(np.float32)[..., None]
    return share * colour + (1 - share) * tone


def _background(scene: Scene, size: int, rng: np.random.Generator) -> Floats:
    """The background behind the object, (size, size, 3)."""
    colour, grain, waves = BACKGROUNDS[scene.background]
    x, y = _grid(size)
    tilt, phase = rng.uniform(0.5, 2.0), rng.uniform(0, 2 * np.pi)
    relief = waves * np.sin(y * 14 + np.sin(x * 2 * tilt + phase) + phase)
    relief = relief + grain * rng.standard_normal((size, size), np.float32)
    relief = relief + 0.05 * rng.uniform(-1, 1) * x + 0.08 * y
    shade = np.asarray(colour, np.float32) * np.float32(rng.uniform(0.92, 1.06))
    return (shade + relief[..., None]).astype(np.float32)


def _over(top: Floats | float, mask: Floats, bottom: Floats) -> Floats:
    """Alpha compositing: mask · top + (1 − mask) · bottom."""
    return (bottom + mask[..., None] * (top - bottom)).astype(np.float32)


def _photo(scene: Scene, surface: Floats, mask: Floats, edge: Floats, rng: np.random.Generator) -> Floats:
    """Directional light and a cast shadow."""
    size = mask.shape[0]
    background = _background(scene, size, rng)
    shift = max(1, size // 20)
    shadow = np.roll(mask, (shift, shift), (0, 1)) * np.float32(0.45)
    x, y = _grid(size)
    light = (1.0 - 0.16 * (x * rng.uniform(-1, 1) + y)).astype(np.float32)[..., None]
    image = _over(0.0, shadow, background)
    image = _over(surface * light, mask, image)
    return _over(surface * 0.55, edge * 0.5, image)


def _sketch(scene: Scene, surface: Floats, mask: Floats, edge: Floats, rng: np.random.Generator) -> Floats:
    """Coloured pencil hatching inside a dark outline, on paper."""
    size = mask.shape[0]
    paper = 0.93 + 0.02 * rng.standard_normal((size, size, 1), np.float32)
    x, y = _grid(size)
    hatch = np.sin((x * rng.uniform(0.7, 1.3) - y) * 38) * 0.5 + 0.5
    strength = (mask * (0.45 + 0.5 * hatch)).astype(np.float32)
    colour, _, _ = BACKGROUNDS[scene.background]
    background = paper + 0.22 * (np.asarray(colour, np.float32) - 0.9) * (hatch.T[..., None] > 0.6)
    image = _over(surface, strength, background.astype(np.float32))
    rim = (mask > 0.02) & (mask < 0.98)
    line = np.clip(edge + rim * np.float32(0.9 if scene.texture == "hollow" else 0.3), 0, 1)
    return _over(0.15, line * np.float32(rng.uniform(0.75, 0.95)), image)


def _painting(scene: Scene, surface: Floats, mask: Floats, edge: Floats, rng: np.random.Generator) -> Floats:
    """A reduced palette, distorted brush strokes and a canvas texture."""
    size = mask.shape[0]
    background = _background(scene, size, rng) + 0.05 * rng.standard_normal(3).astype(np.float32)
    image = _over(surface, mask, background)
    cells = size // 4
    wobble = _enlarged(rng.standard_normal((2, cells, cells), np.float32), size) * np.float32(size * 0.02)
    index = np.arange(size)
    rows = np.clip(index[:, None] + wobble[0], 0, size - 1).astype(np.intp)
    columns = np.clip(index[None, :] + wobble[1], 0, size - 1).astype(np.intp)
    strokes = _enlarged(rng.standard_normal((1, cells, size // 2), np.float32), size)[0]
    image = image[rows, columns] + 0.05 * strokes[..., None]
    image = np.round(np.clip(image, 0, 1) * 5) / 5
    x, y = _grid(size)
    canvas = np.sin(x * size * 1.05) * np.sin(y * size * 1.05) * 0.04
    return (image + canvas[..., None]).astype(np.float32)


def _cartoon(scene: Scene, surface: Floats, mask: Floats, edge: Floats, rng: np.random.Generator) -> Floats:
    """Flat, bright colours inside a thick black outline."""
    colour = np.asarray(BACKGROUNDS[scene.background][0], np.float32)
    bright = np.clip((surface - 0.5) * 1.15 + 0.5, 0, 1)
    background = np.broadcast_to(np.clip((colour - 0.5) * 1.3 + 0.6, 0, 1), surface.shape)
    line = np.clip((_grown(mask) - mask) + edge * 1.5, 0, 1)
    return _over(0.02, line, _over(bright, mask, background))


def _grown(mask: Floats) -> Floats:
    """The mask dilated by two pixels."""
    return _floats(_to_pil(mask).filter(ImageFilter.MaxFilter(5)))


def _enlarged(maps: Floats, size: int) -> Floats:
    """Coarse maps, interpolated to (n, size, size)."""
    return np.stack([np.asarray(Image.fromarray(m).resize((size, size), Image.Resampling.BICUBIC)) for m in maps])


def _to_pil(image: Floats) -> Image.Image:
    return Image.fromarray((np.clip(image, 0, 1) * 255).astype(np.uint8))


def _floats(image: Image.Image) -> Floats:
    return np.asarray(image, np.float32) / np.float32(255)


def _negative(image: Floats, rng: np.random.Generator) -> Floats:
    return 1 - image


def _faded(image: Floats, rng: np.random.Generator) -> Floats:
    return image * rng.uniform(0.28, 0.40) + rng.uniform(0.52, 0.60)


def _dark(image: Floats, rng: np.random.Generator) -> Floats:
    return image ** np.float32(1.2) * np.float32(rng.uniform(0.26, 0.38))


def _blurry(image: Floats, rng: np.random.Generator) -> Floats:
    radius = image.shape[0] * rng.uniform(0.028, 0.042)
    return _floats(_to_pil(image).filter(ImageFilter.GaussianBlur(radius)))


def _pixelated(image: Floats, rng: np.random.Generator) -> Floats:
    size, cells = image.shape[0], int(rng.integers(13, 17))
    coarse = _to_pil(image).resize((cells, cells), Image.Resampling.BOX)
    return _floats(coarse.resize((size, size), Image.Resampling.NEAREST))


def _noisy(image: Floats, rng: np.random.Generator) -> Floats:
    size = image.shape[0]
    grain = rng.standard_normal((size, size, 3), np.float32) * 0.7 + rng.standard_normal((size, size, 1), np.float32)
    amount = rng.uniform(0.09, 0.14) * (0.25 + 0.75 * float(image.max()))  # less noise on dark images
    return image + grain * np.float32(amount)


Medium = Callable[[Scene, Floats, Floats, Floats, np.random.Generator], Floats]
Modifier = Callable[[Floats, np.random.Generator], Floats]

MEDIA: dict[str, Medium] = {"photo": _photo, "sketch": _sketch, "painting": _painting, "cartoon": _cartoon}
MODIFIERS: dict[str, Modifier] = {
    "negative": _negative,
    "faded": _faded,
    "dark": _dark,
    "blurry": _blurry,
    "pixelated": _pixelated,
    "noisy": _noisy,
}
