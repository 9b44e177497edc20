"""Tables that are not in the paper: paired tests of its comparisons, and averages computed in three ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from slimprompt.analysis.comparisons import aggregates, compare_labels
from slimprompt.analysis.frame import Measurements, axis, dense, fixed_b, full_length, headline_rank, joint
from slimprompt.paper.tables.pivots import own_bases
from slimprompt.prompts.spec import FIXED_BASES
from slimprompt.report.table import Cell, Column, Table, make_table


def comparisons(results: Measurements, *, margin: float = 0.5) -> Table:
    """Paired tests of low rank against dense and of fixed against trained B, for difference and for equivalence.

    `margin` is the equivalence margin in points.
    """
    rows = []
    for title, metric, pairs in _families(results.frame):
        tested = compare_labels(results.frame, pairs, metric=metric, margin=margin)
        for one in tested.to_dict("records"):
            labels = (title, *(str(one[name]) for name in ("backbone", "shots", "first", "second")))
            rows.append((labels, _comparison_cells(one)))
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
    return make_table("comparisons", "Paired comparisons (not in the paper)", headers, columns, rows, notes)


def _families(frame: pd.DataFrame) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(title, metric, pairs of labels) of each family of tests."""
    families = []
    for title, metric in (("accuracy", "accuracy"), ("harmonic mean", "harmonic")):
        against: dict[tuple[str, str], None] = {}
        for backbone in axis(frame, "backbone", metric=metric):
            rank = headline_rank(frame, backbone, metric)
            against |= {(joint(rank), dense(length)): None for length in (full_length(frame, backbone), rank)}
        families.append((f"low rank − dense, {title}", metric, list(against)))
        ranks = axis(frame, "rank", variant=["joint", "fixed-B"], metric=metric)
        bases = (*FIXED_BASES, *own_bases(frame, metric=metric))
        fixed = [(fixed_b(basis, rank), joint(rank)) for rank in ranks for basis in bases]
        families.append((f"fixed − trained B, {title}", metric, fixed))
    return families


def _comparison_cells(test: Mapping[Any, Any]) -> list[Cell]:
    n = test["n"]
    return [
        Cell(str(n)),
        *(Cell(test[name], n=n, signed=True) for name in ("mean", "low", "high", "effect")),
        *(Cell(test[f"holm_{name}"], n=n, decimals=3) for name in ("t", "wilcoxon", "equivalence")),
        Cell(f"{test['wins']}/{test['ties']}/{test['losses']}"),
        Cell(_reading(test["holm_t"], test["holm_equivalence"])),
    ]


def _reading(different: float | None, equivalent: float | None) -> str:
    if different is None or equivalent is None:
        return "not testable"
    differs, same = different < 0.05, equivalent < 0.05
    if differs and same:
        return "different, but equivalent"
    return "different" if differs else "equivalent" if same else "undecided"


def summaries(results: Measurements) -> Table:
    """Averages over datasets computed in three ways: macro, pooled, and H of the averages."""
    rows = []
    for row in aggregates(results.frame).to_dict("records"):
        cells = (
            Cell(str(row["datasets"])),
            Cell(str(row["seeds"])),
            Cell(_float(row["macro_mean"]), _float(row["macro_sd"]), int(row["seeds"]), show_sd=True),
            Cell(str(row["pooled_n"])),
            Cell(_float(row["pooled_mean"]), _float(row["pooled_sd"]), int(row["pooled_n"]), show_sd=True),
            Cell(_float(row["harmonic_of_averages"])),
        )
        rows.append((tuple(str(row[name]) for name in ("backbone", "label", "shots", "metric")), cells))
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
    return make_table("summaries", title, ("Backbone", "Method", "Shots", "Metric"), columns, rows, notes)


def _float(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)
