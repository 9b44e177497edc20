"""The events of a running study on the screen: a progress bar on a terminal, one line per run in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager

from slimprompt.lab.plan import weight
from slimprompt.lab.records import Record
from slimprompt.lab.study import Ended, Event, Started, Study
from slimprompt.progress import duration


def shown(name: str, study: Study, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """The events of a study, shown as they happen."""
    complete, left = len(study.complete), _TimeLeft(study)
    total = len(study.specs)
    with closing(events), _screen(name, complete, total) as show:
        for event in events:
            left.note(event)
            if isinstance(event, Ended):
                complete += 1
                show(event.record, complete, left.seconds)
            yield event


Show = Callable[[Record, int, float], None]


@contextmanager
def _screen(name: str, complete: int, total: int) -> Iterator[Show]:
    if not sys.stderr.isatty():
        _say(f"{name}: {total:,} runs, {complete:,} already complete")
        yield lambda record, done, left: _say(
            f"[{done:>{len(str(total))}}/{total}] {_line(record)}{_time(left) if done < total else ''}"
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[last]}", style="dim", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True) as bar:
        task = bar.add_task(name, total=total, completed=complete, left="", last="")

        def show(record: Record, done: int, left: float) -> None:
            if not record.complete:  # failures remain on the screen above the bar
                bar.console.print(_line(record), style="red", markup=False)
            bar.update(task, completed=done, left=_time(left), last=_line(record))

        yield show


class _TimeLeft:
    """Seconds left of a study, from those of its finished runs and the relative cost of the others."""

    def __init__(self, study: Study) -> None:
        self._weights = {spec.fingerprint: weight(spec) for spec in study.specs}
        self._left = sum(cost for name, cost in self._weights.items() if name not in study.complete)
        self._done = self._busy = 0.0
        self._batches: list[set[str]] = []
        self._parallel = 1
        self.seconds = 0.0

    def note(self, event: Event) -> None:
        """Count what happened."""
        if isinstance(event, Started):
            self._batches.append({spec.fingerprint for spec in event.specs})
            return
        record, name = event.record, event.record.spec.fingerprint
        # The time of a run is its share of the time of its batch, so batches count, not runs.
        self._parallel = max(1, len(self._batches))
        self._batches = [rest for batch in self._batches if (rest := batch - {name})]
        self._left -= self._weights[name]
        if record.complete:
            times = record.facts.get("times", {})
            self._busy += times.get("total", 0.0) - times.get("setup", 0.0)  # a backbone is loaded once
            self._done += self._weights[name]
        self.seconds = self._busy / self._done * self._left / self._parallel if self._done else 0.0


def result(record: Record) -> str:
    """The run's accuracy beside that of zero-shot, and its duration."""
    metrics, seconds = record.metrics, record.facts.get("times", {}).get("total")
    parts = []
    for metric, title in (("accuracy", ""), ("seen", " base"), ("unseen", " new"), ("harmonic", " H")):
        if metric in metrics:
            zero_shot = metrics.get(f"zero_shot_{metric}")
            parts.append(
                f"{metrics[metric]:.1f} %{title}" + (f" (zero-shot {zero_shot:.1f})" if zero_shot is not None else "")
            )
    others = [value for name, value in metrics.items() if name.startswith("accuracy@")]
    if others:
        parts.append(f"other datasets {sum(others) / len(others):.1f} %")
    return ", ".join(parts) + (f"  {duration(seconds)}" if seconds is not None else "")


def _line(record: Record) -> str:
    return f"{record.spec.title}  {result(record) if record.complete else f'FAILED: {record.error}'}"


def _time(left: float) -> str:
    return f"  {duration(left)} left" if left else ""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
