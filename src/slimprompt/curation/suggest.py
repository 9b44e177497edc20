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
from slimprompt.errors import InputError, whole_number
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
    skipped: list[str]
    """Messages about unreadable images."""
    n_trained: int = 0
    """Number of images that were left out because the classifier was trained on them."""


def suggest_images(
    classifier: Classifier,
    bank: FeatureBank,
    images: Sequence[Path],
    n: int = 50,
    *,
    skip_bad: bool = False,
) -> Suggestions:
    """Choose the images most worth labelling.

    Parameters
    ----------
    classifier
        A fitted classifier with at least two classes.
    bank
        Encodes the images, with the backbone of the classifier.
    images
        Unlabelled images; training images of the classifier are left out.
    n
        How many to choose; fewer are chosen if there are fewer images that are no near-duplicates.
    skip_bad
        Skip unreadable images instead of raising an error.
    """
    whole_number("the number of suggestions", n, least=1)
    if len(classifier.class_names_) < 2:
        raise InputError(
            f"the classifier has the class {classifier.class_names_[0]!r} only: there is nothing to decide"
        )
    paths = list(dict.fromkeys(images))
    bad = bank.build(paths, skip_bad=skip_bad)
    paths = [path for index, path in enumerate(paths) if index not in bad]
    if not paths:
        raise InputError("none of the images can be read")
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
        one, other = (classifier.class_names_[label] for label in order[index])
        top, next_top = float(best[index]), float(second[index])
        chosen.append(Suggestion(paths[index], one, top, other, next_top, top - next_top, nearest))
    return Suggestions(chosen, len(paths), n_duplicates, [str(error) for error in bad.values()], int(trained.sum()))


def least_certain(
    margins: np.ndarray, features: np.ndarray, size: int, look_alike: Callable[[int, int], bool]
) -> tuple[list[int], int]:
    """The `size` images with the smallest margins, without near-duplicates of an image with a smaller margin.

    Parameters
    ----------
    margins
        Margin of each image, (n,).
    features
        Unit-length features, (n, embed_dim).
    size
        Number of images to return, if there are as many.
    look_alike
        Whether two images with similar features also have similar pixels.

    Returns
    -------
    indices, n_duplicates
        The images, smallest margin first, and how many near-duplicates were passed over.
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

    Parameters
    ----------
    features
        Unit-length features, (n_images, embed_dim).
    n
        Number of images to choose, if there are as many.

    Returns
    -------
    list of (index, similarity)
        In the order of choice, with the largest cosine similarity to the images chosen before; None for the first.
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
