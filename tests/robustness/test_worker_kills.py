"""Studies with worker processes and with Ray, in which workers, the study itself or a raylet are killed at file operations.

A study whose worker is killed goes on. If the study or the raylet is killed, all processes must end, and a study that does not end
well is resumed in one process. `SLIMPROMPT_KILLS=10 pytest tests/robustness/test_worker_kills.py` takes more operations.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from slimprompt.clip import backbone
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import Executor, processes, ray
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.paper.studies import Grid, study_specs
from tests.conftest import QUICK_HEALTH_CHECKS, complete_study, run_folders
from tests.robustness.kills import Watch, count_operations, exit_after, run_campaign, run_in_child
from tests.robustness.test_kills import contents

pytestmark = pytest.mark.slow
_KILLS = int(os.environ.get("SLIMPROMPT_KILLS", "0"))
_SECONDS = 180  # after which a study counts as hanging
_ORDER = "SLIMPROMPT_TEST_KILL"
_serve = processes._serve
_needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="the package ray is not installed: pip install 'slimprompt[ray]'"
)


class Order(NamedTuple):
    """Which process is killed when, at most once in a study; in an environment variable, which both kinds of workers inherit."""

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
        victims = {"worker": os.getpid(), "study": self.study, "raylet": int(os.environ.get("RAY_RAYLET_PID", "0"))}
        os.kill(victims[self.victim], signal.SIGKILL)


def serve(pipe: Connection, environment: RunEnvironment) -> None:
    """What a worker process executes."""
    Order(*json.loads(os.environ[_ORDER])).obey()
    _serve(pipe, environment)


class RunWorker(ray.RunWorker):
    """The actor of Ray."""

    def __init__(self, environment: RunEnvironment, version: str) -> None:
        super().__init__(environment, version)
        Order(*json.loads(os.environ[_ORDER])).obey()


class Campaign:
    """The cases of one grid, executor and victim."""

    def __init__(self, grid: Grid, folder: Path, executor: str, victim: str) -> None:
        self._specs, self._folder, self._executor, self._victim = study_specs(grid), folder, executor, victim
        # Forked workers begin with a loaded backbone: reading it writes nothing.
        backbone.load_backbone = cache(backbone.load_backbone)
        spec = self._specs[0]
        backbone.load_backbone(spec.backbone, spec.pretrained, device="cpu", precision="fp32")
        self._expected = folder / "undisturbed"
        self.operations = count_operations(lambda: self._study(self._expected, "inline"), self._expected)

    def case(self, number: int) -> list[str]:
        """Kill before operation `number` of a worker; what is wrong afterwards."""
        runs, notes = self._folder / f"runs-{number}", self._folder / f"notes-{number}"
        notes.mkdir()
        code = self._disturbed(number, runs, notes)
        wrong = [] if (notes / "killed").exists() else ["nothing was killed"]
        # 0 after a killed raylet: its worker finished the runs before the raylet was missed; they are compared like all others.
        if code not in {"worker": (0,), "study": (-signal.SIGKILL,), "raylet": (0, 1)}[self._victim]:
            wrong.append(f"the study ended with {code}")
        wrong += [f"worker {one.pid} did not end" for one in _survivors(notes)]
        if code != 0:  # a study that says that it is complete must be
            run_in_child(lambda: self._study(runs, "inline"))
        found, expected = contents(runs), contents(self._expected)
        wrong += [f"run {name} differs" for name in expected if found.get(name) != expected[name]]
        return wrong + [f"{name} is left" for name in run_folders(runs) if name.startswith(".")]

    def _disturbed(self, number: int, runs: Path, notes: Path) -> int:
        """The exit code of a study in a child of its own session; it is ended if it hangs."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.alarm(_SECONDS)
            os.environ[_ORDER] = json.dumps(Order(number, str(runs), self._victim, os.getpid(), str(notes)))
            processes._serve, ray.RunWorker = serve, RunWorker  # type: ignore[misc]
            exit_after(lambda: self._study(runs, self._executor))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _study(self, runs: Path, name: str) -> None:
        # One cache for all, filled by the undisturbed study: the kills concern the runs folder.
        environment = RunEnvironment(runs=runs, cache=self._folder / "cache", device="cpu")
        executor: Executor
        if name == "ray":
            executor = ray.RayExecutor(environment)
        elif name == "processes":
            executor = processes.ProcessExecutor(environment, 2)
            executor._context = multiprocessing.get_context("fork")  # without the seconds in which Python starts
        else:
            executor = InlineExecutor(environment)
        outcome = complete_study(self._specs, runs, executor, prompt_batch=2)
        assert outcome.failed == [], outcome.failed[0].error


def _survivors(notes: Path) -> list[psutil.Process]:
    """Workers that do not end soon after their study; they are ended here."""
    workers = []
    for path in notes.iterdir():
        if path.name.isdigit() and psutil.pid_exists(int(path.name)):
            workers.append(psutil.Process(int(path.name)))
    _, alive = psutil.wait_procs(workers, _SECONDS / 3)
    for worker in alive:
        worker.kill()
    return alive


def kill_workers(grid: Grid, folder: Path, executor: str, victim: str, kills: int) -> dict[int, list[str]]:
    """What was wrong after the kill before each operation."""
    campaign = Campaign(grid, folder, executor, victim)
    # The first worker makes at least a third of the operations.
    numbers = sorted(random.Random(0).sample(range(1, campaign.operations // 3 + 1), kills))
    return {number: campaign.case(number) for number in numbers}


@pytest.mark.parametrize(
    ("executor", "victim", "kills"),
    [
        ("processes", "worker", 6),
        ("processes", "study", 6),
        pytest.param("ray", "worker", 1, marks=_needs_ray),
        pytest.param("ray", "study", 1, marks=_needs_ray),
        pytest.param("ray", "raylet", 1, marks=_needs_ray),
    ],
)
def test_the_runs_are_those_of_an_undisturbed_study(
    executor: str,
    victim: str,
    kills: int,
    small_grid: Callable[..., Grid],
    collections: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A worker outlives its raylet until that is missed, and can make some short runs meanwhile.
    long = victim == "raylet"
    recipe = {"epochs": 60 if long else 2, "views": 2, "batch_size": 4}
    axes = {"datasets": [collections["warm"]], "shots": [2], "ranks": [1, 2, 3, 4], "seeds": [1] if long else [1, 2]}
    variables = {"PYTHONPATH": os.pathsep.join(sys.path)} | QUICK_HEALTH_CHECKS
    variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    variables |= {"RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 2})}  # two workers on any machine
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    grid = small_grid(study="rank-sweep", recipe=recipe, **axes)
    found = run_campaign(kill_workers, grid, tmp_path, executor, victim, _KILLS or kills)
    assert list(found.values()) == [[]] * (_KILLS or kills), found
