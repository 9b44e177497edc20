"""The summary of the report: the main comparison, the paper's two questions, key figures and limitations of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from slimprompt.analysis.frame import (
    BACKBONE_TITLES,
    HOW,
    Measurements,
    average,
    axis,
    backbone_title,
    best_covered,
    dataset_title,
    dense,
    differences,
    fixed_b,
    full_length,
    headline_rank,
    joint,
    main_labels,
    mixed_settings,
    reference,
    select,
)
from slimprompt.analysis.statistics import compare
from slimprompt.analysis.verdict import VERDICTS
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.studies import PAPER
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.progress import duration
from slimprompt.report.html import signed
from slimprompt.report.table import Cell, Column, Pivot, Table, entries, make_table

_METRICS = {"accuracy": "accuracy", "seen": "base classes", "unseen": "new classes", "harmonic": "H"}
#: Role of a label (see `main_labels`), or reference level → column title.
_COLUMNS = {
    "chance": "Chance",
    "zero_shot": "Zero-shot",
    "dense": "Dense",
    "dense short": "Short dense",
    "trainable": "Joint",
    "orthogonal": "Fixed B",
}
_SUMMARY = Pivot(
    "summary",
    "Summary",
    {"Backbone": "{backbone}", "Metric": "{metric}", "Shots": "{shots}", "Datasets": "{datasets}"},
    "{role}",
    titles={"metric": _METRICS, "role": _COLUMNS},
    notes=(
        "Percent: mean ± standard deviation over seeds, averaged over the datasets within each seed first. "
        "The best prompt over the seeds that all of them have is bold, regardless of the spread.",
        "Base and new classes: trained on the base half of the classes, tested on each half. "
        "H is their harmonic mean, per run.",
        "Click a number to see the runs behind it.",
    ),
    complete=False,
)


def summary_table(results: Measurements) -> Table:
    """Chance, zero-shot and the main comparison, for each backbone, metric and number of shots."""
    frame = results.frame
    found: list[pd.DataFrame] = []
    remarks: dict[str, list[str]] = {}
    for backbone in axis(frame, "backbone"):
        for metric in _METRICS:
            roles = {label: role for role, label in main_labels(frame, backbone, metric).items()}
            here = select(frame, backbone=backbone, metric=metric, label=list(roles), source="")
            datasets = best_covered(here, list(roles))
            if not datasets:
                continue
            for label, role in roles.items():
                remarks.setdefault(_COLUMNS[role], []).append(label)
            numbers = entries(here, results.runs, datasets={backbone: datasets}, along=HOW, decimals=1, show_sd=True)
            levels = [
                {"backbone": backbone, "metric": metric, "shots": k, "role": role, "mean": level, "n": 0, "decimals": 1}
                for k in axis(average(here, datasets), "shots")
                for role in ("chance", "zero_shot")
                if (level := reference(frame, role, backbone, datasets, k, metric)) is not None
            ]
            numbers = pd.concat([numbers.assign(role=numbers["label"].map(roles)), pd.DataFrame(levels)])
            found.append(numbers.assign(datasets=len(datasets)))
    columns = ["backbone", "metric", "shots", "datasets", "role"]
    shown = {title: ", ".join(dict.fromkeys(labels)) for title, labels in remarks.items()}
    return _SUMMARY.of(pd.concat(found) if found else pd.DataFrame(columns=columns), shown)


def questions_table(frame: pd.DataFrame) -> Table:
    """The paper's two questions as paired differences, at the highest shot count of each backbone."""
    rows = []
    for metric in ("accuracy", "harmonic"):
        for backbone in axis(frame, "backbone", metric=metric):
            rank, shots = (
                headline_rank(frame, backbone, metric),
                axis(frame, "shots", backbone=backbone, metric=metric)[-1],
            )
            low = joint(rank)
            questions = {
                "Is low rank enough?": (low, dense(full_length(frame, backbone))),
                "Must B be trained?": (fixed_b("orthogonal", rank), low),
            }
            for question, pair in questions.items():
                found = differences(frame, *pair, backbone=backbone, shots=shots, metric=metric)
                if found:
                    test = compare(list(found.values()))
                    interval = (
                        "—"
                        if test.low is None or test.high is None
                        else f"{signed(test.low, 2)} to {signed(test.high, 2)}"
                    )
                    labels = (question, " − ".join(pair), backbone, _METRICS[metric], f"{shots}")
                    rows.append((labels, [Cell(test.mean, n=test.n, signed=True), Cell(interval), Cell(f"{test.n}")]))
    columns = [Column("Difference (points)"), Column("95 % interval"), Column("Datasets")]
    note = (
        "Paired by seed within each dataset; the confidence interval is over datasets, so one dataset has none. "
        "An interval that contains zero is compatible with no difference. "
        "“Paired comparisons” below lists all shots and ranks, with tests of difference and of equivalence."
    )
    headers = ("Question", "Compared", "Backbone", "Metric", "Shots")
    return make_table(
        "questions", "The two questions, at the highest shot count", headers, columns, sorted(rows), [note]
    )


def without_constants(table: Table) -> Table:
    """Move label columns with one value into a note, so that the table fits a small screen."""
    levels = {name: table.frame.index.get_level_values(name) for name in table.headers}
    constant = {name: values[0] for name, values in levels.items() if values.nunique() == 1}
    if not constant or len(table.frame) < 2 or len(constant) == len(levels):
        return table
    note = f"In every row: {', '.join(f'{name.lower()} = {value}' for name, value in constant.items())}."
    kept = [name for name in table.headers if name not in constant]
    index = pd.MultiIndex.from_arrays([levels[name] for name in kept], names=kept)
    return replace(table, frame=table.frame.set_axis(index), notes=(note, *table.notes))


# --- about the runs ----------------------------------------------------------------------------------------------------


def uses_pocket(record: Record) -> bool:
    """Whether the run used an embedded model or a rendered benchmark."""
    return record.spec.backbone.split("-")[0] == "pocket" or record.spec.dataset in POCKET_BENCHMARKS


def key_figures(records: Sequence[Record], n_failed: int, verdicts: Mapping[str, int]) -> list[tuple[str, str]]:
    """(label, value) of the tiles at the top of the page; `verdicts` are the numbers of findings by verdict."""
    specs = [record.spec for record in records]
    seconds = sum(record.facts.get("times", {}).get("total", 0.0) for record in records)
    counts = (verdicts.get(verdict, 0) for verdict in VERDICTS)
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


def limitations(records: Sequence[Record], n_failed: int) -> list[str]:
    """What these runs do not cover of the paper's study, and what makes their numbers hard to compare: one sentence each."""
    specs = [record.spec for record in records]
    found = [text for text in map(_not_covered, *zip(*_coverage(specs), strict=True)) if text]
    if any(map(uses_pocket, records)):
        found.append(
            "Some runs are of the pocket world, a small CLIP and rendered images: their numbers say nothing about CLIP on photographs."
        )
    if len({spec.seed for spec in specs}) == 1:
        found.append("All runs have one seed: the spread over few-shot samples is not known.")
    if n_failed:
        several = "1 run failed and is" if n_failed == 1 else f"{n_failed:,} runs failed and are"
        found.append(f"{several} not included in any number; “Environment and provenance” lists the errors.")
    return [*found, *mixed_settings(records)]


def _coverage(specs: Sequence[RunSpec]) -> list[tuple[str, list[str], list[str]]]:
    """(axis, the values of the paper's study, the values of these runs)."""
    return [
        ("datasets", [dataset_title(name) for name in PAPER.datasets], [dataset_title(spec.dataset) for spec in specs]),
        ("backbones", [BACKBONE_TITLES[name] for name in PAPER.backbones], [backbone_title(spec) for spec in specs]),
        ("numbers of shots", [str(k) for k in PAPER.shots], [str(spec.shots) for spec in specs]),
        ("seeds", [str(seed) for seed in PAPER.seeds], [str(spec.seed) for spec in specs]),
    ]


def _not_covered(axis: str, paper: Sequence[str], present: Sequence[str]) -> str:
    missing = [value for value in paper if value not in present]
    if not missing:
        return ""
    return f"Of the {len(paper)} {axis} of the paper's study, these runs cover {len(paper) - len(missing)}; not run: {', '.join(missing)}."
