"""Runs in worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import worker_devices
from slimprompt.lab.executors.pool import Worker, WorkerDied, WorkerPool, prepare_worker
from slimprompt.lab.run import Batch, make_runs


class ProcessExecutor(WorkerPool):
    """Runs in worker processes of this machine, each with its own loaded backbone; the feature banks are shared."""

    def __init__(self, environment: RunEnvironment, workers: int) -> None:
        super().__init__(replace(environment, executor="processes"))
        self._workers = workers
        self._devices = worker_devices(environment)
        self._context = multiprocessing.get_context("spawn")

    @property
    def slots(self) -> int:
        """Number of workers."""
        return self._workers

    def _start(self) -> Worker:
        """A new worker on the device that has the fewest."""
        in_use = Counter(worker.device for worker in (*self._idle, *self._starting, *self._running))
        device = min(self._devices, key=lambda name: in_use[name])
        return WorkerProcess(self._context, replace(self._environment, device=device))

    def _wait(self, workers: Sequence[Any]) -> Worker:
        ready = wait([worker.pipe for worker in workers])
        return next(worker for worker in workers if worker.pipe in ready)


class WorkerProcess(Worker):
    """A process that answers through a pipe."""

    def __init__(self, context: Any, environment: RunEnvironment) -> None:
        self.device = environment.device
        self.pipe, child_pipe = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(child_pipe, environment), daemon=True)
        with _signals_kept_off():
            self.process.start()
        child_pipe.close()  # so that the pipe closes when the worker ends

    def send(self, batch: Batch) -> None:
        """Give it a batch; that it is dead is noticed by `receive`."""
        with suppress(OSError):
            self.pipe.send(batch)

    def receive(self) -> Any:
        """What it sent."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode
        if code is None or code >= 0:
            raise WorkerDied(f"with code {code}")
        name = signal.Signals(-code).name
        advice = "; most likely it ran out of memory: use fewer --workers" if name == "SIGKILL" else ""
        raise WorkerDied(f"by signal {-code} ({name}){advice}")

    def stop(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextmanager
def _signals_kept_off() -> Iterator[None]:
    """For the start of a worker: it inherits that Ctrl-C is ignored, and other signals are handled when it has started.

    A worker whose start is interrupted would print a traceback, because it has not received all that it needs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}  # the parent alone handles Ctrl-C
    for number in (getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)):
        if callable(signal.getsignal(number)):
            before[number] = signal.signal(number, lambda got, _: received.append(got))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


def _serve(pipe: Connection, environment: RunEnvironment) -> None:
    """Execute the batches that arrive through the pipe until it is closed; ends at once when the parent dies."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    loaded = prepare_worker(environment)
    answer: Any = "ready"
    while True:
        try:
            pipe.send(answer)
            batch = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = make_runs(batch, loaded)
        except InputError as error:
            answer = error


def _end_with_parent() -> None:
    """End this process, also in the middle of a run, as soon as its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
