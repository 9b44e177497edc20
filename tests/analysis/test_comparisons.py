import numpy as np
import pandas as pd
import pytest

from slimprompt.analysis.comparisons import aggregates, compare_labels
from slimprompt.analysis.frame import CELL, cells, dense, fixed_b, joint, observations
from slimprompt.training.metrics import harmonic_mean
from tests.synthetic_runs import METHOD_EFFECTS


def test_p_values_are_corrected_over_the_family(study_frame):
    found = compare_labels(study_frame, [(fixed_b("svd", 4), joint(4)), (joint(4), dense(8))])
    assert len(found) == 2 * 2 * 2
    assert found[["backbone", "shots"]].drop_duplicates().to_numpy().tolist() == [
        ["RN50", 1], ["RN50", 4], ["ViT-B/16", 1], ["ViT-B/16", 4],
    ]  # fmt: skip
    assert (found["n"] == 3).all() and (found["holm_t"] >= found["p_t"]).all()
    better = found[found["second"] == dense(8)]
    assert better["mean"].tolist() == pytest.approx([1.0] * 4, abs=0.1)


def test_two_methods_are_compared_over_datasets(methods_records):
    frame = cells(observations(methods_records))
    for one in compare_labels(frame, [("gda", "tip-adapter")]).itertuples():
        gap = METHOD_EFFECTS["gda"] - METHOD_EFFECTS["tip-adapter"]
        assert one.cells == pytest.approx(dict.fromkeys(["DTD", "Food101"], gap))
    (one, *_) = compare_labels(frame, [(joint(4), "zero-shot")], metric="cross_dataset").itertuples()
    assert set(one.cells) == {"DTD", "Food101", "pocket-toy"}


def test_nothing_to_compare(study_frame):
    assert compare_labels(study_frame, [("gda", joint(4))]).empty


def of_seeds(**values):
    """H, S and U of `joint r4` by seed, on two datasets."""
    rows = {}
    for metric, by_dataset in values.items():
        for dataset, by_seed in by_dataset.items():
            rows["RN50", dataset, joint(4), "joint", "", 4, 1, metric, ""] = by_seed
    index = pd.MultiIndex.from_tuples(rows, names=CELL)
    return pd.DataFrame(list(rows.values()), index, dtype=float)


def test_macro_averages_are_within_seeds_first():
    (row,) = aggregates(of_seeds(seen={"a": {1: 10, 2: 20}, "b": {1: 30, 2: 50}})).to_dict("records")
    assert row["macro_mean"] == row["pooled_mean"] == 27.5
    assert row["macro_sd"] == pytest.approx(15 / 2**0.5)  # of 20 and 35
    assert row["pooled_sd"] == pytest.approx(np.std([10, 20, 30, 50], ddof=1))
    assert (row["datasets"], row["seeds"], row["pooled_n"]) == (2, 2, 4)


def test_incomplete_seeds_are_not_in_macro_averages():
    (row,) = aggregates(of_seeds(seen={"a": {1: 10, 2: 20}, "b": {1: 30}})).to_dict("records")
    assert (row["macro_mean"], row["seeds"], row["pooled_n"]) == (20.0, 1, 3) and np.isnan(row["macro_sd"])
    (row,) = aggregates(of_seeds(seen={"a": {1: 1}, "b": {2: 1}})).to_dict("records")
    assert np.isnan(row["macro_mean"]) and row["seeds"] == 0


def test_h_of_averages_is_over_the_runs_with_both():
    frame = of_seeds(
        seen={"a": {1: 80, 2: 40, 3: 10}}, unseen={"a": {1: 40, 2: 80}}, harmonic={"a": {1: 160 / 3, 2: 160 / 3}}
    )
    found = aggregates(frame).set_index("metric").loc["harmonic"]
    assert found["harmonic_of_averages"] == pytest.approx(60.0)
    assert found["macro_mean"] == pytest.approx(harmonic_mean(80.0, 40.0)) == pytest.approx(160 / 3)
    assert harmonic_mean(0.0, 0.0) == 0.0


def test_aggregates(study_frame):
    frame = aggregates(study_frame)
    row = frame[(frame["label"] == "joint r4") & (frame["metric"] == "harmonic")].iloc[0]
    assert (row["datasets"], row["seeds"], row["pooled_n"]) == (3, 3, 9)
    assert row["macro_mean"] == pytest.approx(row["pooled_mean"])
    assert row["pooled_sd"] > 5 * row["macro_sd"]
    assert row["harmonic_of_averages"] > row["macro_mean"]
    assert frame[frame["metric"] == "accuracy"]["harmonic_of_averages"].isna().all()
