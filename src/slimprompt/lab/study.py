"""Many specs → their run folders, in an order that respects who needs whom.

An executor makes runs and nothing else; it has three methods. Which run may start when, what is there already, and what
happens to the dependants of a failed run is decided here, the same for every executor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from slimprompt.allocator import keep_freed_memory
from slimprompt.errors import InputError
from slimprompt.lab import provenance
from slimprompt.lab.records import FAILED, Record, find_run, remove_drafts, store_run
from slimprompt.lab.run import Execution, Workbench, make_runs, stack_key
from slimprompt.lab.spec import RunSpec

#: A run whose process dies this often (out of memory, most likely) counts as failed.
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


class Watch:
    """Is told what happens in a study; this one does not care."""

    def begin(self, specs: list[RunSpec], present: list[Record]) -> None:
        """The study starts: all its runs, and those of them that are complete already."""

    def started(self, spec: RunSpec) -> None:
        """A run was handed to the executor."""

    def ended(self, record: Record) -> None:
        """A run is complete or failed."""

    def end(self) -> None:
        """The study is over, or was interrupted."""


@dataclass
class Outcome:
    """What became of a study's runs."""

    present: list[Record] = field(default_factory=list)
    """Complete before it began."""
    complete: list[Record] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)


def with_sources(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The specs without repetition, each preceded by the run whose factors it needs.

    >>> spec = RunSpec(backbone="pocket", dataset="a", shots=1, seed=1, variant="fixed-B", rank=4, basis="learned")
    >>> [run.label for run in with_sources([spec])]
    ['joint r4', 'fixed-B learned r4']
    """
    ordered: dict[str, RunSpec] = {}
    for spec in specs:
        source = spec.needs()
        if source is not None:
            ordered.setdefault(source.fingerprint, source)
        ordered.setdefault(spec.fingerprint, spec)
    return list(ordered.values())


def run_study(
    specs: Iterable[RunSpec], runs: Path, executor: Executor, watch: Watch | None = None, *, stack: int = 1
) -> Outcome:
    """Make every run that is not complete below `runs`; sources come first and are added where they are missing.

    stack: at most so many runs on the same images go to the executor together.

    A failed run is recorded and the others go on; what needs it fails with that reason. A run that failed earlier is tried
    again. May be stopped at any moment and started again: complete runs stay.
    """
    watch = watch or Watch()
    todo = with_sources(specs)
    if runs.is_dir():
        remove_drafts(runs)
    schedule = _Schedule(todo, runs, stack)
    outcome = Outcome(present=list(schedule.complete.values()))
    weights = {(record.spec.backbone, record.spec.pretrained): record for record in outcome.present}
    watch.begin(todo, outcome.present)
    try:
        while schedule.waiting or schedule.running:
            while schedule.groups_running < executor.slots and (ready := schedule.take_ready()):
                for spec in ready:
                    watch.started(spec)
                executor.submit(ready)
            for record in executor.collect():
                (outcome.complete if record.complete else outcome.failed).append(record)
                watch.ended(record)
                _check_weights(record, weights)
                for spec in schedule.end(record):
                    reason = f"its source run failed: {record.spec.title} ({record.spec.fingerprint}): {record.error}"
                    failed = store_run(runs, spec, {"status": FAILED, "error": reason})
                    outcome.failed.append(failed)
                    watch.ended(failed)
    finally:
        executor.close()
        watch.end()
        remove_drafts(runs)
    return outcome


def _check_weights(record: Record, present: dict[tuple[str, str | None], Record]) -> None:
    """Runs of one study are compared with each other, so they must be of the same weights."""
    spec, made_with = record.spec, record.facts.get("backbone_fingerprint")
    other = present.get((spec.backbone, spec.pretrained))
    if made_with and other and other.facts.get("backbone_fingerprint") not in (made_with, None):
        raise InputError(
            f"{other.folder.parent} holds runs that were made with other weights of {spec.backbone} than the present ones, "
            f"such as {other.spec.fingerprint}. Remove them (`slimprompt runs rm --where backbone={spec.backbone}`) or "
            "choose another --runs folder"
        )


class _Schedule:
    """Which runs may start: their sources are complete, and nobody else is just encoding the same images.

    Runs that can train side by side form a group. Groups depend on nothing but what is missing at the beginning, so that
    every executor makes the same ones.
    """

    def __init__(self, specs: list[RunSpec], runs: Path, stack: int = 1) -> None:
        self.complete: dict[str, Record] = {}
        self.waiting: dict[str, RunSpec] = {}
        self.running: set[str] = set()
        self._source: dict[str, str] = {}
        self._images: dict[str, tuple[Any, ...]] = {}
        self._groups: list[list[str]] = []
        open_groups: dict[Any, list[str]] = {}
        for spec in specs:
            name, source = spec.fingerprint, spec.needs()
            self._images[name] = _image_sets(spec)
            if source is not None:
                self._source[name] = source.fingerprint
            record = find_run(runs, spec)
            if record is not None and record.complete:
                self.complete[name] = record
                continue
            self.waiting[name] = spec
            key = (stack_key(spec), source is None)
            if len(open_groups.get(key, ())) in (0, stack):
                open_groups[key] = []
                self._groups.append(open_groups[key])
            open_groups[key].append(name)
        self._encoded = {key for name in self.complete for key in self._images[name]}

    @property
    def groups_running(self) -> int:
        """How many groups have not ended."""
        return sum(not self.running.isdisjoint(group) for group in self._groups)

    def take_ready(self) -> list[RunSpec]:
        """The first waiting group that may start now; its runs count as running."""
        encoding = {key for name in self.running for key in self._images[name]} - self._encoded
        for group in self._groups:
            names = [name for name in group if name in self.waiting]
            sources = {self._source[name] for name in names if name in self._source}
            if not names or not sources <= self.complete.keys():
                continue
            if any(not encoding.isdisjoint(self._images[name]) for name in names):
                continue
            self.running.update(names)
            return [self.waiting.pop(name) for name in names]
        return []

    def end(self, record: Record) -> list[RunSpec]:
        """A run has ended. If it failed, the waiting runs that needed it are taken out and returned."""
        name = record.spec.fingerprint
        self.running.discard(name)
        if record.complete:
            self.complete[name] = record
            self._encoded.update(self._images[name])
            return []
        hopeless = [other for other in self.waiting if self._source.get(other) == name]
        return [self.waiting.pop(other) for other in hopeless]


def _image_sets(spec: RunSpec) -> tuple[Any, ...]:
    """Keys of the image features a run reads: its test images and its views of the training images.

    The first run that needs a set encodes it; others that need it too wait, rather than encode it at the same time.
    """
    test = (spec.backbone, spec.pretrained, spec.precision, spec.dataset)
    return test, (*test, spec.split, spec.shots, spec.seed, spec.recipe)


# --- on this machine -------------------------------------------------------------------------------------------------


def default_workers(execution: Execution) -> int:
    """Runs side by side on this machine: one per core and thread of a run, as memory allows; one on a GPU."""
    if execution.device not in ("cpu", "auto"):
        return 1
    if execution.device == "auto":
        import torch

        if torch.cuda.is_available() or torch.backends.mps.is_available():
            return 1
    free = provenance.free_memory_gb()
    by_memory = int(free // _WORKER_MEMORY_GB) if free else 1
    return max(1, min((os.cpu_count() or 1) // execution.threads, by_memory))


class InlineExecutor:
    """One group of runs after the other in this very process."""

    slots = 1

    def __init__(self, execution: Execution) -> None:
        self._workbench = Workbench(execution)
        self._queue: deque[Sequence[RunSpec]] = deque()

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Queue runs; they are made when they are collected."""
        self._queue.append(specs)

    def collect(self) -> list[Record]:
        """Make the next runs."""
        return make_runs(self._queue.popleft(), self._workbench)

    def close(self) -> None:
        """Forget the queue."""
        self._queue.clear()


class ProcessExecutor:
    """Runs in processes of this machine, each with its own loaded backbone; the feature banks are shared.

    A process that dies (killed, out of memory) is replaced, and its runs tried again, each by itself.
    """

    def __init__(self, execution: Execution, workers: int) -> None:
        self.slots = workers
        self._execution = execution
        self._context = multiprocessing.get_context("spawn")
        self._queue: deque[Sequence[RunSpec]] = deque()
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._attempts: Counter[str] = Counter()

    def submit(self, specs: Sequence[RunSpec]) -> None:
        """Give runs to an idle process, or to a new one; if all are busy, they wait."""
        self._queue.append(specs)
        while self._queue and len(self._busy) < self.slots:
            worker = self._idle.pop() if self._idle else _Worker(self._context, self._execution)
            worker.specs = self._queue.popleft()
            self._attempts.update(spec.fingerprint for spec in worker.specs)
            self._busy.append(worker)
            with suppress(OSError):  # it may be dead: collect will find out
                worker.pipe.send(worker.specs)

    def collect(self) -> list[Record]:
        """Wait for the first process that has ended its runs."""
        while True:
            ready = wait([worker.pipe for worker in self._busy])
            worker = next(worker for worker in self._busy if worker.pipe in ready)
            self._busy.remove(worker)
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                code = worker.stop()
                given_up = [spec for spec in worker.specs if self._attempts[spec.fingerprint] >= ATTEMPTS]
                self._queue.extend([spec] for spec in worker.specs if spec not in given_up)
                self._next()
                if not given_up:
                    continue
                reason = {"status": FAILED, "error": death(ATTEMPTS, code)}
                return [store_run(self._execution.runs, spec, reason) for spec in given_up]
            self._idle.append(worker)
            self._next()
            if isinstance(answer, BaseException):
                raise answer
            return answer

    def _next(self) -> None:
        if self._queue:
            self.submit(self._queue.popleft())

    def close(self) -> None:
        """End all processes, in the middle of a run if need be: a run folder is there whole or not at all."""
        self._queue.clear()
        for worker in self._busy:
            worker.process.terminate()
        for worker in self._idle:
            worker.pipe.close()  # it ends by itself
        for worker in (*self._idle, *self._busy):
            worker.stop()
        self._idle, self._busy = [], []


def death(times: int, code: int | None) -> str:
    """Why a run whose process died is given up."""
    how = f"by signal {-code} ({signal.Signals(-code).name})" if code is not None and code < 0 else f"with code {code}"
    return f"the process of this run ended {how}, {times} times; most likely it ran out of memory: use fewer --workers"


class _Worker:
    def __init__(self, context: Any, execution: Execution) -> None:
        self.specs: Sequence[RunSpec] = ()
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, execution), daemon=True)
        with _interrupts_ignored():  # from its first moment on, Ctrl-C is the parent's affair only
            self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def stop(self) -> int | None:
        """Its exit code."""
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
def _interrupts_ignored() -> Iterator[None]:
    """A process that is started inside inherits it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(pipe: Connection, execution: Execution) -> None:
    """Make the runs that come through the pipe, until it is closed: by the parent, or by the parent's death."""
    keep_freed_memory()
    workbench = Workbench(execution)
    while True:
        try:
            specs = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: list[Record] | BaseException = make_runs(specs, workbench)
        except InputError as error:  # nothing can be done here: no backbone, no data, no disk
            answer = error
        try:
            pipe.send(answer)
        except OSError:
            return
