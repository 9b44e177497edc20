import numpy as np
import pytest
from scipy import stats

from slimprompt.paper.theory.statement import Check, Interval, mean_interval

CHECK = Check("part", "name", "claim")


def test_interval_agrees_with_scipy():
    values = [1.0, 2.0, 4.0, 5.0]
    by_scipy = stats.t.interval(0.95, 3, loc=3.0, scale=stats.sem(values))
    assert mean_interval(values, 0.95) == pytest.approx(by_scipy)


def test_equality_holds_up_to_rounding():
    assert CHECK.compare("=", 2.0, 2.0 + 1e-12).verdict == "holds"
    assert CHECK.compare("=", 2.0, 2.01).verdict == "violated"


def test_mean_fails_with_a_wrong_constant():
    samples = np.random.default_rng(0).normal(0.25, 0.1, 1000)
    right, wrong = CHECK.mean("=", 0.25, samples, ""), CHECK.mean("=", 0.28, samples, "")
    assert (right.verdict, wrong.verdict) == ("holds", "violated")
    assert right.interval is not None and right.interval.low < 0.25 < right.interval.high


def test_mean_without_spread_is_compared_up_to_rounding():
    assert CHECK.mean("=", 0.0, [1e-16, 1e-16, 1e-16], "").verdict == "holds"
    assert CHECK.mean("=", 0.1, [0.0, 0.0, 0.0], "").verdict == "violated"


@pytest.mark.parametrize("relation", ["=", ">"])
def test_one_sample_decides_nothing(relation):
    only = CHECK.mean(relation, 0.25, [0.9], "")
    assert (only.verdict, only.measured, only.interval) == ("undecided", 0.9, None)


def test_bound_is_violated_only_if_the_whole_interval_is_above():
    assert CHECK.compare("≤", 1.0, 1.1).verdict == "violated"
    assert CHECK.compare("≤", 1.0, 1.1, Interval(0.9, 1.3)).verdict == "holds"
    assert CHECK.compare("≤", 1.0, 1.1, Interval(1.05, 1.15)).verdict == "violated"


def test_above_has_three_outcomes():
    samples = np.array([0.9, 1.0, 1.1] * 10)
    found = [CHECK.mean(">", bound, samples, "").verdict for bound in (0.5, 1.0, 1.5)]
    assert found == ["holds", "undecided", "violated"]
    assert CHECK.compare(">", 1.0, 1.0).verdict == "violated"


def test_everywhere_reports_the_first_step_that_fails():
    bounds, measured = [1.0, 1.0, 1.0, 1.0], [0.5, 0.9, 1.2, 1.5]
    failed = CHECK.at_most_everywhere(bounds, measured)
    assert (failed.verdict, failed.predicted, failed.measured) == ("violated", 1.0, 1.2)
    assert "fails at 2 of 4 values, first at t = 2" in failed.detail
    kept = CHECK.at_most_everywhere(bounds[:2], measured[:2], steps=[10, 20], symbol="T")
    assert kept.verdict == "holds" and "closest to failing at T = 20" in kept.detail


def test_everywhere_fails_on_nan():
    assert CHECK.at_most_everywhere([1.0, 1.0], [0.0, float("nan")]).verdict == "violated"
