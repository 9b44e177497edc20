"""Tables that are not in the paper: paired tests of its comparisons, and averages computed in three ways."""

from __future__ import annotations

import math
from typing import Any

from slimprompt.analysis.arms import Arm, arm_label, dense, fixed_basis, joint
from slimprompt.analysis.comparisons import ArmComparison, aggregates, compare_arms
from slimprompt.analysis.results import Results
from slimprompt.analysis.selection import full_length, headline_rank, own_bases
from slimprompt.prompts.spec import FIXED_BASES
from slimprompt.report.table import Cell, Column, Row, Table


def comparisons(results: Results, *, margin: float = 0.5) -> Table:
    """Paired tests of low rank against dense and of fixed against trained B, for difference and for equivalence.

    Parameters
    ----------
    results
        Cells of runs, or of the published tables.
    margin
        Equivalence margin in points.
    """
    rows: list[Row] = []
    for title, metric, pairs in _families(results):
        for index, one in enumerate(compare_arms(results, pairs, metric=metric, margin=margin)):
            labels = (title, one.backbone, str(one.shots), arm_label(one.first), arm_label(one.second))
            rows.append(Row(labels, _comparison_cells(one), rule=index == 0))
    points, corrected = "Points", "Holm-corrected p"
    columns = (
        Column("n"),
        *(Column(label, points) for label in ("Difference", "95 % low", "95 % high")),
        Column("d_z"),
        *(Column(label, corrected) for label in ("t", "Wilcoxon", "Equivalence")),
        Column("+/=/−"),
        Column("Reading"),
    )
    notes = (
        "One difference per dataset, averaged over its seeds, so n counts datasets. Holm's correction is per family.",
        f"Equivalence: two one-sided t-tests of a difference beyond ±{margin} points; a small p means equivalent.",
    )
    headers = ("Family", "Backbone", "Shots", "First", "Second")
    return Table("comparisons", "Paired comparisons (not in the paper)", headers, columns, tuple(rows), notes)


def _families(results: Results) -> list[tuple[str, str, list[tuple[Arm, Arm]]]]:
    """(title, metric, pairs of arms) of each family of tests."""
    full = dense(full_length(results))
    families = []
    for title, metric in (("accuracy", "accuracy"), ("harmonic mean", "harmonic")):
        rank = headline_rank(results, metric)
        against = [(joint(rank), arm) for arm in dict.fromkeys((full, dense(rank)))]
        families.append((f"low rank − dense, {title}", metric, against))
        ranks = results.axis("rank", method="factorized", metric=metric)
        bases = (*FIXED_BASES, *own_bases(results, metric=metric))
        fixed = [(fixed_basis(basis, r), joint(r)) for r in ranks for basis in bases]
        families.append((f"fixed − trained B, {title}", metric, fixed))
    return families


def _comparison_cells(comparison: ArmComparison) -> tuple[Cell, ...]:
    test = comparison.result
    p_values = (comparison.holm_t, comparison.holm_wilcoxon, comparison.holm_equivalence)
    return (
        Cell(str(test.n)),
        *(Cell(value, n=test.n, signed=True) for value in (test.mean, test.low, test.high, test.effect)),
        *(Cell(p, n=test.n, decimals=3) for p in p_values),
        Cell(f"{test.wins}/{test.ties}/{test.losses}"),
        Cell(_reading(comparison.holm_t, comparison.holm_equivalence)),
    )


def _reading(different: float | None, equivalent: float | None) -> str:
    if different is None or equivalent is None:
        return "not testable"
    differs, same = different < 0.05, equivalent < 0.05
    if differs and same:
        return "different, but equivalent"
    return "different" if differs else "equivalent" if same else "undecided"


def summaries(results: Results) -> Table:
    """Averages over datasets computed in three ways: macro, pooled, and H of the averages."""
    rows = []
    for row in aggregates(results).to_dict("records"):
        cells = (
            Cell(str(row["datasets"])),
            Cell(str(row["seeds"])),
            Cell(_float(row["macro_mean"]), _float(row["macro_sd"]), int(row["seeds"]), show_sd=True),
            Cell(str(row["pooled_n"])),
            Cell(_float(row["pooled_mean"]), _float(row["pooled_sd"]), int(row["pooled_n"]), show_sd=True),
            Cell(_float(row["harmonic_of_averages"])),
        )
        rows.append(Row(tuple(str(row[name]) for name in ("backbone", "arm", "shots", "metric")), cells))
    columns = (
        Column("Datasets"),
        Column("Seeds", "Macro"),
        Column("Mean ± sd", "Macro"),
        Column("n", "Pooled"),
        Column("Mean ± sd", "Pooled"),
        Column("H of averages"),
    )
    notes = (
        "Macro: datasets averaged within each seed, then mean and sd over the seeds that have all datasets.",
        "Pooled: mean and sd over all dataset × seed values; this sd is mostly between datasets.",
        "H of averages: 2SU/(S+U) of the averaged S and U, instead of the average H of the runs.",
    )
    title = "Averages over datasets, computed in three ways (not in the paper)"
    return Table("summaries", title, ("Backbone", "Arm", "Shots", "Metric"), columns, tuple(rows), notes)


def _float(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
