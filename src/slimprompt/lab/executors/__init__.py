"""Where runs are executed: in this process, in worker processes of this machine, or on a Ray cluster.

An executor makes runs and nothing else. Which run may start when, and what happens to the dependants of a failed run, is
decided by `lab.study`, in the same way for every executor.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from slimprompt.lab import provenance
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec

#: A run whose process dies this often (most likely because it ran out of memory) counts as failed.
ATTEMPTS = 3
_WORKER_MEMORY_GB = 2.0


class Executor(Protocol):
    """Makes runs: `submit` groups of them, `collect` those that have ended, `close` at the end."""

    @property
    def slots(self) -> int:
        """How many groups it takes at once."""

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Start runs that can train side by side, or queue them."""

    def collect(self) -> list[Record]:
        """Wait until some of the submitted runs have ended; their records. A run that cannot start at all raises."""

    def close(self) -> None:
        """Stop; runs that have not ended are given up and leave nothing behind."""


def default_workers(environment: RunEnvironment) -> int:
    """Runs side by side on this machine: one per core and thread of a run, as memory allows; one on a GPU."""
    if environment.device not in ("cpu", "auto"):
        return 1
    if environment.device == "auto":
        import torch

        if torch.cuda.is_available() or torch.backends.mps.is_available():
            return 1
    free = provenance.free_memory_gb()
    by_memory = int(free // _WORKER_MEMORY_GB) if free else 1
    return max(1, min((os.cpu_count() or 1) // environment.threads, by_memory))
