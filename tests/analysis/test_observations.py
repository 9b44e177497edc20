from dataclasses import replace
from pathlib import Path

import pytest

from slimprompt.analysis.observations import mixed_settings, observe
from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from tests.synthetic_runs import write_run

BASE = {"backbone": "ViT-B-16", "dataset": "dtd", "shots": 1, "seed": 1, "n_ctx": 8}


@pytest.fixture
def records(study_records):
    return study_records


def test_observations_have_one_row_per_run_and_metric(records):
    frame = observe(records)
    assert len(frame) == sum(len(record.metrics) for record in records)
    assert set(frame["backbone"]) == {"RN50", "ViT-B/16"}
    assert set(frame["dataset"]) == {"DTD", "Food101", "pocket-toy"}
    assert set(frame["method"]) == {"dense", "factorized", "fixed-B", "fixed-A"}
    assert set(frame["metric"]) == {"accuracy", "zero_shot_accuracy", "seen", "unseen", "harmonic"}
    row = frame[(frame["basis"] == "source-B")].iloc[0]
    assert row["source"] in ("DTD", "Food101", "pocket-toy")
    assert Path(row["run"]).is_dir()


def test_two_runs_of_one_cell_are_an_error(tmp_path):
    write_run(tmp_path, BASE | {"variant": "dense"})
    write_run(tmp_path, BASE | {"variant": "dense", "recipe": {"epochs": 50}})
    with pytest.raises(InputError, match=r"recipe\.epochs \((50|200) and (50|200)\).*--where"):
        observe(load_records(tmp_path))


def test_mixed_settings_are_reported(tmp_path):
    write_run(tmp_path, BASE | {"variant": "dense"})
    write_run(tmp_path, BASE | {"variant": "joint", "rank": 4, "recipe": {"epochs": 50}})
    (line,) = mixed_settings(load_records(tmp_path))
    assert "recipe.epochs = 200 (1 runs), 50 (1 runs)" in line


@pytest.mark.parametrize("loss", [{"anchor": 8.0}, {"prograd": True}, {"class_weights": "balanced"}])
def test_losses_that_name_the_arm_are_not_mixed_settings(tmp_path, loss):
    for recipe in ({}, loss):
        write_run(tmp_path, BASE | {"variant": "joint", "rank": 4, "recipe": recipe})
    assert mixed_settings(load_records(tmp_path)) == []


def test_mixed_weights_are_reported(records):
    mine = [record for record in records if record.spec.backbone == "RN50"][:3]
    some = [replace(record, facts={"backbone_fingerprint": letter}) for record, letter in zip(mine, "aab", strict=True)]
    assert mixed_settings(some) == ["RN50: the runs mix backbone_fingerprint = a (2 runs), b (1 runs)"]


def test_the_length_of_dense_prompts_is_not_a_mixed_setting(records):
    assert mixed_settings(records) == []
