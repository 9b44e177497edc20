"""Runs a study in a child process that is killed with SIGKILL at random moments, again and again, until it has ended.

    python -m tests.lab.kill_and_restart <grid.json> <runs folder> <number of kills> <seed>

The child is forked after the imports, so that a kill costs milliseconds, not the time to load the libraries.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import slimprompt.clip.backbone
import slimprompt.images.bank
import slimprompt.training.evaluation
import slimprompt.training.loop  # noqa: F401
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.paper.studies import make_grid, study_specs
from tests.conftest import complete_study


def main() -> None:
    grid_file, runs, kills, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    specs = study_specs(make_grid(json.loads(grid_file.read_text())))
    rng = random.Random(seed)
    for attempt in range(1, 1000):
        child = os.fork()
        if child == 0:
            environment = RunEnvironment(runs=runs, device="cpu")
            outcome = complete_study(specs, runs, InlineExecutor(environment))
            os._exit(1 if outcome.failed else 0)
        if attempt <= kills:
            time.sleep(0.02 * 30 ** rng.random())  # 0.02 to 0.6 s, mostly short: fast machines soon reach the end
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            complete = sum(not path.name.startswith(".") for path in runs.iterdir())
            print(json.dumps({"attempts": attempt, "code": os.WEXITSTATUS(status), "complete": complete}))
            return


if __name__ == "__main__":
    main()
