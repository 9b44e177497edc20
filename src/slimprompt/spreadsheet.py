"""CSV files: written so that no cell becomes a formula in a spreadsheet, and read from any of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError, printable, shown
from slimprompt.files import cannot_read, check_regular

if TYPE_CHECKING:
    import pandas as pd

_FORMULA_STARTS = ("=", "+", "-", "@", "\t")
#: Characters of the first line of a CSV file.
_LONGEST_HEADER = 1_000_000


def cell_value(value: Any) -> Any:
    """The value of a cell; text that a spreadsheet would read as a formula gets a leading apostrophe.

    >>> [cell_value(value) for value in ("=1+1", "@cat", "-5.0", "=", "cat", -5)]
    ["'=1+1", "'@cat", '-5.0', '=', 'cat', -5]
    """
    if not isinstance(value, str):
        return value
    text = printable(value).replace("\r", " ")  # a carriage return would begin another line
    return f"'{text}" if len(text) > 1 and text.startswith(_FORMULA_STARTS) and not _is_number(text) else text


def cell_text(value: str) -> str:
    """The text that `cell_value` turned into this cell.

    >>> [cell_text(cell_value(text)) for text in ("=1+1", "'twas", "cat")]
    ['=1+1', "'twas", 'cat']
    """
    return value[1:] if value.startswith("'") and value[1:].startswith(_FORMULA_STARTS) else value


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The content of a CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([cell_value(heading) for heading in headings])
    writer.writerows([cell_value(value) for value in row] for row in rows)
    return file.getvalue()


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row of a CSV file, read lazily: the header, then the rows that are not blank.

    Cells have no spaces around them, and are the text that `cell_value` was given. The delimiter is a comma, semicolon or tab,
    whichever the first line has most of. An `InputError` if the file cannot be read as UTF-8 CSV.
    """
    check_regular(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline(_LONGEST_HEADER)
            if len(header) == _LONGEST_HEADER:
                raise csv.Error("its first line is too long")
            delimiter = max(",;\t", key=header.count)  # spreadsheets of some countries write semicolons
            rows = csv.reader(chain([header], file), delimiter=delimiter)
            line = 1
            for row in rows:
                cells = [cell_text(cell.strip()) for cell in row]
                if line == 1 or any(cells):
                    yield line, cells
                line = rows.line_num + 1  # a cell may contain line breaks
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path} as a UTF-8 CSV file: {error}") from None
    except OSError as error:
        raise cannot_read(path, error) from None


def csv_records(
    path: Path, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by lower-case column name of each row of a CSV file; a cell that is missing at the end is empty.

    An `InputError` as in `csv_rows`, and if a required column is missing, one is named twice, or a row has more cells than columns.
    """
    rows = csv_rows(path)
    _, header = next(rows)
    columns = [name.lower() for name in header]
    if not set(required) <= set(columns):
        also = f" ({' and '.join(optional)} is optional)" if optional else ""
        raise InputError(
            f"the first line of {path} must name the columns {' and '.join(required)}{also}; it names {shown(', '.join(header))}"
        )
    for name in (*required, *optional):
        if columns.count(name) > 1:
            raise InputError(f"the first line of {path} names the column {name} twice; rename or remove one of them")
    for line, cells in rows:
        if any(cells[len(columns) :]):
            named = f"{len(columns)} column{'' if len(columns) == 1 else 's'}"
            raise InputError(
                f"{path}, line {line} has {len(cells)} cells, but the first line names {named}: "
                'put a cell that contains a delimiter in quotes, such as "cat, black"'
            )
        yield line, dict.fromkeys(columns, "") | dict(zip(columns, cells, strict=False))


def frame_csv(frame: pd.DataFrame) -> str:
    """The content of a CSV file with the columns of a data frame, without its index."""
    return frame_values(frame).to_csv(index=False)


def frame_values(frame: pd.DataFrame) -> pd.DataFrame:
    """The data frame with the `cell_value` of every text."""
    safe = frame.copy()
    for position, kind in enumerate(frame.dtypes):
        if not (hasattr(kind, "kind") and kind.kind in "biufc"):
            safe.isetitem(position, frame.iloc[:, position].map(cell_value))
    return safe.rename(columns=cell_value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
