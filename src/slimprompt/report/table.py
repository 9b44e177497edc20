"""A table as plain data: cells that know their spread, their runs and the published number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Cell:
    """One entry: a number with its spread and origin, a text, or nothing."""

    value: float | str | None = None
    sd: float | None = None
    n: int = 0
    """Seeds, or pairs of runs, behind the number."""
    runs: tuple[str, ...] = ()
    """Run folders the number comes from."""
    decimals: int = 2
    signed: bool = False
    show_sd: bool = False
    bold: bool = False
    key: tuple[Any, ...] | None = field(default=None, repr=False)
    """Where the paper prints this number: (table, *KEY)."""
    published: float | None = None
    published_sd: float | None = None

    @property
    def number(self) -> float | None:
        """The value if it is a number."""
        return self.value if isinstance(self.value, float) else None

    @property
    def difference(self) -> float | None:
        """Own minus published."""
        return None if self.number is None or self.published is None else self.number - self.published

    @property
    def outside(self) -> bool | None:
        """Whether the difference exceeds √(sd² + published sd²); None where one of the two is not known."""
        if self.difference is None or self.sd is None or self.published_sd is None:
            return None
        return abs(self.difference) > math.hypot(self.sd, self.published_sd)

    def text(self, *, compare: bool = False) -> str:
        """As printed: `80.12 ± 0.31`; with `compare` also `(80.08, +0.04)` and a `*` where it is outside."""
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
            mark = "*" if self.outside else ""
            return f"{shown} ({printed}, {_number(self.difference, self.decimals, signed=True)}{mark})"
        return shown


def _number(value: float, decimals: int, *, signed: bool) -> str:
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) != 0 else text.replace("-", "+" if signed else "")


@dataclass(frozen=True)
class Column:
    """A column title, with the title that spans its group and a remark below it."""

    label: str
    group: str = ""
    remark: str = ""

    @property
    def flat(self) -> str:
        """In one line."""
        return f"{self.group} {self.label}".strip()


@dataclass(frozen=True)
class Row:
    """Labels and cells; `section` is a title over a run of rows, `rule` asks for a line above."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    section: str = ""
    rule: bool = False


@dataclass(frozen=True)
class Table:
    """Plain data; `slimprompt.report.table_formats` writes it."""

    name: str
    title: str
    headers: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    compare: bool = False
    """Show the published number and the difference beside each number."""

    @property
    def empty(self) -> bool:
        """Whether there is not one number in it."""
        return not any(cell.value is not None for row in self.rows for cell in row.cells)

    def long(self) -> pd.DataFrame:
        """One row per cell: table, row, column, value, sd, n, published, published_sd, difference, outside, runs."""
        entries = []
        for row in self.rows:
            name = ", ".join(part for part in (row.section, *row.labels) if part)
            for column, cell in zip(self.columns, row.cells, strict=True):
                numbers = (cell.published, cell.published_sd, cell.difference, cell.outside)
                entry = (self.name, name, column.flat, cell.value, cell.sd, cell.n, *numbers, " ".join(cell.runs))
                entries.append(entry)
        return pd.DataFrame(entries, columns=LONG_COLUMNS)


LONG_COLUMNS = [
    "table",
    "row",
    "column",
    "value",
    "sd",
    "n",
    "published",
    "published_sd",
    "difference",
    "outside",
    "runs",
]
