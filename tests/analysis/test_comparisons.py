import pytest

from slimprompt.analysis.comparisons import aggregates, compare_pairs_of_labels
from slimprompt.analysis.frame import cells, dense, fixed_b, joint, observations
from tests.synthetic_runs import METHOD_EFFECTS


def test_p_values_are_corrected_over_the_family(study_frame):
    found = compare_pairs_of_labels(study_frame, [(fixed_b("svd", 4), joint(4)), (joint(4), dense(8))])
    assert len(found) == 2 * 2 * 2
    assert found[["backbone", "shots"]].drop_duplicates().to_numpy().tolist() == [
        ["RN50", 1], ["RN50", 4], ["ViT-B/16", 1], ["ViT-B/16", 4],
    ]  # fmt: skip
    assert (found["n"] == 3).all() and (found["holm_t"] >= found["p_t"]).all()
    better = found[found["second"] == dense(8)]
    assert better["mean"].tolist() == pytest.approx([1.0] * 4, abs=0.1)


def test_two_methods_are_compared_over_datasets(methods_records):
    frame = cells(observations(methods_records))
    for one in compare_pairs_of_labels(frame, [("gda", "tip-adapter")]).itertuples():
        gap = METHOD_EFFECTS["gda"] - METHOD_EFFECTS["tip-adapter"]
        assert one.cells == pytest.approx(dict.fromkeys(["DTD", "Food101"], gap))
    (one, *_) = compare_pairs_of_labels(frame, [(joint(4), "zero-shot")], metric="cross_dataset").itertuples()
    assert set(one.cells) == {"DTD", "Food101", "pocket-toy"}


def test_nothing_to_compare(study_frame):
    assert compare_pairs_of_labels(study_frame, [("gda", joint(4))]).empty


def test_aggregates(study_frame):
    frame = aggregates(study_frame)
    row = frame[(frame["label"] == "joint r4") & (frame["metric"] == "harmonic")].iloc[0]
    assert (row["datasets"], row["seeds"], row["pooled_n"]) == (3, 3, 9)
    assert row["macro_mean"] == pytest.approx(row["pooled_mean"])
    assert row["pooled_sd"] > 5 * row["macro_sd"]
    assert row["harmonic_of_averages"] > row["macro_mean"]
    assert frame[frame["metric"] == "accuracy"]["harmonic_of_averages"].isna().all()
