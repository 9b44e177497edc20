"""All tables of the paper in its order, from runs with the published numbers for comparison, or as printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import pandas as pd

from slimprompt.analysis.frame import Measurements, axis, select, sorted_backbones
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.published import (
    N_CTX,
    SEEDS,
    geometry_mismatch,
    published_geometry,
    published_measurements,
    published_observations,
)
from slimprompt.paper.studies import PAPER
from slimprompt.paper.tables.best import best_delta
from slimprompt.paper.tables.extra import comparisons, summaries
from slimprompt.paper.tables.geometry import factor_geometry
from slimprompt.paper.tables.methods import published_methods, with_protocols
from slimprompt.paper.tables.pivots import (
    base2new,
    base_to_new_full,
    basis_ablation,
    fixed_bases,
    headline,
    low_rank_cells,
    rank_sweep,
    slug,
)
from slimprompt.paper.tables.transfer import transfer_best_delta, transfer_four_modes, transfer_pairs
from slimprompt.report.methods_tables import methods_tables
from slimprompt.report.paper import MeasuredRuns, Published, Tables
from slimprompt.report.table import Cell, Table


def tables_of_runs(runs: MeasuredRuns, compare_published: bool = False) -> dict[str, Callable[[], Table]]:
    """Name → function that makes it: the tables of the paper, of comparisons of methods, of paired tests and of averages."""
    results = runs.results
    specs = [record.spec for record in runs.records]
    return {
        **methods_tables_of(results, compare_published),
        **paper_tables(
            results,
            lambda: (runs.geometry.medians(), runs.geometry.compared),
            specs=specs,
            compare_published=compare_published,
        ),
        "comparisons": lambda: comparisons(results),
        "summaries": lambda: summaries(results),
    }


def methods_tables_of(results: Measurements, compare_published: bool = False) -> dict[str, Callable[[], Table]]:
    """The tables that compare methods, optionally beside published numbers."""
    if not compare_published:
        return methods_tables(results)
    frame = results.frame
    makers = methods_tables(results, lambda: published_methods(frame))
    return _changed(makers, lambda table: with_protocols(table, frame))


def _changed(makers: Tables, change: Callable[[Table], Table]) -> dict[str, Callable[[], Table]]:
    """The functions that make these tables, followed by a change."""
    return {name: lambda make=make: change(make()) for name, make in makers.items()}  # type: ignore[misc]


#: Medians of the factor geometry and the runs behind them; measured when a table asks for them.
MeasureGeometry = Callable[[], tuple[pd.DataFrame | None, Sequence[RunSpec]]]


def paper_tables(
    results: Measurements,
    geometry: MeasureGeometry = lambda: (None, ()),
    *,
    specs: Sequence[RunSpec] = (),
    compare_published: bool = False,
) -> dict[str, Callable[[], Table]]:
    """Name → function that makes it, for each of the paper's tables in its order, from runs or from the published numbers.

    There is one basis ablation per rank and backbone, and one table of base-to-new results per backbone. The backbones
    and ranks of the paper give its 19 tables. `specs` are all runs behind the results: notes name what differs from the paper's grid.
    """
    makers: dict[str, Callable[[], Table]] = {
        "headline": lambda: headline(results),
        "base2new": lambda: base2new(results),
        "fixedB": lambda: fixed_bases(results),
        "transfer_pairs": lambda: transfer_pairs(results),
        "factor_geometry": lambda: factor_geometry(*geometry()),
        "rank_sweep": lambda: rank_sweep(results),
        "best_delta": lambda: best_delta(results),
        "transfer_four_modes": lambda: transfer_four_modes(results),
        "transfer_best_delta": lambda: transfer_best_delta(results),
    }
    low_rank, new = low_rank_cells(results.frame), select(results.frame, metric="harmonic")
    for rank in axis(low_rank, "rank"):
        for backbone in sorted_backbones(low_rank, resnet_first=True, rank=rank):
            name = f"b_ablation_rank{rank}_{slug(backbone)}"
            makers[name] = partial(basis_ablation, results, backbone, rank)
    for backbone in sorted_backbones(new, resnet_first=True):
        makers[f"base_to_new_{slug(backbone)}"] = partial(base_to_new_full, results, backbone)

    def finished(table: Table) -> Table:
        table = _with_counts(table, results.frame)
        if not compare_published:
            return _without_published(table)
        compared = geometry()[1] if table.name == "factor_geometry" else ()
        mismatch = geometry_mismatch(compared) if compared else ""
        return _with_published(table, mismatch, _protocol_remarks(specs))

    return _changed(makers, finished)


def _protocol_remarks(specs: Sequence[RunSpec]) -> list[str]:
    """What differs between the paper's prompts of these runs and those of the paper's grid: length, position, precision, recipe."""
    prompts = [spec for spec in specs if spec.is_prompt and not spec.beyond]
    lengths = sorted({spec.n_ctx for spec in prompts if spec.rank and spec.n_ctx} - {N_CTX})
    remarks = [f"Here low-rank prompts have {m} context tokens, the published ones {N_CTX}." for m in lengths]
    paper = {"position": PAPER.position, "precision": PAPER.precision}
    paper |= {f"recipe.{name}": value for name, value in PAPER.recipe}
    fields = [spec.flat() for spec in prompts]
    other = {name: sorted({str(one[name]) for one in fields} - {str(value)}) for name, value in paper.items()}
    differing = [f"{name} {', '.join(found)} (there: {paper[name]})" for name, found in other.items() if found]
    return remarks + ([f"These runs differ from the paper's grid in {'; '.join(differing)}."] if differing else [])


def _with_counts(table: Table, frame: pd.DataFrame) -> Table:
    """Add notes with the number of seeds per cell, on different seeds, and with the number of cells without runs."""
    if table.name == "factor_geometry":
        return table
    same_seeds = not bool(frame.isna().any(axis=None))
    counts = sorted({cell.n for cell in table.cells if cell.number is not None})
    missing = sum(cell.value is None for cell in table.cells)
    notes = []
    if counts:
        notes.append(f"n = {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds per number.")
    if table.cells and not same_seeds:
        notes.append("Not all runs have the same seeds: what is bold, what is best and Δ are decided on common seeds.")
    if missing:
        reason = "no runs" if same_seeds else "no runs or no common seeds"
        notes.append(f"{missing} of {len(table.cells)} cells have {reason} (—).")
    if not table.cells:
        notes.append("There are no runs for this table.")
    return table.with_notes(*notes)


def _without_published(table: Table) -> Table:
    return table.map(lambda cell: replace(cell, published=None, published_sd=None))


def _with_published(table: Table, mismatch: str, remarks: Sequence[str]) -> Table:
    """The table beside the published numbers, with remarks, or a note why the published numbers do not apply."""
    if mismatch:
        return _without_published(table).with_notes(mismatch)
    notes = ["There are no published numbers for these cells."]
    if any(cell.published is not None for cell in table.cells):
        note = "In brackets: the published number and the difference, with a * if it exceeds √(sd² + published sd²)."
        unknown = "There is no mark where the paper prints no standard deviation, or where there is one seed."
        notes = [f"{note} {unknown}", *remarks]
    return replace(table, compare=True).with_notes(*notes)


@cache
def published_tables() -> dict[str, Table]:
    """The paper's own tables with every number as printed; notes list the numbers that its cells do not reproduce."""
    return {name: make() for name, make in _printed_tables().items()}


def _printed_tables() -> dict[str, Callable[[], Table]]:
    makers = paper_tables(published_measurements(), lambda: (published_geometry(), ()), compare_published=True)
    return _changed(makers, _as_printed)


def published_paper() -> Published:
    """The published numbers, with the paper's tables as printed and the paired tests that they allow."""
    tested = {"comparisons": lambda: comparisons(published_measurements())}
    return Published(published_observations(), published_geometry(), {**_printed_tables(), **tested})


def _as_printed(table: Table) -> Table:
    notes = []
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            off = cell.difference is not None and abs(cell.difference) > 0.5 * 10**-cell.decimals + 1e-9
            if off:
                where = f"{', '.join(filter(None, row.labels))}, {column.full_label}"
                notes.append(f"{where}: printed {cell.published:.2f}, the printed cells give {cell.number:.3f}.")

    def printed_cell(cell: Cell) -> Cell:
        if cell.published is None:
            return cell
        n = SEEDS if cell.n else 0
        return replace(cell, value=cell.published, sd=cell.published_sd, n=n, published=None, published_sd=None)

    kept = [note for note in table.notes if not note.startswith(("n = ", "In brackets", "There are no published"))]
    return replace(table.map(printed_cell), compare=False, notes=(*kept, *notes))
