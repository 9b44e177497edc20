"""A study: a list of runs, what of it is complete, and the order in which the rest is made.

Which run may start when, which runs exist already, and what happens to the dependants of a failed run is decided here, in
the same way for every executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.errors import InputError
from slimprompt.files import cannot_write, check_folder, remove_leftovers
from slimprompt.lab.inputs import KnownInputs
from slimprompt.lab.records import FAILED, Record, complete_runs, store_run
from slimprompt.lab.run import Batch, batch_key
from slimprompt.lab.spec import RunSpec
from slimprompt.methods.table import find_method

if TYPE_CHECKING:
    from collections.abc import Generator

    from slimprompt.lab.executors import Executor


@dataclass(frozen=True)
class Study:
    """Runs, the sources that they need, and what of them was complete when the study was opened."""

    asked: tuple[RunSpec, ...]
    """The runs without repetition."""
    specs: tuple[RunSpec, ...]
    """The same with their sources, each before the runs that use it."""
    runs: Path
    """Folder of the run folders."""
    complete: dict[str, Record]
    """The complete runs of the study by fingerprint."""
    known: KnownInputs
    """What all complete runs of the folder were made with."""


def open_study(specs: Iterable[RunSpec], runs: Path) -> Study:
    """A study of these runs, which need training images; the folder of the runs is read once."""
    ordered = with_sources(specs := list(specs))
    _check_train_splits(ordered)
    there = {record.spec.fingerprint: record for record in complete_runs(runs)}
    complete = {spec.fingerprint: there[spec.fingerprint] for spec in ordered if spec.fingerprint in there}
    asked = {spec.fingerprint: spec for spec in specs}
    return Study(tuple(asked.values()), tuple(ordered), runs, complete, KnownInputs(there.values()))


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


def _check_train_splits(specs: Iterable[RunSpec]) -> None:
    from slimprompt.data.benchmarks import BENCHMARKS

    used = dict.fromkeys(spec.dataset for spec in specs)
    bad = [name for name in used if name in BENCHMARKS and BENCHMARKS[name].evaluation_only]
    if bad:
        raise InputError(
            f"no run can be trained on {', '.join(bad)}, which {'has' if len(bad) == 1 else 'have'} only test images: train on "
            "other datasets. The study cross-dataset evaluates on them (`--datasets imagenet,imagenet_sketch`)"
        )


# --- events ----------------------------------------------------------------------------------------------------------


class Started(NamedTuple):
    """Runs were given to the executor."""

    specs: Sequence[RunSpec]


class Ended(NamedTuple):
    """A run is complete or failed."""

    record: Record


Event = Started | Ended


@dataclass
class Outcome:
    """The records of a study's runs."""

    present: list[Record] = field(default_factory=list)
    """Complete before the study began."""
    complete: list[Record] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)


def outcome_of(study: Study, events: Generator[Event, None, None]) -> Outcome:
    """Run a study to its end: `outcome_of(study, run_study(study, executor))`."""
    outcome = Outcome(present=list(study.complete.values()))
    with closing(events):
        for event in events:
            if isinstance(event, Ended):
                (outcome.complete if event.record.complete else outcome.failed).append(event.record)
    return outcome


def run_study(study: Study, executor: Executor, *, prompt_batch: int = 1) -> Generator[Event, None, None]:
    """Execute every run of a study that is not complete, in dependency order, and yield what happens.

    A failed run is recorded and the study continues; runs that depend on it fail with that reason. Runs that failed in an
    earlier study are tried again. A study can be stopped at any moment and resumed.

    Parameters
    ----------
    study
        The study.
    executor
        Executes the runs; it is closed at the end.
    prompt_batch
        Maximum number of runs in a prompt batch.

    Raises
    ------
    InputError
        If no run can succeed or be stored, or if the complete runs were made with other weights or images than each other or the present ones.
    """
    runs, known = study.runs, study.known.of(study.specs)
    schedule, is_new = _Schedule(study, prompt_batch), not runs.exists()
    try:
        if schedule.waiting:
            _make_folder(runs)  # before anything is trained
        present = KnownInputs(study.complete.values())
        present.check_each_other()
        present.check_own_images()
        while schedule.waiting or schedule.running:
            while schedule.batches_running < executor.slots and (ready := schedule.take_ready()):
                yield Started([spec for spec in ready if spec.fingerprint in schedule.running])
                executor.submit(Batch(ready, known.of(ready)))
            for record in executor.collect():
                if record.spec.fingerprint not in schedule.running:  # complete before; trained again for its batch
                    continue
                yield Ended(record)
                if record.complete:
                    known.add(record)
                for spec in schedule.end(record):
                    reason = f"its source run failed: {record.spec.title} ({record.spec.fingerprint}): {record.error}"
                    yield Ended(store_run(runs, spec, {"status": FAILED, "error": reason}))
    finally:
        executor.close()
        if runs.is_dir():
            remove_leftovers(runs)
            with suppress(OSError):  # it holds runs
                if is_new:
                    runs.rmdir()


def _make_folder(runs: Path) -> None:
    """Create the folder of the runs, without what killed studies left in it, and check that it can be written to."""
    check_folder(runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(runs, error) from None
    remove_leftovers(runs)


# --- order -----------------------------------------------------------------------------------------------------------


class _Schedule:
    """Which runs may start: their sources are complete, and no other run is encoding the same images.

    Runs that can be trained together form prompt batches. The batches depend only on the specs and on which runs are
    complete, so they are the same for every executor.
    """

    def __init__(self, study: Study, prompt_batch: int) -> None:
        self._specs = {spec.fingerprint: spec for spec in study.specs}
        self.complete = dict(study.complete)
        self.waiting = {name: spec for name, spec in self._specs.items() if name not in self.complete}
        self.running: set[str] = set()
        sources = {name: spec.source_spec() for name, spec in self._specs.items()}
        self._source = {name: source.fingerprint for name, source in sources.items() if source is not None}
        self._images = {name: _image_sets(spec) for name, spec in self._specs.items()}
        self._batches = self._interrupted_batches(prompt_batch)
        self._batches += self._new_batches(prompt_batch)
        self._encoded = {key for name in self.complete for key in self._images[name]}

    def _interrupted_batches(self, prompt_batch: int) -> list[list[str]]:
        """The batches of which only some runs were stored, as their records name them.

        Float rounding depends on the prompts that are trained together. The missing runs of an interrupted batch are
        therefore trained with the same prompts again, so that they get the values of an undisturbed study.
        """
        batches: list[list[str]] = []
        taken: set[str] = set()
        for record in self.complete.values():
            names = list(record.facts.get("prompt_batch", ()))
            known = len(names) <= prompt_batch and self._specs.keys() >= set(names)
            if known and taken.isdisjoint(names) and not self.waiting.keys().isdisjoint(names):
                batches.append(names)
                taken.update(names)
        return batches

    def _new_batches(self, prompt_batch: int) -> list[list[str]]:
        """The other missing runs in batches of at most `prompt_batch`, in the order of the study."""
        taken = {name for batch in self._batches for name in batch}
        batches: list[list[str]] = []
        open_batches: dict[Any, list[str]] = {}
        for name, spec in self.waiting.items():
            if name in taken:
                continue
            key = (batch_key(spec), name in self._source)
            if len(open_batches.get(key, ())) in (0, prompt_batch):
                open_batches[key] = []
                batches.append(open_batches[key])
            open_batches[key].append(name)
        return batches

    @property
    def batches_running(self) -> int:
        """Number of batches that have not ended."""
        return sum(not self.running.isdisjoint(batch) for batch in self._batches)

    def take_ready(self) -> list[RunSpec]:
        """Take the first batch with waiting runs that may start now; empty if there is none.

        Complete runs of an interrupted batch are returned too.
        """
        encoding = {key for name in self.running for key in self._images[name]} - self._encoded
        for batch in self._batches:
            names = [name for name in batch if name in self.waiting]
            sources = {self._source[name] for name in names if name in self._source}
            if not names or not sources <= self.complete.keys():
                continue
            if any(not encoding.isdisjoint(self._images[name]) for name in names):
                continue
            together = [self._specs[name] for name in batch if name in self.waiting or name in self.complete]
            self.running.update(names)
            for name in names:
                del self.waiting[name]
            return together
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


def _image_sets(spec: RunSpec) -> Iterable[Any]:
    """Keys of the image features that a run reads: test images of its datasets and its views of the training images.

    The first run that needs a set encodes it; others that need it wait instead of encoding it at the same time.
    """
    views = spec.recipe if spec.is_prompt else find_method(spec.method).reads
    return *((spec.model, dataset) for dataset in (spec.dataset, *spec.evaluate_on)), (spec.model, spec.sample, views)
