"""A progress bar with the time left; silence where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between two updates of a bar.
_REDRAW = 0.1


@contextmanager
def progress(
    description: str, total: int | None = None, unit: str = "", *, show: bool = True
) -> Iterator[Callable[..., None]]:
    """Yield `advance(n=1, note="", total=None)`, which moves a bar with count, time left and a note.

    `total` may also be passed to `advance` when it is known. The bar has no thread, so this process may be forked.
    """
    if not show or total == 0 or not _on_terminal():
        yield lambda n=1, note="", total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *([TextColumn(unit, markup=False)] if unit else []),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(description, total=total, note="")
        drawn = 0.0

        def advance(n: int = 1, note: str = "", total: int | None = None) -> None:
            nonlocal drawn
            bar.update(task, advance=n, total=total)
            if note:
                bar.update(task, note=note)
            if time.monotonic() - drawn > _REDRAW or bar.finished:
                bar.refresh()
                drawn = time.monotonic()

        yield advance


def announce(line: str) -> None:
    """Print a line to standard error; nothing if that is closed."""
    if sys.stderr is not None:
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
