"""Reader of a folder that `slimprompt theory --out` wrote, for a page about runs. It trusts nothing in the folder.

Only the two CSV files are read. The figures are plotted again from their numbers: an SVG file could hold scripts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from slimprompt.analysis.verdict import VERDICTS
from slimprompt.errors import InputError, shown
from slimprompt.files import read_text
from slimprompt.paper.theory.figures import COLOURS, KINDS, LAYOUTS, Series, make_series, plot_figures
from slimprompt.paper.theory.page import COLUMNS, FIGURE_COLUMNS, FIGURES, STATEMENTS, theory_section
from slimprompt.spreadsheet import cell_text

#: Limits of what is read; a result has a few hundred kilobytes, and some 60 different labels and categories.
_MOST_BYTES, _MOST_NAMES, _LONGEST_NAME, _LARGEST_NUMBER = 16 * 2**20, 400, 300, 1e100


def report_section(folder: Path) -> Any:
    """HTML of a theory folder as Markup, under the anchor `theory`; errors are those of `read_theory`."""
    rows, series = read_theory(folder)
    return theory_section(rows, [figure for figure in plot_figures(series, png=False) if not figure.missing])


def read_theory(folder: Path) -> tuple[list[dict[str, str]], list[Series]]:
    """The rows of the statements and the series of the figures; an `InputError` if a CSV file is missing or damaged."""
    name = STATEMENTS
    try:
        rows = _statements(_rows(folder / name, COLUMNS))
        name = FIGURES
        return rows, _figures(_rows(folder / name, FIGURE_COLUMNS))
    except (ValueError, csv.Error) as error:  # an InputError is a ValueError
        again = f"create one with `slimprompt theory --out {folder}`"
        raise InputError(f"{folder} holds no theory result ({name}: {error}); {again}") from None


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    text = read_text(path, most=_MOST_BYTES)
    header, *lines = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
    if header != list(columns):
        raise ValueError(f"its columns must be {', '.join(columns)}")
    for place, line in enumerate(lines, 2):
        if len(line) != len(columns):
            raise ValueError(f"row {place} has {len(line)} cells instead of {len(columns)}")
    return [dict(zip(columns, map(cell_text, line), strict=True)) for line in lines]


def _statements(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    if not rows:
        raise ValueError("it has no statements")
    for row in rows:
        for cell in filter(None, (row["predicted"], row["measured"], *row["interval"].split(" … "))):
            float(cell)
        if row["verdict"] not in VERDICTS:
            raise ValueError(f"the verdict {shown(row['verdict'])} is not one of {', '.join(VERDICTS)}")
    return rows


def _figures(rows: list[dict[str, str]]) -> list[Series]:
    points = [tuple(row.values()) for row in rows]
    series = [_series(names, list(same)) for names, same in groupby(points, key=lambda point: point[:4])]
    for name, layout in LAYOUTS.items():
        found = {one.panel for one in series if one.figure == name and one.at.size}
        if found and found != set(layout.panels):
            raise ValueError(f"the figure {name} has no values in one of its panels")
    texts = {one.label for one in series} | {at for one in series if one.at.dtype.kind == "U" for at in one.at}
    for text in texts:
        if len(text) > _LONGEST_NAME or not text.isprintable():
            raise ValueError(f"{shown(text)} is too long, or has characters that cannot be printed")
    if len(texts) > _MOST_NAMES:
        raise ValueError(f"it has {len(texts)} labels and categories; at most {_MOST_NAMES} are plotted")
    return series


def _series(names: tuple[str, ...], points: list[tuple[str, ...]]) -> Series:
    """A series from points with the same names."""
    figure, panel, label, look = names
    colour, _, kind = look.partition(" ")
    if figure not in LAYOUTS or panel not in LAYOUTS[figure].panels or colour not in COLOURS or kind not in KINDS:
        raise ValueError(f"{shown(', '.join(names))} is no series of a figure")
    at, *numbers = zip(*(point[4:] for point in points), strict=True)
    places = at if LAYOUTS[figure].categories else [_number(cell) for cell in at]
    return make_series(figure, panel, label, look, places, *([_number(cell) for cell in column] for column in numbers))


def _number(cell: str) -> float:
    """A number, or NaN for an empty cell."""
    value = float(cell or "nan")
    if abs(value) > _LARGEST_NUMBER:
        raise ValueError(f"the number {shown(cell)} is too large")
    return value
