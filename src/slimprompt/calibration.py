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
_LOWEST, _HIGHEST = 1e-2, 1e2
#: Standard deviation of log T around 0 before any image is seen: with few images, T stays close to 1.
_PRIOR_SD = 0.5
#: Folds by which the log loss of a temperature is cross-validated.
_TEMPERATURE_FOLDS = 10
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
        """The confidence that a fraction `coverage` of the held-out training images reaches."""
        if not self.confidences:
            raise InputError(
                "a coverage needs confidences of held-out training images, and this model has none: it was fitted on one image "
                "per class, without calibration or by other software, or is used on other classes. Give a "
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
    temperature = useful_temperature(logits, labels)
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


def useful_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """`fit_temperature`, or 1 unless its log loss on images that it was not fitted on is lower by more than one standard error.

    logits (n_images, n_classes), labels (n_images,).
    """
    folds = np.arange(len(labels)) % _TEMPERATURE_FOLDS
    if len(labels) < 2:
        return 1.0
    gains = np.empty(len(labels))
    for fold in range(folds.max() + 1):
        inside = folds == fold
        temperature = fit_temperature(logits[~inside], labels[~inside])
        gains[inside] = _log_losses(logits[inside], labels[inside], 1.0)
        gains[inside] -= _log_losses(logits[inside], labels[inside], temperature)
    standard_error = gains.std(ddof=1) / np.sqrt(len(gains))
    return fit_temperature(logits, labels) if gains.mean() > standard_error else 1.0


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """argmin over T of Σ_i log loss of softmax(logits_i / T) + (log T)² / (2 · 0.5²), for logits (n_images, n_classes).

    The second term is the prior log T ~ N(0, 0.5²): it keeps T close to 1 with few images, and from 0 if all of them are classified
    correctly.
    """
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        prior = log_temperature**2 / (2 * _PRIOR_SD**2)
        return float(_log_losses(logits, labels, np.exp(log_temperature)).sum() + prior)

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(_LOWEST), np.log(_HIGHEST)), method="bounded").x))


def _log_losses(logits: np.ndarray, labels: np.ndarray, temperature: float) -> np.ndarray:
    """−log softmax(logits / T) of the true class of each image, (n_images,)."""
    from scipy.special import log_softmax

    losses: np.ndarray = -log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels]
    return losses


def probability_text(probability: float, decimals: int = 1) -> str:
    """A probability in percent; 0 and 100 % are said only of 0 and 1.

    >>> probability_text(0.25), probability_text(0.99995), probability_text(1.0), probability_text(2e-6)
    ('25.0 %', '> 99.9 %', '100.0 %', '< 0.1 %')
    """
    step, shown = 10.0**-decimals, f"{100 * probability:.{decimals}f}"
    if probability < 1 and float(shown) >= 100:
        return f"> {100 - step:.{decimals}f} %"
    return f"< {step:.{decimals}f} %" if probability > 0 and float(shown) <= 0 else f"{shown} %"


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
    """Confidence and accuracy of the images in bins of equal width."""
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
