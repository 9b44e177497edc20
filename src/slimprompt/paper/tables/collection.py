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
from slimprompt.paper.studies import PAPER
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
    specs: Sequence[RunSpec] = (),
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
    specs
        All runs behind the results; notes name what differs from the paper's grid.
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
    same_seeds = len({frozenset(one.by_seed) for one in results.cells.values()}) < 2
    built = [_with_counts(table, same_seeds) for table in built]
    if not compare_published:
        return built
    mismatch = geometry_mismatch(compared) if compared else ""
    remarks = _protocol_remarks(specs)
    return [_with_published(table, mismatch if table.name == "factor_geometry" else "", remarks) for table in built]


def _protocol_remarks(specs: Sequence[RunSpec]) -> list[str]:
    """What differs between the paper's prompts of these runs and those of the paper's grid: length, position, precision, recipe."""
    prompts = [spec for spec in specs if spec.is_prompt and not spec.beyond]
    lengths = sorted({spec.n_ctx for spec in prompts if spec.rank} - {N_CTX})
    remarks = [f"Here low-rank prompts have {m} context tokens, the published ones {N_CTX}." for m in lengths]
    paper = {"position": PAPER.position, "precision": PAPER.precision}
    paper |= {f"recipe.{name}": value for name, value in PAPER.recipe}
    fields = [spec.flat() for spec in prompts]
    other = {name: sorted({str(one[name]) for one in fields} - {str(value)}) for name, value in paper.items()}
    differing = [f"{name} {', '.join(found)} (there: {paper[name]})" for name, found in other.items() if found]
    return remarks + ([f"These runs differ from the paper's grid in {'; '.join(differing)}."] if differing else [])


def _with_counts(table: Table, same_seeds: bool) -> Table:
    """Add notes with the number of seeds per cell, on different seeds, and with the number of cells without runs."""
    if table.name == "factor_geometry":
        return table
    cells = [cell for row in table.rows for cell in row.cells]
    counts = sorted({cell.n for cell in cells if cell.number is not None})
    missing = sum(cell.value is None for cell in cells)
    notes = []
    if counts:
        notes.append(f"n = {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds per number.")
    if cells and not same_seeds:
        notes.append("Not all runs have the same seeds: what is bold, what is best and Δ are decided on common seeds.")
    if missing:
        reason = "no runs" if same_seeds else "no runs or no common seeds"
        notes.append(f"{missing} of {len(cells)} cells have {reason} (—).")
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
        unknown = "There is no mark where the paper prints no standard deviation, or where there is one seed."
        notes = [f"{note} {unknown}", *remarks]
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
