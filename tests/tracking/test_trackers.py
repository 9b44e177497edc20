"""Every tracker with its real package: what is written can be read back, runs are there once, failures do not end a study."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slimprompt.errors import InputError
from slimprompt.tracking import TRACKERS, RunLog, TrackedRun, open_log
from tests.tracking.readers import Written, read_mlflow, read_tensorboard, read_wandb

ID = "0123456789abcdef"
CURVE = [{"epoch": epoch, "lr": 0.1, "loss": 1 / (1 + epoch), "accuracy": 10.0 * epoch} for epoch in range(3)]
SETTINGS = {"rank": 4, "words": "a photo of a", "anchored": True, "basis": None, "recipe.lr": 0.002}
RUN = TrackedRun(ID, "joint r4 / “é”", SETTINGS, {"accuracy": 61.5, "accuracy@dtd": 40.25}, CURVE)


@pytest.fixture(autouse=True)
def _quiet_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, no login, no file outside of the test's folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def read(tracker: str, folder: Path) -> dict[str, Written]:
    """Runs by their id."""
    if tracker == "mlflow":
        return read_mlflow(str(folder))
    if tracker == "wandb":
        return read_wandb(folder)
    return {name.rpartition("-")[2]: run for name, run in read_tensorboard(folder).items()}


def write(log: RunLog, run: TrackedRun = RUN) -> None:
    log.write(run.id, lambda: run)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_settings_curve_and_metrics_can_be_read_back(tracker: str, tmp_path: Path) -> None:
    write(open_log(f"{tracker}:{tmp_path / 'logs'}"))
    (found,) = read(tracker, tmp_path / "logs").values()
    assert found.settings == {"rank": "4", "words": "a photo of a", "anchored": "True", "recipe.lr": "0.002"}
    assert found.metrics["accuracy"] == pytest.approx(61.5)
    assert found.metrics["accuracy_dtd" if tracker == "mlflow" else "accuracy@dtd"] == pytest.approx(40.25)
    assert set(found.curves) == {"train/lr", "train/loss", "train/accuracy"}
    assert found.curves["train/loss"] == [(0, pytest.approx(1)), (1, pytest.approx(1 / 2)), (2, pytest.approx(1 / 3))]
    assert found.name == (f"joint-r4-é-{ID}" if tracker == "tensorboard" else RUN.name)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_is_written_once_and_read_only_if_it_is_missing(tracker: str, tmp_path: Path) -> None:
    target = f"{tracker}:{tmp_path / 'logs'}"
    write(open_log(target))
    log = open_log(target)

    def refuse() -> TrackedRun:
        raise AssertionError("it is there already")

    log.write(ID, refuse)
    other = TrackedRun("fedcba9876543210", "gda", {"method": "gda"}, {"accuracy": 3.0})
    write(log, other)
    write(log, other)
    found = read(tracker, tmp_path / "logs")
    assert set(found) == {ID, other.id}
    assert not found[other.id].curves and found[other.id].metrics == {"accuracy": 3.0}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_missing_package_is_one_line_with_its_extra(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[tracker].package, None)
    with pytest.raises(InputError, match=rf"pip install 'slimprompt\[{tracker}\]', or leave out --log"):
        open_log(tracker)


def test_an_unknown_tracker_is_an_error() -> None:
    with pytest.raises(InputError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        open_log("tensorbord:logs")


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_a_folder_that_cannot_be_written_is_an_error(tracker: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file"):
        open_log(f"{tracker}:{tmp_path / 'file' / 'logs'}")


def test_mlflow_without_a_usable_store_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for target in ("http://127.0.0.1:9", "ftp://x"):
        with pytest.raises(InputError, match="MLflow cannot be used at .* Give a server"):
            open_log(f"mlflow:{target}")


def test_mlflow_reads_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    write(open_log("mlflow"))
    assert set(read_mlflow(str(tmp_path / "store"), "mine")) == {ID}


def test_wandb_asks_nothing_if_nobody_is_logged_in(tmp_path: Path) -> None:
    """On a terminal, its own answer would be a question; here both streams are a pseudo-terminal."""
    import os
    import pty

    program = (
        "from slimprompt.tracking import open_log\n"
        "try: open_log('wandb')\n"
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
    assert b"refused: Weights & Biases cannot be used" in text and b"WANDB_MODE=offline" in text
    assert b"Enter your choice" not in text


class Broken:
    """A tracker whose server goes away after some calls."""

    def __init__(self, works: int, error: BaseException) -> None:
        self.works, self.error, self.calls = works, error, 0

    def has(self, run_id: str) -> bool:
        return False

    def write(self, run: TrackedRun) -> None:
        self.calls += 1
        if self.calls > self.works:
            raise self.error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("server\ngone"), KeyError()])
def test_a_tracker_that_fails_is_one_warning(error: Exception) -> None:
    broken = Broken(1, error)
    log = RunLog("TensorBoard", broken)
    write(log)
    with pytest.warns(UserWarning, match="TensorBoard failed .*nothing more is logged") as warned:
        write(log)
    write(log)
    assert broken.calls == 2 and len(warned) == 1 and "\n" not in str(warned[0].message)


def test_a_run_that_cannot_be_read_is_no_failure_of_the_tracker() -> None:
    def damaged() -> TrackedRun:
        raise InputError("curve.csv cannot be read")

    tracker = Broken(1, OSError())
    log = RunLog("TensorBoard", tracker)
    with pytest.warns(UserWarning, match=r"^a run is not logged: curve\.csv cannot be read$"):
        log.write("damaged", damaged)
    write(log)
    assert tracker.calls == 1


def test_ctrl_c_is_not_a_failure_of_the_tracker() -> None:
    with pytest.raises(KeyboardInterrupt):
        write(RunLog("MLflow", Broken(0, KeyboardInterrupt())))


def test_a_full_disk_leaves_no_half_written_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "add_hparams", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        write(open_log(f"tensorboard:{tmp_path / 'logs'}"))
    assert list((tmp_path / "logs").iterdir()) == []
