"""Cells of the paper's tables: the estimate, and the key of the printed number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slimprompt.analysis.arms import Arm
from slimprompt.analysis.results import CellKey, Estimate, Results, on_common_seeds
from slimprompt.analysis.statistics import summarise
from slimprompt.paper.published import Printed, PrintedKey, printed_numbers, published_results
from slimprompt.report.table import Cell


def make_cell(estimate: Estimate | None, key: PrintedKey | None = None, **style: Any) -> Cell:
    """A cell for an estimate, empty if it is None; `style` are further fields of `Cell`."""
    if estimate is None:
        return Cell(key=key, **style)
    return Cell(estimate.mean, estimate.sd, estimate.n, estimate.runs, key=key, estimate=estimate, **style)


def dataset_cell(results: Results, table: str, key: CellKey, *, show_sd: bool = True) -> Cell:
    """The cell of `table` for one dataset."""
    found = results.cell(key.backbone, key.dataset, key.arm, key.shots, key.metric, key.source)
    return make_cell(found, PrintedKey(table, key), show_sd=show_sd)


def average_cell(
    results: Results, table: str, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str = "accuracy"
) -> Cell:
    """The cell of `table` for an average over datasets."""
    key = average_key(table, backbone, datasets, arm, shots, metric)
    return make_cell(results.macro(backbone, datasets, arm, shots, metric), key)


def average_key(
    table: str, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str
) -> PrintedKey | None:
    """Key of a printed average; None if `datasets` are not those of the paper."""
    if list(datasets) != published_results().axis("dataset"):
        return None
    return PrintedKey(table, CellKey(backbone, "Average", *arm, shots, metric))


def printed_value(cell: Cell) -> Printed | None:
    """The number that the paper prints for this cell, or None."""
    return printed_numbers().get(cell.key) if isinstance(cell.key, PrintedKey) else None


def difference(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """one − other over the seeds that both have, with the sd of the paired differences; None if there is no such seed.

    Published estimates have no seeds, so theirs is the difference of the means, without an sd.
    """
    pair = on_common_seeds([one, other]) if one and other else []
    if not pair:
        return None
    first, second = pair
    paired = summarise([value - second.by_seed[seed] for seed, value in first.by_seed.items()])
    sd = paired.sd if paired else None
    return Estimate(first.mean - second.mean, sd, min(first.n, second.n), (*first.runs, *second.runs))
