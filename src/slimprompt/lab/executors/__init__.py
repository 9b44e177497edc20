"""Where runs are executed: in this process, in worker processes of this machine, or on a Ray cluster.

An executor makes runs and nothing else. Which run may start when, and what happens to the dependants of a failed run, is
decided by `lab.study`, in the same way for every executor.
"""

from __future__ import annotations

import os
from typing import Protocol

from slimprompt.lab import provenance
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import Record
from slimprompt.lab.run import Batch

_WORKER_MEMORY_GB = 2.5


class Executor(Protocol):
    """Executes runs: `submit` batches, `collect` finished runs, `close` at the end."""

    @property
    def slots(self) -> int:
        """Number of batches to submit at a time."""

    def submit(self, batch: Batch) -> None:
        """Start or queue a batch: runs on the same images."""

    def collect(self) -> list[Record]:
        """Wait until some submitted runs have ended and return their records; raises if runs cannot start at all."""

    def close(self) -> None:
        """Stop; runs that have not ended are abandoned without leaving files."""


def worker_devices(environment: RunEnvironment) -> list[str]:
    """The devices that workers take in turn: every GPU for "auto" and "cuda", otherwise the one device given."""
    import torch

    if environment.device in ("auto", "cuda") and torch.cuda.is_available():
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [environment.device]


def default_workers(environment: RunEnvironment) -> int:
    """Number of worker processes: one per GPU; without a GPU, cores divided by the threads of a run, as memory allows."""
    import torch

    devices = worker_devices(environment)
    if devices[0].startswith(("cuda", "mps")) or (devices == ["auto"] and torch.backends.mps.is_available()):
        return len(devices)
    by_memory = int(provenance.free_memory_gb() // _WORKER_MEMORY_GB)
    return max(1, min((os.cpu_count() or 1) // environment.threads, by_memory))
