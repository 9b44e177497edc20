"""Kills a worker, the study itself or Ray's raylet before file operations of the workers, and compares the runs with undisturbed ones.

    python -m tests.robustness.kill_workers <grid.json> <folder> <processes|ray> <worker|study|raylet> <kills>

A study whose worker is killed goes on. If the study or the raylet is killed, all processes must end, and a study that does not end
well is resumed in one process. Prints one JSON object: the kills, the exit codes of the studies and what was wrong after each.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from functools import cache
from pathlib import Path

import slimprompt.clip.backbone
import slimprompt.images.bank
import slimprompt.lab.plan
import slimprompt.training.evaluation
import slimprompt.training.loop
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import Executor
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.executors.processes import ProcessExecutor
from slimprompt.lab.executors.ray import RayExecutor
from slimprompt.paper.studies import make_grid, study_specs
from tests.conftest import complete_study
from tests.robustness import watched_workers
from tests.robustness.kill_study import contents
from tests.robustness.kills import count_operations, run_in_child

_SECONDS = 180  # after which a study counts as hanging
_PROMPT_BATCH = 2


class Campaign:
    """The cases of one grid, executor and victim."""

    def __init__(self, grid_file: Path, folder: Path, executor: str, victim: str) -> None:
        self._specs = study_specs(make_grid(json.loads(grid_file.read_text())))
        self._folder, self._executor, self._victim = folder, executor, victim
        # Forked workers begin with a loaded backbone: reading it writes nothing.
        load_once = cache(slimprompt.clip.backbone.load_backbone)
        slimprompt.clip.backbone.load_backbone = load_once
        spec = self._specs[0]
        load_once(spec.backbone, spec.pretrained, device="cpu", precision="fp32")
        self._expected = folder / "undisturbed"
        self.codes: list[int] = []
        self.operations = count_operations(lambda: self._study(self._expected, "inline"), self._expected)

    def case(self, number: int) -> list[str]:
        """Kill before operation `number` of a worker; what is wrong afterwards."""
        runs, notes = self._folder / f"runs-{number}", self._folder / f"notes-{number}"
        notes.mkdir()
        code = self._disturbed(number, runs, notes)
        self.codes.append(code)
        wrong = [] if (notes / "killed").exists() else ["nothing was killed"]
        if code == -signal.SIGALRM:
            wrong.append("the study did not end")
        if self._victim == "worker" and code != 0:
            wrong.append(f"the study ended with {code}")
        if self._victim == "study" and code != -signal.SIGKILL:
            wrong.append(f"the study was not killed but ended with {code}")
        wrong += [f"worker {name} did not end" for name in _survivors(notes)]
        if code != 0:  # a study that says that it is complete must be
            run_in_child(lambda: self._study(runs, "inline"))
        found, expected = contents(runs), contents(self._expected)
        wrong += [f"run {name} differs" for name in expected if found.get(name) != expected[name]]
        left = (path.name for path in runs.iterdir() if path.name.startswith(".") and path.name != ".lock")
        return wrong + [f"{name} is left" for name in left]

    def _disturbed(self, number: int, runs: Path, notes: Path) -> int:
        """The exit code of a study in a child of its own session; it is ended if it hangs."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.alarm(_SECONDS)
            order = watched_workers.Order(number, str(runs), self._victim, os.getpid(), str(notes))
            os.environ[watched_workers.ORDER] = json.dumps(order)
            try:
                watched_workers.install()
                self._study(runs, self._executor)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _study(self, runs: Path, executor: str) -> None:
        # One cache for all, filled by the undisturbed study: the kills concern the runs folder.
        environment = RunEnvironment(runs=runs, cache=self._folder / "cache", device="cpu")
        chosen: Executor
        if executor == "ray":
            chosen = RayExecutor(environment)
        elif executor == "processes":
            chosen = ProcessExecutor(environment, 2)
            chosen._context = multiprocessing.get_context("fork")  # without the seconds in which Python starts
        else:
            chosen = InlineExecutor(environment)
        outcome = complete_study(self._specs, runs, chosen, prompt_batch=_PROMPT_BATCH)
        assert outcome.failed == [], outcome.failed[0].error


def _survivors(notes: Path) -> list[str]:
    """Workers that do not end soon after their study; they are ended here."""
    workers = [path.name for path in notes.iterdir() if path.name.isdigit()]
    deadline = time.monotonic() + _SECONDS / 3
    while (alive := [name for name in workers if _is_alive(name)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for name in alive:
        os.kill(int(name), signal.SIGKILL)
    return alive


def _is_alive(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> None:
    """All cases."""
    grid_file, folder, executor, victim, kills = sys.argv[1:]
    campaign = Campaign(Path(grid_file), Path(folder), executor, victim)
    # The first worker makes at least a third of the operations.
    numbers = sorted(random.Random(0).sample(range(1, campaign.operations // 3 + 1), int(kills)))
    wrong = {number: campaign.case(number) for number in numbers}
    told = {"kills": numbers, "codes": campaign.codes, "wrong": {number: one for number, one in wrong.items() if one}}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
