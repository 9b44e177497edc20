"""Calibration: a temperature and confidences from images that a classifier was not fitted on, all inside the training images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slimprompt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

#: Answer for an image whose confidence is too low.
NONE_OF_THESE = "none of these"
#: Folds of the cross-validation: at most that many more trainings, each on the images outside of one fold.
FOLDS = 3
#: Held-out images that are enough for a temperature.
ENOUGH_HELD_OUT = 300
#: Temperatures that can be found.
_LOWEST, _HIGHEST = 1e-4, 1e4
#: A temperature is used if its log loss is below that of equal probabilities by at least this fraction.
_SMALLEST_GAIN = 0.01
#: Confidences that are stored; of more images, their percentiles.
_STORED = 101


class Calibration(NamedTuple):
    """Probabilities are softmax(logits / temperature)."""

    temperature: float = 1.0
    """1 if none was found."""
    confidences: tuple[float, ...] = ()
    """Largest probabilities of the held-out training images, ascending; of more than 101 images, the percentiles 0 to 100.
    Empty if nothing was held out."""

    def threshold(self, coverage: float) -> float:
        """The confidence that a fraction `coverage` of the held-out training images reaches.

        Raises
        ------
        InputError
            If no confidences are known, or the coverage is not a fraction.
        """
        if not self.confidences:
            raise InputError(
                "a coverage needs confidences of held-out training images, and this model has none: it was fitted on one image "
                "per class, without calibration, by other software or an older version, or is used on other classes. Give a "
                "minimum confidence (--min-confidence 0.6), or fit it again on two or more images per class"
            )
        if not 0 <= coverage <= 1:
            raise InputError(f"the coverage is {coverage:g}; expected a fraction from 0 to 1")
        position = (1 - coverage) * (len(self.confidences) - 1)
        return self.confidences[int(round(position, 6))]  # rounded: 1 - 0.9 is a little less than 0.1


def calibration_folds(labels: Sequence[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """The folds that are held out in turn: (indices of the images to fit on, indices of the images held out) of each.

    These are the first of `FOLDS` stratified folds that together hold out `ENOUGH_HELD_OUT` images, or all folds.
    """
    from slimprompt.methods.cross_validation import folds  # imports torch

    parts, n_held_out = [], 0
    for kept, held_out in folds(labels, seed, FOLDS):
        if n_held_out < ENOUGH_HELD_OUT:
            parts.append((kept, held_out))
        n_held_out += len(held_out)
    return parts


def calibration_of(logits: np.ndarray, labels: np.ndarray) -> Calibration:
    """Temperature and confidences from logits (n_images, n_classes) of images that were held out, and their labels (n_images,)."""
    temperature = fit_temperature(logits, labels)
    confidences = np.sort(softmax(logits, temperature).max(1))
    if len(confidences) > _STORED:
        confidences = np.quantile(confidences, np.linspace(0, 1, _STORED))
    return Calibration(temperature, tuple(round(float(value), 6) for value in confidences))


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """softmax(logits / temperature) over the classes, in double precision, (n_images, n_classes)."""
    # As scipy.special.softmax, whose import every `predict` would wait for.
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probabilities: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return probabilities


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """argmin over T of the mean log loss of softmax(logits / T), with one pseudo-mistake.

    Of n images, the true class has weight (n + 1) / (n + 2) and the strongest other class 1 / (n + 2), as in Platt's
    scaling. So T does not go to 0 if all images are classified correctly, as happens with few shots. If the logits say nothing about
    these images, equal probabilities would be best, T → ∞. There is no temperature then, and the result is 1.

    Parameters
    ----------
    logits
        Logits of the images, (n_images, n_classes).
    labels
        Their classes, (n_images,).
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits, labels = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    n, rows = len(labels), np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    rivals = others.argmax(1)  # the strongest other class of each image

    def loss(log_temperature: float) -> float:
        logs = log_softmax(logits / np.exp(log_temperature), axis=1)
        return -float(((n + 1) * logs[rows, labels] + logs[rows, rivals]).mean()) / (n + 2)

    found = minimize_scalar(loss, bounds=(np.log(_LOWEST), np.log(_HIGHEST)), method="bounded")
    uninformative = found.fun > (1 - _SMALLEST_GAIN) * np.log(logits.shape[1])  # log loss of equal probabilities
    return 1.0 if uninformative else float(np.exp(found.x))


class ReliabilityBin(NamedTuple):
    """Images whose confidence lies in (low, high]."""

    low: float
    high: float
    n_images: int
    confidence: float
    """Mean confidence; nan without images, like the accuracy."""
    accuracy: float
    """Share of correct predictions."""


def reliability_bins(confidences: np.ndarray, correct: np.ndarray, n_bins: int = 15) -> list[ReliabilityBin]:
    """Confidence and accuracy of the images in bins of equal width.

    Parameters
    ----------
    confidences
        Largest probability of each image, (n_images,).
    correct
        Whether each image is classified correctly, (n_images,).
    n_bins
        Number of bins between 0 and 1.
    """
    edges = np.linspace(0, 1, n_bins + 1)
    place = np.clip(np.digitize(confidences, edges, right=True) - 1, 0, n_bins - 1)
    bins = []
    for number in range(n_bins):
        mine = place == number
        count = int(mine.sum())
        means = (float(confidences[mine].mean()), float(correct[mine].mean())) if count else (float("nan"),) * 2
        bins.append(ReliabilityBin(float(edges[number]), float(edges[number + 1]), count, *means))
    return bins


def expected_calibration_error(confidences: np.ndarray, correct: np.ndarray, n_bins: int = 15) -> float:
    """Σ_b n_b / n · |accuracy_b − confidence_b| over the bins b of `reliability_bins`."""
    filled = [one for one in reliability_bins(confidences, correct, n_bins) if one.n_images]
    return sum(one.n_images * abs(one.accuracy - one.confidence) for one in filled) / len(confidences)
