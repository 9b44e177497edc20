"""The summary of a report: the main comparison, key figures, and what the runs do not cover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
    main_labels,
    reference,
    select,
)
from slimprompt.analysis.verdict import VERDICTS, Verdict
from slimprompt.lab.grid import Grid, parse_backbone
from slimprompt.lab.records import Record
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.progress import duration
from slimprompt.report.table import Pivot, Table, entries

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


def key_figures(records: Sequence[Record], n_failed: int, verdicts: Mapping[Verdict, int]) -> list[tuple[str, str]]:
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


def limitations(records: Sequence[Record], n_failed: int, grid: Grid) -> list[str]:
    """What these runs do not cover of a paper's grid, one sentence each."""
    specs = [record.spec for record in records]
    axes: dict[str, tuple[Iterable[Any], Sequence[Any]]] = {
        "datasets": (map(dataset_title, grid.datasets), [dataset_title(spec.dataset) for spec in specs]),
        "backbones": (map(_backbone_name, grid.backbones), [backbone_title(spec) for spec in specs]),
        "numbers of shots": (grid.shots, [spec.shots for spec in specs]),
        "seeds": (grid.seeds, [spec.seed for spec in specs]),
    }
    found = [text for name, (planned, present) in axes.items() if (text := _not_covered(name, [*planned], present))]
    if any(map(uses_pocket, records)):
        found.append(
            "Some runs are of the pocket world, a small CLIP and rendered images: their numbers say nothing about CLIP on photographs."
        )
    if len({spec.seed for spec in specs}) == 1:
        found.append("All runs have one seed: the spread over few-shot samples is not known.")
    if n_failed:
        several = "1 run failed and is" if n_failed == 1 else f"{n_failed:,} runs failed and are"
        found.append(f"{several} not included in any number; “Environment and provenance” lists the errors.")
    return found


def _backbone_name(text: str) -> str:
    name, weights = parse_backbone(text)
    return BACKBONE_TITLES.get(name, name) if weights in (None, "openai") else f"{name} ({weights})"


def _not_covered(axis: str, planned: Sequence[Any], present: Sequence[Any]) -> str:
    missing = [f"{value}" for value in planned if value not in present]
    covered = f"{len(planned) - len(missing)} of the {len(planned)} {axis} of the paper's study"
    return f"These runs cover {covered}; not run: {', '.join(missing)}." if missing else ""
