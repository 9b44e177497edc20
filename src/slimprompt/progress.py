"""A progress bar on the terminal; where standard error is not a terminal, nothing or now and then a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta


@contextmanager
def progress(
    description: str, total: int | None, unit: str = "", *, show: bool = True, line_every: float | None = None
) -> Iterator[Callable[..., None]]:
    """Yield `advance(n=1, note="", total=None)`, which moves a bar with count, rate, time left and a note.

    Parameters
    ----------
    description
        Text to the left of the bar.
    total
        Number of items, or None if it is only known later and passed to `advance`.
    unit
        Name of an item; if given, the rate is shown as `unit/s`.
    show
        False shows no bar, for instance because the output of a study already occupies the terminal.
    line_every
        Where there is no terminal: print a line with the same facts after this many seconds, for the log of a long job.
    """
    if show and line_every is not None and not _on_terminal():
        yield _Lines(description, total, unit, line_every)
        return
    if not show or not _on_terminal() or total == 0:
        yield lambda n=1, note="", total=None: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "", style="dim")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *([Rate()] if unit else []),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(n: int = 1, note: str = "", total: int | None = None) -> None:
            bar.update(task, advance=n, total=total)
            if note:
                bar.update(task, note=note)

        yield advance


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


class _Lines:
    """`advance` that prints lines."""

    def __init__(self, description: str, total: int | None, unit: str, every: float) -> None:
        self._description, self._total, self._unit, self._every = description, total, unit, every
        self._done = self._before = 0
        self._last = time.monotonic()

    def __call__(self, n: int = 1, note: str = "", total: int | None = None) -> None:
        self._done += n
        self._total = total if total is not None else self._total
        now = time.monotonic()
        if now - self._last < self._every:
            return
        rate = (self._done - self._before) / max(now - self._last, 1e-9)  # of the time since the last line
        self._last, self._before = now, self._done
        parts = [f"{self._done:,}{f' of {self._total:,}' if self._total is not None else ''} {self._unit}".rstrip()]
        parts.append(f"{rate:,.0f} {self._unit}/s")
        if self._total is not None and rate > 0:
            parts.append(f"{timedelta(seconds=round((self._total - self._done) / rate))} left")
        if note:
            parts.append(note)
        print(f"{self._description}: {', '.join(parts)}", file=sys.stderr, flush=True)
