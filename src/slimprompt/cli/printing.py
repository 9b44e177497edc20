"""What commands print: text, aligned tables, counts and sizes.

Every command prints through `say`. It interprets no markup and does not fail on a name that the terminal cannot show.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

import typer

from slimprompt.errors import one_line, printable


def say(text: object = "", *, err: bool = False) -> None:
    """Print text and a newline.

    Bytes of a file name that is not UTF-8 are shown as `\\xNN`, and characters that the terminal lacks as `?`.

    Parameters
    ----------
    text
        What to print.
    err
        Print to standard error.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = printable(str(text)).encode(encoding, "replace").decode(encoding)
    typer.echo(shown, err=err)


def print_json(value: object, *, indent: int | None = 1) -> None:
    """Print a value as JSON; a file name that is not UTF-8 gets JSON's own escapes, as in the files that commands write."""
    is_utf8 = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    say(json.dumps(value, ensure_ascii=not is_utf8, indent=indent).encode(errors="backslashreplace").decode())


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    colours: Mapping[str, str] | None = None,
    err: bool = False,
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
    colours
        Colour of the cells with this text.
    err
        Print to standard error.
    """
    cells = [[one_line(str(cell), sys.maxsize) for cell in row] for row in rows]
    lines = [list(headings), *cells] if headings else cells
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [title in right for title in headings] or [False] * len(widths)
    for line in lines:
        aligned = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numeric, strict=True)
        ]
        aligned[-1] = aligned[-1].rstrip()
        coloured = [
            typer.style(text, fg=colours[cell]) if colours and cell in colours else text
            for text, cell in zip(aligned, line, strict=True)
        ]
        say("  ".join(coloured).rstrip(), err=err)


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(n_bytes: float) -> str:
    """A number of bytes as `12.3 MB` or `1.2 GB`."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"


def note(what: str, details: str = "") -> None:
    """Print something the user should notice, the first part in yellow."""
    say(f"{typer.style(what, fg=typer.colors.YELLOW)} {details}".rstrip())
