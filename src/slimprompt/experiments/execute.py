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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from slimprompt.allocator import keep_freed_memory
from slimprompt.errors import InputError
from slimprompt.experiments import provenance
from slimprompt.experiments.records import FAILED, Record, find_run, remove_drafts, store_run
from slimprompt.experiments.run import Execution, Workbench, make_run
from slimprompt.experiments.spec import RunSpec

#: A run whose process dies this often (out of memory, most likely) counts as failed.
ATTEMPTS = 3
_WORKER_MEMORY_GB = 2.0


class Executor(Protocol):
    """Makes runs: `submit` some, `collect` one as soon as it has ended, `close` at the end."""

    @property
    def slots(self) -> int:
        """How many runs it takes at once."""

    def submit(self, spec: RunSpec) -> None:
        """Start a run, or queue it."""

    def collect(self) -> Record:
        """Wait until one of the submitted runs has ended; its record. A run that cannot start at all raises."""

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


def run_study(specs: Iterable[RunSpec], runs: Path, executor: Executor, watch: Watch | None = None) -> Outcome:
    """Make every run that is not complete below `runs`; sources come first and are added where they are missing.

    A failed run is recorded and the others go on; what needs it fails with that reason. A run that failed earlier is tried
    again. May be stopped at any moment and started again: complete runs stay.
    """
    watch = watch or Watch()
    todo = with_sources(specs)
    if runs.is_dir():
        remove_drafts(runs)
    schedule = _Schedule(todo, runs)
    outcome = Outcome(present=list(schedule.complete.values()))
    weights = {(record.spec.backbone, record.spec.pretrained): record for record in outcome.present}
    watch.begin(todo, outcome.present)
    try:
        while schedule.waiting or schedule.running:
            while len(schedule.running) < executor.slots and (ready := schedule.take_ready()) is not None:
                watch.started(ready)
                executor.submit(ready)
            record = executor.collect()
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
    """Which run may start: its source is complete, and nobody else is just encoding the same images."""

    def __init__(self, specs: list[RunSpec], runs: Path) -> None:
        self.complete: dict[str, Record] = {}
        self.waiting: dict[str, RunSpec] = {}
        self.running: set[str] = set()
        self._source: dict[str, str] = {}
        self._images: dict[str, tuple[Any, ...]] = {}
        for spec in specs:
            name, source = spec.fingerprint, spec.needs()
            self._images[name] = _image_sets(spec)
            if source is not None:
                self._source[name] = source.fingerprint
            record = find_run(runs, spec)
            if record is not None and record.complete:
                self.complete[name] = record
            else:
                self.waiting[name] = spec
        self._encoded = {key for name in self.complete for key in self._images[name]}

    def take_ready(self) -> RunSpec | None:
        """The first waiting run that may start now; it counts as running."""
        encoding = {key for name in self.running for key in self._images[name]} - self._encoded
        for name in self.waiting:
            if name in self._source and self._source[name] not in self.complete:
                continue
            if not encoding.isdisjoint(self._images[name]):
                continue
            self.running.add(name)
            return self.waiting.pop(name)
        return None

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
    """One run after the other in this very process."""

    slots = 1

    def __init__(self, execution: Execution) -> None:
        self._workbench = Workbench(execution)
        self._queue: deque[RunSpec] = deque()

    def submit(self, spec: RunSpec) -> None:
        """Queue a run; it is made when it is collected."""
        self._queue.append(spec)

    def collect(self) -> Record:
        """Make the next run."""
        return make_run(self._queue.popleft(), self._workbench)

    def close(self) -> None:
        """Forget the queue."""
        self._queue.clear()


class ProcessExecutor:
    """Runs side by side in processes of this machine, each with its own loaded backbone; the feature banks are shared.

    A process that dies (killed, out of memory) is replaced, and its run tried again.
    """

    def __init__(self, execution: Execution, workers: int) -> None:
        self.slots = workers
        self._execution = execution
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._attempts: Counter[str] = Counter()

    def submit(self, spec: RunSpec) -> None:
        """Give a run to an idle process, or to a new one."""
        worker = self._idle.pop() if self._idle else _Worker(self._context, self._execution)
        self._attempts[spec.fingerprint] += 1
        worker.spec = spec
        self._busy.append(worker)
        with suppress(OSError):  # it may be dead: collect will find out
            worker.pipe.send(spec)

    def collect(self) -> Record:
        """Wait for the first process that has ended its run."""
        while True:
            ready = wait([worker.pipe for worker in self._busy])
            worker = next(worker for worker in self._busy if worker.pipe in ready)
            self._busy.remove(worker)
            spec = worker.spec
            assert spec is not None
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                code = worker.stop()
                if self._attempts[spec.fingerprint] < ATTEMPTS:
                    self.submit(spec)
                    continue
                return store_run(
                    self._execution.runs,
                    spec,
                    {"status": FAILED, "error": death(self._attempts[spec.fingerprint], code)},
                )
            self._idle.append(worker)
            if isinstance(answer, BaseException):
                raise answer
            return answer

    def close(self) -> None:
        """End all processes, in the middle of a run if need be: a run folder is there whole or not at all."""
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
        self.spec: RunSpec | None = None
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
            spec = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Record | BaseException = make_run(spec, workbench)
        except InputError as error:  # nothing can be done here: no backbone, no data, no disk
            answer = error
        try:
            pipe.send(answer)
        except OSError:
            return
