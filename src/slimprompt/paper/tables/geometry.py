"""Subspace overlap and principal angles of the factors of independently trained prompts."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from slimprompt.analysis.geometry import AXES
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.published import printed
from slimprompt.report.table import Pivot, Table

#: Axis → row label.
_LABELS = {
    "seed": "Same config, diff. seeds",
    "dataset": "Diff. datasets, same seed",
    "shots": "Diff. shots, same seed",
    "rank": "Diff. ranks, same seed",
}
#: Measure → title and decimals.
_MEASURES = {"overlap": ("Subspace overlap", 2), "angle": ("Principal angle (°)", 1)}
_FACTORS = {factor: factor for factor in ("A", "B", "BA")}


def factor_geometry(medians: pd.DataFrame | None, compared: Sequence[RunSpec] = ()) -> Table:
    """Median overlap and principal angle per factor, as of `Geometry.medians`; `compared` are the runs behind them, empty for the paper's."""
    fields = ["axis", "factor", "overlap", "angle"]
    found = pd.DataFrame(columns=[*fields, "n"]) if medians is None else medians[medians["factor"].isin(_FACTORS)]
    counts = [f"{row.axis} {int(row.n)}" for row in found.itertuples() if "n" in found and row.factor == "B"]
    ids = ["axis", "factor", *(["n"] if "n" in found else [])]
    entries = found.melt(id_vars=ids, value_vars=list(_MEASURES), var_name="measure", value_name="mean")
    entries["decimals"] = [_MEASURES[name][1] for name in entries["measure"]]
    best = []
    for row in entries.itertuples():
        values = entries.loc[(entries["axis"] == row.axis) & (entries["measure"] == row.measure), "mean"]
        shown = [round(value, int(row.decimals)) for value in values]
        stable = max(shown) if row.measure == "overlap" else min(shown)
        best.append(round(row.mean, int(row.decimals)) == stable and len(set(shown)) > 1)
    rows = printed().loc["factor_geometry"].reset_index().set_index(["variant", "basis", "metric"])
    entries["bold"], keys = best, zip(entries["axis"], entries["factor"], entries["measure"], strict=True)
    entries["published"] = [float(rows["mean"].get(key, float("nan"))) for key in keys]
    subsets = " and ".join(sorted({spec.class_subset for spec in compared})) or "all"
    notes = [
        f"Medians over pairs of runs on {subsets} classes. B is compared by its columns, A and BA by their rows. "
        "The most stable factor is bold."
    ]
    notes += [f"Pairs: {', '.join(counts)}."] if counts else []
    pivot = Pivot(
        "factor_geometry",
        "Factor geometry across independently trained runs",
        {"Comparison": "{axis}"},
        "{factor}",
        "{measure}",
        {
            "axis": {axis: _LABELS[axis] for axis in AXES},
            "measure": {name: title for name, (title, _) in _MEASURES.items()},
            "factor": _FACTORS,
        },
        tuple(notes),
    )
    return pivot.of(entries)
