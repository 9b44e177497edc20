"""A table as plain data: each cell knows its spread, its runs and, optionally, a published value to compare with."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from slimprompt.analysis.results import Estimate


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a number with its spread and origin, a text, or nothing (`value` is None)."""

    value: float | str | None = None
    sd: float | None = None
    n: int = 0
    """Number of seeds, or of pairs of runs."""
    runs: tuple[str, ...] = ()
    """Run folders that the number was computed from."""
    decimals: int = 2
    signed: bool = False
    show_sd: bool = False
    bold: bool = False
    key: Hashable = field(default=None, repr=False)
    """Identifies the quantity, to look up its published value; None if there cannot be one."""
    published: float | None = None
    """Reference value."""
    published_sd: float | None = None
    estimate: Estimate | None = field(default=None, repr=False, compare=False)
    """What the number is the mean of, so that cells are compared on the seeds that they share."""

    @property
    def number(self) -> float | None:
        """The value if it is a number."""
        return self.value if isinstance(self.value, float) else None

    @property
    def difference(self) -> float | None:
        """value − published."""
        return None if self.number is None or self.published is None else self.number - self.published

    @property
    def beyond_sd(self) -> bool | None:
        """Whether |difference| > √(sd² + published_sd²); None if one of them is unknown."""
        if self.difference is None or self.sd is None or self.published_sd is None:
            return None
        return abs(self.difference) > math.hypot(self.sd, self.published_sd)

    def text(self, *, compare: bool = False) -> str:
        """Formatted value: `80.12 ± 0.31`.

        Parameters
        ----------
        compare
            Append the published value and the difference: `80.12 ± 0.31 (80.08, +0.04)`, with a `*` if the difference
            is `beyond_sd`.
        """
        if self.value is None:
            shown = "—"
        elif isinstance(self.value, str):
            return self.value
        else:
            shown = _number(self.value, self.decimals, signed=self.signed)
            if self.show_sd and self.sd is not None:
                shown += f" ± {self.sd:.{self.decimals}f}"
        if compare and self.published is not None:
            printed = _number(self.published, self.decimals, signed=self.signed)
            if self.difference is None:
                return f"{shown} ({printed})"
            mark = "*" if self.beyond_sd else ""
            return f"{shown} ({printed}, {_number(self.difference, self.decimals, signed=True)}{mark})"
        return shown


def _number(value: float, decimals: int, *, signed: bool) -> str:
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) != 0 else text.replace("-", "+" if signed else "")


@dataclass(frozen=True)
class Column:
    """A column of cells."""

    label: str
    group: str = ""
    """Title above neighbouring columns of the same group."""
    remark: str = ""
    """Small print below the label."""

    @property
    def full_label(self) -> str:
        """Group and label in one line."""
        return f"{self.group} {self.label}".strip()


@dataclass(frozen=True)
class Row:
    """Row labels and cells."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    section: str = ""
    """Title above consecutive rows of the same section."""
    rule: bool = False
    """Whether a line separates the row from the one above."""

    @property
    def full_label(self) -> str:
        """Section and labels in one line."""
        return ", ".join(part for part in (self.section, *self.labels) if part)


@dataclass(frozen=True)
class Table:
    """A table; `slimprompt.report.table_formats` writes it to files."""

    name: str
    title: str
    headers: tuple[str, ...]
    """Titles of the label columns."""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    compare: bool = False
    """Show the published value and the difference next to each number."""

    @property
    def empty(self) -> bool:
        """Whether no cell has a value."""
        return not any(cell.value is not None for row in self.rows for cell in row.cells)

    def long(self) -> pd.DataFrame:
        """The table in long format, one row per cell; the columns are `LONG_COLUMNS`."""
        entries = [
            (
                *(self.name, row.full_label, column.full_label, cell.value, cell.sd, cell.n),
                *(cell.published, cell.published_sd, cell.difference, cell.beyond_sd, " ".join(cell.runs)),
            )
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
        ]
        import pandas as pd

        return pd.DataFrame(entries, columns=LONG_COLUMNS)


#: `outside` is `Cell.beyond_sd`; `runs` are the run folders, separated by spaces.
LONG_COLUMNS = [
    *("table", "row", "column", "value", "sd", "n"),
    *("published", "published_sd", "difference", "outside", "runs"),
]


def mark_best(cells: Sequence[Cell], *, lowest: bool = False) -> list[Cell]:
    """Set the best cells in bold, after rounding to the printed decimals.

    All tied cells are marked, but none if all cells are tied or only one has a number. Cells with estimates are compared over the
    seeds that all of them have; without such a seed, none is marked.

    Parameters
    ----------
    cells
        The cells to compare.
    lowest
        Whether the smallest number is the best.
    """
    numbers = zip(cells, _comparable(cells), strict=True)
    known = {index: round(number, cell.decimals) for index, (cell, number) in enumerate(numbers) if number is not None}
    distinct = sorted(set(known.values()), reverse=not lowest)
    best = distinct[0] if len(distinct) > 1 else None
    return [replace(cell, bold=best is not None and known.get(index) == best) for index, cell in enumerate(cells)]


def _comparable(cells: Sequence[Cell]) -> list[float | None]:
    """The numbers of the cells; of estimates, over the seeds that all of them have."""
    from slimprompt.analysis.results import on_common_seeds

    estimates = [cell.estimate for cell in cells if cell.estimate]
    if not estimates:
        return [cell.number for cell in cells]
    shared = iter(on_common_seeds(estimates))
    return [one.mean if cell.estimate and (one := next(shared, None)) else None for cell in cells]


def mark_columns(rows: Sequence[Sequence[Cell]]) -> list[tuple[Cell, ...]]:
    """Set the best cell of each column in bold."""
    return list(zip(*(mark_best(column) for column in zip(*rows, strict=True)), strict=True))
