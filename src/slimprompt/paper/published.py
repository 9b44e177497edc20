"""The numbers printed in the paper's 19 tables, with the index of the frame of runs, and those of other methods.

Columns of published.csv: table, backbone, dataset, variant, basis, rank, shots, metric, source, mean, sd and bold
(1 if the table marks the number as best, 0 if not, empty if the table marks no numbers).

published_baselines.csv has accuracies of other methods from logs and papers of their authors, one row per `PublishedBaseline`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import pandas as pd

from slimprompt.analysis.frame import (
    AVERAGE,
    BEST_DENSE,
    CELL,
    Measurements,
    axis,
    backbone_title,
    cells,
    costs_of,
    dataset_title,
    dense,
    select,
)
from slimprompt.lab.spec import RunSpec
from slimprompt.prompts.spec import count_parameters

#: Context tokens, text width and seeds of the paper.
N_CTX, WIDTH, SEEDS = 16, 512, 3

#: Metrics that were measured; the other metrics in the file are differences between them.
MEASURED = ("accuracy", "seen", "unseen", "harmonic")

#: `PublishedBaseline.protocol` of zero-shot accuracies that need one template per class.
OWN_TEMPLATE = "the benchmark's own template"


class PublishedBaseline(NamedTuple):
    """Accuracy of another method, as it was published."""

    method: str
    """Name of the method: "zero-shot", "tip-adapter", "tip-adapter-f", "clip-adapter" or "gda"."""
    dataset: str
    """Name of the benchmark."""
    backbone: str
    """Architecture; the weights are OpenAI's."""
    class_subset: str
    """all, base or new: accuracy on these classes, among these classes."""
    shots: int
    """Training images per class; 0 for zero-shot."""
    accuracy: float
    """In percent."""
    source: str
    """Where it was published."""
    protocol: str
    """What differs from a protocol that chooses nothing on validation or test images."""


@cache
def published_baselines() -> tuple[PublishedBaseline, ...]:
    """The rows of published_baselines.csv."""
    text = files("slimprompt.paper").joinpath("published_baselines.csv").read_text(encoding="utf-8")
    rows = []
    for row in csv.DictReader(text.splitlines()):
        shots, accuracy = int(row.pop("shots")), float(row.pop("accuracy"))
        rows.append(PublishedBaseline(shots=shots, accuracy=accuracy, **row))
    return tuple(rows)


@cache
def printed() -> pd.DataFrame:
    """All 2,552 numbers of the paper's tables: (table, `CELL`) → mean, sd (NaN if the paper prints none) and bold.

    The labels are those of the runs that the number belongs to, also for differences and best results (their metrics are
    `delta_…` and `best_accuracy`); the source is that of the row, even if the number does not depend on it. In factor_geometry the
    variant is the axis, and the basis the factor.
    """
    with files("slimprompt.paper").joinpath("published.csv").open(encoding="utf-8") as file:
        frame = pd.read_csv(
            file, keep_default_na=False, na_values={"sd": [""], "bold": [""], "rank": [""], "shots": [""]}
        )
    frame = frame.fillna({"rank": 0, "shots": 0}).astype({"rank": int, "shots": int})
    frame["label"] = [_label(*row) for row in zip(frame["variant"], frame["basis"], frame["rank"], strict=True)]
    return frame.set_index(["table", *CELL])[["mean", "sd", "bold"]]


def _label(variant: str, basis: str, rank: int) -> str:
    if basis == "best":
        return BEST_DENSE
    return " ".join(filter(None, (variant, basis, f"{'m' if variant == 'dense' else 'r'}{rank}" if rank else "")))


@cache
def published() -> pd.DataFrame:
    """The measured cells of all tables: `CELL` → mean, sd (NaN if not printed) and n.

    `published()[["mean"]]` is a frame like that of runs, with one column instead of the seeds. Printed averages have the dataset
    "Average" (`slimprompt.analysis.frame.AVERAGE`), for the averages over cells that are not published. A cell that several tables
    print is read from one that prints its sd. Dense accuracies per dataset on ViT-B/16 are printed only as differences:
    dense = best low-rank − (best − dense).
    """
    frame = printed().reset_index()
    frame = pd.concat([frame[frame["metric"].isin(MEASURED)], _implied(frame[frame["table"] == "best_delta"])])
    over_pairs = (frame["table"] == "transfer_pairs") & (frame["dataset"] == AVERAGE)
    frame = frame[~over_pairs]
    frame.loc[frame["basis"] != "source", "source"] = ""
    frame = frame.iloc[frame["sd"].isna().argsort(kind="stable")].drop_duplicates(list(CELL))
    return frame.assign(n=SEEDS).set_index(list(CELL))[["mean", "sd", "n"]].sort_index()


def _implied(best_delta: pd.DataFrame) -> pd.DataFrame:
    """The dense accuracies that follow from the best low-rank ones and their differences to dense."""
    best = best_delta[best_delta["metric"] == "best_accuracy"].set_index(["dataset", "shots"])["mean"]
    parts = []
    for length in (4, 16):
        rows = best_delta[best_delta["metric"] == f"delta_best_ctx{length}"].set_index(["dataset", "shots"])
        rows = rows.assign(mean=(best - rows["mean"]).round(2), metric="accuracy", sd=float("nan"), table="")
        parts.append(rows.reset_index().assign(label=dense(length), variant="dense", basis="", rank=length))
    return pd.concat(parts)


def with_printed(
    found: pd.DataFrame, table: str, datasets: Mapping[str, Sequence[str]] | None = None, on: Sequence[str] = CELL
) -> pd.DataFrame:
    """Entries of a table with the printed number and sd of those that the paper has.

    `datasets` are those that the entries average: only an average over the paper's datasets is compared. `on` are the fields that
    identify a number in the table.
    """
    if found.empty:
        return found
    rows = printed().loc[table].reset_index().drop_duplicates(list(on)).set_index(list(on))[["mean", "sd"]]
    joined = found.join(rows.set_axis(["published", "published_sd"], axis=1), on=list(on))
    if datasets is not None:
        paper = axis(published(), "dataset")
        others = [name for name, names in datasets.items() if list(names) != paper]
        joined.loc[joined["backbone"].isin(others), ["published", "published_sd"]] = float("nan")
    return joined


@cache
def published_observations() -> pd.DataFrame:
    """The measured cells in the form of `slimprompt.analysis.frame.observations`, with the seed 0 and no runs."""
    frame = published()["mean"].rename("value").reset_index()
    frame["n_ctx"] = frame["rank"].where(frame["variant"].eq("dense"), N_CTX)
    frame["parameters"] = [
        count_parameters(row.variant, n_ctx=row.n_ctx, width=WIDTH, rank=row.rank) if row.rank else math.nan
        for row in frame.itertuples()
    ]
    return frame.assign(seed=0, run="", seconds=math.nan)


@cache
def published_measurements() -> Measurements:
    """The measured cells as those of runs, with one column instead of seeds."""
    observed = published_observations()
    return Measurements(cells(observed), costs=costs_of(observed))


@cache
def published_geometry() -> pd.DataFrame:
    """Median overlap and angle per axis and factor, with the columns of `Geometry.medians`: axis, factor, overlap, angle."""
    rows = printed().loc["factor_geometry"].reset_index().rename(columns={"variant": "axis", "basis": "factor"})
    table = rows.pivot(index=["axis", "factor"], columns="metric", values="mean").reset_index()
    return table[["axis", "factor", "overlap", "angle"]]


def geometry_mismatch(specs: Sequence[RunSpec]) -> str:
    """Why the published medians of the factor geometry do not apply to these runs; empty if they do.

    They apply to every combination of the paper's backbones, datasets, shots and ranks, on all classes and with its
    number of context tokens. The mix of shots and ranks decides the medians, so a part of it is not enough. Seeds are
    exchangeable: any seeds will do, if each has all combinations.
    """
    trained = select(published(), variant="joint", metric="accuracy")
    paper = {name: set(axis(trained, name)) for name in ("backbone", "dataset", "shots", "rank")}
    paper |= {"n_ctx": {N_CTX}, "class_subset": {"all"}}
    fields = [_geometry_fields(spec) for spec in specs]
    differing = [name for name in paper if {one[name] for one in fields} != paper[name]]
    per_seed = math.prod(map(len, paper.values()))
    if not differing and len(specs) == per_seed * len({spec.seed for spec in specs}):
        return ""
    reason = f"these runs differ in {', '.join(differing)}" if differing else "these runs are not all combinations"
    return (
        "The published medians are not shown: they are over RN50 and ViT-B/16 with OpenAI's weights, seven datasets, "
        f"1, 4 and 16 shots, ranks 1, 2, 4 and 8, {N_CTX} context tokens and all classes; {reason}."
    )


def _geometry_fields(spec: RunSpec) -> dict[str, object]:
    """The fields of a run that decide whether its geometry is comparable, in the terms of the tables."""
    titles = {"backbone": backbone_title(spec), "dataset": dataset_title(spec.dataset)}
    return titles | {"shots": spec.shots, "rank": spec.rank, "n_ctx": spec.n_ctx, "class_subset": spec.class_subset}


def published_pairs(table: str = "transfer_pairs") -> list[tuple[str, str]]:
    """(target, source) of the transfers in a table, in its order: 12 in the main table, 16 in `transfer_four_modes`."""
    rows = printed().loc[table].reset_index()
    rows = rows[(rows["variant"] == "fixed-B") & (rows["basis"] == "source") & (rows["dataset"] != AVERAGE)]
    return list(zip(rows["dataset"], rows["source"], strict=True))
