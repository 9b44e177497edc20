"""Published numbers beside those of a comparison of methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from slimprompt.analysis.arms import BACKBONE_TITLES, dataset_title
from slimprompt.analysis.results import CellKey
from slimprompt.paper.published import PublishedBaseline, published_baselines, published_results
from slimprompt.report.table import Cell, Table

_CLASS_SUBSETS = {"accuracy": "all", "seen": "base", "unseen": "new"}


class _BaselineKey(NamedTuple):
    backbone: str
    dataset: str
    class_subset: str
    method: str
    shots: int


@cache
def _baselines() -> dict[_BaselineKey, PublishedBaseline]:
    return {
        _BaselineKey(
            BACKBONE_TITLES.get(row.backbone, row.backbone),
            dataset_title(row.dataset),
            row.class_subset,
            row.method,
            row.shots,
        ): row
        for row in published_baselines()
    }


def _baseline(key: CellKey) -> PublishedBaseline | None:
    """The published accuracy of another method in this cell; that of zero-shot holds for every number of shots."""
    shots = 0 if key.method == "zero-shot" else key.shots
    subset = _CLASS_SUBSETS.get(key.metric, "")
    return _baselines().get(_BaselineKey(key.backbone, key.dataset, subset, key.method, shots))


def _published(key: CellKey) -> float | None:
    """The published mean of a cell: of another method, or of the paper's prompts."""
    if baseline := _baseline(key):
        return baseline.accuracy
    printed = published_results().cell(key.backbone, key.dataset, key.arm, key.shots, key.metric)
    return printed.mean if printed else None


def with_published_methods(table: Table) -> Table:
    """Add the published number to each cell whose datasets all have one, with notes on how they were obtained.

    The backbone (with OpenAI's weights), dataset, class subset and number of shots are the same. What the published protocols
    choose on validation or test images is in the notes.
    """
    compared: set[CellKey] = set()

    def add(cell: Cell) -> Cell:
        keys = cell.key if isinstance(cell.key, tuple) else ()
        values = [_published(key) for key in keys]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cell
        compared.update(keys)
        return replace(cell, published=sum(known) / len(known))

    rows = tuple(replace(row, cells=tuple(add(cell) for cell in row.cells)) for row in table.rows)
    if not compared:
        return replace(table, notes=(*table.notes, "There are no published numbers for these cells."))
    note = "In brackets: the published number and the difference."
    return replace(table, rows=rows, compare=True, notes=(*table.notes, note, *_protocols(compared)))


def _protocols(keys: Iterable[CellKey]) -> list[str]:
    """How the published numbers of other methods were obtained, one note per method, source and protocol."""
    found = {(row.method, row.protocol, row.source) for key in keys if (row := _baseline(key))}
    return [f"Published {method}: {protocol} ({source})." for method, protocol, source in sorted(found)]
