"""A table: a frame whose entries know their spread, their runs and, optionally, a published value to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Any, NamedTuple

import pandas as pd

from slimprompt.analysis.frame import AVERAGE, CELL, average, on_common_seeds, select, summary


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
    published: float | None = None
    """Reference value."""
    published_sd: float | None = None

    @property
    def number(self) -> float | None:
        """The value if it is a number."""
        return self.value if isinstance(self.value, float) else None

    @property
    def difference(self) -> float | None:
        """value − published."""
        return None if self.number is None or self.published is None else self.number - self.published

    @property
    def exceeds_spread(self) -> bool | None:
        """Whether |difference| > √(sd² + published_sd²); None if one of them is unknown."""
        if self.difference is None or self.sd is None or self.published_sd is None:
            return None
        return abs(self.difference) > math.hypot(self.sd, self.published_sd)

    def text(self, *, compare: bool = False) -> str:
        """Formatted value: `80.12 ± 0.31`.

        With `compare`, the published value and the difference follow: `80.12 ± 0.31 (80.08, +0.04)`, with a `*` if the difference
        `exceeds_spread`.
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
            mark = "*" if self.exceeds_spread else ""
            return f"{shown} ({printed}, {_number(self.difference, self.decimals, signed=True)}{mark})"
        return shown


def _number(value: float, decimals: int, *, signed: bool) -> str:
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", "−") if float(text) != 0 else text.replace("-", "+" if signed else "")


class Column(NamedTuple):
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


class Row(NamedTuple):
    """Row labels and cells."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    rule: bool = False
    """Whether a line separates the row from the one above."""


@dataclass(frozen=True)
class Table:
    """A table; `slimprompt.report.table_formats` writes it to files."""

    name: str
    title: str
    frame: pd.DataFrame
    """Its cells. The index levels are the row labels, their names the titles of the label columns; the columns are the levels group,
    label and remark of `Column`."""
    notes: tuple[str, ...] = ()
    compare: bool = False
    """Show the published value and the difference next to each number."""

    @property
    def headers(self) -> tuple[str, ...]:
        """Titles of the label columns."""
        return tuple(map(str, self.frame.index.names))

    @property
    def columns(self) -> list[Column]:
        """The columns of cells."""
        levels = (self.frame.columns.get_level_values(name) for name in Column._fields)
        return [Column(*titles) for titles in zip(*levels, strict=True)]

    @property
    def rows(self) -> list[Row]:
        """The rows; a rule separates those with different labels, except for the last label."""
        labels = [label if isinstance(label, tuple) else (label,) for label in self.frame.index]
        blocks = [label[:-1] for label in labels]
        grouped = len(set(blocks)) < len(blocks)
        return [
            Row(label, tuple(cells), grouped and (index == 0 or block != blocks[index - 1]))
            for index, (label, block, cells) in enumerate(zip(labels, blocks, self.frame.to_numpy(), strict=True))
        ]

    @property
    def empty(self) -> bool:
        """Whether no cell has a value."""
        return not any(cell.value is not None for cell in self.cells)

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return list(self.frame.to_numpy().ravel())

    def with_notes(self, *notes: str) -> Table:
        """The table with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def map(self, change: Callable[[Cell], Cell]) -> Table:
        """The table with changed cells."""
        return replace(self, frame=self.frame.map(change))

    def long(self) -> pd.DataFrame:
        """The table in long format, one row per cell; `exceeds_spread` is that of `Cell`, and runs are separated by spaces."""
        entries = [
            (
                *(self.name, ", ".join(row.labels), column.full_label, cell.value, cell.sd, cell.n),
                *(cell.published, cell.published_sd, cell.difference, cell.exceeds_spread, " ".join(cell.runs)),
            )
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
        ]
        names = ("table", "row", "column", "value", "sd", "n", "published", "published_sd", "difference")
        return pd.DataFrame(entries, columns=[*names, "exceeds_spread", "runs"])


def make_table(
    name: str,
    title: str,
    headers: Sequence[str],
    columns: Sequence[Column],
    rows: Sequence[tuple[tuple[str, ...], Sequence[Cell]]],
    notes: Sequence[str] = (),
) -> Table:
    """A table from its rows, (labels, cells)."""
    index = pd.MultiIndex.from_tuples([labels for labels, _ in rows], names=list(headers)) if rows else _none(headers)
    titles = pd.MultiIndex.from_tuples([(one.group, one.label, one.remark) for one in columns], names=_COLUMN)
    frame = pd.DataFrame([list(cells) for _, cells in rows], index, titles, dtype=object)
    return Table(name, title, frame, tuple(notes))


_COLUMN = ["group", "label", "remark"]


def _none(names: Sequence[str]) -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([[] for _ in names], names=list(names))


# --- pivots ------------------------------------------------------------------------------------------------------------


def entries(
    frame: pd.DataFrame,
    runs: pd.Series | None = None,
    *,
    datasets: Mapping[str, Sequence[str]] | None = None,
    along: Sequence[str] = (),
    among: Mapping[str, Any] | None = None,
    decimals: int = 2,
    **style: Any,
) -> pd.DataFrame:
    """One row per cell: its index levels, mean, sd, n and run folders, and whether it is the best.

    Parameters
    ----------
    frame
        Cells × seeds, as of `slimprompt.analysis.frame.cells`; it may have further levels.
    runs
        Run folders of the cells, as of `slimprompt.analysis.frame.runs_of`.
    datasets
        Backbone → datasets; if given, the entries are averages over them, for the cells that all of them have.
    along, among
        The best of the cells that differ only in the levels `along` are bold (see `best_marks`); those that `among` selects take part.
    decimals, style
        Fields of `Cell` that all entries have: signed, show_sd.
    """
    values = averages(frame, datasets)
    found = summary(values)
    found["bold"] = False
    if along:
        found["bold"] = best_marks(select(values, **(among or {})), along, decimals).reindex(
            found.index, fill_value=False
        )
    if runs is not None:
        found["runs"] = _linked(found.index, runs, datasets)
    found = found.reset_index().assign(decimals=decimals, **style)
    return found if datasets is None else found.assign(dataset=AVERAGE)


def averages(frame: pd.DataFrame, datasets: Mapping[str, Sequence[str]] | None) -> pd.DataFrame:
    """The averages over the datasets of each backbone, or the frame itself."""
    if datasets is None:
        return frame.dropna(how="all")
    chosen = [average(select(frame, backbone=name), names) for name, names in datasets.items()]
    return pd.concat(chosen) if chosen else average(frame, [])


def difference(
    first: pd.DataFrame,
    second: pd.DataFrame,
    on: Sequence[str],
    runs: pd.Series | None = None,
    *,
    datasets: Mapping[str, Sequence[str]] | None = None,
    **fields: Any,
) -> pd.DataFrame:
    """The entries of first − second on the seeds that both have, with the sd of the paired differences.

    Rows are matched on the levels `on`; the entries have the levels of `first`, and further fields.
    """
    one, other = averages(first, datasets), averages(second, datasets)

    def matched(values: Any) -> Any:
        """What belongs to the rows of the second frame, for those of the first."""
        return values.set_axis(keys(values.index)).reindex(keys(one.index)).set_axis(one.index)

    def keys(index: pd.Index) -> pd.MultiIndex:
        return pd.MultiIndex.from_arrays([index.get_level_values(name) for name in on])

    found = summary(one - matched(other))
    if runs is not None:
        linked = pd.Series(_linked(one.index, runs, datasets), one.index, dtype=object)
        theirs = matched(pd.Series(_linked(other.index, runs, datasets), other.index, dtype=object))
        found["runs"] = (linked + theirs).reindex(found.index)
    found = found.reset_index().assign(signed=True, decimals=2, **fields)
    return found if datasets is None else found.assign(dataset=AVERAGE)


def _linked(index: pd.Index, runs: pd.Series, datasets: Mapping[str, Sequence[str]] | None) -> list[tuple[str, ...]]:
    """The run folders of each cell; those of an average are the folders of all its datasets."""
    levels = [name for name in CELL if name in index.names]
    if datasets is not None:
        places = {(name, dataset) for name, names in datasets.items() for dataset in names}
        backbone, dataset = (runs.index.get_level_values(name) for name in ("backbone", "dataset"))
        averaged = [place in places for place in zip(backbone, dataset, strict=True)]
        runs = runs[averaged].groupby(level=levels).sum()
    keys = index.droplevel([name for name in index.names if name not in levels]).reorder_levels(levels)
    folders = runs.to_dict()
    return [folders.get(key, ()) for key in keys]


def best_marks(frame: pd.DataFrame, along: Sequence[str], decimals: int, *, lowest: bool = False) -> pd.Series:
    """Whether a row is the best of those that differ only in the levels `along`, on the seeds that all of them have.

    Numbers are rounded to the printed decimals. All tied rows are marked, but none if all rows are tied or only one has a number.
    """
    shown = on_common_seeds(frame, along).mean(axis=1).map(lambda value: round(value, decimals))
    others = [name for name in frame.index.names if name not in along]
    grouped = shown.groupby(level=others)
    best = grouped.transform("min" if lowest else "max")
    return (shown == best) & (grouped.transform("nunique") > 1)


class Pivot(NamedTuple):
    """A table as a pivot of `entries`.

    The texts of rows and columns are formats of the entries' fields: {"Backbone": "{backbone}", "Shots": "{shots}"}, "Rank {rank}".
    """

    name: str
    title: str
    rows: Mapping[str, str]
    column: str
    group: str = ""
    titles: Mapping[str, Mapping[Any, str]] = {}
    """Field → its values in the order of the table, with their titles; others are left out. Other fields are sorted by value."""
    notes: tuple[str, ...] = ()
    complete: bool = True
    """Whether every group has all titles of the column's field, also those without runs."""

    def of(self, found: pd.DataFrame, remarks: Mapping[str, str] | None = None) -> Table:
        """The table of these entries; `remarks` are the small print below columns."""
        for name, titles in self.titles.items():
            found = found[found[name].isin(list(titles))]
        texts = [*self.rows.values(), self.group, self.column]
        shown = {text: self._shown(text, found) for text in texts}
        frame = pd.DataFrame({header: shown[text] for header, text in self.rows.items()})
        frame["group"], frame["label"] = shown[self.group], shown[self.column]
        frame["cell"] = [_cell(entry) for entry in found.to_dict("records")]
        frame["remark"] = frame["label"].map(remarks or {}).fillna("") if len(frame) else ""
        headers = list(self.rows)
        if frame.empty:
            return Table(self.name, self.title, pd.DataFrame(index=_none(headers), columns=_none(_COLUMN)), self.notes)
        wide = frame.set_index([*headers, *_COLUMN])["cell"].unstack(_COLUMN, sort=False)
        wide = wide.loc[self._order(frame, found, headers, list(self.rows.values()))]
        columns = self._order(frame, found, _COLUMN, [self.group, self.column])
        fixed = self.titles.get(self.column.strip("{}"), {})
        if self.complete and fixed:
            groups = dict.fromkeys(group for group, _, _ in columns)
            columns = [(group, label, (remarks or {}).get(label, "")) for group in groups for label in fixed.values()]
        wide = wide.reindex(columns=pd.MultiIndex.from_tuples(columns, names=_COLUMN))
        wide = wide.map(lambda cell: cell if isinstance(cell, Cell) else Cell())
        return Table(self.name, self.title, wide.set_axis(_levels(wide.index, headers)), self.notes)

    def _shown(self, text: str, found: pd.DataFrame) -> list[str]:
        used = [name for _, name, _, _ in Formatter().parse(text) if name]
        columns = [[self.titles.get(name, {}).get(value, value) for value in found[name]] for name in used]
        return [text.format(**dict(zip(used, values, strict=True))) for values in zip(*columns, strict=True)] or [
            text
        ] * len(found)

    def _order(self, frame: pd.DataFrame, found: pd.DataFrame, labels: list[str], texts: Sequence[str]) -> list[Any]:
        """The distinct labels, in the order of the fields that their texts show."""
        used = [name for text in texts for _, name, _, _ in Formatter().parse(text) if name]
        keys = [
            [list(self.titles[name]).index(value) if name in self.titles else value for value in found[name]]
            for name in used
        ]
        shown = [tuple(row) if len(labels) > 1 else row[0] for row in frame[labels].itertuples(index=False)]
        ranked = sorted(zip(*keys, range(len(shown)), strict=True)) if keys else [(0,)]
        return list(dict.fromkeys(shown[place[-1]] for place in ranked))


def _levels(index: pd.Index, names: Sequence[str]) -> pd.MultiIndex:
    """The index with levels, also if it is a single one."""
    rows = [row if isinstance(row, tuple) else (row,) for row in index]
    return pd.MultiIndex.from_tuples(rows, names=list(names))


def _cell(entry: Mapping[Any, Any]) -> Cell:
    def known(name: str) -> float | None:
        value = entry.get(name)
        return None if value is None or math.isnan(value) else float(value)

    text, linked, decimals = entry.get("text"), entry.get("runs"), known("decimals")
    return Cell(
        text if isinstance(text, str) else known("mean"),
        known("sd"),
        int(known("n") or 0),
        linked if isinstance(linked, tuple) else (),
        2 if decimals is None else int(decimals),
        entry.get("signed") is True,
        entry.get("show_sd") is True,
        entry.get("bold") is True,
        known("published"),
        known("published_sd"),
    )
