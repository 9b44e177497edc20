"""A progress bar on the terminal, and nothing at all when there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_hidden = False


@contextmanager
def no_progress() -> Iterator[None]:
    """Inside, no bars are shown: something else, such as a table of many runs, has the terminal."""
    global _hidden
    before, _hidden = _hidden, True
    try:
        yield
    finally:
        _hidden = before


@contextmanager
def progress(description: str, total: int | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """Yields `advance(n=1, note="", total=None)`: bar, count, rate, time left and note on standard error, if a terminal.

    A total that is only known later is None here and given to `advance`.
    """
    if _hidden or not sys.stderr.isatty() or total == 0:
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
    )
    with Progress(
        *columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(n: int = 1, note: str = "", total: int | None = None) -> None:
            bar.update(task, advance=n, total=total)
            if note:
                bar.update(task, note=note)

        yield advance
