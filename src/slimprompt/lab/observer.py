"""Observers of a running study: a live table on a terminal, one line per run in a log."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.progress import duration
from slimprompt.tracking import open_log

_SHOWN = 8


class StudyObserver:
    """Is notified of what happens in a study; this one ignores it."""

    def begin(self, specs: list[RunSpec], present: list[Record]) -> None:
        """The study starts; `present` are those of its runs that are complete already."""

    def started(self, specs: Sequence[RunSpec]) -> None:
        """The runs of a prompt batch were submitted to the executor."""

    def ended(self, record: Record) -> None:
        """A run is complete or failed."""

    def end(self) -> None:
        """The study is over, or was interrupted."""


def study_observer(name: str) -> StudyObserver:
    """A live table if standard error is a terminal, otherwise lines."""
    return _Table(name) if sys.stderr.isatty() else _Lines(name)


class LoggingObserver(StudyObserver):
    """Also writes every run that is complete now to a tracker, from this process, whichever executor runs it."""

    def __init__(self, target: str, observer: StudyObserver) -> None:
        self._target: str | None = target
        self._observer = observer

    def begin(self, specs: list[RunSpec], present: list[Record]) -> None:
        """Runs that are complete already were written by the command that ran them."""
        self._observer.begin(specs, present)

    def started(self, specs: Sequence[RunSpec]) -> None:
        """Nothing is written before a run is complete."""
        self._observer.started(specs)

    def ended(self, record: Record) -> None:
        """Write the run if it is complete."""
        self._observer.ended(record)
        if record.complete:
            try:
                self._write(record)
            except InputError as error:
                self._target = None
                warnings.warn(f"{error}; nothing more is logged", stacklevel=1)

    def end(self) -> None:
        """Every run has been written."""
        self._observer.end()

    def _write(self, record: Record) -> None:
        from slimprompt.training.loop import EpochResult  # imports torch

        facts = {name: record.facts.get(name) for name in ("trainable_parameters", "backbone_fingerprint")}
        name = f"{record.spec.label}-{record.spec.fingerprint}"
        with open_log(self._target, name, record.spec.flat() | facts) as log:
            if record.spec.is_prompt:
                for row in record.curve().itertuples(index=False):
                    log.epoch(EpochResult(*row))
            log.result(record.metrics)


class _Count(StudyObserver):
    """Counts complete, running and failed runs, and estimates the time left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total = self.present = self.complete = self.failed = 0
        self.running: dict[str, tuple[RunSpec, float]] = {}
        self._left = self._done = self._busy = 0.0
        self._batches: list[set[str]] = []
        self._in_parallel = 1
        self._begin = time.monotonic()

    def begin(self, specs: list[RunSpec], present: list[Record]) -> None:
        self.total, self.present = len(specs), len(present)
        complete = {record.spec.fingerprint for record in present}
        self._left = sum(weight(spec) for spec in specs if spec.fingerprint not in complete)
        self._begin = time.monotonic()

    def started(self, specs: Sequence[RunSpec]) -> None:
        self.running |= {spec.fingerprint: (spec, time.monotonic()) for spec in specs}
        self._batches.append({spec.fingerprint for spec in specs})

    def ended(self, record: Record) -> None:
        # The time of a run is its share of the time of its batch, so batches count, not runs.
        self._batches = [batch for batch in self._batches if not batch.isdisjoint(self.running)]
        self._in_parallel = max(1, len(self._batches))
        self.running.pop(record.spec.fingerprint, None)
        self._left -= weight(record.spec)
        if record.complete:
            self.complete += 1
            self._done += weight(record.spec)
            times = record.facts.get("times", {})
            self._busy += times.get("total", 0.0) - times.get(
                "setup", 0.0
            )  # a backbone is loaded once, not for every run
        else:
            self.failed += 1

    @property
    def ended_runs(self) -> int:
        return self.present + self.complete + self.failed

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    @property
    def left(self) -> float | None:
        """Seconds left, extrapolated from the finished runs; None before the first one."""
        return self._busy / self._done * self._left / self._in_parallel if self._done else None


def weight(spec: RunSpec) -> float:
    """Relative cost of a run: epochs × (1 + shots), halved for base classes. Other methods than prompts cost as one epoch."""
    return (
        (spec.recipe.epochs if spec.is_prompt else 1) * (0.5 if spec.class_subset == "base" else 1.0) * (1 + spec.shots)
    )


class _Lines(_Count):
    def begin(self, specs: list[RunSpec], present: list[Record]) -> None:
        super().begin(specs, present)
        _say(f"{self.name}: {self.total:,} runs, {self.present:,} already complete")

    def ended(self, record: Record) -> None:
        super().ended(record)
        what = result(record) if record.complete else f"FAILED: {record.error}"
        left = f"  {duration(self.left)} left" if self.left and self.ended_runs < self.total else ""
        _say(f"[{self.ended_runs:>{len(str(self.total))}}/{self.total}] {record.spec.title}  {what}{left}")


class _Table(_Count):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._recent: list[str] = []
        self._live: Any = None

    def begin(self, specs: list[RunSpec], present: list[Record]) -> None:
        from rich.console import Console
        from rich.live import Live

        super().begin(specs, present)
        self._live = Live(
            get_renderable=self._render, console=Console(stderr=True), refresh_per_second=2, transient=True
        )
        self._live.start()

    def ended(self, record: Record) -> None:
        super().ended(record)
        if not record.complete and self._live is not None:  # failures remain on the screen above the table
            self._live.console.print(f"failed: {record.spec.title}: {record.error}", style="red", markup=False)
        self._recent = (
            [*self._recent[-3:], f"{record.spec.title}  {result(record)}"] if record.complete else self._recent
        )

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        left = duration(self.left) if self.left is not None else "…"
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self.name, style="bold"),
            ProgressBar(total=max(self.total, 1), completed=self.ended_runs, width=30),
            f"{self.ended_runs:,}/{self.total:,} done",
            f"{len(self.running)} running",
            Text(f"{self.failed} failed", style="red" if self.failed else "dim"),
            f"{duration(self.elapsed)} elapsed",
            f"{left} left",
        )
        rows = Table.grid(padding=(0, 2))
        for line in self._recent:
            rows.add_row(Text("done", style="green"), Text(line, style="dim"))
        for spec, since in list(self.running.values())[:_SHOWN]:
            running = Text(f"{spec.title}  {duration(time.monotonic() - since)}")  # Text: names are not markup
            rows.add_row(Text("running", style="cyan"), running)
        if len(self.running) > _SHOWN:
            rows.add_row("", f"… and {len(self.running) - _SHOWN} more")
        return Group(head, rows)


def result(record: Record) -> str:
    """The run's accuracy beside that of zero-shot, and its duration."""
    metrics, seconds = record.metrics, record.facts.get("times", {}).get("total")
    took = f"  {duration(seconds)}" if seconds is not None else ""
    if "harmonic" in metrics:
        new = f"{metrics['seen']:.1f} seen, {metrics['unseen']:.1f} unseen, H {metrics['harmonic']:.1f} %"
        return f"{new} (zero-shot H {metrics['zero_shot_harmonic']:.1f}){took}"
    if "seen" in metrics:  # the method takes no new class names
        return f"{metrics['seen']:.1f} % seen (zero-shot {metrics['zero_shot_seen']:.1f}){took}"
    if "accuracy" in metrics:
        own = f"{metrics['accuracy']:.1f} % (zero-shot {metrics['zero_shot_accuracy']:.1f})"
        averages = []
        for prefix in ("accuracy@", "zero_shot_accuracy@"):
            others = [value for name, value in metrics.items() if name.startswith(prefix)]
            averages += [sum(others) / len(others)] if others else []
        return own + (", other datasets {:.1f} % ({:.1f})".format(*averages) if averages else "") + took
    return took.strip()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
