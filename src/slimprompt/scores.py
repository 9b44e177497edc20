"""How good a classifier is on labelled images: accuracy with interval, balanced scores, log loss, calibration error."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from slimprompt.calibration import expected_calibration_error
from slimprompt.errors import count


class Accuracy(NamedTuple):
    """Accuracy in percent with its Wilson 95 % confidence interval."""

    value: float
    low: float
    high: float


def accuracy_of(correct: Tensor | np.ndarray) -> Accuracy:
    """The accuracy of a classifier, from whether each image was classified correctly (n_images,)."""
    from scipy.stats import binomtest

    hits, n = int(correct.sum()), len(correct)
    interval = binomtest(hits, n).proportion_ci(method="wilson")
    return Accuracy(100.0 * hits / n, 100.0 * interval.low, 100.0 * interval.high)


class Difference(NamedTuple):
    """Difference of two accuracies on the same images, in percentage points, with its paired 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = (f"{number:+.1f}".replace("-", "−") for number in self)
        return f"{value} points (95 % interval {low} to {high})"


def paired_difference(first: Tensor | np.ndarray, second: Tensor | np.ndarray) -> Difference:
    """Accuracy of the first minus that of the second classifier, from whether each image was classified correctly (n_images,).

    The interval is that of Bonett and Price (2012): with g images that only the first one classifies correctly, l that only the
    second one does, p = (g + 1) / (n + 2) and q = (l + 1) / (n + 2), it is p − q ± 1.96 √((p + q − (p − q)²) / (n + 2)).
    """
    gained, lost, n = int((first & ~second).sum()), int((~first & second).sum()), len(first)
    p, q = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = 1.96 * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    low, high = max(-1.0, p - q - half), min(1.0, p - q + half)
    return Difference(100 * (gained - lost) / n, 100 * low, 100 * high)


class Verdict(NamedTuple):
    """Whether a classifier is better than zero-shot on the same images."""

    outcome: Literal["better", "worse", "undecided"]
    gain: Difference
    sentence: str


def verdict(
    title: str,
    correct: Tensor | np.ndarray,
    zero_shot: Tensor | np.ndarray,
    *,
    chance: float = 0.0,
    compared: bool = False,
) -> Verdict:
    """The verdict, from whether each image was classified correctly (n_images,): by the paired 95 % interval of the difference.

    `chance` is the accuracy of guessing, a fraction: more images are no advice where both are not above it. `compared` is whether the
    other methods were tried already, so that they are not advised.
    """
    gain, where = paired_difference(correct, zero_shot), f"on {count(len(correct), 'image')}"
    more = "more images per class" + ("" if compared else ", or another method (`fit --compare`)")
    if gain.low > 0:
        return Verdict("better", gain, f"{title[:1].upper()}{title[1:]} is better than zero-shot {where}: {gain}.")
    if gain.high < 0:
        return Verdict(
            "worse",
            gain,
            f"{title[:1].upper()}{title[1:]} is worse than zero-shot {where}: {gain}. Use zero-shot, or try {more}.",
        )
    sentence = f"It is not clear whether {title} is better than zero-shot {where}: {gain}."
    guessing = chance + 1.96 * math.sqrt(chance * (1 - chance) / len(correct))  # 97.5 % of those who guess are below it
    if max(int(correct.sum()), int(zero_shot.sum())) <= guessing * len(correct):
        return Verdict("undecided", gain, f"{sentence} Neither is clearly better than guessing: try another backbone.")
    return Verdict("undecided", gain, f"{sentence} Evaluate on more images; to improve it, try {more}.")


class Scores(NamedTuple):
    """A classifier on labelled images. Averages over classes are over the classes that have images."""

    accuracy: Accuracy
    balanced_accuracy: float
    """Mean accuracy of the classes, in percent."""
    macro_f1: float
    """Mean F1 of the classes, in percent."""
    log_loss: float
    """Mean of −log p(true class), in nats."""
    calibration_error: float
    """Expected calibration error in percent, with 15 bins."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, with fractions instead of percent: the interval is a list [low, high]."""
        value, *interval = (one / 100 for one in self.accuracy)
        return {
            "accuracy": value,
            "interval": interval,
            "balanced_accuracy": self.balanced_accuracy / 100,
            "macro_f1": self.macro_f1 / 100,
            "log_loss": self.log_loss,
            "calibration_error": self.calibration_error / 100,
        }


def scores_of(probabilities: np.ndarray, labels: np.ndarray) -> Scores:
    """Scores from class probabilities (n_images, n_classes) and labels (n_images,), at least one of them."""
    from sklearn.metrics import f1_score, log_loss, recall_score

    predicted, present = probabilities.argmax(1), np.unique(labels)
    correct = predicted == labels
    average = {"labels": present, "average": "macro", "zero_division": 0.0}
    columns = np.arange(probabilities.shape[1])
    one_class = probabilities.shape[1] == 1  # scikit-learn's log loss needs two
    return Scores(
        accuracy=accuracy_of(correct),
        balanced_accuracy=100.0 * float(recall_score(labels, predicted, **average)),
        macro_f1=100.0 * float(f1_score(labels, predicted, **average)),
        log_loss=0.0
        if one_class
        else float(log_loss(labels, probabilities, labels=columns)),  # finite: it clips at 2e-16
        calibration_error=100.0 * expected_calibration_error(probabilities.max(1), correct),
    )
