"""Where runs are executed: in this process, in worker processes of this machine, or on a Ray cluster.

An executor makes runs and nothing else. Which run may start when, and what happens to the dependants of a failed run, is
decided by `lab.study`, in the same way for every executor.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from slimprompt.lab import provenance
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec

#: A run whose process dies this often (most likely because it ran out of memory) counts as failed.
ATTEMPTS = 3
_WORKER_MEMORY_GB = 2.5


class Executor(Protocol):
    """Executes runs: `submit` prompt batches, `collect` finished runs, `close` at the end."""

    @property
    def slots(self) -> int:
        """Number of prompt batches to submit at a time."""

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Start or queue a prompt batch: runs on the same images."""

    def collect(self) -> list[Record]:
        """Wait until some submitted runs have ended and return their records; raises if runs cannot start at all."""

    def close(self) -> None:
        """Stop; runs that have not ended are abandoned without leaving files."""


def retries(specs: Sequence[RunSpec], attempts: Counter[str]) -> tuple[list[Sequence[RunSpec]], list[RunSpec]]:
    """The batches to try again after a worker died, and the runs to give up.

    A prompt batch is tried again as a whole, which gives the same values. In their last attempt its runs are separated: the
    batch may need too much memory.

    Parameters
    ----------
    specs
        The prompt batch of the worker.
    attempts
        How often each run was started, by fingerprint.
    """
    given_up = [spec for spec in specs if attempts[spec.fingerprint] >= ATTEMPTS]
    left = [spec for spec in specs if spec not in given_up]
    if left and max(attempts[spec.fingerprint] for spec in left) < ATTEMPTS - 1:
        return [left], given_up
    return [[spec] for spec in left], given_up


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
