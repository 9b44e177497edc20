"""`--log TRACKER` of `fit` and `study`."""

import shutil
import sys
from pathlib import Path

import pytest

from slimprompt.lab.records import load_records
from slimprompt.tracking import tensorboard
from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import entries_of
from tests.fork_server import start_command
from tests.tracking.readers import read_mlflow, read_tensorboard, read_wandb


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def grid_file(tmp_path, tiny_folder, collections):
    """A study of three runs of prompts and nine of methods."""
    path = tmp_path / "my-grid.yaml"
    path.write_text(
        "study: baselines\n"
        f"backbones: {tiny_folder}\n"
        f"datasets: [{collections['warm']}]\n"
        "shots: 1\nseeds: [1]\nranks: [2]\nn_ctx: 4\nshort_ctx: 2\n"
        "recipe: {epochs: 3, views: 2, batch_size: 4}\n"
    )
    return path


def event_files(logs: Path):
    return {path: path.read_bytes() for path in logs.rglob("events*")}


def check_runs(runs: Path, logs: Path):
    """Every complete run is there once, with its spec, its curve and its metrics."""
    written, records = read_tensorboard(logs), load_records(runs)
    assert len(written) == len(records) > 9
    by_id = {name.rpartition("-")[2]: run for name, run in written.items()}
    for record in records:
        run = by_id[record.spec.fingerprint]
        assert run.settings["shots"] == "1" and run.settings["method"] == record.spec.method
        assert run.metrics == pytest.approx(record.metrics, rel=1e-6)
        if record.spec.is_prompt:
            assert run.settings["recipe.epochs"] == "3"
            curve = record.curve()
            assert [step for step, _ in run.curves["train/loss"]] == curve["epoch"].tolist()
            assert [value for _, value in run.curves["train/loss"]] == pytest.approx(curve["loss"].tolist(), rel=1e-6)
        else:
            assert not run.curves and "variant" not in run.settings


def test_a_study_is_logged_and_resumed_without_doubling(run, grid_file, tmp_path):
    command = ["study", grid_file, "--executor", "inline", "--device", "cpu", "--log", "tensorboard:logs"]
    ok(run(*command))
    check_runs(tmp_path / "runs", tmp_path / "logs")
    before = event_files(tmp_path / "logs")
    ok(run(*command))
    assert event_files(tmp_path / "logs") == before
    first, second, *_ = sorted(path for path in (tmp_path / "logs").iterdir())
    shutil.rmtree(first)  # as if the study had been killed before it was written
    shutil.rmtree(tmp_path / "runs" / second.name.rpartition("-")[2])  # it is run again, and there already
    ok(run(*command))
    check_runs(tmp_path / "runs", tmp_path / "logs")
    kept = {path: data for path, data in before.items() if first not in path.parents}
    assert kept.items() <= event_files(tmp_path / "logs").items()


@pytest.mark.slow
def test_workers_are_logged_by_the_study(grid_file, tmp_path):
    arguments = ["study", grid_file, "--workers", 2, "--device", "cpu", "--log", "tensorboard"]
    study = start_command(arguments, fork_workers=True)
    assert study.communicate(timeout=120)[1].count("] ") >= 12 and study.returncode == 0
    check_runs(tmp_path / "runs", tmp_path / "logs")


def test_a_study_is_logged_to_mlflow(run, grid_file, tmp_path):
    ok(run("study", grid_file, "--executor", "inline", "--device", "cpu", "--log", f"mlflow:{tmp_path / 'store'}"))
    found, records = read_mlflow(str(tmp_path / "store")), load_records(tmp_path / "runs")
    assert set(found) == {record.spec.fingerprint for record in records}
    for record in records:
        assert found[record.spec.fingerprint].name == record.spec.label
        assert found[record.spec.fingerprint].metrics == pytest.approx(record.metrics)


def test_a_tracker_that_fails_does_not_end_a_study(run, grid_file, tmp_path, monkeypatch):
    write, calls = tensorboard.TensorBoard.write, []

    def fill_up(self, tracked):
        calls.append(tracked)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        write(self, tracked)

    monkeypatch.setattr(tensorboard.TensorBoard, "write", fill_up)
    result = run("study", grid_file, "--executor", "inline", "--device", "cpu", "--log", "tensorboard")
    assert "12 of 12 runs complete" in ok(result)
    assert " ".join(result.stderr.split()).count("TensorBoard failed ([Errno 28] No space left on device)") == 1
    assert len(calls) == 3 and len(read_tensorboard(tmp_path / "logs")) == 2


def test_errors_come_before_anything_is_trained(run, grid_file, photos, tmp_path, monkeypatch):
    study = ["study", grid_file, "--executor", "inline", "--device", "cpu", "--log"]
    fit = ["fit", photos, "--out", tmp_path / "prompt", *QUICK, "--log"]
    for command in (study, fit):
        failed(run(*command, "tensorbord"), "unknown tracker 'tensorbord'; did you mean 'tensorboard'?")
        with monkeypatch.context() as context:
            context.setitem(sys.modules, "tensorboard", None)
            failed(run(*command, "tensorboard"), "pip install 'slimprompt[tensorboard]'")
        (tmp_path / "file").touch()
        failed(run(*command, "tensorboard:file/logs"), "file")
    assert not (tmp_path / "runs").exists() and not (tmp_path / "prompt").exists() and not (tmp_path / "logs").exists()


def test_a_fit_is_logged(run, photos, tmp_path):
    fit = ["fit", photos, "--shots", 4, *QUICK, "--log", "tensorboard"]
    ok(run(*fit, "--out", tmp_path / "my-prompt"))
    (found,) = read_tensorboard(tmp_path / "logs").values()
    description = entries_of(tmp_path / "my-prompt")
    assert found.name.startswith("my-prompt-")
    assert (found.settings["rank"], found.settings["recipe.epochs"], found.settings["classes"]) == ("2", "2", "3")
    assert found.settings["backbone.fingerprint"] == description["backbone"]["fingerprint"]
    assert found.metrics["prompt"] == pytest.approx(description["held_out"]["prompt"])
    assert found.metrics["temperature"] == pytest.approx(description["temperature"])
    assert [step for step, _ in found.curves["train/loss"]] == [0, 1]
    ok(run(*fit, "--out", tmp_path / "my-prompt", "--overwrite"))  # the same result
    assert len(read_tensorboard(tmp_path / "logs")) == 1
    ok(run(*fit, "--out", tmp_path / "my-prompt", "--overwrite", "--seed", 2))
    assert len(read_tensorboard(tmp_path / "logs")) == 2
    ok(run(*fit, "--continue-from", tmp_path / "my-prompt", "--out", tmp_path / "grown"))
    grown = next(run for name, run in read_tensorboard(tmp_path / "logs").items() if name.startswith("grown-"))
    assert {"start", "prompt", "zero_shot"} < set(grown.metrics)


def test_a_head_is_logged_to_wandb(run, photos, tmp_path):
    ok(
        run(
            "fit",
            photos,
            "--shots",
            4,
            *QUICK[:4],
            "--method",
            "gda",
            "--out",
            tmp_path / "my-head",
            "--log",
            "wandb:w",
        )
    )
    (found,) = read_wandb(tmp_path / "w").values()
    assert (found.name, found.settings["method"], found.curves) == ("my-head", "gda", {})
    assert {"zero_shot", "head", "chance", "temperature"} < set(found.metrics)


def test_a_tracker_that_fails_does_not_lose_a_fit(run, photos, tmp_path, monkeypatch):
    def gone(self, tracked):
        raise ConnectionError("server gone")

    monkeypatch.setattr(tensorboard.TensorBoard, "write", gone)
    result = run("fit", photos, "--out", tmp_path / "my-prompt", "--shots", 4, *QUICK, "--log", "tensorboard")
    assert "saved to" in ok(result) and "TensorBoard failed (server gone)" in " ".join(result.stderr.split())
    assert (tmp_path / "my-prompt" / "model.safetensors").is_file()
