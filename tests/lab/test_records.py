from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slimprompt.data.manifest import Manifest, ManifestItem
from slimprompt.errors import InputError
from slimprompt.files import json_checksum
from slimprompt.lab.records import (
    complete_runs,
    find_run,
    load_records,
    read_record,
    remove_run,
    scan_records,
    select_records,
    store_run,
)
from slimprompt.lab.spec import RunSpec
from slimprompt.training.recipe import Recipe
from tests.conftest import run_folders

FACTORS = {
    "B0": np.ones((4, 2), "float32"),
    "A0": np.zeros((2, 3), "float32"),
    "B": np.full((4, 2), 2, "float32"),
    "A": np.ones((2, 3), "float32"),
}


def spec(**fields: Any) -> RunSpec:
    default = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "seed": 1, "variant": "joint", "rank": 2, "n_ctx": 4}
    return RunSpec(**default | fields)


def complete(accuracy: float = 50.0) -> dict[str, Any]:
    return {"status": "complete", "metrics": {"accuracy": accuracy}, "trainable_parameters": 14}


def failed(error: str = "no such image") -> dict[str, Any]:
    return {"status": "failed", "error": error}


def test_a_run_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    manifest = Manifest("dtd", ("a", "b"), (ManifestItem("a/1.jpg", 0, "0" * 64),), shots=4, seed=1)
    stored = store_run(
        tmp_path / "runs", spec(), complete(), factors=FACTORS, manifest=manifest, curve=[(0, 1e-5, 0.5, 25.0)]
    )
    assert stored.folder == tmp_path / "runs" / spec().fingerprint
    (record,) = load_records(tmp_path / "runs")
    assert record == stored
    assert record.spec == spec()
    assert record.metrics == {"accuracy": 50.0}
    assert record.facts["trainable_parameters"] == 14
    assert {name: value.tolist() for name, value in record.factors().items()} == {
        name: value.tolist() for name, value in FACTORS.items()
    }
    assert record.curve().to_dict("records") == [{"epoch": 0, "lr": 1e-5, "loss": 0.5, "accuracy": 25.0}]
    assert sorted(path.name for path in record.folder.iterdir()) == [
        "curve.csv",
        "factors.safetensors",
        "manifest.json",
        "record.json",
    ]
    assert run_folders(tmp_path / "runs") == [spec().fingerprint]  # no drafts


def test_a_failed_run_gives_way_to_its_retry_and_a_complete_one_stays(tmp_path: Path) -> None:
    store_run(tmp_path, spec(), failed("first"))
    assert store_run(tmp_path, spec(), failed("second")).error == "second"
    assert load_records(tmp_path) == []
    store_run(tmp_path, spec(), complete(50.0), factors=FACTORS)
    assert store_run(tmp_path, spec(), complete(99.0), factors=FACTORS).metrics == {"accuracy": 50.0}
    assert store_run(tmp_path, spec(), failed()).complete
    assert run_folders(tmp_path) == [spec().fingerprint]


def test_many_writers_of_one_run_leave_one_whole_run(tmp_path: Path) -> None:
    def write(number: int) -> None:
        store_run(tmp_path, spec(), complete(number) if number % 3 == 0 else failed(str(number)), factors=FACTORS)

    for _ in range(10):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(24)))
        (record,) = load_records(tmp_path)
        assert record.factors().keys() == FACTORS.keys()
        assert run_folders(tmp_path) == [spec().fingerprint]
        remove_run(record.folder)


def test_a_damaged_record_is_not_a_run(tmp_path: Path) -> None:
    store_run(tmp_path, spec(), complete())
    path = tmp_path / spec().fingerprint / "record.json"
    for text in ("", "[]", "{}", '{"spec": 3}', json.dumps({"spec": {"rnak": 1}, "status": "complete"})):
        path.write_text(text)
        assert find_run(tmp_path, spec()) is None
        with pytest.raises(InputError, match="is not a run record"):
            read_record(path.parent)
    assert store_run(tmp_path, spec(), complete()).complete  # and it is repeated


def test_no_flipped_bit_of_a_record_goes_unnoticed(tmp_path: Path) -> None:
    stored = store_run(tmp_path, spec(), complete())
    path = stored.folder / "record.json"
    content, rng = path.read_bytes(), random.Random(0)
    for _ in range(400):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            read = read_record(stored.folder)
        except InputError:
            continue
        assert read == stored  # white space


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"accuracy": float("nan")}},
        {"metrics": {"harmonic": 50.0, "seen": 50.0}},
        {"prompt_batch": 8},
        {"trainable_parameters": float("inf")},
    ],
    ids=str,
)
def test_an_entry_of_another_type_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    stored = store_run(tmp_path, spec(), complete())
    store_run(tmp_path, spec(seed=2), complete())
    path = stored.folder / "record.json"
    data = json.loads(path.read_text())
    del data["checksum"]
    data |= change
    path.write_text(json.dumps(data | {"checksum": json_checksum(data)}))
    with pytest.raises(InputError, match=next(iter(change))):
        read_record(stored.folder)
    records, damaged = scan_records(tmp_path)
    assert [record.spec.seed for record in records] == [2]
    assert list(damaged) == [stored.folder]
    with pytest.warns(UserWarning, match="1 damaged run folders are left out"):
        assert len(load_records(tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    ["", "epoch,lr,loss\n0,0.1,2.0\n", "epoch,lr,loss,accuracy\n", "epoch,lr,loss,accuracy\n0,0.1,nan,5.0\n"]
    + [f"epoch,lr,loss,accuracy\n{row}\n" for row in ("0,0.1,2.0", "0,x,2.0,5.0", "0.5,0.1,2.0,5.0", "0,0.1,2.0,nan")],
)
def test_a_damaged_curve_is_an_error(tmp_path: Path, text: str) -> None:
    stored = store_run(tmp_path, spec(), complete(), curve=[(0, 0.1, 2.0, 5.0)])
    (stored.folder / "curve.csv").write_text(text)
    with pytest.raises(InputError, match=r"curve\.csv cannot be read .* run it again"):
        stored.curve()


def test_a_record_of_another_run_is_damage(tmp_path: Path) -> None:
    first, second = (store_run(tmp_path, spec(seed=seed), complete()) for seed in (1, 2))
    (first.folder / "record.json").write_bytes((second.folder / "record.json").read_bytes())
    with pytest.raises(InputError, match="belongs to the run"):
        read_record(first.folder)


def test_select_by_any_field(tmp_path: Path) -> None:
    for seed in (1, 2):
        for shots in (1, 4, 16):
            store_run(tmp_path, spec(seed=seed, shots=shots), complete() if seed == 1 else failed())
    records = load_records(tmp_path, complete_only=False)
    assert len(select_records(records, ["shots=1,4"])) == 4
    assert len(select_records(records, ["shots=1,4", "status=failed"])) == 2
    assert len(select_records(records, ["pretrained=", "recipe.epochs=200"])) == 6
    assert select_records(records, ["shots=8"]) == []
    made_with = replace(records[0], facts={"backbone_fingerprint": "ab12"})
    assert select_records([made_with, *records[1:]], ["backbone_fingerprint=ab12"]) == [made_with]
    with pytest.raises(InputError, match="did you mean 'shots'"):
        select_records(records, ["shot=1"])
    with pytest.raises(InputError, match="write field=value"):
        select_records(records, ["shots"])
    with pytest.raises(InputError, match="two conditions: write --where seed=1 as"):
        select_records(records, ["shots=1,seed=1"])


def test_select_by_values_as_people_write_them(tmp_path: Path) -> None:
    recipe = Recipe(lr=0.002, anchor=8.0)
    one = store_run(tmp_path, spec(backbone="ViT-B-16", dataset="photos, 2024", recipe=recipe), complete())
    for condition in (
        "dataset=photos, 2024",
        "backbone=ViT-B/16",
        "recipe.lr=2e-3",
        "recipe.anchor=8",
        "anchored=false",
    ):
        assert select_records([one], [condition]) == [one], condition
    assert select_records([one], ["dataset=photos"]) == select_records([one], ["anchored=true"]) == []


@pytest.mark.parametrize("name", ["record.json", "curve.csv", "factors.safetensors"])
def test_a_pipe_or_a_device_in_a_runs_folder_is_not_read(tmp_path: Path, name: str) -> None:
    """Reading it would never end."""
    stored = store_run(tmp_path, spec(), complete(), factors=FACTORS, curve=[(0, 0.1, 2.0, 5.0)])
    (tmp_path / "zzz").mkdir()
    os.mkfifo(tmp_path / "zzz" / "record.json")
    (tmp_path / "zero").mkdir()
    (tmp_path / "zero" / "record.json").symlink_to("/dev/zero")
    (stored.folder / name).unlink()
    os.mkfifo(stored.folder / name)
    records, damaged = scan_records(tmp_path)
    assert {path.name for path in damaged} >= {"zzz", "zero"}
    if name == "record.json":
        assert records == [] and list(complete_runs(tmp_path)) == []
        return
    with pytest.raises(InputError, match="remove the run and run it again"):
        (stored.curve if name == "curve.csv" else stored.factors)()


def test_a_record_that_is_too_large_is_damaged(tmp_path: Path) -> None:
    stored = store_run(tmp_path, spec(), complete())
    with (stored.folder / "record.json").open("ab") as file:
        file.truncate(2**30)
    assert list(scan_records(tmp_path)[1]) == [stored.folder]
