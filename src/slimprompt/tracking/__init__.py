"""Experiment trackers: curves and metrics of finished runs, written to TensorBoard, MLflow or Weights & Biases.

A tracker has two calls: `has(run id)` and `write(run)`. To add one, add a file and a row of `TRACKERS`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from slimprompt.errors import InputError, choose, one_line


@dataclass(frozen=True)
class TrackedRun:
    """A finished run, as trackers show it."""

    id: str
    """A tracker holds one run of an id."""
    name: str
    """For people; several runs may have the same."""
    settings: Mapping[str, Any]
    """What was decided before the run; entries that are None are not written."""
    metrics: Mapping[str, float]
    """What was measured at the end."""
    curve: Sequence[Mapping[str, float]] = field(default=())
    """One row per epoch: `epoch` and what was measured in it."""

    @property
    def known_settings(self) -> dict[str, Any]:
        """The settings that are not None, as text unless they are numbers or truth values."""
        found = {name: value for name, value in self.settings.items() if value is not None}
        return {name: value if isinstance(value, bool | int | float) else str(value) for name, value in found.items()}

    def steps(self) -> list[tuple[int, dict[str, float]]]:
        """The curve as (epoch, {"train/loss": …, …}), without values that are not finite, which some trackers refuse."""

        def known(row: Mapping[str, float]) -> dict[str, float]:
            return {f"train/{name}": float(row[name]) for name in row if name != "epoch" and math.isfinite(row[name])}

        return [(int(row["epoch"]), known(row)) for row in self.curve]


class Tracker(Protocol):
    """Where runs are written to."""

    def has(self, run_id: str) -> bool:
        """Whether this run was written completely."""

    def write(self, run: TrackedRun) -> None:
        """Write a finished run."""


class TrackerInfo(NamedTuple):
    """A row of the table."""

    title: str
    package: str
    """Package that writes; the extra of slimprompt that installs it has the name of the tracker."""
    target: str
    """What may follow the name: `--log tensorboard:TARGET`."""


#: The trackers by name. The module `slimprompt.tracking.<name>` has a function `connect(target)`.
TRACKERS: dict[str, TrackerInfo] = {
    "tensorboard": TrackerInfo("TensorBoard", "tensorboard", "a folder, default logs"),
    "mlflow": TrackerInfo("MLflow", "mlflow", "a tracking URI, default MLFLOW_TRACKING_URI"),
    "wandb": TrackerInfo("Weights & Biases", "wandb", "a folder for its files, default the current one"),
}


class RunLog:
    """Writes finished runs to a tracker.

    If the tracker fails, a warning says so and nothing more is written: a full disk or a server that is gone must not end a study.
    A run that cannot be read is left out with a warning.
    """

    def __init__(self, title: str, tracker: Tracker) -> None:
        self._title, self._tracker = title, tracker
        self._works = True

    def write(self, run_id: str, read: Callable[[], TrackedRun]) -> None:
        """Write a run unless the tracker has it already or has failed before.

        Parameters
        ----------
        run_id
            The id of the run.
        read
            Reads the run; called only if it is to be written.
        """
        try:
            if self._works and not self._tracker.has(run_id) and (run := _try(read)):
                self._tracker.write(run)
        except Exception as error:  # the packages have error types of their own
            self._works = False
            reason = one_line(str(error) or type(error).__name__, 300)
            warnings.warn(
                f"{self._title} failed ({reason}): nothing more is logged; training and its results are not affected",
                stacklevel=1,
            )


def _try(read: Callable[[], TrackedRun]) -> TrackedRun | None:
    try:
        return read()
    except InputError as error:
        warnings.warn(f"a run is not logged: {error}", stacklevel=1)
        return None


def open_log(target: str) -> RunLog:
    """Connect to a tracker given as `NAME` or `NAME:TARGET`, such as `tensorboard:logs/`.

    Raises
    ------
    InputError
        If the tracker is unknown, its package is missing, or it cannot be used.
    """
    name, _, where = target.partition(":")
    info: TrackerInfo = choose("tracker", name, TRACKERS)
    try:
        import_module(info.package)
    except ImportError as error:
        raise InputError(
            f"logging to {info.title} needs the package {info.package} ({error}): pip install 'slimprompt[{name}]', or leave out --log"
        ) from None
    tracker: Tracker = import_module(f"slimprompt.tracking.{name}").connect(where)
    return RunLog(info.title, tracker)


def describe_targets() -> str:
    """The trackers and their targets, for help texts."""
    return "; ".join(f"{name}[:TARGET] ({info.target})" for name, info in TRACKERS.items())
