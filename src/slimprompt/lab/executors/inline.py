"""Runs in this process, one prompt batch after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import Record
from slimprompt.lab.run import make_runs
from slimprompt.lab.run_cache import RunCache
from slimprompt.lab.spec import RunSpec


class InlineExecutor:
    """Runs in this process, one prompt batch after the other."""

    slots = 1

    def __init__(self, environment: RunEnvironment) -> None:
        self._run_cache = RunCache(replace(environment, executor="inline"))
        self._queue: deque[Sequence[RunSpec]] = deque()

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Queue a prompt batch; it runs when it is collected."""
        self._queue.append(specs)

    def collect(self) -> list[Record]:
        """Run the next prompt batch."""
        return make_runs(self._queue.popleft(), self._run_cache)

    def close(self) -> None:
        """Clear the queue."""
        self._queue.clear()
