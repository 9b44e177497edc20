"""Runs in worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from slimprompt.allocator import keep_freed_memory
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import ATTEMPTS, retries, worker_devices
from slimprompt.lab.records import FAILED, Record, store_run
from slimprompt.lab.run import make_runs
from slimprompt.lab.run_cache import RunCache
from slimprompt.lab.spec import RunSpec
from slimprompt.startup import import_lightly


class ProcessExecutor:
    """Runs in worker processes of this machine, each with its own loaded backbone; the feature banks are shared.

    A worker that dies (killed, out of memory) is replaced, and its runs are tried again.
    """

    def __init__(self, environment: RunEnvironment, workers: int) -> None:
        self.slots = workers
        self._environment = replace(environment, executor="processes")
        self._devices = worker_devices(environment)
        self._context = multiprocessing.get_context("spawn")
        self._queue: deque[Sequence[RunSpec]] = deque()
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._attempts: Counter[str] = Counter()

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Give a prompt batch to an idle or new worker; if all are busy, it is queued."""
        self._queue.append(specs)
        while self._queue and len(self._busy) < self.slots:
            worker = self._idle.pop() if self._idle else self._start_worker()
            worker.specs = self._queue.popleft()
            self._attempts.update(spec.fingerprint for spec in worker.specs)
            self._busy.append(worker)
            with suppress(OSError):  # a dead worker is noticed by collect
                worker.pipe.send(worker.specs)

    def collect(self) -> list[Record]:
        """Wait for the first worker that has finished its runs."""
        while True:
            ready = wait([worker.pipe for worker in self._busy])
            worker = next(worker for worker in self._busy if worker.pipe in ready)
            self._busy.remove(worker)
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                code = worker.stop()
                again, given_up = retries(worker.specs, self._attempts)
                self._queue.extend(again)
                self._dispatch_next()
                if not given_up:
                    continue
                reason = {"status": FAILED, "error": death_message(ATTEMPTS, code)}
                return [store_run(self._environment.runs, spec, reason) for spec in given_up]
            self._idle.append(worker)
            self._dispatch_next()
            if isinstance(answer, BaseException):
                raise answer
            return answer

    def _start_worker(self) -> _Worker:
        """A new worker on the device that has the fewest."""
        in_use = Counter(worker.device for worker in (*self._idle, *self._busy))
        device = min(self._devices, key=lambda name: in_use[name])
        return _Worker(self._context, replace(self._environment, device=device))

    def _dispatch_next(self) -> None:
        if self._queue:
            self.submit(self._queue.popleft())

    def close(self) -> None:
        """End all workers, also in the middle of a run: a run folder is written completely or not at all."""
        self._queue.clear()
        for worker in self._busy:
            worker.process.terminate()
        for worker in self._idle:
            worker.pipe.close()  # an idle worker ends when its pipe is closed
        for worker in (*self._idle, *self._busy):
            worker.stop()
        self._idle, self._busy = [], []


def death_message(times: int, code: int | None) -> str:
    """The error of a run whose worker died too often."""
    how = f"by signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"with code {code}"
    return f"the worker of this run ended {how}, {times} times; most likely it ran out of memory: use fewer --workers"


class _Worker:
    def __init__(self, context: Any, environment: RunEnvironment) -> None:
        self.specs: Sequence[RunSpec] = ()
        self.device = environment.device
        self.pipe, child_pipe = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(child_pipe, environment), daemon=True)
        with _signals_kept_off():
            self.process.start()
        child_pipe.close()  # so that the pipe closes when the worker ends

    def stop(self) -> int | None:
        """End the worker; returns its exit code."""
        self.pipe.close()
        self.process.join(0.2)
        if self.process.is_alive():
            self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode


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
    """Execute the runs that arrive through the pipe until it is closed; ends at once when the parent dies."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    import_lightly()
    import slimprompt.clip.backbone  # noqa: F401  # the slow imports: before the first run, and once

    run_cache = RunCache(environment)
    while True:
        try:
            specs = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: list[Record] | BaseException = make_runs(specs, run_cache)
        except InputError as error:  # no run can succeed here: no backbone, no data, no disk
            answer = error
        try:
            pipe.send(answer)
        except OSError:
            return


def _end_with_parent() -> None:
    """End this process, also in the middle of a run, as soon as its parent is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
