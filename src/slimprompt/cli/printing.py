"""What commands print: text, aligned tables, counts and sizes.

Every command prints through `say`. It interprets no markup and does not fail on a name that the terminal cannot show.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

import typer
from rich.cells import cell_len, set_cell_size

from slimprompt.errors import one_line, printable

#: Columns to which a column of text is cut at most, and columns between two of them.
_NARROWEST, _GAP = 8, 2


def say(text: object = "", *, err: bool = False) -> None:
    """Print text and a newline.

    Bytes of a file name that is not UTF-8 are shown as `\\xNN`, and characters that the terminal lacks as `?`. Colours are only
    printed to a terminal, and not if the environment variable NO_COLOR is set or TERM is "dumb".

    Parameters
    ----------
    text
        What to print.
    err
        Print to standard error.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = printable(str(text)).encode(encoding, "replace").decode(encoding)
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    typer.echo(shown, err=err, color=False if plain else None)


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
    """Print rows in aligned columns.

    On a terminal that is too narrow, the middle of long texts is left out, in the widest column first. Numbers are never cut, and
    nothing is cut in a pipe or a file.

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
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    numeric = [title in right for title in headings] or [False] * len(widths)
    if (sys.stderr if err else sys.stdout).isatty():
        widths = _fitted(widths, numeric, shutil.get_terminal_size().columns)
    for line in lines:
        aligned = [_aligned(*cell) for cell in zip(line, widths, numeric, strict=True)]
        aligned[-1] = aligned[-1].rstrip()
        coloured = [
            typer.style(text, fg=colours[cell]) if colours and cell in colours else text
            for text, cell in zip(aligned, line, strict=True)
        ]
        say((" " * _GAP).join(coloured).rstrip(), err=err)


def _fitted(widths: Sequence[int], numeric: Sequence[bool], available: int) -> list[int]:
    """Widths of columns that fit into the available ones, if columns of text can be made narrow enough."""
    fitted = list(widths)
    excess = sum(widths) + _GAP * (len(widths) - 1) - available
    texts = [column for column, number in enumerate(numeric) if not number]
    for column in sorted(texts, key=lambda column: -widths[column]):
        less = max(0, min(excess, fitted[column] - _NARROWEST))
        fitted[column] -= less
        excess -= less
    return fitted


def _aligned(text: str, width: int, number: bool) -> str:
    """The text in a column of this width, where wide characters, as of Chinese and emoji, take two places."""
    if cell_len(text) > width:
        start = (width - 1) // 2
        text = f"{set_cell_size(text, start)}…{_last_cells(text, width - 1 - start)}"
    space = " " * (width - cell_len(text))
    return space + text if number else text + space


def _last_cells(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[1:]
    return text


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(n_bytes: float) -> str:
    """A number of bytes as `12.3 MB` or `1.2 GB`."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"


def note(what: str, details: str = "", *, err: bool = False) -> None:
    """Print something the user should notice, the first part in yellow."""
    say(f"{typer.style(what, fg=typer.colors.YELLOW)} {details}".rstrip(), err=err)
