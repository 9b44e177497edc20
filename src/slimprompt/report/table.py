"""A table: a frame whose entries know their spread, their runs and, optionally, a published value to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
    """Its cells. The index levels are the row labels, their names the titles of the label columns; the columns have the levels
    of `Column`."""
    notes: tuple[str, ...] = ()
    compare: bool = False
    """Show the published value and the difference next to each number."""

    @property
    def headers(self) -> tuple[str, ...]:
        """Titles of the label columns."""
        return tuple(map(str, self.frame.index.names))

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of cells."""
        return [Column(*map(str, titles)) for titles in self.frame.columns.to_flat_index()]

    @cached_property
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
    index = pd.MultiIndex.from_tuples([labels for labels, _ in rows], names=list(headers))
    titles = pd.MultiIndex.from_tuples(columns, names=Column._fields)
    frame = pd.DataFrame([list(cells) for _, cells in rows], index, titles, dtype=object)
    return Table(name, title, frame, tuple(notes))


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
    """One row per cell of a frame (see `slimprompt.analysis.frame.cells`): its levels, mean, sd, n, runs, and whether it is best.

    With `datasets` (backbone → names), the entries are averages over them, for the cells that all of them have. The best of the cells
    that `among` selects and that differ only in the levels `along` are bold (see `best_marks`). All entries have the fields `style`.
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
    keys = index.droplevel([name for name in index.names if name not in levels]).reorder_levels(levels)
    if datasets is not None:
        averaged = [select(runs, backbone=name, dataset=names) for name, names in datasets.items()]
        runs = pd.concat([runs.iloc[:0], *averaged])
        runs = runs[runs.index.droplevel("dataset").isin(keys)].groupby(level=levels).sum()
    folders = runs.to_numpy()
    return [folders[place] if place >= 0 else () for place in runs.index.get_indexer(keys)]


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
        chosen = [
            entry
            for entry in found.to_dict("records")
            if all(entry[name] in titles for name, titles in self.titles.items())
        ]
        rows, columns = tuple(self.rows.values()), (self.column, self.group)
        cells = {(self._shown(rows, entry), self._shown(columns, entry)): _cell(entry) for entry in chosen}
        assert len(cells) == len(chosen)  # each entry has a place of its own
        titles = self._ordered((self.group, self.column), chosen)
        fixed = self.titles.get(self.column.strip("{}"), {})
        if self.complete and fixed:
            groups = dict.fromkeys(group for group, _ in titles)
            titles = [(group, label) for group in groups for label in fixed.values()]
        shown = [Column(label, group, (remarks or {}).get(label, "")) for group, label in titles]
        body = [
            (row, [cells.get((row, (one.label, one.group)), Cell()) for one in shown])
            for row in self._ordered(rows, chosen)
        ]
        return make_table(self.name, self.title, list(self.rows), shown, body, self.notes)

    def _shown(self, texts: Sequence[str], entry: Mapping[Any, Any]) -> tuple[str, ...]:
        fields = {name: self.titles.get(name, {}).get(entry[name], entry[name]) for name in _fields(texts)}
        return tuple(text.format(**fields) for text in texts)

    def _ordered(self, texts: Sequence[str], entries: Sequence[Mapping[Any, Any]]) -> list[tuple[str, ...]]:
        """The distinct texts of the entries, in the order of their fields."""

        def place(entry: Mapping[Any, Any]) -> list[Any]:
            return [
                list(self.titles[name]).index(entry[name]) if name in self.titles else entry[name]
                for name in _fields(texts)
            ]

        return list(dict.fromkeys(self._shown(texts, entry) for entry in sorted(entries, key=place)))


def _fields(texts: Sequence[str]) -> list[str]:
    """The fields that formats name."""
    return [name for text in texts for _, name, _, _ in Formatter().parse(text) if name]


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
