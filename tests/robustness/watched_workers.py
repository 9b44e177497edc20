"""Workers of a study that kill a process before one of their file operations in the runs folder: at most once in a study.

What to kill is in the environment variable `ORDER`, because both kinds of workers inherit it.
"""

from __future__ import annotations

import json
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import processes, ray
from tests.robustness.kills import Watch

ORDER = "SLIMPROMPT_TEST_KILL"
_serve = processes._serve


class Order(NamedTuple):
    """Which process is killed when."""

    number: int
    """File operation of a worker before which it happens, counted from 1."""
    runs: str
    victim: str
    """worker, study (the process that waits for the workers) or raylet (which has started a worker of Ray)."""
    study: int
    """Process id."""
    notes: str
    """Folder with the process ids of all workers, and the file `killed` once it has happened."""

    def obey(self) -> None:
        """In a worker: note that it exists, and watch its file operations."""
        (Path(self.notes) / str(os.getpid())).touch()
        Watch(Path(self.runs), self.number, self._kill)

    def _kill(self) -> None:
        try:
            os.close(os.open(Path(self.notes) / "killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.victim == "raylet":
            victim = int(os.environ["RAY_RAYLET_PID"])
        else:
            victim = os.getpid() if self.victim == "worker" else self.study
        os.kill(victim, signal.SIGKILL)


def given_order() -> Order:
    """The order of the study that this process works for."""
    return Order(*json.loads(os.environ[ORDER]))


def serve(pipe: Connection, environment: RunEnvironment) -> None:
    """What a worker process executes."""
    given_order().obey()
    _serve(pipe, environment)


class RunWorker(ray.RunWorker):
    """The actor of Ray."""

    def __init__(self, environment: RunEnvironment, version: str) -> None:
        super().__init__(environment, version)
        given_order().obey()


def install() -> None:
    """Use these workers in the studies of this process."""
    processes._serve = serve
    ray.RunWorker = RunWorker  # type: ignore[misc]
