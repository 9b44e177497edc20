"""Every method on the images of one fit, and which of them to use: `slimprompt fit --compare`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slimprompt.errors import InputError
from slimprompt.fit import Fit
from slimprompt.methods.table import METHODS, PROMPT, find_method
from slimprompt.progress import progress
from slimprompt.scores import Accuracy, accuracy_of, mcnemar

_SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class MethodResult:
    """One method on the held-out images."""

    method: str
    correct: np.ndarray
    """Whether each held-out image is classified correctly, (n_images,)."""
    n_trained: int
    seconds: float
    """Wall time of fitting, with the image features encoded."""
    takes_new_names: bool

    @property
    def accuracy(self) -> Accuracy:
        """Accuracy with its interval."""
        return accuracy_of(self.correct)


def compare_methods(fit: Fit) -> list[MethodResult]:
    """The fitted classifier and every method on the same training and held-out images, in the order of the table.

    A method of the user's own that was fitted comes last.

    Held-out images that are copies of training images are left out: they favour the methods that remember these.

    Raises
    ------
    InputError
        If no other images are held out.
    """
    comparison = fit.unseen
    if comparison is None:
        raise InputError(
            "there are no held-out images to compare methods on: give more images or fewer --shots, or a test/ folder beside train/ "
            "with other images"
        )
    fitted, results = fit.classifier.method_, []
    names = list(METHODS) if fitted in METHODS else [PROMPT, *METHODS] if fitted == PROMPT else [*METHODS, fitted]
    fit.task.encode_all()  # so that it is not counted as fitting
    with progress("comparing methods", len(names)) as advance:
        for name in names:
            if name == fitted:
                correct, n_trained, seconds = comparison.fitted.correct, fit.classifier.n_trained_, fit.seconds
                flexible = fit.classifier.takes_new_names
            else:
                method, begin = find_method(name), time.perf_counter()
                result = method.fit(fit.task)
                seconds, n_trained, flexible = time.perf_counter() - begin, result.n_trained, method.takes_new_names
                correct = result.head.correct(comparison.eval_set).numpy()
            results.append(MethodResult(name, correct, n_trained, seconds, flexible))
            advance()
    return results


class Advice(NamedTuple):
    """Which method to use."""

    method: str | None
    """The method; None if none is significantly more accurate than zero-shot."""
    sentence: str


def advice(results: Sequence[MethodResult]) -> Advice:
    """Which method to use, or that none is significantly more accurate than zero-shot.

    The most accurate method is compared with each other one by McNemar's exact test with Bonferroni's correction. A method is
    not advised over zero-shot unless it is more accurate by this test.

    Parameters
    ----------
    results
        Methods on the same images, zero-shot among them.
    """
    best = max(results, key=lambda one: (int(one.correct.sum()), one.takes_new_names, -one.n_trained))
    others = [one for one in results if one is not best]
    close = [one for one in others if mcnemar(best.correct, one.correct) * len(others) >= _SIGNIFICANCE]
    n = len(best.correct)
    images = f"{n:,} held-out image{'s' if n != 1 else ''}"
    if best.method == "zero-shot":
        sentence = f"Use zero-shot, which needs no training: no other method is more accurate on the {images}."
        return Advice(best.method, sentence)
    if zero_shot := [one for one in close if one.method == "zero-shot"]:
        gain = best.accuracy.value - zero_shot[0].accuracy.value
        points = f"{gain:+.1f}" if gain >= 0.05 else f"{gain:+.3f}"
        these = f"these {n:,} images" if n != 1 else "this image"
        sentence = f"No method is significantly more accurate than zero-shot on {these}; the best is {best.method} ({points} points)."
        return Advice(None, sentence)
    if not close:
        sentence = f"Use {best.method}: it is more accurate than every other method on the {images} (McNemar's test, p < 0.05)."
        return Advice(best.method, sentence)
    flexible = [one.method for one in close if one.takes_new_names and not best.takes_new_names]
    also = f"; of these, {flexible[0]} also takes new class names" if flexible else ""
    tied = ", ".join(one.method for one in sorted(close, key=lambda one: -int(one.correct.sum())))
    return Advice(best.method, f"Use {best.method}: the {images} cannot tell it from {tied}{also}.")
