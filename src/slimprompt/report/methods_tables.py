"""Tables that compare methods: accuracy by shots, base-to-new, other datasets by name only, the origin of the basis, and sites."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd

from slimprompt.analysis.frame import (
    AVERAGE,
    CROSS_DATASET,
    HOW,
    Measurements,
    axis,
    best_covered,
    complete_means,
    how,
    main_labels,
    select,
)
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.studies import BASIS_ROWS, DEPTH, SITE_ROWS, SITES, BasisRow
from slimprompt.methods.table import METHODS
from slimprompt.prompts.spec import FIXED_BASES
from slimprompt.report.table import Pivot, Table, averages, entries
from slimprompt.user_functions import is_user_function

_METRICS = {"seen": "Base", "unseen": "New", "harmonic": "H"}
_SPREAD = "Percent: mean ± standard deviation over seeds; an average is over the datasets within each seed first."
_COST = (
    "Trained numbers and training time (without encoding images), averaged over datasets and seeds, at {shots} shots. In a prompt "
    "batch the time is divided by the number of prompts."
)
_NO_NAMES = "A dash: there are no runs, or the method learned its classes from their images and takes no new names."
_STYLE: dict[str, Any] = {"along": HOW, "decimals": 1, "show_sd": True}


def methods_tables(
    results: Measurements, published: Callable[[], pd.DataFrame] | None = None
) -> dict[str, Callable[[], Table]]:
    """Name → function that makes it, for each table that compares methods; empty if there is nothing to compare.

    `published` gives published numbers of the same cells, in one column: the cells of the tables then have them beside the measured
    ones.
    """
    if not axis(results.frame, "label", variant=""):
        return {}

    def beside() -> pd.DataFrame | None:
        return published() if published else None

    makers = {
        "methods": lambda: methods_by_shots(results, beside()),
        "methods_base_to_new": lambda: methods_base_to_new(results, beside()),
        "cross_dataset": lambda: cross_dataset(results),
        "basis_transfer": lambda: basis_transfer(results),
        "sites": lambda: sites(results),
        "methods_by_dataset": lambda: methods_by_dataset(results, beside()),
        "methods_base_to_new_by_dataset": lambda: methods_base_to_new(results, beside(), by_dataset=True),
    }
    if not axis(results.frame, "label", metric="cross_dataset"):
        del makers["cross_dataset"]
    if not any(" B of depth " in label for label in axis(results.frame, "label")):
        del makers["basis_transfer"]
    return makers


def compared_labels(frame: pd.DataFrame, backbone: str, metric: str = "accuracy") -> list[str]:
    """The labels to compare on a backbone: methods in the order of their table, the user's own, and prompts.

    The paper's prompts are represented by those of the main comparison (`main_labels`), before those beyond the paper. There are none
    if the runs hold neither another method nor a prompt beyond the paper.
    """
    sources = [one for one in axis(frame, "source") if one] if metric in CROSS_DATASET else ""
    present = axis(frame, "label", backbone=backbone, metric=metric, variant="", source=sources)
    if not axis(frame, "label", metric=metric, variant="", source=sources):
        return []
    own = [name for name in present if is_user_function(name)]
    methods = [name for name in (*METHODS, *own) if name in present]
    main = [label for role, label in main_labels(frame, backbone, metric).items() if role != "dense short"]
    return [*methods, *main, *(name for name in present if name not in methods)]


def _compared(results: Measurements, metrics: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The cells that are compared in these metrics, of which the first decides what is, and their labels in order."""
    sources = [one for one in axis(results.frame, "source") if one] if metrics[0] in CROSS_DATASET else ""
    frame = select(results.frame, metric=list(metrics), source=sources)
    labels = {name: compared_labels(results.frame, name, metrics[0]) for name in axis(frame, "backbone")}
    parts = [select(frame, backbone=name, label=some) for name, some in labels.items()]
    order = dict.fromkeys(chain.from_iterable(labels.values()))
    others = [label for label in order if label not in METHODS]
    return pd.concat([frame.iloc[:0], *parts]), [*(name for name in METHODS if name in order), *others]


def _pivot(
    name: str, title: str, rows: Mapping[str, str], found: pd.DataFrame, labels: Sequence[str], *notes: str, **how: Any
) -> Table:
    titles = {"label": {label: label for label in labels}, **how.pop("titles", {})}
    return Pivot(name, title, rows, **how, titles=titles, notes=notes).of(found)


def _beside(
    found: pd.DataFrame, published: pd.DataFrame | None, datasets: Mapping[str, Sequence[str]] | None = None
) -> pd.DataFrame:
    """The entries with the published numbers: of the same cells, or averaged over the same datasets."""
    if published is None or found.empty:
        return found
    if datasets is not None:  # not the printed averages, which may be over other datasets
        published = averages(select(published, dataset=axis(published, "dataset")), datasets)
    values = published.iloc[:, 0].rename("published")
    return found.join(values, on=list(values.index.names))


def methods_by_shots(results: Measurements, published: pd.DataFrame | None = None) -> Table:
    """Accuracy of every method by shots, averaged over datasets, with what it costs at the highest number of shots."""
    frame, labels = _compared(results, ["accuracy"])
    datasets = {name: best_covered(frame, labels, backbone=name) for name in axis(frame, "backbone")}
    found = _beside(entries(frame, results.runs, datasets=datasets, **_STYLE), published, datasets)
    found["group"], found["column"] = "Accuracy by shots", found["shots"].map(str) if len(found) else ""
    shots = axis(frame, "shots")
    columns = {f"{k}": f"{k}" for k in shots} | {"parameters": "Trained numbers", "seconds": "Seconds"}
    priced = f"At {shots[-1]} shots" if shots else ""
    prices = [_costs(results, datasets, labels, shots[-1]).assign(group=priced)] if shots else []
    averaged = [f"{backbone}: average over {', '.join(names)}." for backbone, names in datasets.items()]
    return _pivot(
        "methods",
        "Methods by shots",
        {"Backbone": "{backbone}", "Method": "{label}"},
        pd.concat([found, *prices], ignore_index=True),
        labels,
        *(_SPREAD, *averaged, *([_COST.format(shots=shots[-1])] if shots else [])),
        column="{column}",
        group="{group}",
        complete=False,
        titles={"column": columns, "group": {"Accuracy by shots": "Accuracy by shots", priced: priced}},
    )


def _costs(
    results: Measurements, datasets: Mapping[str, Sequence[str]], labels: Sequence[str], shots: int
) -> pd.DataFrame:
    """Entries with the trained numbers and the seconds of each label, where all datasets have recorded both."""
    assert results.costs is not None
    rows = []
    for backbone, names in datasets.items():
        for label in labels:
            keys = [(backbone, name, label, shots) for name in names]
            known = results.costs.reindex(keys)
            if keys and known.notna().all(axis=None):
                means = known.mean()
                place = {"backbone": backbone, "label": label}
                rows.append({**place, "column": "parameters", "mean": means["parameters"], "decimals": 0})
                rows.append({**place, "column": "seconds", "mean": means["seconds"], "decimals": 2})
    return pd.DataFrame(rows, columns=["backbone", "label", "column", "mean", "decimals"])


def methods_by_dataset(results: Measurements, published: pd.DataFrame | None = None) -> Table:
    """Accuracy of every method by shots on each dataset."""
    frame, labels = _compared(results, ["accuracy"])
    return _pivot(
        "methods_by_dataset",
        "Methods by shots on each dataset",
        {"Backbone": "{backbone}", "Dataset": "{dataset}", "Method": "{label}"},
        _beside(entries(frame, results.runs, **_STYLE), published),
        labels,
        _SPREAD,
        column="{shots}",
        group="Accuracy by shots",
    )


def methods_base_to_new(
    results: Measurements, published: pd.DataFrame | None = None, *, by_dataset: bool = False
) -> Table:
    """Accuracy on base and new classes, and H, averaged over datasets or on each dataset."""
    frame, labels = _compared(results, list(_METRICS))
    seen = select(frame, metric="seen")
    covered = {name: best_covered(seen, labels, backbone=name) for name in axis(seen, "backbone")}
    datasets = None if by_dataset else covered
    found = _beside(entries(frame, results.runs, datasets=datasets, **_STYLE), published, datasets)
    table = _pivot(
        "methods_base_to_new" + ("_by_dataset" if by_dataset else ""),
        "Methods on base and new classes" + (" of each dataset" if by_dataset else ""),
        {"Backbone": "{backbone}", **({"Dataset": "{dataset}"} if by_dataset else {}), "Method": "{label}"},
        found,
        labels,
        "Trained on the base half of the classes, tested on each half.",
        _SPREAD,
        column="{metric}",
        group="{shots}-shot",
        titles={"metric": _METRICS},
    )
    dashes = any(cell.value is None for cell in table.cells)
    return table.with_notes(_NO_NAMES) if dashes else table


def cross_dataset(results: Measurements) -> Table:
    """Accuracy on the dataset that was trained on, on the others by the names of their classes, and their average."""
    frame, labels = _compared(results, ["cross_dataset", "source_accuracy"])
    others = select(frame, metric="cross_dataset")
    own = entries(select(frame, metric="source_accuracy"), results.runs, **_STYLE)
    parts = [own.assign(group="", column="Source")]
    each = entries(others, results.runs, **_STYLE)
    parts.append(each.assign(group="Other datasets", column=each["dataset"]))
    for source in axis(others, "source"):
        part = select(others, source=source)
        datasets = {name: axis(part, "dataset", backbone=name) for name in axis(part, "backbone")}
        found = entries(part, results.runs, datasets=datasets, **_STYLE)
        parts.append(found.assign(group="Other datasets", column=AVERAGE))
    names = ["Source", *axis(others, "dataset"), AVERAGE]
    return _pivot(
        "cross_dataset",
        "Other datasets by name only",
        {"Backbone": "{backbone}", "Trained on": "{source}", "Shots": "{shots}", "Method": "{label}"},
        pd.concat(parts, ignore_index=True),
        labels,
        "Trained on all classes of one dataset. The others are classified by the names of their classes only, without their images.",
        _SPREAD,
        column="{column}",
        group="{group}",
        complete=False,
        titles={"column": {name: name for name in names}, "group": {"": "", "Other datasets": "Other datasets"}},
    )


def basis_transfer(results: Measurements) -> Table:
    """Accuracy by the origin of B and the depth at which it is used; empty without a B that was learned at another depth.

    The accuracies are averaged over the sources of a basis from another dataset, then over the datasets.
    """
    accuracy = select(results.frame, metric="accuracy")
    found_ranks = {int(size) for label in axis(accuracy, "label") for size in re.findall(r" r(\d+)\b", label)}
    used: dict[str, list[str]] = {}
    parts = []
    for rank in sorted(found_ranks):
        cells = {_label(row, rank, depth): (row, depth) for row in BASIS_ROWS for depth in (1, DEPTH)}
        moved = [label for label, (row, depth) in cells.items() if row.moves(depth)]
        for backbone in axis(accuracy, "backbone", label=moved):
            here = {"backbone": backbone, "label": moved}
            datasets = used[backbone] = axis(accuracy, "dataset", **here)
            chosen = select(accuracy, backbone=backbone, label=list(cells), shots=axis(accuracy, "shots", **here))
            titles, depths = ({label: (row.title, depth)[i] for label, (row, depth) in cells.items()} for i in (0, 1))
            chosen = _with_levels(chosen, {"title": titles, "depth": depths})
            runs = None if results.runs is None else select(results.runs, label=list(cells))
            style = {**_STYLE, "along": (*HOW, "title")}
            over_sources = complete_means(chosen, [name for name in chosen.index.names if name != "source"])
            part = entries(over_sources, runs, datasets={backbone: datasets}, **style)
            parts.append(part.assign(size=rank))
    ranks = sorted({size for part in parts for size in part["size"]})
    about = (
        "Prompts P_l = B A_l of rank {rank}, l = 0 … depth − 1, with one B; A is always trained on the dataset itself."
    )
    averaged = [f"{backbone}: average over {', '.join(names)}." for backbone, names in used.items()]
    pivot = Pivot(
        "basis_transfer",
        "One basis across layers and datasets",
        {
            "Backbone": "{backbone}",
            **({"Rank": "{size}"} if len(ranks) > 1 else {}),
            "Shots": "{shots}",
            "Basis B": "{title}",
        },
        "depth {depth}",
        "Used at",
        {"title": {row.title: row.title for row in BASIS_ROWS}},
        (about.format(rank=" and ".join(map(str, ranks))), _SPREAD, *averaged),
    )
    return pivot.of(pd.concat([_nothing(results.frame), *parts], ignore_index=True))


def sites(results: Measurements) -> Table:
    """Accuracy and H of every variant in the text tower, the image tower and both, averaged over datasets; empty without the image tower."""
    metrics = {"accuracy": "All classes", "harmonic": "H of base and new classes"}
    frame = select(results.frame, metric=list(metrics))
    places = {
        _label_of(variant | site): (title, _label_of(variant | SITES["text"]))
        for variant in _variants(frame)
        for title, site in SITES.items()
    }
    parts = []
    for backbone in axis(frame, "backbone", label=[label for label, (title, _) in places.items() if title != "text"]):
        for metric in metrics:
            chosen = select(frame, backbone=backbone, metric=metric, label=list(places))
            site_of, title_of = ({label: place[i] for label, place in places.items()} for i in (0, 1))
            chosen = _with_levels(chosen, {"site": site_of, "title": title_of})
            datasets = {backbone: axis(chosen, "dataset")}
            parts.append(entries(chosen, results.runs, datasets=datasets, **{**_STYLE, "along": (*HOW, "title")}))
    titles = dict.fromkeys(title for _, title in places.values())
    pivot = Pivot(
        "sites",
        "One product in the text tower, the image tower, or both",
        {"Backbone": "{backbone}", "Shots": "{shots}", "Prompt": "{title}"},
        "{site}",
        "{metric}",
        {"site": {title: title for title in SITES}, "metric": metrics, "title": {title: title for title in titles}},
        (
            f"{SITE_ROWS} context tokens and {SITE_ROWS} rows of the image tower, in the last quarter of its blocks.",
            _SPREAD,
        ),
    )
    return pivot.of(pd.concat([_nothing(frame).assign(site=""), *parts], ignore_index=True))


def _variants(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The variants of the study `sites`, at the ranks that the labels have."""
    ranks = sorted({int(size) for label in axis(frame, "label") for size in re.findall(r" r(\d+)\b", label)})
    found: list[dict[str, Any]] = [{"variant": "dense"}]
    for rank in (rank for rank in ranks if rank <= SITE_ROWS):
        fixed = [{"variant": "fixed-B", "rank": rank, "basis": basis} for basis in FIXED_BASES if basis != "learned"]
        found += [{"variant": "joint", "rank": rank}, *fixed, {"variant": "fixed-A", "rank": rank}]
    return found


def _label_of(fields: Mapping[str, Any]) -> str:
    return how(RunSpec(backbone="any", **{"dataset": "any", "shots": 1, "seed": 1, **fields}))[0]


def _with_levels(frame: pd.DataFrame, levels: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The frame with further levels, each of which maps the label to a value."""
    labels = frame.index.get_level_values("label")
    for name, values in levels.items():
        frame = frame.set_index(pd.Index([values[label] for label in labels], name=name), append=True)
    return frame


def _label(row: BasisRow, rank: int, depth: int) -> str:
    source = {"source": "source"} if row.fields.get("basis") == "source" else {}
    return _label_of({"rank": rank, "depth": depth, **row.fields, **source})


def _nothing(frame: pd.DataFrame) -> pd.DataFrame:
    """No entries, with the fields that they have."""
    return entries(frame.iloc[:0]).assign(title="", depth=0, size=0)
