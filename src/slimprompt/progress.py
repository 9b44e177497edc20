"""A progress bar on the terminal, and one line about work that will take long.

Without a terminal there is no bar, but a line now and then if asked for; the line about long work is printed to standard error in
any case.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slimprompt.errors import InputError

#: `line_every` of commands that take minutes.
LINE_EVERY = 5.0
#: Seconds between two updates of a bar that has no thread.
_REDRAW = 0.1
#: Work is forecast from at least this many seconds of it.
_MEASURED = 5.0
#: Seconds from which a forecast is printed, and from which the work is refused.
_LONG, _ENDLESS = 600.0, 30 * 86400.0


@contextmanager
def progress(
    description: str,
    total: int | None,
    unit: str = "",
    *,
    show: bool = True,
    at_most: bool = False,
    lower: str = "",
    line_every: float | None = None,
    threads: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[..., None]]:
    """Yield `advance(n=1, note="", total=None)`, which moves a bar with count, rate, time left and a note.

    After the first seconds, the duration is forecast. If it is more than ten minutes, one line says so. If it is more than 30 days
    and `lower` is given, `advance` raises an `InputError`.

    Parameters
    ----------
    description
        Text to the left of the bar.
    total
        Number of items, or None if it is only known later and passed to `advance`.
    unit
        Name of an item; if given, the rate is shown as `unit/s`.
    show
        False shows neither bar nor forecast, for instance because the output of a study already occupies the terminal.
    at_most
        Whether `total` is only an upper bound.
    lower
        What the user can lower if the work would take too long; empty: it is never refused.
    line_every
        Where there is no terminal: print a line with the same facts after this many seconds, for the log of a long job.
    threads
        False draws the bar only when it moves, without a thread, so that this process may be forked.
    clock
        Tells the time in seconds.
    """
    if not show or total == 0:
        yield lambda n=1, note="", total=None: None
        return
    if line_every is not None and not _on_terminal():
        yield _Lines(description, total, unit, line_every)
        return
    forecast = _Forecast(description, total, unit or "steps", at_most, lower, clock)
    if not _on_terminal():
        yield lambda n=1, note="", total=None: announce(forecast.advance(n))
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
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed and task.speed >= 1 else "", style="dim")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *([Rate()] if unit else []),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=threads) as bar:
        task = bar.add_task(description, total=total, note="")
        drawn = -1.0

        def advance(n: int = 1, note: str = "", total: int | None = None) -> None:
            bar.update(task, advance=n, total=total)
            if note:
                bar.update(task, note=note)
            nonlocal drawn
            if not threads and (time.monotonic() - drawn > _REDRAW or bar.finished):
                bar.refresh()
                drawn = time.monotonic()
            if line := forecast.advance(n):
                bar.console.print(line, markup=False, highlight=False)

        yield advance


class _Forecast:
    """Forecasts the duration of work once, from its first seconds."""

    def __init__(
        self, description: str, total: int | None, unit: str, at_most: bool, lower: str, clock: Callable[[], float]
    ) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._at_most, self._lower, self._clock = at_most, lower, clock
        self._begin: float | None = None
        self._done = 0

    def advance(self, n: int) -> str:
        """Count `n` items; the forecast, if it is due and long, otherwise nothing."""
        if self._total is None or not n:
            return ""
        if self._begin is None:  # the first items also pay for what is set up once, so they are not measured
            self._begin = self._clock()
            return ""
        self._done += n
        seconds = self._clock() - self._begin
        if seconds < _MEASURED:
            return ""
        expected = seconds / self._done * self._total
        what = f"{self._total:,} {self._unit} will take {'at most' if self._at_most else 'about'} {duration(expected)}"
        self._total = None  # nothing more to tell
        if expected > _ENDLESS and self._lower:
            raise InputError(f"{self._description}: {what}, which is too long; lower {self._lower}")
        return f"{self._description}: {what}; Ctrl-C stops" if expected > _LONG else ""


def announce(line: str) -> None:
    """Print a line to standard error; nothing if it is empty or standard error is closed."""
    if line and sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A duration as text.

    >>> [duration(s) for s in (0.25, 42, 90, 3 * 3600 + 240, 40 * 3600, 100 * 86400)]
    ['0.2 s', '42 s', '1 min 30 s', '3 h 04 min', '40 h', '100 days']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 10 * 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds < 4 * 86400:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:,.0f} days"


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
        if rate >= 1:
            parts.append(f"{rate:,.0f} {self._unit}/s")
        if self._total is not None and rate > 0:
            parts.append(f"{duration((self._total - self._done) / rate)} left")
        if note:
            parts.append(note)
        print(f"{self._description}: {', '.join(parts)}", file=sys.stderr, flush=True)
