"""The frame of cells × seeds, on cases that can be solved by hand."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from slimprompt.analysis.frame import (
    AVERAGE,
    BEST_DENSE,
    CELL,
    HOW,
    Measurements,
    average,
    axis,
    best,
    best_covered,
    cells,
    costs_of,
    dense,
    differences,
    fixed_b,
    headline_rank,
    how,
    joint,
    main_labels,
    mixed_settings,
    observations,
    paired,
    reference,
    runs_of,
    select,
    summary,
    with_best_dense,
)
from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from slimprompt.lab.spec import RunSpec
from tests.synthetic_runs import TRAINED_NUMBERS, accuracy_of, study_fields, write_run

BASE = {"backbone": "ViT-B-16", "dataset": "dtd", "shots": 1, "seed": 1, "n_ctx": 8}


def cell(label, values, *, backbone="RN50", dataset="a", shots=1, metric="accuracy", source=""):
    """A row of observations per seed; `values` maps seeds to values."""
    variant, *rest = label.split()
    basis, size = (rest[0], rest[-1]) if len(rest) > 1 else ("", rest[-1])
    where = (backbone, dataset, label, variant, basis, int(size[1:]), shots, metric, source)
    return [(*where, seed, value, f"{label}/{dataset}/{seed}", 1.0, 1.0) for seed, value in values.items()]


def observed(*rows):
    columns = [*CELL, "seed", "value", "run", "parameters", "seconds"]
    return pd.DataFrame([one for some in rows for one in some], columns=columns)


def frame_of(*rows):
    return cells(observed(*rows))


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
    (found,) = best(frame, HOW).index
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


def test_sourced_labels_are_compared_on_equal_sources():
    """Cross-dataset cells: both labels have a source."""
    values = {(joint(4), "b"): 70.0, (joint(4), "c"): 50.0, (dense(16), "c"): 40.0, (dense(16), "d"): 10.0}
    rows = [cell(label, {1: v}, metric="cross_dataset", source=s) for (label, s), v in values.items()]
    where = {"backbone": "RN50", "shots": 1, "metric": "cross_dataset"}
    assert differences(frame_of(*rows), joint(4), dense(16), **where, unit="run") == {"a, seed 1": 10.0}
    apart = select(frame_of(*rows), source=["b", "d"])
    assert differences(apart, joint(4), dense(16), **where) == {}


def test_without_a_common_seed_nothing_is_best():
    frame = frame_of(cell(dense(4), {1: 50.0}), cell(dense(16), {2: 60.0}))
    assert best(frame, HOW).empty and with_best_dense(frame).equals(frame)


def test_the_best_dense_prompt_has_the_runs_of_its_length():
    rows = observed(cell(dense(4), {1: 50.0}), cell(dense(16), {1: 60.0}))
    found = Measurements.of(rows).with_best_dense()
    assert select(found.runs.to_frame(), label=BEST_DENSE)["run"].tolist() == [("dense m16/a/1",)]


# ---------------------------------------------------------------- of runs


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"variant": "dense"}, ("dense m8", "dense", "", 8)),
        ({"variant": "joint", "rank": 4}, ("joint r4", "joint", "", 4)),
        ({"variant": "fixed-B", "basis": "svd", "rank": 2}, ("fixed-B svd r2", "fixed-B", "svd", 2)),
        (
            {"variant": "fixed-B", "basis": "source", "source": "food101", "rank": 4},
            ("fixed-B source r4", "fixed-B", "source", 4),
        ),
        ({"variant": "fixed-A", "basis": "svd", "rank": 4}, ("fixed-A svd r4", "fixed-A", "svd", 4)),
        ({"variant": "joint", "rank": 4, "depth": 3}, ("joint r4 depth 3", "", "", 0)),
        ({"method": "gda"}, ("gda", "", "", 0)),
    ],
)
def test_the_levels_of_every_kind_of_run(fields, expected):
    base = {name: value for name, value in BASE.items() if name != "n_ctx" or "method" not in fields}
    assert how(RunSpec(**base, **fields)) == expected


@pytest.mark.parametrize(
    ("backbone", "pretrained", "title"),
    [
        ("ViT-B-16", "openai", "ViT-B/16"),
        ("ViT-B-16-quickgelu", "openai", "ViT-B/16"),
        ("RN50", "/weights/RN50.pt", "RN50"),
        ("ViT-B-16-quickgelu", "/weights/ViT-B-16.pt", "ViT-B/16"),
        ("ViT-B-16", "laion2b_s34b_b88k", "ViT-B/16 (laion2b_s34b_b88k)"),
        ("pocket", None, "pocket"),
    ],
)
def test_the_backbone_title_includes_other_weights(tmp_path, backbone, pretrained, title):
    write_run(tmp_path, BASE | {"variant": "dense", "backbone": backbone, "pretrained": pretrained})
    assert set(observations(load_records(tmp_path))["backbone"]) == {title}


def test_observations_have_one_row_per_run_and_metric(study_records):
    frame = observations(study_records)
    assert len(frame) == sum(len(record.metrics) for record in study_records)
    assert set(frame["dataset"]) == {"DTD", "Food101", "pocket-toy"}
    assert set(frame["variant"]) == {"dense", "joint", "fixed-B", "fixed-A"}
    assert set(frame["metric"]) == {"accuracy", "zero_shot_accuracy", "seen", "unseen", "harmonic"}
    row = frame[frame["basis"] == "source"].iloc[0]
    assert row["source"] in ("DTD", "Food101", "pocket-toy")
    assert Path(row["run"]).is_dir()


def test_a_cell_has_the_values_of_its_runs(study_records, study_frame):
    where = {"backbone": "ViT-B/16", "dataset": "DTD", "label": joint(4), "shots": 4, "metric": "accuracy"}
    fields = BASE | {"shots": 4, "variant": "joint", "rank": 4}
    expected = [accuracy_of(RunSpec(**fields | {"seed": seed})) for seed in (1, 2, 3)]
    assert select(study_frame, **where).iloc[0].tolist() == pytest.approx(expected)
    assert len(select(runs_of(observations(study_records)).to_frame(), **where)["run"].iloc[0]) == 3
    assert axis(study_frame, "rank", variant="joint") == [2, 4]
    assert axis(study_frame, "dataset", variant=["fixed-A", "fixed-B"]) == ["DTD", "Food101", "pocket-toy"]


def test_differences_by_unit(study_frame):
    cells_of = {"backbone": "RN50", "shots": 4}
    by_run, by_dataset, by_seed = (
        differences(study_frame, joint(4), dense(8), **cells_of, unit=unit) for unit in ("run", "dataset", "seed")
    )
    assert (len(by_run), len(by_dataset), len(by_seed)) == (9, 3, 3)
    assert by_dataset["DTD"] == pytest.approx(sum(v for k, v in by_run.items() if k.startswith("DTD")) / 3)
    assert sum(by_seed.values()) == pytest.approx(sum(by_dataset.values()))


def test_only_matched_cells_are_compared(tmp_path):
    for fields in study_fields(backbones=("RN50",), datasets=("dtd", "food101"), shots=(1,)):
        if not (fields["variant"] == "dense" and fields["dataset"] == "food101"):
            write_run(tmp_path, fields)
    frame = cells(observations(load_records(tmp_path)))
    assert set(differences(frame, joint(4), dense(8), backbone="RN50", shots=1)) == {"DTD"}


def test_the_levels_of_zero_shot_and_of_guessing(tmp_path):
    for seed, zero_shot in ((1, 40.0), (2, 44.0)):
        fields = {**BASE, "seed": seed, "variant": "dense", "class_subset": "base"}
        metrics = {"seen": 50.0, "unseen": 50.0, "harmonic": 50.0, "zero_shot_seen": zero_shot}
        write_run(tmp_path, fields, metrics=metrics, chance={"seen": 10.0, "unseen": 30.0})
    frame = cells(observations(load_records(tmp_path)))
    assert reference(frame, "zero_shot", "ViT-B/16", ["DTD"], 1, "seen") == 42.0
    assert reference(frame, "chance", "ViT-B/16", ["DTD"], 1, "harmonic") == 15.0  # 2 · 10 · 30 / (10 + 30)
    assert reference(frame, "chance", "ViT-B/16", ["DTD", "Food101"], 1, "seen") is None


def test_cross_dataset_cells_belong_to_the_dataset_that_was_evaluated(methods_records):
    frame = cells(observations(methods_records))
    at = {"label": "zero-shot", "shots": 4, "source": "DTD"}
    own = select(frame, metric="source_accuracy", dataset="DTD", **at).mean(axis=1).item()
    assert own == pytest.approx(50 + 2 * 4 + 0.3 * 2)
    others = select(frame, metric="cross_dataset", **at).mean(axis=1).droplevel([n for n in CELL if n != "dataset"])
    assert others.to_dict() == pytest.approx({"Food101": own + 1, "pocket-toy": own + 2})
    measured = {label: axis(frame, "metric", label=label, source="") for label in ("gda", "zero-shot")}
    assert "seen" in measured["gda"] and "unseen" not in measured["gda"]  # it takes no new names
    assert {"seen", "unseen", "harmonic"} < set(measured["zero-shot"])


def test_costs_are_averaged_over_seeds(methods_records, tmp_path):
    costs = costs_of(observations(methods_records))
    assert costs.loc[("RN50", "DTD", "tip-adapter", 4)].tolist() == [TRAINED_NUMBERS["tip-adapter"], 0.5]
    fields = {"backbone": "RN50", "dataset": "dtd", "shots": 1, "method": "gda"}
    for seed, seconds in ((1, 1.0), (2, 4.0)):
        write_run(tmp_path, {**fields, "seed": seed}, times={"training": seconds})
    write_run(tmp_path, {**fields, "seed": 3})  # did not record its time
    (found,) = costs_of(observations(load_records(tmp_path)))["seconds"]
    assert found == 2.5


def test_two_runs_of_one_cell_are_an_error(tmp_path):
    write_run(tmp_path, BASE | {"variant": "dense"})
    write_run(tmp_path, BASE | {"variant": "dense", "recipe": {"epochs": 50}})
    with pytest.raises(InputError, match=r"recipe\.epochs \((50|200) and (50|200)\).*--where"):
        observations(load_records(tmp_path))


def test_mixed_settings_are_reported(tmp_path):
    write_run(tmp_path, BASE | {"variant": "dense"})
    write_run(tmp_path, BASE | {"variant": "joint", "rank": 4, "recipe": {"epochs": 50}})
    (line,) = mixed_settings(load_records(tmp_path))
    assert "recipe.epochs" in line and "200" in line and "50" in line


@pytest.mark.parametrize("loss", [{"anchor": 8.0}, {"prograd": True}, {"class_weights": "balanced"}])
def test_losses_that_are_part_of_the_label_are_not_mixed_settings(tmp_path, loss):
    for recipe in ({}, loss):
        write_run(tmp_path, BASE | {"variant": "joint", "rank": 4, "recipe": recipe})
    assert mixed_settings(load_records(tmp_path)) == []


def test_mixed_weights_are_reported_and_axes_of_the_study_are_not(study_records, methods_records):
    assert mixed_settings(study_records) == mixed_settings(methods_records) == []
    of_rn50 = [record for record in study_records if record.spec.backbone == "RN50"][:3]
    some = [
        replace(record, facts={"backbone_fingerprint": letter}) for record, letter in zip(of_rn50, "aab", strict=True)
    ]
    (line,) = mixed_settings(some)
    assert "RN50" in line and "backbone_fingerprint" in line
