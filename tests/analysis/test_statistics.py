from itertools import product

import numpy as np
import pytest
from scipy import stats

from slimprompt.analysis.statistics import compare, holm, signed_rank_p


@pytest.fixture
def pair():
    generator = np.random.default_rng(3)
    first = generator.normal(70, 2, size=8)
    return first, first - generator.normal(0.3, 0.4, size=8)


def test_comparison_agrees_with_scipy(pair):
    first, second = pair
    result = compare(first - second, margin=0.5)
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval(0.95)
    assert result.p_t == pytest.approx(expected.pvalue)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert result.p_wilcoxon == pytest.approx(stats.wilcoxon(first - second, method="exact").pvalue)
    assert result.effect == pytest.approx((first - second).mean() / (first - second).std(ddof=1))
    lower = stats.ttest_1samp(first - second, -0.5, alternative="greater").pvalue
    upper = stats.ttest_1samp(first - second, 0.5, alternative="less").pvalue
    assert result.p_equivalence == pytest.approx(max(lower, upper))
    assert result.n == 8
    assert result.wins + result.ties + result.losses == 8


def test_equivalence_of_small_and_large_differences():
    noise = np.array([-0.1, 0.05, 0.1, -0.05, 0.02, -0.03])
    assert compare(noise, margin=0.5).p_equivalence < 0.001
    assert compare(noise + 2.0, margin=0.5).p_equivalence > 0.999
    assert compare(noise + 2.0, margin=0.5).p_t < 0.001


def test_too_few_pairs_are_not_tested():
    none, one = compare([]), compare([0.4])
    assert (none.n, none.mean, none.p_t, none.note) == (0, None, None, "no matched cells")
    assert (one.n, one.mean, one.p_t, one.p_equivalence) == (1, 0.4, None, None)
    assert "nothing can be tested" in one.note


def test_float_noise_is_a_tie():
    found = compare([0.1 + 0.2 - 0.3] * 2)
    assert (found.wins, found.ties, found.losses, found.mean, found.p_t) == (0, 2, 0, 0.0, 1.0)


def test_no_variance():
    equal, shifted = compare([0.0, 0.0, 0.0]), compare([2.0, 2.0, 2.0])
    assert (equal.p_t, equal.p_wilcoxon, equal.p_equivalence, equal.ties) == (1.0, 1.0, 0.0, 3)
    assert (shifted.p_t, shifted.p_equivalence, shifted.low, shifted.high) == (0.0, 1.0, 2.0, 2.0)
    assert "no variance" in equal.note
    assert compare([0.2] * 3, margin=0.5).p_equivalence == 0.0


@pytest.mark.parametrize("bad", [{"differences": [float("nan"), 1.0]}, {"differences": [1.0, 2.0], "margin": 0.0}])
def test_invalid_arguments_are_refused(bad):
    with pytest.raises(ValueError):
        compare(**bad)


@pytest.mark.parametrize("differences", [[1, 1, -1, 2, 3], [0, 0, 1.5, -1.5, 2, 2], [0.1 + 0.2, 0.3, -0.3, 0.6]])
def test_signed_rank_agrees_with_enumeration_of_sign_patterns(differences):
    d = np.round(np.array(differences, dtype=float), 9)
    d = d[d != 0]
    ranks = stats.rankdata(np.abs(d))
    observed = ranks[d > 0].sum()
    sums = [np.dot(ranks, signs) for signs in product((0, 1), repeat=len(d))]
    tail = min(np.mean([s <= observed for s in sums]), np.mean([s >= observed for s in sums]))
    assert signed_rank_p(differences) == pytest.approx(min(1.0, 2 * tail))


@pytest.mark.parametrize("n", [2, 7, 63, 400, 1030])
@pytest.mark.parametrize("shift", [0.0, 0.1, -5.0])
def test_signed_rank_agrees_with_scipy_for_few_and_for_many_differences(n, shift):
    d = np.random.default_rng(n).normal(shift, 1, n)
    assert signed_rank_p(d) == pytest.approx(stats.wilcoxon(d, method="exact").pvalue, rel=1e-9)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, None, 0.6]) == [1.0, None, 1.0]
    assert holm([]) == []
