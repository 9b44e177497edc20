"""The comparison of methods: the advice."""

from __future__ import annotations

import torch

from slimprompt.comparison import MethodResult, advice


def result(method: str, pattern: str, *, trained: int = 100, new_names: bool = False) -> MethodResult:
    """`pattern` has one sign per group of ten images: + correct, - wrong."""
    correct = torch.tensor([sign == "+" for sign in pattern for _ in range(10)])
    return MethodResult(method, correct, trained, 0.1, new_names)


def test_a_clear_winner_is_advised() -> None:
    results = [
        result("prompt", "+++++-----", new_names=True),
        result("zero-shot", "+++-------", new_names=True, trained=0),
        result("gda", "+++++++++-"),
    ]
    assert advice(results) == (
        "gda",
        "Use gda: it is more accurate than every other method on the 100 held-out images (McNemar's test, p < 0.05).",
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
        "gda",
        "Use gda: the 100 held-out images cannot tell it from prompt; of these, prompt also takes new class names.",
    )


def test_no_method_is_significantly_better_than_zero_shot() -> None:
    zero_shot = MethodResult("zero-shot", torch.tensor([True, False, False, True]), 0, 0.0, True)
    gda = MethodResult("gda", torch.tensor([True, True, True, True]), 10, 0.0, False)
    assert advice([zero_shot, gda]) == (
        None,
        "No method is significantly more accurate than zero-shot on these 4 images; the best is gda (+50.0 points).",
    )


def test_many_images_are_not_called_too_few() -> None:
    """Three of 20,000 images more than zero-shot."""
    before, after = (torch.arange(20_000) < n for n in (10_000, 10_003))
    methods = [MethodResult("zero-shot", before, 0, 0.0, True), MethodResult("gda", after, 10, 0.0, False)]
    assert advice(methods).sentence == (
        "No method is significantly more accurate than zero-shot on these 20,000 images; the best is gda (+0.015 points)."
    )


def test_zero_shot_is_advised_if_nothing_is_better() -> None:
    results = [result("zero-shot", "+++", new_names=True, trained=0), result("gda", "++-"), result("clap", "+++")]
    assert advice(results).method == "zero-shot"
    assert advice(results).sentence.startswith(
        "Use zero-shot, which needs no training: no other method is more accurate"
    )


def test_the_correction_counts_the_methods() -> None:
    """7 images gained and none lost: p = 0.016 is significant for one comparison and not for nine."""
    worse = torch.tensor([True] * 20 + [False] * 7)
    best = MethodResult("gda", torch.ones(27, dtype=torch.bool), 10, 0.0, False)
    zero_shot = MethodResult("zero-shot", worse, 0, 0.0, True)
    others = [MethodResult(f"other {number}", worse, 10, 0.0, False) for number in range(8)]
    assert advice([best, zero_shot]).method == "gda"
    assert advice([best, zero_shot, *others]).method is None
