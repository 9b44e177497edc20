"""The numbers printed in the paper's 19 tables, in the same form as the results of runs, and those of other methods.

Columns of published.csv: table, backbone, dataset, variant, basis, rank, shots, metric, source, mean, sd and bold
(1 if the table marks the number as best, 0 if not, empty if the table marks no numbers).

published_baselines.csv has accuracies of other methods from logs and papers of their authors, one row per `PublishedBaseline`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd

from slimprompt.analysis.arms import (
    TRANSFER_MODES,
    Arm,
    backbone_title,
    dataset_title,
    dense,
    fixed_basis,
    joint,
    transfer,
)
from slimprompt.analysis import frame as _frame
from slimprompt.analysis.frame import AVERAGE, BEST_DENSE, CELL, Measurements, axis, cells, costs_of
from slimprompt.analysis.geometry import AXES
from slimprompt.analysis.results import CellKey, Estimate, Results
from slimprompt.lab.spec import RunSpec
from slimprompt.prompts.spec import FIXED_BASES, count_parameters

#: Context tokens, text width and seeds of the paper.
N_CTX, WIDTH, SEEDS = 16, 512, 3

#: Metrics that were measured; the other metrics in the file are differences between them.
MEASURED = ("accuracy", "seen", "unseen", "harmonic")

#: Tables of best results → key fields that are part of their results and not of their keys, with the values that stand for any.
_CHOSEN: dict[str, dict[str, Any]] = {
    "best_delta": {"backbone": "", "rank": 0},
    "transfer_best_delta": {"method": "", "basis": ""},
}


#: Axis of the factor geometry → its name in the file.
AXIS_NAMES = dict(zip(AXES, ("seeds", "datasets", "shots", "ranks"), strict=True))


class PrintedKey(NamedTuple):
    """Identifies a printed number."""

    table: str
    cell: CellKey
    """Its source is that of the row, even if the number does not depend on it."""


class Printed(NamedTuple):
    """A printed number."""

    mean: float
    sd: float | None
    bold: bool | None
    """Whether it is marked as best; None if the table marks no numbers."""


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
        parts.append(rows.reset_index().assign(label=_frame.dense(length), variant="dense", basis="", rank=length))
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
def published_numbers() -> pd.DataFrame:
    """The file in the words of `slimprompt.analysis.arms`, for code that has not moved to `published`."""
    frame = printed().reset_index().rename(columns={"sd": "std", "variant": "method"})
    geometry, transferred = frame["table"] == "factor_geometry", frame["basis"].isin(["source", "random"])
    frame.loc[geometry, "method"] = frame.loc[geometry, "method"].map(AXIS_NAMES)
    frame.loc[geometry, "metric"] = frame.loc[geometry, "metric"].map({"angle": "angle_deg", "overlap": "overlap"})
    frame.loc[transferred, "basis"] += frame.loc[transferred, "method"].str[-2:]
    frame.loc[frame["method"] == "joint", "basis"] = "trainable"
    frame.loc[(frame["method"] == "dense") & (frame["basis"] == ""), "basis"] = "identity"
    low_rank = (frame["method"].isin(["joint", "fixed-B"])) & ~transferred
    frame.loc[low_rank, "method"] = "factorized"
    return frame.drop(columns="label")


@cache
def published_rows() -> tuple[tuple[PrintedKey, Printed], ...]:
    """Every row of the file as (key, number)."""
    rows = []
    for row in published_numbers().to_dict("records"):
        cell = CellKey(**{name: row[name] for name in CellKey._fields})
        sd = None if math.isnan(row["std"]) else float(row["std"])
        bold = None if math.isnan(row["bold"]) else row["bold"] == 1
        rows.append((PrintedKey(str(row["table"]), cell), Printed(float(row["mean"]), sd, bold)))
    return tuple(rows)


def best_key(table: str, cell: CellKey) -> PrintedKey:
    """Key of a number in a table of best results, whichever backbone and rank, or mode of transfer, is best."""
    return PrintedKey(table, cell._replace(**_CHOSEN[table]))


@cache
def printed_numbers() -> dict[PrintedKey, Printed]:
    """Every printed number by its key; numbers in tables of best results by their `best_key`."""
    return {best_key(*key) if key.table in _CHOSEN else key: number for key, number in published_rows()}


@cache
def published_results() -> Results:
    """The measured cells of all tables; a repeated cell is read from a table that prints its sd."""
    cells: dict[CellKey, Estimate] = {}
    averages: dict[CellKey, Estimate] = {}
    for (table, cell), number in published_rows():
        if cell.metric not in MEASURED:
            continue
        key = cell.canonical
        estimate = Estimate(number.mean, number.sd, SEEDS, printed=True)
        if key.dataset == "Average":
            if table != "transfer_pairs":  # its average is over pairs, not over datasets
                averages.setdefault(key, estimate)
        elif key not in cells or (cells[key].sd is None and estimate.sd is not None):
            cells[key] = estimate
    for key, estimate in _implied_dense():
        cells.setdefault(key, estimate)
    return Results(cells, parameters=_parameters(), printed_averages=averages, published=True)


def _implied_dense() -> Iterator[tuple[CellKey, Estimate]]:
    """Dense accuracies per dataset on ViT-B/16, printed only as differences: dense = best low-rank − (best − dense)."""
    rows = [(cell, number.mean) for (table, cell), number in published_rows() if table == "best_delta"]
    best = {(cell.dataset, cell.shots): mean for cell, mean in rows if cell.metric == "best_accuracy"}
    for cell, mean in rows:
        if cell.metric.startswith("delta_best_ctx"):
            arm = dense(int(cell.metric.removeprefix("delta_best_ctx")))
            accuracy = round(best[cell.dataset, cell.shots] - mean, 2)
            yield CellKey(cell.backbone, cell.dataset, *arm, cell.shots), Estimate(accuracy, None, SEEDS)


def _parameters() -> dict[tuple[str, Arm], int]:
    """Trainable parameters of the paper's arms."""

    def count(variant: str, rank: int) -> int:
        return count_parameters(variant, n_ctx=N_CTX, width=WIDTH, rank=rank)

    counts: dict[Arm, int] = {dense(m): count_parameters("dense", n_ctx=m, width=WIDTH) for m in (4, N_CTX)}
    for rank in (1, 2, 4, 8):
        counts[joint(rank)] = count("joint", rank)
        counts |= {fixed_basis(basis, rank): count("fixed-B", rank) for basis in FIXED_BASES}
    for mode in TRANSFER_MODES:
        arm = transfer(mode, 4)
        counts[arm] = count(arm.method, arm.rank)
    return {(backbone, arm): count for backbone in ("RN50", "ViT-B/16") for arm, count in counts.items()}


@cache
def published_geometry() -> pd.DataFrame:
    """Median overlap and angle per axis and factor, with the columns of `geometry.medians`: axis, factor, overlap, angle."""
    frame = published_numbers()
    frame = frame[frame["table"] == "factor_geometry"]
    table = frame.pivot_table(index=["method", "basis"], columns="metric", values="mean").reset_index()
    table = table.rename(columns={"method": "axis", "basis": "factor", "angle_deg": "angle"})
    table["axis"] = table["axis"].map({name: axis for axis, name in AXIS_NAMES.items()})
    return table[["axis", "factor", "overlap", "angle"]].sort_values(["axis", "factor"]).reset_index(drop=True)


def geometry_mismatch(specs: Sequence[RunSpec]) -> str:
    """Why the published medians of the factor geometry do not apply to these runs; empty if they do.

    They apply to every combination of the paper's backbones, datasets, shots and ranks, on all classes and with its
    number of context tokens. The mix of shots and ranks decides the medians, so a part of it is not enough. Seeds are
    exchangeable: any seeds will do, if each has all combinations.
    """
    results = published_results()
    joint_cells = {"method": "factorized", "basis": "trainable", "metric": "accuracy"}
    paper = {name: set(results.axis(name, **joint_cells)) for name in ("backbone", "dataset", "shots", "rank")}
    paper |= {"n_ctx": {N_CTX}, "class_subset": {"all"}}
    found = {name: {_geometry_fields(spec)[name] for spec in specs} for name in paper}
    differing = [name for name in paper if found[name] != paper[name]]
    per_seed = math.prod(map(len, paper.values()))
    if not differing and len(specs) == per_seed * len({spec.seed for spec in specs}):
        return ""
    how = f"these runs differ in {', '.join(differing)}" if differing else "these runs are not all combinations"
    return (
        "The published medians are not shown: they are over RN50 and ViT-B/16 with OpenAI's weights, seven datasets, "
        f"1, 4 and 16 shots, ranks 1, 2, 4 and 8, {N_CTX} context tokens and all classes; {how}."
    )


def _geometry_fields(spec: RunSpec) -> dict[str, object]:
    """The fields of a run that decide whether its geometry is comparable, in the terms of the tables."""
    titles = {"backbone": backbone_title(spec), "dataset": dataset_title(spec.dataset)}
    return titles | {"shots": spec.shots, "rank": spec.rank, "n_ctx": spec.n_ctx, "class_subset": spec.class_subset}


def published_pairs(table: str = "transfer_pairs") -> list[tuple[str, str]]:
    """(target, source) of the transfers in a table, in its order: 12 in the main table, 16 in `transfer_four_modes`."""
    rows = [cell for (name, cell), _ in published_rows() if name == table and cell.basis == "source-B"]
    return [(cell.dataset, cell.source) for cell in rows if cell.dataset != "Average"]
