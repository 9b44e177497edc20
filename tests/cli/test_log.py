"""`--log TRACKER` of `fit` and `study`."""

from pathlib import Path

import pytest

from slimprompt import tracking
from slimprompt.lab.records import load_records
from slimprompt.saved import read_model
from tests.cli.conftest import QUICK, failed, ok
from tests.tracker_readers import read_tensorboard


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
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


def test_every_run_of_a_study_is_logged_once(run, grid_file, tmp_path):
    command = ["study", grid_file, "--executor", "inline", "--device", "cpu", "--log", "tensorboard:logs"]
    ok(run(*command))
    ok(run(*command))  # there is nothing left to do
    written = {one.name.rpartition("-")[2]: one for one in read_tensorboard(tmp_path / "logs")}
    records = load_records(tmp_path / "runs")
    assert len(written) == len(records) == len(list((tmp_path / "logs").iterdir())) > 9
    for record in records:
        one = written[record.spec.fingerprint]
        assert one.settings["shots"] == "1" and one.settings["method"] == record.spec.method
        assert one.metrics == pytest.approx(record.metrics, rel=1e-6)
        if record.spec.is_prompt:
            assert one.settings["recipe.epochs"] == "3"
            curve = record.curve()
            assert [step for step, _ in one.curves["train/loss"]] == curve["epoch"].tolist()
            assert [value for _, value in one.curves["train/loss"]] == pytest.approx(curve["loss"].tolist(), rel=1e-6)
        else:
            assert not one.curves and "variant" not in one.settings


def test_a_tracker_that_fails_does_not_end_a_study(run, grid_file, tmp_path, monkeypatch):
    begin, calls = tracking._TensorBoard.__init__, []

    def fill_up(self, *arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        begin(self, *arguments)

    monkeypatch.setattr(tracking._TensorBoard, "__init__", fill_up)
    result = run("study", grid_file, "--executor", "inline", "--device", "cpu", "--log", "tensorboard")
    assert "12 of 12 runs complete" in ok(result)
    assert " ".join(result.stderr.split()).count("No space left on device; nothing more is logged") == 1
    assert len(calls) == 3 and len(read_tensorboard(tmp_path / "logs")) == 2


def test_errors_come_before_anything_is_trained(run, grid_file, photos, tmp_path, monkeypatch):
    study = ["study", grid_file, "--executor", "inline", "--device", "cpu", "--log"]
    fit = ["fit", photos, "--out", tmp_path / "prompt", *QUICK, "--log"]
    for command in (study, fit):
        failed(run(*command, "tensorbord"), "unknown tracker 'tensorbord'; did you mean 'tensorboard'?")
        with monkeypatch.context() as context:
            context.setattr(tracking, "find_spec", lambda name: None)
            failed(run(*command, "tensorboard"), "pip install 'slimprompt[tensorboard]'")
    (tmp_path / "file").touch()
    failed(run(*fit, "tensorboard:file/logs"), "file")
    assert not (tmp_path / "runs").exists() and not (tmp_path / "prompt").exists() and not (tmp_path / "logs").exists()


def test_a_fit_is_logged(run, photos, tmp_path):
    fit = ["fit", photos, "--shots", 4, *QUICK, "--log", "tensorboard", "--out", tmp_path / "my-prompt"]
    ok(run(*fit))
    (found,) = read_tensorboard(tmp_path / "logs")
    entries = read_model(tmp_path / "my-prompt").entries
    assert found.name == "my-prompt" and found.settings["rank"] == "2"
    assert found.metrics["model"] == pytest.approx(entries["held_out"]["model"])
    assert [step for step, _ in found.curves["train/loss"]] == [0, 1]


def test_a_tracker_that_fails_does_not_lose_a_fit(run, photos, tmp_path, monkeypatch):
    def gone(self, *_):
        raise ConnectionError("server gone")

    monkeypatch.setattr(tracking._TensorBoard, "write", gone)
    result = run("fit", photos, "--out", tmp_path / "my-prompt", "--shots", 4, *QUICK, "--log", "tensorboard")
    assert "saved to" in ok(result) and "TensorBoard failed (server gone)" in " ".join(result.stderr.split())
    assert Path("my-prompt/model.safetensors").is_file()
