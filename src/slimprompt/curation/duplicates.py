"""Near-duplicates: pairs of images with similar features that also look alike.

Features alone are not enough: different images of one kind may have almost equal features, and a copy with other compression
may not. So pairs are searched by the cosine similarity of their features and then compared by their pixels, at 16 × 16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from PIL import Image

from slimprompt.errors import InputError, shown

#: Smallest cosine similarity of the eval-view features of near-duplicates.
SIMILARITY = 0.97
#: Smallest correlation of their thumbnails.
PIXEL_CORRELATION = 0.97
#: Rounding of the cosine similarity of equal features, which is not exactly 1.
_ROUNDING = 1e-5

_ROWS = 1024


class IndexPair(NamedTuple):
    """Two images by their indices, `first < second`, and the cosine similarity of their features."""

    first: int
    second: int
    similarity: float


def check_similarity(value: float) -> float:
    """The value, if it can be a cosine similarity of near-duplicates."""
    if not 0 < value <= 1:
        raise InputError(
            f"the similarity must be above 0 and at most 1 (given: {shown(value)}); the default is {SIMILARITY}"
        )
    return value


def reaches(similarities: np.ndarray, threshold: float) -> np.ndarray:
    """Whether cosine similarities reach the threshold, up to rounding."""
    return similarities >= threshold - _ROUNDING


def small_pixels(image: Image.Image) -> np.ndarray:
    """The image at 16 × 16 pixels, minus its mean value, (768,)."""
    pixels = np.asarray(image.convert("RGB").resize((16, 16), Image.Resampling.BOX), dtype=np.float64).ravel()
    return pixels - pixels.mean()


def pixel_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of two images as `small_pixels` gives them; two images of one grey value each have correlation 1."""
    flat = 1e-6  # what is added for images without any contrast
    return float((first @ second + flat) / np.sqrt((first @ first + flat) * (second @ second + flat)))


def most_similar_pairs(
    features: np.ndarray, groups: np.ndarray, within: np.ndarray, threshold: float
) -> list[IndexPair]:
    """Each image with its most similar image of another group, if their cosine similarity reaches the threshold.

    `features` (n, embed_dim) have unit length. Images are compared if their `groups` (n,) differ and their values `within` (n,) are
    equal. Most similar pairs first; there are at most n, and every image that has a near-duplicate in another group is in one.
    """
    found: dict[tuple[int, int], float] = {}
    for start in range(0, len(features), _ROWS):
        rows = slice(start, start + _ROWS)
        similarities = features[rows] @ features.T  # (rows, n)
        allowed = (groups[rows, None] != groups[None]) & (within[rows, None] == within[None])
        similarities[~allowed] = -np.inf
        nearest = similarities.argmax(1)
        values = similarities[np.arange(len(nearest)), nearest]
        for row in np.flatnonzero(reaches(values, threshold)):
            one, other = sorted((start + int(row), int(nearest[row])))
            found.setdefault((one, other), min(1.0, float(values[row])))
    pairs = [IndexPair(*indices, value) for indices, value in found.items()]
    return sorted(pairs, key=lambda pair: (-pair.similarity, pair.first, pair.second))
