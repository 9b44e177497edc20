"""Comparison of methods: accuracy with interval, McNemar's test, and the advice."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binom

from slimprompt.classifiers.fitting import MethodResult, accuracy_of, advice, mcnemar


def result(method: str, pattern: str, *, trained: int = 100, new_names: bool = False) -> MethodResult:
    """`pattern` has one sign per group of ten images: + correct, - wrong."""
    correct = torch.tensor([sign == "+" for sign in pattern for _ in range(10)])
    return MethodResult(method, correct, trained, 0.1, new_names)


def test_wilson_interval_by_hand() -> None:
    """8 of 10: centre (p + z²/2n) / (1 + z²/n), half width z √(p(1−p)/n + z²/4n²) / (1 + z²/n)."""
    value, low, high = accuracy_of(torch.tensor([True] * 8 + [False] * 2))
    z2 = 1.959964**2
    centre, half = (0.8 + z2 / 20) / (1 + z2 / 10), (z2 * (0.16 / 10 + z2 / 400)) ** 0.5 / (1 + z2 / 10)
    assert (value, low, high) == pytest.approx((80, 100 * (centre - half), 100 * (centre + half)), abs=1e-3)


def test_mcnemar_by_hand() -> None:
    first = torch.tensor([True] * 9 + [False] * 2 + [True] * 30)
    second = torch.tensor([False] * 9 + [True] * 2 + [True] * 30)
    assert mcnemar(first, second) == pytest.approx(2 * binom.cdf(2, 11, 0.5))
    assert mcnemar(first, first) == 1.0


def test_a_clear_winner_is_advised() -> None:
    results = [
        result("prompt", "+++++-----", new_names=True),
        result("zero-shot", "+++-------", new_names=True, trained=0),
        result("gda", "+++++++++-"),
    ]
    assert advice(results) == (
        "Use gda: it is more accurate than every other method on the 100 held-out images (McNemar's test, p < 0.05)."
    )


def test_ties_are_named_and_new_class_names_are_mentioned() -> None:
    gda = result("gda", "+++++++++-")
    close = gda.correct.clone()
    close[0] = False
    results = [
        MethodResult("prompt", close, 100, 0.1, True),
        result("zero-shot", "+++-------", new_names=True, trained=0),
        gda,
    ]
    assert advice(results) == (
        "Use gda: the 100 held-out images cannot tell it from prompt; of these, prompt also takes new class names."
    )


def test_too_few_images_to_beat_zero_shot() -> None:
    zero_shot = MethodResult("zero-shot", torch.tensor([True, False, False, True]), 0, 0.0, True)
    gda = MethodResult("gda", torch.tensor([True, True, True, True]), 10, 0.0, False)
    assert advice([zero_shot, gda]).startswith(
        "The 4 held-out images are too few to show that any method is more accurate than zero-shot"
    )


def test_zero_shot_is_advised_if_nothing_is_better() -> None:
    results = [result("zero-shot", "+++", new_names=True, trained=0), result("gda", "++-"), result("clap", "+++")]
    assert advice(results).startswith("Use zero-shot, which needs no training: no other method is more accurate")


def test_the_correction_counts_the_methods() -> None:
    """7 images gained and none lost: p = 0.016 is significant for one comparison and not for nine."""
    worse = torch.tensor([True] * 20 + [False] * 7)
    best = MethodResult("gda", torch.ones(27, dtype=torch.bool), 10, 0.0, False)
    zero_shot = MethodResult("zero-shot", worse, 0, 0.0, True)
    others = [MethodResult(f"other {number}", worse, 10, 0.0, False) for number in range(8)]
    assert advice([best, zero_shot]).startswith("Use gda")
    assert "too few" in advice([best, zero_shot, *others])
