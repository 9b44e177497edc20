"""What commands print: aligned tables, counts and sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import typer


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = (), err: bool = False
) -> None:
    """Print rows in aligned columns that are never cut off.

    Parameters
    ----------
    headings
        Column titles; empty for a table without a heading line.
    rows
        Cells, printed with `str`.
    right
        Titles of the columns to align to the right.
    err
        Print to standard error.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    lines = [list(headings), *cells] if headings else cells
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [title in right for title in headings] or [False] * len(widths)
    for line in lines:
        aligned = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numeric, strict=True)
        )
        typer.echo("  ".join(aligned).rstrip(), err=err)


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(n_bytes: float) -> str:
    """A number of bytes as `12.3 MB` or `1.2 GB`."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"


def note(what: str, details: str = "") -> None:
    """Print something the user should notice, the first part in yellow."""
    typer.echo(f"{typer.style(what, fg=typer.colors.YELLOW)} {details}".rstrip())
