"""Runs in this process, one batch after the other."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import Record
from slimprompt.lab.run import Batch, LoadedInputs, make_runs


class InlineExecutor:
    """Runs in this process, one batch after the other."""

    slots = 1

    def __init__(self, environment: RunEnvironment) -> None:
        self._loaded = LoadedInputs(replace(environment, executor="inline"))
        self._queue: deque[Batch] = deque()

    def submit(self, batch: Batch) -> None:
        """Queue a batch; it runs when it is collected."""
        self._queue.append(batch)

    def collect(self) -> list[Record]:
        """Run the next batch."""
        return make_runs(self._queue.popleft(), self._loaded)

    def close(self) -> None:
        """Clear the queue."""
        self._queue.clear()
