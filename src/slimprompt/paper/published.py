"""The numbers of the paper's 19 tables, in the same shape as one's own runs.

Columns of published.csv: table, backbone, dataset, method, basis, rank, shots, metric, source, mean, std, bold
(1 where the table marks the number as best, 0 where it does not, empty where it marks none). Facts only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd

from slimprompt.analysis.geometry import AXES
from slimprompt.analysis.observations import KEY, Arm, CellKey, Estimate, Results, dense, fixed_basis, joint, transfer
from slimprompt.prompts.variants import FIXED_BASES

#: The paper's setting: context tokens, text width, seeds.
N_CTX, WIDTH, SEEDS = 16, 512, 3

#: Metrics that are measured; the others in the file are differences computed from them.
MEASURED = ("accuracy", "seen", "unseen", "harmonic")


class Printed(NamedTuple):
    """One printed number, its printed standard deviation, and whether it is marked as best (None: no marks there)."""

    mean: float
    sd: float | None
    bold: bool | None


@cache
def published_numbers() -> pd.DataFrame:
    """The file as it is, with whole numbers for rank and shots (0: none) and NaN for a missing std.

    A dense row's rank is its number of tokens; the best of several lengths has basis "best".
    """
    path = files("slimprompt.paper").joinpath("published.csv")
    with path.open() as file:
        frame = pd.read_csv(
            file, dtype={"rank": str, "shots": str}, keep_default_na=False, na_values={"std": [""], "bold": [""]}
        )
    # The dense reference of the transfer table is the better of 4 and 16 tokens (85.10 on Food101 is that of 4 tokens).
    best = (frame["rank"] == "best") | ((frame["table"] == "transfer_pairs") & (frame["method"] == "dense"))
    frame.loc[best, ["basis", "rank"]] = ["best", "best"]
    for column in ("rank", "shots"):
        frame[column] = [int(text) if text.isdigit() else 0 for text in frame[column]]
    return frame


@cache
def published_rows() -> list[dict[str, Any]]:
    """The same, row by row."""
    return [{str(name): value for name, value in row.items()} for row in published_numbers().to_dict("records")]


def _source(row: dict[str, Any]) -> str:
    return row["source"] if row["basis"].startswith("source-") else ""


def _sd(row: dict[str, Any]) -> float | None:
    return None if math.isnan(row["std"]) else float(row["std"])


@cache
def printed_numbers() -> dict[tuple[Any, ...], Printed]:
    """(table, backbone, dataset, method, basis, rank, shots, metric, source) → what is printed there.

    The source is that of the row, also for a number that does not depend on it.
    A table of best results is keyed without what is best there (backbone, method, basis, rank), so that it can be
    looked up from runs in which something else is best.
    """
    found = {}
    for row in published_rows():
        key = {name: row[name] for name in KEY}
        if row["table"] in ("best_delta", "transfer_best_delta"):
            key |= {"backbone": "", "method": "", "basis": "", "rank": 0}
        bold = None if math.isnan(row["bold"]) else row["bold"] == 1
        place = (row["table"], *key.values())
        found[place] = Printed(float(row["mean"]), _sd(row), bold)
    return found


@cache
def published_results() -> Results:
    """The measured cells of all tables; one that stands in several is taken from a table that prints its sd."""
    cells: dict[CellKey, Estimate] = {}
    averages: dict[CellKey, Estimate] = {}
    for row in published_rows():
        if row["metric"] not in MEASURED:
            continue
        key = CellKey(**{name: row[name] for name in KEY})._replace(source=_source(row))
        estimate = Estimate(float(row["mean"]), _sd(row), SEEDS, printed=True)
        if row["dataset"] == "Average":
            if row["table"] != "transfer_pairs":  # an average over pairs, not over datasets
                averages.setdefault(key, estimate)
        elif key not in cells or (cells[key].sd is None and estimate.sd is not None):
            cells[key] = estimate
    for key, estimate in _implied_dense():
        cells.setdefault(key, estimate)
    return Results(cells, parameters=_published_parameters(), printed_averages=averages, published=True)


def _implied_dense() -> Iterator[tuple[CellKey, Estimate]]:
    """Dense accuracies per dataset on ViT-B/16, which are printed only as differences: best low-rank − (best − dense)."""
    rows = [row for row in published_rows() if row["table"] == "best_delta"]
    best = {(row["dataset"], row["shots"]): row["mean"] for row in rows if row["metric"] == "best_accuracy"}
    for row in rows:
        if row["metric"].startswith("delta_best_ctx"):
            mean = round(best[row["dataset"], row["shots"]] - row["mean"], 2)
            arm = dense(int(row["metric"].removeprefix("delta_best_ctx")))
            key = CellKey(row["backbone"], row["dataset"], *arm, row["shots"], "accuracy")
            yield key, Estimate(mean, None, SEEDS)


def _published_parameters() -> dict[tuple[str, Arm], int]:
    """md, r(m+d), rd and mr at the paper's m and d."""
    counts: dict[Arm, int] = {dense(m): m * WIDTH for m in (4, N_CTX)}
    for rank in (1, 2, 4, 8):
        counts[joint(rank)] = rank * (N_CTX + WIDTH)
        counts |= {fixed_basis(basis, rank): rank * WIDTH for basis in FIXED_BASES}
    counts |= {transfer(mode, 4): 4 * WIDTH for mode in ("source-B", "random-B")}
    counts |= {transfer(mode, 4): 4 * N_CTX for mode in ("source-A", "random-A")}
    return {(backbone, arm): count for backbone in ("RN50", "ViT-B/16") for arm, count in counts.items()}


@cache
def published_geometry() -> pd.DataFrame:
    """Median overlap and angle per axis and factor, as `geometry.medians` gives them: axis, factor, overlap, angle."""
    names = dict(zip(("seeds", "datasets", "shots", "ranks"), AXES, strict=True))
    frame = published_numbers()
    frame = frame[frame["table"] == "factor_geometry"]
    table = frame.pivot_table(index=["method", "basis"], columns="metric", values="mean").reset_index()
    table = table.rename(columns={"method": "axis", "basis": "factor", "angle_deg": "angle"})
    table["axis"] = table["axis"].map(names)
    return table[["axis", "factor", "overlap", "angle"]].sort_values(["axis", "factor"]).reset_index(drop=True)


def published_pairs() -> list[tuple[str, str]]:
    """(target, source) of the transfers in the paper's main table: 12 of the 16 in its appendix."""
    rows = [row for row in published_rows() if row["table"] == "transfer_pairs" and row["basis"] == "source-B"]
    return [(row["dataset"], row["source"]) for row in rows if row["dataset"] != "Average"]
