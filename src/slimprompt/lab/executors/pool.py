"""The pool of workers that processes and Ray have in common: queue, retries, and what is said of a worker that died."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from slimprompt.allocator import keep_freed_memory
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import FAILED, Record, store_run
from slimprompt.lab.run import Batch, LoadedInputs
from slimprompt.lab.spec import RunSpec
from slimprompt.startup import import_lightly

#: A run whose worker dies this often counts as failed, and a worker that cannot start this often stops the study.
ATTEMPTS = 3


class WorkerDied(Exception):
    """A worker ended before it answered; the message tells how."""


class Worker(ABC):
    """Answers once when it has started, and then each batch with its records, or with the error that stops the study."""

    @abstractmethod
    def send(self, batch: Batch) -> None:
        """Give it a batch."""

    @abstractmethod
    def receive(self) -> Any:
        """Its answer, when there is one; raises `WorkerDied`."""

    @abstractmethod
    def stop(self) -> None:
        """End it, also in the middle of a run: a run folder is written completely or not at all."""


def prepare_worker(environment: RunEnvironment) -> LoadedInputs:
    """In a new worker: the inputs that it keeps from one batch to the next."""
    keep_freed_memory()
    import_lightly()
    import slimprompt.clip.backbone  # noqa: F401  # the slow imports: before the first run, and once

    return LoadedInputs(environment)


class WorkerPool(ABC):
    """Executes batches on workers. Those of a worker that dies are tried again on another one.

    A subclass tells how many workers there may be, how one starts, and how to wait for an answer.
    """

    def __init__(self, environment: RunEnvironment) -> None:
        self._environment = environment
        self._queue: deque[Batch] = deque()
        self._starting: list[Any] = []
        self._idle: list[Any] = []
        self._running: dict[Any, Batch] = {}
        self._attempts: Counter[str] = Counter()
        self._failed_starts = 0

    @property
    @abstractmethod
    def slots(self) -> int:
        """Number of workers."""

    @abstractmethod
    def _start(self) -> Worker:
        """A new worker."""

    @abstractmethod
    def _wait(self, workers: Sequence[Any]) -> Worker:
        """The first of the workers that has an answer or died."""

    def submit(self, batch: Batch) -> None:
        """Give a batch to an idle worker, or queue it until one is idle or has started."""
        self._queue.append(batch)
        self._dispatch()

    def collect(self) -> list[Record]:
        """Wait for the first worker that has finished its batch."""
        while True:
            worker = self._wait([*self._starting, *self._running])
            batch = self._running.pop(worker, None)
            try:
                answer = worker.receive()
            except WorkerDied as death:
                worker.stop()
                given_up = self._try_again(worker, batch, str(death))
                self._dispatch()
                if given_up:
                    return given_up
                continue
            if isinstance(answer, InputError):  # no backbone, no data, no disk: no run can succeed here
                worker.stop()
                raise answer
            if batch is None:
                self._starting.remove(worker)
                self._failed_starts = 0
            self._idle.append(worker)
            self._dispatch()
            if batch is not None:
                return list(answer)

    def close(self) -> None:
        """End all workers."""
        for worker in (*self._idle, *self._starting, *self._running):
            worker.stop()
        self._queue, self._idle, self._starting, self._running = deque(), [], [], {}

    def _dispatch(self) -> None:
        """Give queued batches to idle workers, and start workers for the rest as far as there may be some."""
        while self._queue and self._idle:
            worker, batch = self._idle.pop(), self._queue.popleft()
            self._attempts.update(spec.fingerprint for spec in batch.specs)
            self._running[worker] = batch
            worker.send(batch)
        workers = len(self._idle) + len(self._starting) + len(self._running)
        for _ in range(min(len(self._queue) - len(self._starting), self.slots - workers)):
            self._starting.append(self._start())

    def _try_again(self, worker: Worker, batch: Batch | None, how: str) -> list[Record]:
        """Queue the runs of a dead worker again; returns the records of those that were tried too often."""
        if batch is None:
            self._starting.remove(worker)
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                raise InputError(f"no worker can start: {how}")
            return []
        again, given_up = retries(batch.specs, self._attempts)
        self._queue.extend(Batch(specs, batch.known) for specs in again)
        reason = {"status": FAILED, "error": f"the worker of this run ended {ATTEMPTS} times, the last time {how}"}
        return [store_run(self._environment.runs, spec, reason) for spec in given_up]


def retries(specs: Sequence[RunSpec], attempts: Counter[str]) -> tuple[list[Sequence[RunSpec]], list[RunSpec]]:
    """The batches to try again after the worker of these runs died, and the runs to give up; `attempts` counts their starts.

    A batch is tried again as a whole, which gives the same values. In their last attempt its runs are separated: the batch may
    need too much memory.
    """
    given_up = [spec for spec in specs if attempts[spec.fingerprint] >= ATTEMPTS]
    left = [spec for spec in specs if spec not in given_up]
    if left and max(attempts[spec.fingerprint] for spec in left) < ATTEMPTS - 1:
        return [left], given_up
    return [[spec] for spec in left], given_up
