"""Every tracker with its real package: epochs can be read while a prompt is trained, and a failure does not end the training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slimprompt import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.images.bank import FeatureBank
from slimprompt.methods.task import LabelledImages, make_task
from slimprompt.tracking import TRACKERS, RunLog, find_tracker, open_log
from slimprompt.training.loop import EpochResult
from tests.tracker_readers import Written, read_mlflow, read_tensorboard

SETTINGS = {"rank": 4, "words": "a photo of a", "anchored": True, "basis": None, "lr": 0.002}
NAME = "joint r4 / “é”"


@pytest.fixture(autouse=True)
def _quiet_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, no login, no file outside of the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def target_of(tracker: str) -> str:
    return tracker if tracker == "wandb" else f"{tracker}:{Path('logs').absolute()}"


def read(tracker: str) -> list[Written]:
    return read_mlflow(str(Path("logs").absolute())) if tracker == "mlflow" else read_tensorboard(Path("logs"))


def write(log: RunLog) -> None:
    for epoch in range(3):
        log.epoch(EpochResult(epoch, 0.1, float("nan") if epoch == 1 else 1 / (1 + epoch), 10.0 * epoch))
    log.result({"accuracy": 61.5, "accuracy@dtd": 40.25})


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_settings_curve_and_result_can_be_read_back(tracker: str) -> None:
    with open_log(target_of(tracker), NAME, SETTINGS) as log:
        write(log)
    (found,) = read(tracker)
    assert found.settings == {"rank": "4", "words": "a photo of a", "anchored": "True", "lr": "0.002"}
    assert found.metrics["accuracy"] == pytest.approx(61.5)
    assert found.metrics["accuracy_dtd" if tracker == "mlflow" else "accuracy@dtd"] == pytest.approx(40.25)
    assert found.curves["train/accuracy"] == [(0, 0.0), (1, 10.0), (2, 20.0)]
    assert found.curves["train/loss"] == [(0, pytest.approx(1)), (2, pytest.approx(1 / 3))]
    assert found.name == ("joint-r4-é" if tracker == "tensorboard" else NAME)


def test_wandb() -> None:
    """Its service writes the file of a run in the background; the run itself knows its settings and the last values."""
    import wandb

    with open_log("wandb:mine", NAME, SETTINGS) as log:
        log.epoch(EpochResult(0, 0.1, 2.5, 10.0))
        assert wandb.run is not None and wandb.run.summary["train/loss"] == 2.5  # before training ends
        write(log)
        assert (wandb.run.project, wandb.run.name) == ("mine", NAME)
        assert dict(wandb.run.config) == {name: value for name, value in SETTINGS.items() if value is not None}
        assert wandb.run.summary["train/loss"] == pytest.approx(1 / 3) and wandb.run.summary["accuracy"] == 61.5
    assert len(list(Path().glob("wandb/offline-run-*/*.wandb"))) == 1


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_an_epoch_can_be_read_before_training_ends(tracker: str, tiny: Backbone, photos: Path) -> None:
    images = sorted(photos.glob("*/*.png"))[::3]
    names = sorted({path.parent.name for path in images})
    sample = LabelledImages(images, [names.index(path.parent.name) for path in images], tuple(names))
    task = make_task(FeatureBank(tiny, None), sample, seed=1)
    classifier = Classifier(tiny, rank=2, n_ctx=4, recipe={"epochs": 3, "views": 0, "warmup_epochs": 0})
    seen = []
    with open_log(target_of(tracker), "fit", {}) as log:

        def on_epoch(row: EpochResult) -> None:
            log.epoch(row)
            (written,) = read(tracker)
            seen.append(len(written.curves["train/loss"]))

        classifier.fit_task(task, on_epoch)
    assert seen == [1, 2, 3]
    (written,) = read(tracker)
    assert [loss for _, loss in written.curves["train/loss"]] == pytest.approx([row.loss for row in classifier.curve_])


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_runs_of_one_name_stay_apart(tracker: str) -> None:
    for loss in (1.0, 2.0):
        with open_log(target_of(tracker), "fit", {}) as log:
            log.epoch(EpochResult(0, 0.1, loss, 10.0))
    assert sorted(run.curves["train/loss"] for run in read(tracker)) == [[(0, 1.0)], [(0, 2.0)]]


def test_a_training_that_fails_is_a_failed_run() -> None:
    with pytest.raises(KeyError), open_log(target_of("mlflow"), "fit", {}):
        raise KeyError
    from mlflow import MlflowClient

    client = MlflowClient(str(Path("logs").absolute()))
    (run,) = client.search_runs([client.get_experiment_by_name("slimprompt").experiment_id])
    assert run.info.status == "FAILED"


def test_an_unknown_tracker_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        find_tracker("tensorbord:logs")
    monkeypatch.setattr("slimprompt.tracking.find_spec", lambda name: None)
    for tracker in TRACKERS:
        with pytest.raises(InputError, match=rf"pip install 'slimprompt\[{tracker}\]', or leave out --log"):
            find_tracker(tracker)


def test_a_target_that_cannot_be_used_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "file").touch()
    for target in ("tensorboard:file/logs", "mlflow:http://127.0.0.1:9", "mlflow:ftp://x"):
        with pytest.raises(InputError, match="cannot be used at"), open_log(target, "fit", {}):
            pass


def test_mlflow_reads_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    with open_log("mlflow", "fit", {}):
        pass
    assert len(read_mlflow(str(tmp_path / "store"), "mine")) == 1


def test_wandb_asks_nothing_if_nobody_is_logged_in(tmp_path: Path) -> None:
    """On a terminal, its own answer would be a question; here both streams are a pseudo-terminal."""
    import pty

    program = (
        "from slimprompt.tracking import open_log\n"
        "try:\n"
        "    with open_log('wandb', 'fit', {}): pass\n"
        "except ValueError as error: print('refused:', error)"
    )
    outside, inside = pty.openpty()
    environment = {**os.environ, "WANDB_MODE": "online", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=inside, stdout=inside, stderr=inside, cwd=tmp_path, env=environment
    )
    os.close(inside)
    text = b""
    try:
        while part := os.read(outside, 4096):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(outside)
    assert process.wait(timeout=120) == 0
    assert b"refused: Weights & Biases cannot be used" in text
    assert b"Enter your choice" not in text


class Broken:
    """A tracker that fails."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.calls = error, 0

    def write(self, values: Mapping[str, float], epoch: int) -> None:
        self.calls += 1
        raise self.error

    def result(self, metrics: Mapping[str, float]) -> None:
        self.calls += 1

    def close(self, *, complete: bool) -> None:
        self.calls += 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("server\ngone"), KeyError()])
def test_a_tracker_that_fails_is_one_warning(error: Exception) -> None:
    broken = Broken(error)
    log = RunLog("TensorBoard", broken)
    with pytest.warns(UserWarning, match="TensorBoard failed .*nothing more is logged") as warned:
        log.epoch(EpochResult(0, 0.1, 1.0, 10.0))
    assert len(warned) == 1 and "\n" not in str(warned[0].message)
    log.epoch(EpochResult(1, 0.1, 1.0, 10.0))
    log.result({})
    log.close(complete=True)
    assert broken.calls == 1
    with pytest.raises(KeyboardInterrupt):
        RunLog("MLflow", Broken(KeyboardInterrupt())).epoch(EpochResult(0, 0.1, 1.0, 10.0))
