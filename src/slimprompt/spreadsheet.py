"""CSV files that a spreadsheet opens as text and numbers: no cell becomes a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slimprompt.errors import printable

if TYPE_CHECKING:
    import pandas as pd

_FORMULA_STARTS = ("=", "+", "-", "@", "\t")


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


def frame_csv(frame: pd.DataFrame) -> str:
    """The content of a CSV file with the columns of a data frame, without its index."""
    safe = frame.copy()
    for position, kind in enumerate(frame.dtypes):
        if not (hasattr(kind, "kind") and kind.kind in "biufc"):
            safe.isetitem(position, frame.iloc[:, position].map(cell_value))
    return safe.rename(columns=cell_value).to_csv(index=False)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
