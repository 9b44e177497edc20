"""A progress bar on the terminal; nothing is printed when standard error is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(
    description: str, total: int | None, unit: str = "", *, show: bool = True
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
    """
    if not show or not sys.stderr.isatty() or total == 0:
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
