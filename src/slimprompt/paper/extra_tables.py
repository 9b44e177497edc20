"""Tables beyond the paper's: paired tests of what it compares by eye, and the averages made in different orders."""

from __future__ import annotations

import math
from typing import Any

from slimprompt.analysis.observations import (
    Arm,
    Results,
    aggregates,
    arm_label,
    compare_arms,
    dense,
    fixed_basis,
    joint,
)
from slimprompt.paper.tables import FIXED_COLUMNS, full_length, headline_rank
from slimprompt.report.table import Cell, Column, Row, Table


def comparisons(results: Results, *, margin: float = 0.5) -> Table:
    """Paired tests of what the paper compares by eye: low rank against dense, fixed against trained B; with equivalence."""
    rows: list[Row] = []
    for title, metric, pairs in _families(results):
        tested = compare_arms(results, pairs, metric=metric, margin=margin)
        for index, one in enumerate(tested):
            test = one.result
            labels = (title, one.backbone, str(one.shots), arm_label(one.first), arm_label(one.second))
            numbers = [Cell(value, n=test.n, signed=True) for value in (test.mean, test.low, test.high)]
            effect = Cell(test.effect, n=test.n, signed=True)
            tests = [Cell(p, n=test.n, decimals=3) for p in (one.holm_t, one.holm_wilcoxon, one.holm_equivalence)]
            counts = Cell(f"{test.wins}/{test.ties}/{test.losses}")
            verdict = Cell(_reading(one.holm_t, one.holm_equivalence))
            rows.append(Row(labels, (Cell(str(test.n)), *numbers, effect, *tests, counts, verdict), rule=index == 0))
    titles = ("n", "Difference", "95 % low", "95 % high", "d_z", "t", "Wilcoxon", "Equivalence", "+/=/−", "Reading")
    groups = ("", "Points", "Points", "Points", "", "Holm-corrected p", "Holm-corrected p", "Holm-corrected p", "", "")
    columns = tuple(Column(label, group) for label, group in zip(titles, groups, strict=True))
    notes = (
        "One difference per dataset (its seeds averaged), so n counts datasets. Holm's correction is within each family.",
        f"Equivalence: two one-sided t-tests of a difference beyond ±{margin} points; a small p means equivalent.",
    )
    headers = ("Family", "Backbone", "Shots", "First", "Second")
    return Table("comparisons", "Paired comparisons (beyond the paper)", headers, columns, tuple(rows), notes)


def _families(results: Results) -> list[tuple[str, str, list[tuple[Arm, Arm]]]]:
    full = dense(full_length(results))
    families = []
    for title, metric in (("accuracy", "accuracy"), ("harmonic mean", "harmonic")):
        rank = headline_rank(results, metric)
        against = [(joint(rank), full), (joint(rank), dense(rank))] if full != dense(rank) else [(joint(rank), full)]
        families.append((f"low rank − dense, {title}", metric, against))
        bases = [basis for basis in FIXED_COLUMNS.values() if basis != "trainable"]
        ranks = results.axis("rank", method="factorized", metric=metric)
        fixed = [(fixed_basis(basis, r), joint(r)) for r in ranks for basis in bases]
        families.append((f"fixed − trained B, {title}", metric, fixed))
    return families


def _reading(different: float | None, equivalent: float | None) -> str:
    if different is None or equivalent is None:
        return "not testable"
    apart, same = different < 0.05, equivalent < 0.05
    if apart and same:
        return "different, but equivalent"
    return "different" if apart else "equivalent" if same else "undecided"


def summaries(results: Results) -> Table:
    """Macro, pooled and H-of-averages side by side, each labelled."""
    frame = aggregates(results)
    rows = []
    for row in frame.to_dict("records") if not frame.empty else []:
        labels = (str(row["backbone"]), str(row["arm"]), str(row["shots"]), str(row["metric"]))
        macro = Cell(_float(row["macro_mean"]), _float(row["macro_sd"]), int(row["seeds"]), show_sd=True)
        pooled = Cell(_float(row["pooled_mean"]), _float(row["pooled_sd"]), int(row["pooled_n"]), show_sd=True)
        averages = Cell(_float(row["harmonic_of_averages"]))
        counts = (Cell(str(row["datasets"])), Cell(str(row["seeds"])), Cell(str(row["pooled_n"])))
        rows.append(Row(labels, (counts[0], counts[1], macro, counts[2], pooled, averages)))
    columns = (
        Column("Datasets"),
        Column("Seeds", "Macro"),
        Column("Mean ± sd", "Macro"),
        Column("n", "Pooled"),
        Column("Mean ± sd", "Pooled"),
        Column("H of averages"),
    )
    notes = (
        "Macro: datasets averaged within each seed, then mean and sd over the seeds that have them all.",
        "Pooled: mean and sd over all dataset × seed values; its sd is mostly between datasets.",
        "H of averages: 2SU/(S+U) of the averaged S and U, instead of the average of each run's H.",
    )
    headers = ("Backbone", "Arm", "Shots", "Metric")
    return Table(
        "summaries", "Averages over datasets, three ways (beyond the paper)", headers, columns, tuple(rows), notes
    )


def _float(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
