"""The unlabelled images most worth labelling: those of which the classifier is least certain, and not the same thing twice.

Margin: the difference of the two largest class probabilities. The images with the smallest margins form a pool, from which
near-duplicates of an image with a smaller margin are left out (`curation.duplicates`).

Coverage: the first suggestion is the image with the smallest margin; each next one is the image of the pool whose largest cosine
similarity to the suggestions before it is smallest (farthest-first traversal, the greedy solution of the k-centre problem).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slimprompt.classifier import Classifier
from slimprompt.curation.duplicates import PIXEL_CORRELATION, SIMILARITY, pixel_correlation, reaches, small_pixels
from slimprompt.errors import InputError, first_few, whole_number
from slimprompt.images.bank import FeatureBank
from slimprompt.images.decode import open_image

#: Images in the pool for each one that is suggested.
POOL = 3


class Suggestion(NamedTuple):
    """An image to label."""

    image: Path
    best: str
    """The most likely class."""
    probability: float
    second: str
    """The second most likely class."""
    second_probability: float
    margin: float
    """Difference of the two probabilities."""
    similarity: float | None
    """Largest cosine similarity to a suggestion before this one; None for the first."""


@dataclass(frozen=True)
class Suggestions:
    """Images to label, the first one first."""

    chosen: list[Suggestion]
    n_images: int
    """Number of readable images that were considered."""
    n_duplicates: int
    """Number of images that were left out as near-duplicates of an image in the pool."""
    n_trained: int
    """Number of images that were left out because the classifier was trained on them."""
    unreadable: list[str]
    """Messages about the images that cannot be read and were left out."""


def suggest_images(classifier: Classifier, bank: FeatureBank, images: Sequence[Path], n: int = 50) -> Suggestions:
    """Choose n images to label next; fewer if there are fewer images that are no near-duplicates.

    Training images of the classifier are left out. Unreadable images are left out and reported. The bank encodes the images with the
    backbone of the classifier.
    """
    whole_number("the number of suggestions", n, least=1)
    names = classifier.class_names_
    if len(names) < 2:
        raise InputError(f"the classifier has the class {names[0]!r} only: there is nothing to decide")
    paths = list(dict.fromkeys(images))
    bad = bank.build(paths, skip_bad=True)
    unreadable = [str(error) for error in bad.values()]
    paths = [path for index, path in enumerate(paths) if index not in bad]
    if not paths:
        raise InputError(f"none of the {len(bad):,} images can be read: {first_few(unreadable, 200)}")
    trained = classifier.trained_on(bank, paths)
    paths = [path for path, known in zip(paths, trained, strict=True) if not known]
    if not paths:
        raise InputError("all of these images are training images of the model: give images without labels")
    encoded = bank.features(paths)
    features = encoded.cpu().numpy()
    probabilities = classifier.probabilities(encoded.to(bank.backbone.device))  # (n_images, n_classes)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :2]  # the two most likely classes
    best, second = np.take_along_axis(probabilities, order, axis=1).T
    pool, n_duplicates = least_certain(best - second, features, POOL * n, _look_alike(paths))
    chosen = []
    for position, nearest in farthest_first(features[pool], n):
        index = pool[position]
        one, other = (names[label] for label in order[index])
        top, next_top = float(best[index]), float(second[index])
        chosen.append(Suggestion(paths[index], one, top, other, next_top, top - next_top, nearest))
    return Suggestions(chosen, len(paths), n_duplicates, int(trained.sum()), unreadable)


def least_certain(
    margins: np.ndarray, features: np.ndarray, size: int, look_alike: Callable[[int, int], bool]
) -> tuple[list[int], int]:
    """The `size` images with the smallest margins (n,), and how many near-duplicates of one with a smaller margin were passed over.

    `features` (n, embed_dim) have unit length; `look_alike` says whether two images with similar features also have similar pixels.
    """
    found: list[int] = []
    kept = np.empty((min(size, len(features)), features.shape[1]), dtype=features.dtype)  # their features
    n_duplicates = 0
    for index in np.argsort(margins, kind="stable").tolist():
        if len(found) == size:
            break
        similar = np.flatnonzero(reaches(kept[: len(found)] @ features[index], SIMILARITY))
        if any(look_alike(found[position], index) for position in similar.tolist()):
            n_duplicates += 1
        else:
            kept[len(found)] = features[index]
            found.append(index)
    return found, n_duplicates


def _look_alike(paths: Sequence[Path]) -> Callable[[int, int], bool]:
    @cache
    def pixels(index: int) -> np.ndarray:
        return small_pixels(open_image(paths[index]))

    return lambda one, other: pixel_correlation(pixels(one), pixels(other)) >= PIXEL_CORRELATION


def farthest_first(features: np.ndarray, n: int) -> list[tuple[int, float | None]]:
    """The first image, then repeatedly the image least similar to those already chosen; the earlier one of equals.

    Returns up to n indices in the order of choice, each with its largest cosine similarity to those before it; None for the first.
    `features` (n_images, embed_dim) have unit length.
    """
    chosen: list[tuple[int, float | None]] = [(0, None)]
    nearest = features @ features[0]  # largest similarity of each image to those chosen
    nearest[0] = np.inf
    for _ in range(min(n, len(features)) - 1):
        index = int(nearest.argmin())
        chosen.append((index, float(nearest[index])))
        np.maximum(nearest, features @ features[index], out=nearest)
        nearest[index] = np.inf
    return chosen
