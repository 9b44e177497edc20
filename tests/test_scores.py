"""Scores of a classifier, against small cases by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from slimprompt.scores import accuracy_of, paired_difference, scores_of, verdict


def test_wilson_interval_by_hand() -> None:
    """8 of 10: centre (p + z²/2n) / (1 + z²/n), half width z √(p(1−p)/n + z²/4n²) / (1 + z²/n)."""
    value, low, high = accuracy_of(torch.tensor([True] * 8 + [False] * 2))
    z2 = 1.959964**2
    centre, half = (0.8 + z2 / 20) / (1 + z2 / 10), (z2 * (0.16 / 10 + z2 / 400)) ** 0.5 / (1 + z2 / 10)
    assert (value, low, high) == pytest.approx((80, 100 * (centre - half), 100 * (centre + half)), abs=1e-3)


def test_paired_difference_by_hand() -> None:
    """9 images gained and 2 lost of 41: p = 10/43, q = 3/43."""
    first = torch.tensor([True] * 9 + [False] * 2 + [True] * 30)
    second = torch.tensor([False] * 9 + [True] * 2 + [True] * 30)
    value, low, high = paired_difference(first, second)
    half = 1.96 * ((13 / 43 - (7 / 43) ** 2) / 43) ** 0.5
    assert (value, low, high) == pytest.approx((100 * 7 / 41, 100 * (7 / 43 - half), 100 * (7 / 43 + half)))
    assert [-one for one in paired_difference(second, first)] == pytest.approx([value, high, low])
    value, low, high = paired_difference(first, first)
    assert value == 0 and low == -high < 0


def test_the_paired_interval_covers_the_true_difference() -> None:
    """Of 2,000 samples of 40 images with a true difference of 10 points, about 95 % of the intervals hold it."""
    rng = np.random.default_rng(0)
    kinds = rng.choice(3, size=(2000, 40), p=[0.2, 0.1, 0.7])  # gained, lost, both right
    covered = [low <= 10 <= high for _, low, high in (paired_difference(row != 1, row != 0) for row in kinds)]
    assert 0.93 < np.mean(covered) < 0.98


def test_scores_by_hand() -> None:
    """Three images of class 0, one of class 1, none of class 2; one image of class 0 is taken for class 2."""
    probabilities = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.1, 0.9, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns about predicted classes without images
        scores = scores_of(probabilities, np.array([0, 0, 0, 1]))
    assert scores.accuracy.value == 75
    assert scores.balanced_accuracy == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert scores.macro_f1 == pytest.approx(100 * (2 * 1 * (2 / 3) / (1 + 2 / 3) + 1) / 2)
    assert scores.log_loss == pytest.approx(-np.log([0.8, 0.6, 0.2, 0.9]).mean())
    # bins of width 1/15: 0.8, {0.6, 0.6}, 0.9; one of the two images at 0.6 is right
    assert scores.calibration_error == pytest.approx(100 * (0.2 + 2 * 0.1 + 0.1) / 4)
    plain = scores.to_json()  # fractions
    assert plain["accuracy"] == 0.75 and plain["macro_f1"] == pytest.approx(scores.macro_f1 / 100)
    assert plain["interval"] == pytest.approx([scores.accuracy.low / 100, scores.accuracy.high / 100])


def test_certain_mistakes_have_a_finite_log_loss() -> None:
    scores = scores_of(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    assert 10 < scores.log_loss < 1000
    assert scores_of(np.ones((2, 1)), np.array([0, 0])).log_loss == 0


def test_more_images_are_no_advice_at_chance() -> None:
    """Two of ten images right among five classes is what guessing gives; eight of ten is not."""
    low, high = np.arange(10) < 2, np.arange(10) < 8
    assert "guessing" in verdict("the prompt", low, ~low & (np.arange(10) < 4), chance=0.2).sentence
    undecided = verdict("the prompt", high, np.arange(10) > 2, chance=0.2)
    assert undecided.outcome == "undecided" and "guessing" not in undecided.sentence
