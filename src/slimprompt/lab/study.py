"""Runs many specs in dependency order.

Which run may start when, which runs exist already, and what happens to the dependants of a failed run is decided here, in
the same way for every executor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slimprompt.errors import InputError
from slimprompt.lab.executors import Executor
from slimprompt.lab.observer import StudyObserver
from slimprompt.lab.records import FAILED, Record, find_complete_run, store_run
from slimprompt.lab.run import prompt_batch_key
from slimprompt.lab.spec import RunSpec
from slimprompt.storage import remove_leftovers


@dataclass
class Outcome:
    """The records of a study's runs."""

    present: list[Record] = field(default_factory=list)
    """Complete before the study began."""
    complete: list[Record] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)


def with_sources(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The specs without repetition, each preceded by the run whose factors it uses.

    >>> spec = RunSpec(backbone="pocket", dataset="a", shots=1, seed=1, variant="fixed-B", rank=4, basis="learned")
    >>> [run.label for run in with_sources([spec])]
    ['joint r4', 'fixed-B learned r4']
    """
    ordered: dict[str, RunSpec] = {}
    for spec in specs:
        source = spec.source_spec()
        if source is not None:
            ordered.setdefault(source.fingerprint, source)
        ordered.setdefault(spec.fingerprint, spec)
    return list(ordered.values())


def run_study(
    specs: Iterable[RunSpec],
    runs: Path,
    executor: Executor,
    observer: StudyObserver | None = None,
    *,
    prompt_batch: int = 1,
) -> Outcome:
    """Execute every run that is not complete in `runs`, in dependency order.

    Sources that the specs need are added. A failed run is recorded and the study continues; runs that depend on it fail with
    that reason. Runs that failed in an earlier study are tried again. A study can be stopped at any moment and resumed.

    Parameters
    ----------
    specs
        The runs of the study.
    runs
        Folder of the run folders.
    executor
        Executes the runs; it is closed at the end.
    observer
        Is notified of what happens.
    prompt_batch
        Maximum number of runs in a prompt batch.
    """
    observer = observer or StudyObserver()
    todo = with_sources(specs)
    if runs.is_dir():
        remove_leftovers(runs)
    schedule = _Schedule(todo, runs, prompt_batch)
    outcome = Outcome(present=list(schedule.complete.values()))
    weights = {(record.spec.backbone, record.spec.pretrained): record for record in outcome.present}
    observer.begin(todo, outcome.present)
    try:
        while schedule.waiting or schedule.running:
            while schedule.batches_running < executor.slots and (ready := schedule.take_ready()):
                for spec in ready:
                    observer.started(spec)
                executor.submit(ready)
            for record in executor.collect():
                (outcome.complete if record.complete else outcome.failed).append(record)
                observer.ended(record)
                _check_weights(record, weights)
                for spec in schedule.end(record):
                    reason = f"its source run failed: {record.spec.title} ({record.spec.fingerprint}): {record.error}"
                    failed = store_run(runs, spec, {"status": FAILED, "error": reason})
                    outcome.failed.append(failed)
                    observer.ended(failed)
    finally:
        executor.close()
        observer.end()
        remove_leftovers(runs)
    return outcome


def _check_weights(record: Record, present: dict[tuple[str, str | None], Record]) -> None:
    """Runs of one study are compared with each other, so they must use the same weights."""
    spec, made_with = record.spec, record.facts.get("backbone_fingerprint")
    other = present.get((spec.backbone, spec.pretrained))
    if made_with and other and other.facts.get("backbone_fingerprint") not in (made_with, None):
        raise InputError(
            f"{other.folder.parent} holds runs that were made with other weights of {spec.backbone} than the present ones, "
            f"such as {other.spec.fingerprint}. Remove them (`slimprompt runs rm --where backbone={spec.backbone}`) or "
            "choose another --runs folder"
        )


class _Schedule:
    """Which runs may start: their sources are complete, and no other run is encoding the same images.

    Runs that can be trained together form prompt batches. The batches depend only on which runs are missing at the beginning,
    so they are the same for every executor.
    """

    def __init__(self, specs: list[RunSpec], runs: Path, prompt_batch: int = 1) -> None:
        self.complete: dict[str, Record] = {}
        self.waiting: dict[str, RunSpec] = {}
        self.running: set[str] = set()
        self._source: dict[str, str] = {}
        self._images: dict[str, tuple[Any, ...]] = {}
        self._batches: list[list[str]] = []
        open_batches: dict[Any, list[str]] = {}
        for spec in specs:
            name, source = spec.fingerprint, spec.source_spec()
            self._images[name] = _image_sets(spec)
            if source is not None:
                self._source[name] = source.fingerprint
            record = find_complete_run(runs, spec)
            if record is not None:
                self.complete[name] = record
                continue
            self.waiting[name] = spec
            key = (prompt_batch_key(spec), source is None)
            if len(open_batches.get(key, ())) in (0, prompt_batch):
                open_batches[key] = []
                self._batches.append(open_batches[key])
            open_batches[key].append(name)
        self._encoded = {key for name in self.complete for key in self._images[name]}

    @property
    def batches_running(self) -> int:
        """Number of batches that have not ended."""
        return sum(not self.running.isdisjoint(batch) for batch in self._batches)

    def take_ready(self) -> list[RunSpec]:
        """Take the first waiting batch that may start now; empty if there is none."""
        encoding = {key for name in self.running for key in self._images[name]} - self._encoded
        for batch in self._batches:
            names = [name for name in batch if name in self.waiting]
            sources = {self._source[name] for name in names if name in self._source}
            if not names or not sources <= self.complete.keys():
                continue
            if any(not encoding.isdisjoint(self._images[name]) for name in names):
                continue
            self.running.update(names)
            return [self.waiting.pop(name) for name in names]
        return []

    def end(self, record: Record) -> list[RunSpec]:
        """Note that a run has ended. If it failed, the waiting runs that depend on it are removed and returned."""
        name = record.spec.fingerprint
        self.running.discard(name)
        if record.complete:
            self.complete[name] = record
            self._encoded.update(self._images[name])
            return []
        dependants = [other for other in self.waiting if self._source.get(other) == name]
        return [self.waiting.pop(other) for other in dependants]


def _image_sets(spec: RunSpec) -> tuple[Any, ...]:
    """Keys of the image features that a run reads: its test images and its views of the training images.

    The first run that needs a set encodes it; others that need it wait instead of encoding it at the same time.
    """
    test = (spec.backbone, spec.pretrained, spec.precision, spec.dataset)
    return test, (*test, spec.split, spec.shots, spec.seed, spec.recipe)
