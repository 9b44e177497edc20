"""The comparison of methods: which one is chosen, and how it compares with zero-shot. The verdict of one fit."""

from __future__ import annotations

import numpy as np
import pytest

from slimprompt.comparison import MethodComparison, MethodResult
from slimprompt.errors import InputError
from slimprompt.scores import verdict


def pattern(signs: str) -> np.ndarray:
    """One sign per group of ten images: + correct, - wrong."""
    return np.array([sign == "+" for sign in signs for _ in range(10)], dtype=bool)


def result(method: str, held_out: str, inside: str, *, trained: int = 100, new_names: bool = False) -> MethodResult:
    return MethodResult(method, pattern(held_out), pattern(inside), trained, new_names)


ZERO_SHOT = result("zero-shot", "+++-------", "+++-", trained=0, new_names=True)


def test_the_method_is_chosen_by_the_training_images_alone() -> None:
    """The most accurate one on the held-out images is another one."""
    gda, clap = result("gda", "++++++++--", "++++"), result("clap", "++++++++++", "+++-")
    methods = MethodComparison([ZERO_SHOT, gda, clap])
    assert methods.chosen is gda
    assert methods.verdict and methods.verdict.outcome == "better"
    assert methods.gain(gda).value == 50 and methods.gain(gda).low > 0
    behind = methods.behind(clap)
    assert behind is not None and behind.value == 20 and methods.gain(ZERO_SHOT).value == 0
    assert "It is better than zero-shot on 100 images: +50.0 points" in methods.sentence


def test_of_equals_the_one_with_new_class_names_and_fewest_numbers_is_chosen() -> None:
    gda, clap = result("gda", "+++++", "++++"), result("clap", "+++++", "++++", trained=50)
    zero_shot = result("zero-shot", "+++--", "++--", trained=0, new_names=True)
    assert MethodComparison([zero_shot, gda, clap]).chosen is clap
    prompt = result("prompt", "+++++", "++++", trained=900, new_names=True)
    assert MethodComparison([prompt, zero_shot, gda, clap]).chosen is prompt


def test_a_method_for_new_class_names_that_is_as_good_is_named() -> None:
    prompt = result("prompt", "+++++++++-", "+++-", new_names=True)
    gda = result("gda", "+++++++++-", "++++")
    assert "prompt also takes new class names" in MethodComparison([prompt, ZERO_SHOT, gda]).sentence
    assert "new class names" not in MethodComparison([result("prompt", "++", "+-"), ZERO_SHOT, gda]).sentence


def test_zero_shot_may_be_chosen() -> None:
    methods = MethodComparison([ZERO_SHOT, result("gda", "++++++++++", "++--")])
    assert methods.chosen is ZERO_SHOT and methods.verdict is None
    assert "Use zero-shot: it needs no training" in methods.sentence


def test_without_cross_validation_no_method_is_chosen() -> None:
    methods = MethodComparison([result("zero-shot", "+-", ""), result("gda", "++", "")])
    assert methods.chosen is None and methods.verdict is None and methods.behind(methods.results[1]) is None
    assert "No method is chosen" in methods.sentence
    with pytest.raises(InputError, match="--method"):
        methods.best_fit  # noqa: B018


@pytest.mark.parametrize(
    ("correct", "zero_shot", "outcome", "advised"),
    [
        ("++++++++--", "++++------", "better", False),
        ("+++++-----", "++++++++++", "worse", True),
        ("++++++----", "+++++-----", "better", False),
    ],
)
def test_the_verdict_of_a_fit(correct: str, zero_shot: str, outcome: str, advised: bool) -> None:
    found = verdict("gda", pattern(correct), pattern(zero_shot))
    assert found.outcome == outcome
    assert ("--compare" in found.sentence) == advised
    assert "--compare" not in verdict("gda", pattern(correct), pattern(zero_shot), compared=True).sentence


def test_few_images_decide_nothing() -> None:
    found = verdict("gda", np.array([True, True, True, True]), np.array([True, False, False, True]))
    assert found.outcome == "undecided" and found.gain.value == 50 and found.gain.low < 0 < found.gain.high
    assert "more images" in found.sentence and "--compare" in found.sentence


def test_many_images_are_not_called_too_few() -> None:
    """Three of 20,000 images more than zero-shot are no difference; 300 are."""
    numbers = np.arange(20_000)
    assert verdict("gda", numbers < 10_003, numbers < 10_000).outcome == "undecided"
    assert verdict("gda", numbers < 10_300, numbers < 10_000).outcome == "better"
