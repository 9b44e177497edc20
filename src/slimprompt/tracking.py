"""Experiment trackers: the learning curve of a run, epoch by epoch, and its result in TensorBoard, MLflow or Weights & Biases.

To add a tracker, add a class with the methods of `Tracker` and a row of `TRACKERS`.
"""

from __future__ import annotations

import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from slimprompt.errors import InputError, choose, one_line

if TYPE_CHECKING:
    from slimprompt.training.loop import EpochResult


class Tracker(Protocol):
    """One run in a tracker; it is made from a target, the name of the run and its settings."""

    def write(self, values: Mapping[str, float], epoch: int) -> None:
        """Write values of an epoch so that they can be seen at once."""

    def result(self, metrics: Mapping[str, float]) -> None:
        """Write what was measured at the end."""

    def close(self, *, complete: bool) -> None:
        """End the run."""


class _TensorBoard:
    """A new folder of event files in the folder `target`."""

    def __init__(self, target: str, name: str, settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder, number = Path(target or "logs") / re.sub(r"[^\w.-]+", "-", name).strip("-."), 2
        place = folder
        while place.exists():
            place, number = folder.with_name(f"{folder.name}-{number}"), number + 1
        place.mkdir(parents=True)
        self._writer, self._settings = SummaryWriter(str(place)), settings

    def write(self, values: Mapping[str, float], epoch: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def result(self, metrics: Mapping[str, float]) -> None:
        texts = {name: str(value) if isinstance(value, bool) else value for name, value in self._settings.items()}
        self._writer.add_hparams(texts, dict(metrics), run_name=".")

    def close(self, *, complete: bool) -> None:
        self._writer.close()


class _MLflow:
    """A run of the experiment MLFLOW_EXPERIMENT_NAME, or `slimprompt`, at the tracking URI `target`."""

    def __init__(self, target: str, name: str, settings: dict[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client, title = MlflowClient(target or None), os.environ.get("MLFLOW_EXPERIMENT_NAME") or "slimprompt"
        experiment: Any = self._client.get_experiment_by_name(title)
        number = experiment.experiment_id if experiment else self._client.create_experiment(title)
        self._run, self._epoch = self._client.create_run(number, run_name=name).info.run_id, 0
        params = [Param(self._key(name), str(value)[:500]) for name, value in settings.items()]
        self._client.log_batch(self._run, params=params)

    def write(self, values: Mapping[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        self._epoch, now = epoch, int(1000 * time.time())
        metrics = [Metric(self._key(name), value, now, epoch) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def result(self, metrics: Mapping[str, float]) -> None:
        self.write(metrics, self._epoch)

    def close(self, *, complete: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if complete else "FAILED")

    def _key(self, name: str) -> str:
        """A name with the characters that MLflow allows: `accuracy@dtd` → `accuracy_dtd`."""
        return re.sub(r"[^\w\-. :/]", "_", name)


class _WandB:
    """A run of the project `target`, or WANDB_PROJECT; with WANDB_MODE=offline, in a folder. It asks nothing on the terminal."""

    def __init__(self, target: str, name: str, settings: dict[str, Any]) -> None:
        import wandb

        quiet = wandb.Settings(silent=True, console="off", init_timeout=30)
        wandb.setup(settings=quiet)
        if os.environ.get("WANDB_MODE", "online") == "online":
            wandb.login()  # an error if nobody is logged in, where `init` would ask
        project = target or os.environ.get("WANDB_PROJECT") or "slimprompt"
        self._run: Any = wandb.init(project=project, name=name, config=settings, settings=quiet)

    def write(self, values: Mapping[str, float], epoch: int) -> None:
        self._run.log(dict(values), step=epoch, commit=True)

    def result(self, metrics: Mapping[str, float]) -> None:
        self._run.summary.update(dict(metrics))

    def close(self, *, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


class TrackerInfo(NamedTuple):
    """A row of the table."""

    title: str
    begin: Callable[[str, str, dict[str, Any]], Tracker]
    target: str
    """What may follow the name: `--log tensorboard:TARGET`."""


#: The trackers by name. The package that is needed and the extra of slimprompt that installs it have the same name.
TRACKERS: dict[str, TrackerInfo] = {
    "tensorboard": TrackerInfo("TensorBoard", _TensorBoard, "a folder, default logs"),
    "mlflow": TrackerInfo("MLflow", _MLflow, "a tracking URI, default MLFLOW_TRACKING_URI"),
    "wandb": TrackerInfo("Weights & Biases", _WandB, "a project, default WANDB_PROJECT or slimprompt"),
}


class RunLog:
    """Writes one run to a tracker, if there is one. When that fails, a warning says so and nothing more is written."""

    def __init__(self, title: str = "", tracker: Tracker | None = None) -> None:
        self._title, self._tracker = title, tracker

    def epoch(self, row: EpochResult) -> None:
        """Write a row of the learning curve."""
        values = {f"train/{name}": value for name, value in row._asdict().items() if name != "epoch"}
        self._try(lambda tracker: tracker.write(_finite(values), row.epoch))

    def result(self, metrics: Mapping[str, float]) -> None:
        """Write what was measured at the end."""
        self._try(lambda tracker: tracker.result(_finite(metrics)))

    def close(self, *, complete: bool) -> None:
        """End the run."""
        self._try(lambda tracker: tracker.close(complete=complete))

    def _try(self, call: Callable[[Tracker], None]) -> None:
        try:
            if self._tracker is not None:
                call(self._tracker)
        except Exception as error:  # a full disk, or a server that is gone; the packages have error types of their own
            self._tracker = None
            text = f"{self._title} failed ({_reason(error)}): nothing more is logged; training is not affected"
            warnings.warn(text, stacklevel=3)


@contextmanager
def open_log(target: str | None, name: str, settings: Mapping[str, Any]) -> Iterator[RunLog]:
    """The log of a run in a tracker given as `NAME` or `NAME:TARGET`, such as `tensorboard:logs/`; None writes nothing.

    Settings that are None are left out. An `InputError` if the tracker cannot be used.
    """
    log = RunLog()
    if target is not None:
        info, where = find_tracker(target)
        known = {key: value for key, value in settings.items() if value is not None}
        plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in known.items()}
        try:
            log = RunLog(info.title, info.begin(where, name, plain))
        except Exception as error:
            raise InputError(
                f"{info.title} cannot be used at {where or 'its default place'}: {_reason(error)}"
            ) from None
    complete = False
    try:
        yield log
        complete = True
    finally:
        log.close(complete=complete)


def find_tracker(target: str) -> tuple[TrackerInfo, str]:
    """The tracker of `NAME:TARGET` and its target; an `InputError` if it is unknown or its package is missing."""
    name, _, where = target.partition(":")
    info: TrackerInfo = choose("tracker", name, TRACKERS)
    if find_spec(name) is None:
        raise InputError(f"logging to {info.title} needs {name}: pip install 'slimprompt[{name}]', or leave out --log")
    return info, where


def describe_targets() -> str:
    """The trackers and their targets, for help texts."""
    return "; ".join(f"{name}[:TARGET] ({info.target})" for name, info in TRACKERS.items())


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """The values that are finite: some trackers refuse others."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def _reason(error: Exception) -> str:
    return one_line(str(error) or type(error).__name__, 600)
