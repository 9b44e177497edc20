"""All tables of the paper in its order, from runs with the published numbers for comparison, or as printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pandas as pd

from slimprompt.analysis.results import Results
from slimprompt.analysis.selection import sorted_backbones
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.published import N_CTX, geometry_mismatch, published_geometry, published_results
from slimprompt.paper.tables.base_to_new import base2new, base_to_new_full
from slimprompt.paper.tables.cells import printed_value
from slimprompt.paper.tables.few_shot import best_delta, headline, rank_sweep
from slimprompt.paper.tables.fixed_basis import basis_ablation, fixed_b
from slimprompt.paper.tables.geometry import factor_geometry
from slimprompt.paper.tables.transfer import transfer_best_delta, transfer_four_modes, transfer_pairs
from slimprompt.report.table import Cell, Table


def paper_tables(
    results: Results,
    medians: pd.DataFrame | None = None,
    compared: Sequence[RunSpec] = (),
    *,
    compare_published: bool = False,
) -> list[Table]:
    """The paper's tables in its order.

    There is one basis ablation per rank and backbone, and one table of base-to-new results per backbone. The backbones
    and ranks of the paper give its 19 tables.

    Parameters
    ----------
    results
        Cells of runs, or of the published tables.
    medians
        Result of `Geometry.medians`, for the table of factor geometry.
    compared
        The runs behind the medians, `Geometry.compared`; empty for the published medians.
    compare_published
        Add the published number and the difference to each cell.
    """
    built = [headline(results), base2new(results), fixed_b(results), transfer_pairs(results)]
    built.append(factor_geometry(medians, compared))
    built += [rank_sweep(results), best_delta(results), transfer_four_modes(results), transfer_best_delta(results)]
    where = {"metric": "accuracy", "method": "factorized"}
    for rank in results.axis("rank", **where):
        for backbone in sorted_backbones(results, resnet_first=True, rank=rank, **where):
            built.append(basis_ablation(results, backbone, rank))
    for backbone in sorted_backbones(results, resnet_first=True, metric="harmonic"):
        built.append(base_to_new_full(results, backbone))
    built = [_with_counts(table) for table in built]
    if not compare_published:
        return built
    mismatch = geometry_mismatch(compared) if compared else ""
    lengths = sorted({spec.n_ctx for spec in compared} - {N_CTX})
    remarks = [f"Here low-rank prompts have {m} context tokens, the published ones {N_CTX}." for m in lengths]
    return [_with_published(table, mismatch if table.name == "factor_geometry" else "", remarks) for table in built]


def _with_counts(table: Table) -> Table:
    """Add notes with the number of seeds per cell and of cells without runs."""
    if table.name == "factor_geometry":
        return table
    cells = [cell for row in table.rows for cell in row.cells]
    counts = sorted({cell.n for cell in cells if cell.number is not None})
    missing = sum(cell.value is None for cell in cells)
    notes = []
    if counts:
        notes.append(f"n = {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds per number.")
    if missing:
        notes.append(f"{missing} of {len(cells)} cells have no runs (—).")
    if not cells:
        notes.append("There are no runs for this table.")
    return replace(table, notes=(*table.notes, *notes))


def _with_published(table: Table, mismatch: str, remarks: Sequence[str]) -> Table:
    """Add the published number to each cell that has one, with remarks, or a note why the published numbers do not apply."""
    if mismatch:
        return replace(table, notes=(*table.notes, mismatch))

    def add(cell: Cell) -> Cell:
        found = printed_value(cell)
        return replace(cell, published=found.mean, published_sd=found.sd) if found else cell

    rows = tuple(replace(row, cells=tuple(add(cell) for cell in row.cells)) for row in table.rows)
    notes = ["There are no published numbers for these cells."]
    if any(cell.published is not None for row in rows for cell in row.cells):
        note = "In brackets: the published number and the difference, with a * if it exceeds √(sd² + published sd²)."
        notes = [note, *remarks]
    return replace(table, rows=rows, compare=True, notes=(*table.notes, *notes))


@cache
def published_tables() -> list[Table]:
    """The paper's own tables with every number as printed; notes list the numbers that its cells do not reproduce."""
    return [_as_printed(table) for table in paper_tables(published_results(), published_geometry())]


def _as_printed(table: Table) -> Table:
    def printed(cell: Cell) -> Cell:
        found = printed_value(cell)
        return replace(cell, value=found.mean, sd=found.sd) if found else cell

    rows = tuple(replace(row, cells=tuple(printed(cell) for cell in row.cells)) for row in table.rows)
    notes = []
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            found = printed_value(cell)
            if found and cell.number is not None and abs(cell.number - found.mean) > 0.5 * 10**-cell.decimals + 1e-9:
                where = f"{row.full_label}, {column.full_label}"
                notes.append(f"{where}: printed {found.mean:.2f}, the printed cells give {cell.number:.3f}.")
    return replace(table, rows=rows, notes=(*table.notes, *notes))
