"""Captions of the pocket world: correct descriptions of an image that vary in order and completeness.

caption = <context> name. Half of the captions have a context of up to 26 words with the style words at random positions.
This trains the positions that the context vectors of a learned prompt occupy.
"""

from __future__ import annotations

import numpy as np

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
)

#: Medium → its nouns.
MEDIUM_WORDS: dict[str, tuple[str, ...]] = {
    "photo": ("photo", "photograph"),
    "sketch": ("sketch", "drawing"),
    "painting": ("painting", "canvas"),
    "cartoon": ("cartoon", "comic"),
}
#: Modifier → its adjectives.
MODIFIER_WORDS: dict[str, tuple[str, ...]] = {
    "negative": ("negative", "inverted"),
    "faded": ("faded", "pale"),
    "dark": ("dark", "dim"),
    "blurry": ("blurry", "blurred"),
    "pixelated": ("pixelated", "blocky"),
    "noisy": ("noisy", "grainy"),
}
#: Nouns that do not tell the medium.
NEUTRAL_NOUNS: tuple[str, ...] = ("picture", "image", "view")
#: Words without meaning here; they shift the name to later positions.
_FILLERS = """
the and with from here there this that we see one some very quite old new my your our book page day today please look at
it is was in by for you show shows taken made found shared posted again just only also maybe simple nice good great
another same every any first last best long short home world time life work part side x 0 1 2 3 4 5 6 7 8 9
, - : ; ! ? ( ) ' & /
"""
FILLERS: tuple[str, ...] = tuple(_FILLERS.split())
_STOP = "."


def pick(words: tuple[str, ...], rng: np.random.Generator) -> str:
    """Sample one of some words."""
    return words[int(rng.integers(len(words)))]


def article(words: str) -> str:
    """Prefix some words with `a` or `an`.

    >>> article("orange star"), article("red star")
    ('an orange star', 'a red star')
    """
    return ("an " if words[0] in "aeiou" else "a ") + words


def class_name(scene: Scene, *, size: bool = False, background: bool = False) -> str:
    """The name `[size] [texture] colour shape [on background]` of a scene; the texture "plain" is omitted.

    >>> class_name(Scene("star", "red", "striped", "small", "snow"), size=True)
    'small striped red star'
    """
    words = [scene.size] if size else []
    words += [] if scene.texture == "plain" else [scene.texture]
    words += [scene.colour, scene.shape]
    words += ["on", scene.background] if background else []
    return " ".join(words)


def style_words(style: Style) -> str:
    """The name of a style, from the first word of each table entry.

    >>> style_words(Style("sketch", frozenset({"noisy", "dark"})))
    'dark, noisy sketch'
    """
    adjectives = [MODIFIER_WORDS[name][0] for name in MODIFIERS if name in style.modifiers]
    return " ".join([", ".join(adjectives), MEDIUM_WORDS[style.medium][0]]).strip()


def caption(scene: Scene, style: Style, rng: np.random.Generator) -> str:
    """Sample a correct caption of an image from `rng`."""
    name = _name(scene, rng)
    adjectives = [pick(MODIFIER_WORDS[m], rng) for m in sorted(style.modifiers) if rng.random() < 0.7]
    rng.shuffle(adjectives)
    noun = pick(MEDIUM_WORDS[style.medium], rng) if rng.random() < 0.65 else ""
    form = rng.random()
    if form < 0.50:
        context = _context(adjectives + ([noun] if noun else []), int(rng.integers(1, 27)), rng)
        return f"{context} {name}{_STOP}"
    noun = noun or pick(NEUTRAL_NOUNS, rng)
    adjective = (", " if rng.random() < 0.5 else " ").join(adjectives)
    medium = f"{adjective} {noun}".strip()
    if form < 0.80:
        start = article(medium) if rng.random() < 0.8 else medium
        return f"{start} of {article(name)}{_STOP}"
    if form < 0.90:
        return f"{name}, {medium}{_STOP}"
    return f"{article(name) if rng.random() < 0.5 else name}{_STOP}"


def vocabulary() -> list[str]:
    """All words of captions and templates, sorted."""
    words = {*COLOURS, *TEXTURES, *SIZES, *BACKGROUNDS, *FILLERS, *NEUTRAL_NOUNS, *MEDIA, *MODIFIERS}
    words |= {word for table in (MEDIUM_WORDS, MODIFIER_WORDS) for names in table.values() for word in names}
    words |= {word for shape in OUTLINES for word in shape.split()}
    return sorted(words | {"a", "an", "of", "on", "and", "that", "is", "thing", ",", "."})


def _name(scene: Scene, rng: np.random.Generator) -> str:
    """The scene in words: each property with some probability, mostly in the order of `class_name`."""
    size, texture, colour, background = rng.random(4) < (0.35, 0.85, 0.9, 0.35)
    texture = texture and (scene.texture != "plain" or rng.random() < 0.25)
    noun = scene.shape if rng.random() < 0.95 else "thing"
    if colour and texture and rng.random() < 0.15:
        name = f"{noun} that is {scene.colour} and {scene.texture}"
    else:
        words = [scene.texture] * bool(texture) + [scene.colour] * bool(colour)
        if rng.random() < 0.2:
            words.reverse()
        name = " ".join([*words, noun])
    if size:
        name = f"{scene.size} {name}"
    return f"{name} on {scene.background}" if background else name


def _context(style: list[str], length: int, rng: np.random.Generator) -> str:
    """`length` words: the style words at random positions among fillers."""
    words = [FILLERS[i] for i in rng.integers(len(FILLERS), size=max(0, length - len(style)))]
    for word in style:
        words.insert(int(rng.integers(len(words) + 1)), word)
    return " ".join(words)
