"""What commands print: text, notes, and rows as a table, JSON or CSV.

Every command prints through `say`. It interprets no markup and does not fail on a name that the terminal cannot show. The rows of a
result go through `emit`, whatever the format. They hold plain values: shares are fractions between 0 and 1, and only the table shows
them as percent.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from slimprompt.errors import InputError, one_line, printable
from slimprompt.files import write_file
from slimprompt.spreadsheet import csv_text

#: Spaces between two columns.
_GAP = 2


class Format(str, Enum):
    """How the rows of a result are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def emit(
    rows: Sequence[Mapping[str, Any]],
    format: Format = Format.table,
    out: Path | None = None,
    *,
    columns: Mapping[str, Callable[[Any], str]] | None = None,
    facts: Mapping[str, Any] | None = None,
    names: Sequence[str] = (),
    key: str = "rows",
    colours: Mapping[str, str] | None = None,
) -> None:
    """Print rows as a table, JSON or CSV, or write them to the file `out`; None and nan are missing values.

    `columns` gives the values that the table shows, with the text of each; by default all of them, with `str`. `colours` are those
    of cells with a text. With `facts`, the JSON is one object of these entries, with the rows under `key`. `names` are the columns of a CSV
    file without rows.
    """
    if format is Format.table and out is None:
        _print_rows(rows, columns, colours)
        return
    if format is Format.table:
        raise InputError(f"a table for people is only printed; {out} can be JSON or CSV")
    text = _json_text(rows, facts, key) if format is Format.json else _csv_text(rows, names)
    if out is None:
        say(text.rstrip("\n"))
    else:
        write_file(out, text)


def format_of(path: Path) -> Format:
    """The format of a file, from its suffix; an `InputError` if it is neither .json nor .csv."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in ("json", "csv"):
        raise InputError(f"{path} must end in .csv or .json")
    return Format(suffix)


def percent(share: float | None, digits: int = 1) -> str:
    """A fraction as percent.

    >>> percent(0.2167), percent(None)
    ('21.7 %', '–')
    """
    return "–" if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def _print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Callable[[Any], str]] | None,
    colours: Mapping[str, str] | None,
) -> None:
    if not rows:
        return
    columns = columns or dict.fromkeys(_names(rows), str)
    headings = {name: name.replace("_", " ") for name in columns}
    numbers = [headings[name] for name in columns if any(_is_number(row.get(name)) for row in rows)]
    cells = [[_cell(row.get(name), text) for name, text in columns.items()] for row in rows]
    print_table(list(headings.values()), cells, right=numbers, colours=colours)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _cell(value: Any, text: Callable[[Any], str]) -> str:
    return "–" if _is_missing(value) else text(value)


def _json_text(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any] | None, key: str) -> str:
    plain = [{name: None if _is_missing(value) else value for name, value in row.items()} for row in rows]
    return json_text(plain if facts is None else {**facts, key: plain}) + "\n"


def _csv_text(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    def cell(value: Any) -> Any:
        if isinstance(value, Mapping | list | tuple):
            return json.dumps(value, ensure_ascii=False)
        return "" if _is_missing(value) else value

    names = _names(rows) or names
    return csv_text(names, [[cell(row.get(name)) for name in names] for row in rows])


def say(text: object = "", *, err: bool = False) -> None:
    """Print text and a newline; bytes of a file name that is not UTF-8 are shown as `\\xNN`.

    Colours are only printed to a terminal, and not if the environment variable NO_COLOR is set or TERM is "dumb".
    """
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    typer.echo(printable(str(text)), file=sys.stderr if err else sys.stdout, color=False if plain else None)


def print_json(value: object, *, indent: int | None = 1) -> None:
    """Print a value as JSON; a file name that is not UTF-8 gets JSON's own escapes, as in the files that commands write."""
    say(json_text(value, indent=indent))


def json_text(value: object, *, indent: int | None = 1) -> str:
    """A value as JSON that standard output can show without loss."""
    is_utf8 = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    return json.dumps(value, ensure_ascii=not is_utf8, indent=indent).encode(errors="backslashreplace").decode()


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    colours: Mapping[str, str] | None = None,
    err: bool = False,
) -> None:
    """Print rows in aligned columns, those of `right` to the right, without a heading line if there are no headings.

    On a terminal that is too narrow, long texts take several lines; nothing is left out.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = sys.stderr if err else sys.stdout
    table = Table(box=None, show_header=bool(headings), header_style="", padding=(0, _GAP, 0, 0), pad_edge=False)
    for title in headings:
        is_number = title in right
        table.add_column(Text(title), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        cells = [one_line(str(cell), sys.maxsize) for cell in row]
        table.add_row(*(Text(cell, style=(colours or {}).get(cell, "")) for cell in cells))
    console = Console(
        file=stream, width=shutil.get_terminal_size().columns if stream.isatty() else 100_000, force_terminal=True
    )
    with console.capture() as shown:
        console.print(table)
    for line in shown.get().splitlines():
        say(line.rstrip(), err=err)


def size(n_bytes: float) -> str:
    """A number of bytes as `12.3 MB` or `1.2 GB`."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"


def note(what: str, details: str = "", *, err: bool = False) -> None:
    """Print something the user should notice, the first part in yellow."""
    say(f"{typer.style(what, fg=typer.colors.YELLOW)} {details}".rstrip(), err=err)
