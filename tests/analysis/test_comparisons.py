import pytest

from slimprompt.analysis.arms import dense, fixed_basis, joint
from slimprompt.analysis.comparisons import aggregates, compare_arms


@pytest.fixture
def results(study_results):
    return study_results


def test_p_values_are_corrected_over_the_family(results):
    found = compare_arms(results, [(fixed_basis("svd", 4), joint(4)), (joint(4), dense(8))])
    assert len(found) == 2 * 2 * 2
    for one in found:
        assert one.holm_t is not None and one.holm_t >= one.result.p_t
        assert one.result.n == 3
    better = [one for one in found if one.second == dense(8)]
    assert all(one.result.mean == pytest.approx(1.0, abs=0.1) for one in better)


def test_aggregates(results):
    frame = aggregates(results)
    row = frame[(frame["arm"] == "joint r4") & (frame["metric"] == "harmonic")].iloc[0]
    assert (row["datasets"], row["seeds"], row["pooled_n"]) == (3, 3, 9)
    assert row["macro_mean"] == pytest.approx(row["pooled_mean"])
    assert row["pooled_sd"] > 5 * row["macro_sd"]
    assert row["harmonic_of_averages"] > row["macro_mean"]
    assert frame[frame["metric"] == "accuracy"]["harmonic_of_averages"].isna().all()
