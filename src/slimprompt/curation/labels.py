"""Labels worth checking: suspected label errors by cross-validation, and duplicates across classes or splits.

The score of a label is p(label) / mean p(label), where p is the probability of the given label from a logistic regression on
image features that was fitted without this image, and the mean is over all images with the same label. The score does not depend
on how well a class can be recognised: if its images are often confused with another class, the mean is low too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from slimprompt.curation.duplicates import (
    PIXEL_CORRELATION,
    SIMILARITY,
    check_similarity,
    most_similar_pairs,
    pixel_correlation,
    small_pixels,
)
from slimprompt.data.benchmark import SPLITS, Benchmark
from slimprompt.errors import InputError, shown
from slimprompt.images.bank import FeatureBank
from slimprompt.images.decode import Decode, file_sha256, open_image
from slimprompt.methods.cross_validation import FOLDS, folds
from slimprompt.methods.logistic import quiet_single_thread
from slimprompt.progress import progress

#: A label is suspected if its score is below this value.
MAX_SCORE = 0.1

#: Inverse strengths C of the regularisation, from strong to weak.
STRENGTHS = (1.0, 1e1, 1e2, 1e3)


class LabelledImage(NamedTuple):
    """An image with its split and its given label."""

    path: Path
    split: str
    class_name: str


class SuspectedLabel(NamedTuple):
    """An image whose label may be wrong."""

    image: LabelledImage
    score: float
    """Probability of the label, divided by its mean over the images with this label."""
    probability: float
    """Cross-validated probability of the label."""
    suggested: str
    """The most likely other class."""
    suggested_probability: float


class DuplicatePair(NamedTuple):
    """Two images that are almost equal, or the same file twice."""

    first: LabelledImage
    second: LabelledImage
    similarity: float
    """Cosine similarity of their features."""
    pixels: float
    """Correlation of their pixels at 16 × 16."""
    exact: bool
    """Whether the files have the same content."""

    @property
    def kind(self) -> str:
        """Why the pair is reported: "across classes" or "across splits"."""
        return "across classes" if self.first.class_name != self.second.class_name else "across splits"


@dataclass(frozen=True)
class LabelCheck:
    """What was found in a set of labelled images."""

    images: list[LabelledImage]
    """All images that could be read."""
    class_names: list[str]
    """Classes with at least one of them."""
    accuracy: float | None
    """Share of the given labels that the cross-validated classifier predicts; None if no label could be checked."""
    lowest_score: float | None
    """Of all labels that were checked; None if there are none."""
    suspects: list[SuspectedLabel]
    """Lowest score first."""
    duplicates: list[DuplicatePair]
    """Most similar first: those across classes, then those of one class across splits."""
    unchecked: dict[str, int]
    """Classes with too few images to check their labels, with their number of images."""
    unreadable: list[str]
    """Messages about the images that cannot be read and were left out."""


def check_labels(
    bank: FeatureBank,
    images: Benchmark,
    *,
    max_score: float = MAX_SCORE,
    similarity: float = SIMILARITY,
    seed: int = 1,
) -> LabelCheck:
    """Search the labelled images of all splits for labels that may be wrong and for duplicates that should not be there.

    Labels with a score below `max_score` are suspected; near-duplicates have a cosine similarity of at least `similarity`. `seed` is
    that of the folds. Unreadable images are left out and reported.
    """
    check_max_score(max_score)
    check_similarity(similarity)
    found = [(split, item) for split in SPLITS for item in getattr(images, split)]
    bad = bank.build([images.path(item) for _, item in found], decode=images.decode, skip_bad=True)
    unreadable = [str(error) for error in bad.values()]
    found = [pair for index, pair in enumerate(found) if index not in bad]
    if not found:
        raise InputError(f"none of the {len(bad):,} images can be read: {unreadable[0]}")
    labelled = [LabelledImage(images.path(item), split, item.class_name) for split, item in found]
    features = bank.features([image.path for image in labelled], decode=images.decode).cpu().numpy()
    present, labels = np.unique([item.label for _, item in found], return_inverse=True)
    names, sizes = [images.class_names[label] for label in present], np.bincount(labels)
    unchecked = {name: int(size) for name, size in zip(names, sizes, strict=True) if size < FOLDS}
    accuracy, lowest, suspects = None, None, []
    if len(unchecked) < len(names) > 1:
        probabilities = held_out_probabilities(features, labels, seed)
        scores, checked = label_scores(probabilities, labels), sizes[labels] >= FOLDS
        accuracy = float((probabilities.argmax(1) == labels)[checked].mean())
        lowest = float(scores[checked].min())
        order = [index for index in np.argsort(scores, kind="stable") if checked[index] and scores[index] < max_score]
        suspects = [_suspect(labelled[i], scores[i], probabilities[i], labels[i], names) for i in order]
    duplicates = _duplicates(features, labels, labelled, similarity, images.decode)
    return LabelCheck(labelled, names, accuracy, lowest, suspects, duplicates, unchecked, unreadable)


def nothing_suspected(found: LabelCheck, max_score: float) -> str:
    """Why no label is suspected, in one sentence; empty if some are.

    A classifier that is unsure of everything gives no label a low score: that is no sign of right labels.
    """
    if found.suspects or found.lowest_score is None:
        return ""
    shown = f"{found.lowest_score:.2f}"
    return (
        f"No label has a score below {max_score:g}; the lowest is {shown}. The less accurate the classifier, the higher are all scores: "
        f"--max-score {min(1.0, found.lowest_score + 0.1):.1f} lists the labels with the lowest."
    )


def check_max_score(value: float) -> float:
    """The value, if it can be the score below which labels are suspected."""
    if not 0 < value <= 1:
        raise InputError(
            f"the largest score of a suspected label must be above 0 and at most 1 (given: {shown(value)}); "
            f"the default is {MAX_SCORE}"
        )
    return value


def held_out_probabilities(features: np.ndarray, labels: np.ndarray, seed: int = 1) -> np.ndarray:
    """Class probabilities (n, n_classes) of each image, by logistic regression on the images of the other folds.

    `features` (n, embed_dim) have unit length; `labels` (n,) are 0 … n_classes − 1, each at least once. The regularisation is the
    strongest one whose cross-entropy of the given labels is within one standard error of the lowest: weaker ones give more extreme
    probabilities, and with them more suspects. An image without another of its class is never held out; its row is nan.
    """
    values, parts = features.astype(np.float64), folds(labels.tolist(), seed)
    results = np.full((len(STRENGTHS), len(labels), int(labels.max()) + 1), np.nan)
    with progress("checking labels", len(parts) * len(STRENGTHS)) as advance, quiet_single_thread():
        for kept, held_out in parts:
            model = LogisticRegression(max_iter=1000, warm_start=True)
            for result, strength in zip(results, STRENGTHS, strict=True):
                model.set_params(C=strength).fit(values[kept], labels[kept])
                result[held_out] = model.predict_proba(values[held_out])
                advance()
    of_label = results[:, np.arange(len(labels)), labels]  # (n_strengths, n)
    losses = -np.log(np.maximum(of_label[:, np.isfinite(of_label[0])], 1e-12))  # (n_strengths, n_held_out)
    best = losses[losses.mean(1).argmin()]
    limit = best.mean() + best.std() / np.sqrt(len(best))
    return results[int((losses.mean(1) <= limit).argmax())]


def label_scores(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """p(label) / mean p(label) of each image, (n,), from cross-validated probabilities (n, n_classes); nan where these are."""
    own = probabilities[np.arange(len(labels)), labels]
    known = np.isfinite(own)
    sums = np.bincount(labels[known], own[known], minlength=probabilities.shape[1])
    counts = np.bincount(labels[known], minlength=probabilities.shape[1])
    return own / (sums / np.maximum(counts, 1))[labels]


def _suspect(
    image: LabelledImage, score: float, probabilities: np.ndarray, label: int, class_names: Sequence[str]
) -> SuspectedLabel:
    others = probabilities.copy()
    others[label] = -1
    best = int(others.argmax())
    return SuspectedLabel(image, float(score), float(probabilities[label]), class_names[best], float(others[best]))


def _duplicates(
    features: np.ndarray, labels: np.ndarray, images: Sequence[LabelledImage], similarity: float, decode: Decode
) -> list[DuplicatePair]:
    """Near-duplicates of different classes, then those of one class in different splits."""
    splits = np.array([SPLITS.index(image.split) for image in images])
    pairs = most_similar_pairs(features, labels, np.zeros_like(labels), similarity)
    pairs += most_similar_pairs(features, splits, labels, similarity)
    indices = sorted({index for pair in pairs for index in (pair.first, pair.second)})
    pixels = {}
    with progress("comparing images", len(indices), "images") as advance:
        for index in indices:
            pixels[index] = small_pixels(open_image(images[index].path, decode))
            advance()
    found = []
    for first, second, value in pairs:
        correlation = pixel_correlation(pixels[first], pixels[second])
        if correlation >= PIXEL_CORRELATION:
            one, other = images[first], images[second]
            exact = file_sha256(one.path) == file_sha256(other.path)
            found.append(DuplicatePair(one, other, value, correlation, exact))
    return found
