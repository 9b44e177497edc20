from itertools import product

import numpy as np
import pytest
from scipy import stats

from slimprompt.analysis.statistics import (
    compare,
    harmonic_mean,
    harmonic_of_averages,
    holm,
    macro_average,
    macro_by_seed,
    pooled_average,
    signed_rank_p,
    summarise,
)


def test_summary_is_the_sample_standard_deviation():
    summary = summarise([1.0, 2.0, 4.0])
    assert summary is not None
    assert summary.mean == pytest.approx(7 / 3)
    assert summary.sd == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert summary.n == 3


def test_summary_of_one_value_and_of_none():
    one = summarise([5.0])
    assert one is not None and one.sd is None and one.n == 1
    assert summarise([]) is None


DATASETS = [{1: 10.0, 2: 20.0}, {1: 30.0, 2: 50.0}]


def test_macro_average_averages_within_seeds_first():
    macro, pooled = macro_average(DATASETS), pooled_average(DATASETS)
    assert macro is not None and pooled is not None
    assert macro_by_seed(DATASETS) == {1: 20.0, 2: 35.0}
    assert macro.mean == pooled.mean == 27.5
    assert macro.sd == pytest.approx(15 / 2**0.5)
    assert pooled.sd == pytest.approx(np.std([10, 20, 30, 50], ddof=1))
    assert (macro.n, pooled.n) == (2, 4)
    assert "within each seed" in macro.label and "pooled" in pooled.label


def test_macro_average_omits_incomplete_seeds():
    macro = macro_average([{1: 10.0, 2: 20.0}, {1: 30.0}])
    assert macro is not None
    assert (macro.mean, macro.sd, macro.n) == (20.0, None, 1)
    assert macro_average([{1: 1.0}, {2: 1.0}]) is None


def test_harmonic_of_averages_is_not_below_the_average_of_h():
    seen, unseen = [{1: 80.0, 2: 40.0}], [{1: 40.0, 2: 80.0}]
    of_averages = harmonic_of_averages(seen, unseen)
    assert of_averages is not None
    assert of_averages.mean == pytest.approx(60.0)
    assert harmonic_mean(80.0, 40.0) == pytest.approx(160 / 3)
    assert harmonic_mean(0.0, 0.0) == 0.0
    assert of_averages.mean > harmonic_mean(80.0, 40.0)
    assert of_averages.n == 2


def test_harmonic_of_averages_counts_only_runs_with_both():
    found = harmonic_of_averages([{1: 80.0, 2: 10.0}], [{1: 40.0}])
    assert found is not None
    assert found.n == 1
    assert found.mean == pytest.approx(harmonic_mean(80.0, 40.0))


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
