"""The frame of cells × seeds, on cases that can be solved by hand."""

import pandas as pd
import pytest

from slimprompt.analysis.frame import (
    AVERAGE,
    BEST_DENSE,
    CELL,
    average,
    axis,
    best,
    best_covered,
    cells,
    dense,
    differences,
    fixed_b,
    headline_rank,
    joint,
    main_labels,
    paired,
    select,
    summary,
    with_best_dense,
)
from slimprompt.analysis.frame import HOW as HOW_LEVELS

NAN = float("nan")


def cell(label, values, *, backbone="RN50", dataset="a", shots=1, metric="accuracy", source=""):
    """A row of observations per seed; `values` maps seeds to values."""
    variant, *rest = label.split()
    basis, size = (rest[0], rest[-1]) if len(rest) > 1 else ("", rest[-1])
    where = (backbone, dataset, label, variant, basis, int(size[1:]), shots, metric, source)
    return [(*where, seed, value, f"{label}/{dataset}/{seed}", 1.0, 1.0) for seed, value in values.items()]


def frame_of(*rows):
    columns = [*CELL, "seed", "value", "run", "parameters", "seconds"]
    return cells(pd.DataFrame([one for some in rows for one in some], columns=columns))


def test_a_missing_seed_is_nan_and_averages_need_all_datasets_of_a_seed():
    frame = frame_of(
        cell(joint(4), {1: 50.0, 2: 60.0, 3: 70.0}),
        cell(joint(4), {1: 70.0, 2: 80.0}, dataset="b"),
        cell(dense(16), {1: 40.0}),
    )
    assert frame.columns.tolist() == [1, 2, 3] and frame.isna().sum().sum() == 3
    (row,) = summary(select(frame, label=joint(4), dataset="a")).itertuples(index=False)
    assert (row.mean, row.sd, row.n) == (60.0, 10.0, 3)
    averaged = average(frame, ["a", "b"])
    assert axis(averaged, "label") == [joint(4)]  # dense has no runs on b
    assert averaged.iloc[0].tolist()[:2] == [60.0, 70.0] and averaged.iloc[0].isna().sum() == 1
    assert summary(averaged).iloc[0].tolist() == pytest.approx([65.0, 50**0.5, 2])


def test_a_printed_average_stands_in_for_cells_that_are_not_published():
    frame = frame_of(
        cell(joint(4), {0: 50.0}),
        cell(joint(4), {0: 70.0}, dataset="b"),
        cell(joint(4), {0: 99.0}, dataset=AVERAGE),
        cell(dense(16), {0: 58.5}, dataset=AVERAGE),
    )
    averaged = average(frame, axis(frame, "dataset"))[0].droplevel([n for n in CELL if n not in ("label", "dataset")])
    assert averaged.to_dict() == {joint(4): 60.0, dense(16): 58.5}


def test_pairs_are_compared_on_common_seeds_and_equal_sources():
    frame = frame_of(
        cell(fixed_b("source", 4), {1: 60.0, 2: 62.0}, source="b"),
        cell(fixed_b("source", 4), {1: 64.0, 3: 99.0}, source="c"),
        cell(fixed_b("random", 4), {1: 61.0, 2: 61.0}),
    )
    first, second = paired(frame, fixed_b("source", 4), fixed_b("random", 4))
    assert (first - second).mean(axis=1).tolist() == [0.0, 3.0]
    assert first.index.get_level_values("source").tolist() == ["b", "c"]
    assert first.isna().equals(second.isna())
    by = {
        unit: differences(frame, fixed_b("source", 4), fixed_b("random", 4), backbone="RN50", shots=1, unit=unit)
        for unit in ("dataset", "run", "seed")
    }
    # Seed 1: the mean of −1 and 3 over the two sources; seed 2: 1.
    assert by == {
        "dataset": {"a": 1.0},
        "run": {"a, seed 1": 1.0, "a, seed 2": 1.0},
        "seed": {"seed 1": 1.0, "seed 2": 1.0},
    }


def test_the_best_row_is_decided_on_common_seeds():
    frame = frame_of(
        cell(dense(4), {1: 50.0, 2: 50.0}),
        cell(dense(16), {1: 51.0, 2: 40.0, 3: 99.0}),
        cell(dense(4), {1: 1.0}, shots=4),
        cell(dense(16), {2: 2.0}, shots=4),
    )
    (found,) = best(frame, HOW_LEVELS).index
    assert found[CELL.index("label")] == dense(4)
    extended = with_best_dense(frame)
    assert select(extended, label=BEST_DENSE).iloc[0].tolist()[:2] == [50.0, 50.0]
    assert len(extended) == len(frame) + 1
    assert with_best_dense(extended).equals(extended)


def test_each_backbone_has_its_own_headline_rank():
    frame = frame_of(
        cell(joint(4), {1: 50.0}), cell(dense(16), {1: 50.0}), cell(joint(8), {1: 50.0}, backbone="ViT-B/16")
    )
    assert [headline_rank(frame, name) for name in ("RN50", "ViT-B/16")] == [4, 8]
    assert main_labels(frame, "RN50") == {"dense": dense(16), "trainable": joint(4)}
    assert main_labels(frame, "ViT-B/16") == {"trainable": joint(8)}


def test_datasets_with_most_cells_are_averaged():
    frame = frame_of(
        cell(joint(4), {1: 1.0}), cell(dense(16), {1: 1.0}), cell(joint(4), {1: 1.0}, dataset="b"),
        cell(dense(4), {1: 1.0}, dataset="b"),
    )  # fmt: skip
    assert best_covered(frame, [joint(4), dense(16)], backbone="RN50") == ["a"]
    assert best_covered(frame, [joint(4)], backbone="RN50") == ["a", "b"]
