"""The summary of the report: the main comparison, the paper's two questions, and key figures about the runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from slimprompt.analysis.arms import arm_label, backbone_title, dataset_title, dense, fixed_basis, joint
from slimprompt.analysis.comparisons import compare_arms
from slimprompt.analysis.results import Estimate, Results, on_common_seeds
from slimprompt.analysis.selection import (
    best_covered,
    chance_levels,
    full_length,
    headline_rank,
    main_arms,
    mean_if_complete,
    zero_shot,
)
from slimprompt.analysis.verdict import VERDICTS
from slimprompt.lab.records import Record
from slimprompt.progress import duration
from slimprompt.report.table import Cell, Column, Row, Table

#: Role of an arm (see `main_arms`) → column title.
_COLUMNS = {"dense": "Dense", "dense short": "Short dense", "trainable": "Joint", "orthogonal": "Fixed B"}
_METRICS = {"accuracy": "accuracy", "seen": "base classes", "unseen": "new classes", "harmonic": "H"}


def summary_table(results: Results, records: Sequence[Record]) -> Table:
    """Chance, zero-shot and the main arms, for each backbone, metric and number of shots.

    Parameters
    ----------
    results
        The cells of the runs.
    records
        The runs, for their chance levels.
    """
    levels = chance_levels(records)
    rows: list[Row] = []
    labels: dict[str, str] = {}
    for backbone in results.axis("backbone"):
        for metric, name in _METRICS.items():
            arms = main_arms(results, metric)
            labels |= {role: arm_label(arm) for role, arm in arms.items()}
            shots = results.axis("shots", backbone=backbone, metric=metric)
            datasets = best_covered(results, backbone, [(arm, k) for arm in arms.values() for k in shots], metric)
            chance = mean_if_complete([levels.get((dataset, metric)) for dataset in datasets])
            for index, k in enumerate(shots):
                means = {role: results.macro(backbone, datasets, arm, k, metric) for role, arm in arms.items()}
                if any(means.values()):
                    references = (chance, zero_shot(results, backbone, datasets, k, metric))
                    cells = (
                        *(Cell(level, decimals=1) for level in references),
                        *_arm_cells([means.get(role) for role in _COLUMNS]),
                    )
                    rows.append(Row((backbone, name, f"{k}", f"{len(datasets)}"), cells, rule=index == 0))
    columns = (
        Column("Chance"),
        Column("Zero-shot"),
        *(Column(title, remark=labels.get(role, "")) for role, title in _COLUMNS.items()),
    )
    notes = (
        "Percent: mean ± standard deviation over seeds, averaged over the datasets within each seed first. "
        "The best arm over the seeds that all arms have is bold, regardless of the spread.",
        "Base and new classes: trained on the base half of the classes, tested on each half. "
        "H is their harmonic mean, per run.",
        "Click a number to see the runs behind it.",
    )
    headers = ("Backbone", "Metric", "Shots", "Datasets")
    return _without_empty_columns(Table("summary", "Summary", headers, columns, tuple(rows), notes))


def _arm_cells(estimates: Sequence[Estimate | None]) -> list[Cell]:
    """Mean and sd of each arm; the best arm over the seeds that all arms have is bold, even if it is the only one."""
    known = {index: one for index, one in enumerate(estimates) if one}
    shared = dict(zip(known, on_common_seeds(list(known.values())), strict=False))
    best = max((one.mean for one in shared.values()), default=math.nan)
    bold = {index for index, one in shared.items() if one.mean == best}
    return [
        Cell(one.mean, one.sd, one.n, one.runs, decimals=1, show_sd=True, bold=index in bold) if one else Cell()
        for index, one in enumerate(estimates)
    ]


def _without_empty_columns(table: Table) -> Table:
    used = [
        index for index, _ in enumerate(table.columns) if any(row.cells[index].value is not None for row in table.rows)
    ]
    rows = tuple(replace(row, cells=tuple(row.cells[index] for index in used)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[index] for index in used), rows=rows)


def without_constants(table: Table) -> Table:
    """Move label columns with one value into a note, so that the table fits a small screen."""
    constant = [index for index, _ in enumerate(table.headers) if len({row.labels[index] for row in table.rows}) == 1]
    if not constant or len(table.rows) < 2:
        return table
    kept = [index for index, _ in enumerate(table.headers) if index not in constant]
    values = ", ".join(f"{table.headers[index].lower()} {table.rows[0].labels[index]}" for index in constant)
    rows = tuple(replace(row, labels=tuple(row.labels[index] for index in kept)) for row in table.rows)
    headers = tuple(table.headers[index] for index in kept)
    return replace(table, headers=headers, rows=rows, notes=(f"In every row: {values}.", *table.notes))


def questions_table(results: Results) -> Table:
    """The paper's two questions as paired differences, at the highest shot count of each backbone."""
    rows = []
    for metric in ("accuracy", "harmonic"):
        rank = headline_rank(results, metric)
        questions = {
            "Is low rank enough?": (joint(rank), dense(full_length(results))),
            "Must B be trained?": (fixed_basis("orthogonal", rank), joint(rank)),
        }
        for question, pair in questions.items():
            arms = " − ".join(arm_label(arm) for arm in pair)
            for backbone in results.axis("backbone", metric=metric):
                highest = results.axis("shots", backbone=backbone, metric=metric)[-1:]
                for one in compare_arms(results, [pair], metric=metric, backbones=[backbone], shots=highest):
                    test = one.result
                    numbers = (Cell(value, n=test.n, signed=True) for value in (test.mean, test.low, test.high))
                    labels = (question, arms, backbone, _METRICS[metric], f"{one.shots}")
                    rows.append(Row(labels, (*numbers, Cell(f"{test.n}"))))
    columns = (*(Column(label, "Points") for label in ("Difference", "95 % low", "95 % high")), Column("Datasets"))
    headers = ("Question", "Compared", "Backbone", "Metric", "Shots")
    notes = (
        "Paired by seed within each dataset; the confidence interval is over datasets, so one dataset has none. "
        "An interval that contains zero is compatible with no difference. "
        "“Paired comparisons” below lists all shots and ranks, with tests of difference and of equivalence.",
    )
    ordered = tuple(sorted(rows, key=lambda row: row.labels))
    return Table("questions", "The two questions, at the highest shot count", headers, columns, ordered, notes)


def key_figures(records: Sequence[Record], n_failed: int, verdicts: Counter[str]) -> list[tuple[str, str]]:
    """(label, value) of the tiles at the top of the page.

    Parameters
    ----------
    records
        The complete runs.
    n_failed
        Number of failed runs.
    verdicts
        Verdict of a claim → number of findings.
    """
    specs = [record.spec for record in records]
    seconds = sum(record.facts.get("times", {}).get("total", 0.0) for record in records)
    counts = (verdicts[verdict] for verdict in VERDICTS)
    figures = [
        (f"complete runs{f', {n_failed} failed' if n_failed else ''}", f"{len(specs):,}"),
        _name_or_count("backbone", {backbone_title(spec) for spec in specs}),
        _name_or_count("dataset", {dataset_title(spec.dataset) for spec in specs}),
        ("shots", ", ".join(str(k) for k in sorted({spec.shots for spec in specs}))),
        ("seeds", ", ".join(str(seed) for seed in sorted({spec.seed for spec in specs}))),
        ("claims: " + " · ".join(shown.plural for shown in VERDICTS.values()), " · ".join(map(str, counts))),
    ]
    return figures + ([("total run time", duration(seconds))] if seconds else [])


#: Names that a tile lists before "and … more".
_MOST_NAMES = 8


def _name_or_count(noun: str, names: set[str]) -> tuple[str, str]:
    ordered = sorted(names)
    if len(ordered) == 1:
        return noun, ordered[0]
    more = [f"and {len(ordered) - _MOST_NAMES} more"] if len(ordered) > _MOST_NAMES else []
    return f"{noun}s: {', '.join([*ordered[:_MOST_NAMES], *more])}", str(len(ordered))
