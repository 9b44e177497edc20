"""Paired comparisons with correction for multiple tests, and averages over datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from slimprompt.analysis.frame import AVERAGE, axis, by_unit, complete_means, paired, select, summary
from slimprompt.analysis.statistics import Comparison, compare, holm
from slimprompt.training.metrics import harmonic_mean

_TESTS = ("t", "wilcoxon", "equivalence")


def compare_labels(
    frame: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    *,
    metric: str = "accuracy",
    unit: str = "dataset",
    margin: float = 0.5,
) -> pd.DataFrame:
    """Paired tests of the pairs (first, second) of labels in every backbone and shot count that has both, one row per test.

    The columns are backbone, shots, first, second, metric, unit (a key of `UNITS`), the fields of `Comparison`, `cells` (name of the
    unit → difference), and the p-values after Holm's correction over all rows: holm_t, holm_wilcoxon, holm_equivalence.
    """
    rows = []
    frame = select(frame, metric=metric)
    for first, second in pairs:
        one, other = paired(frame, first, second, metric=metric)
        for (backbone, shots), difference in (one - other).groupby(level=["backbone", "shots"]):
            cells = by_unit(difference, unit)
            if cells:
                test = asdict(compare(list(cells.values()), margin=margin))
                place = {"backbone": backbone, "shots": shots, "first": first, "second": second}
                rows.append({**place, "metric": metric, "unit": unit, **test, "cells": cells})
    rows.sort(key=lambda row: (row["backbone"], row["shots"]))
    names = ["backbone", "shots", "first", "second", "metric", "unit", *Comparison.__dataclass_fields__, "cells"]
    found = pd.DataFrame(rows, columns=names, dtype=object)
    for name in _TESTS:
        found[f"holm_{name}"] = pd.Series(holm(found[f"p_{name}"].tolist()), found.index, dtype=object)
    return found


def aggregates(frame: pd.DataFrame) -> pd.DataFrame:
    """Averages over datasets, computed in three ways, one row per backbone, label, shots and metric.

    - macro: datasets averaged within each seed, then mean and sd over the seeds;
    - pooled: mean and sd over all dataset × seed values; this sd is mostly between datasets;
    - harmonic_of_averages, for H: 2SU/(S+U) of the averages of S and U over all runs that have both. It is never below the mean of H
      over the runs.

    Cells with a source are left out: transfers do not form a grid of datasets.
    """
    plain = select(frame, source="", metric=[one for one in axis(frame, "metric") if not one.startswith("chance_")])
    plain = plain[plain.index.get_level_values("dataset") != AVERAGE]
    keys = ["backbone", "label", "shots", "metric"]
    macro = summary(complete_means(plain, keys))
    pooled = plain.stack().groupby(level=keys).agg(["mean", "std", "count"])
    found = pd.DataFrame(
        {
            "datasets": plain.groupby(level=keys).size(),
            "seeds": macro["n"],
            "macro_mean": macro["mean"],
            "macro_sd": macro["sd"],
            "pooled_mean": pooled["mean"],
            "pooled_sd": pooled["std"],
            "pooled_n": pooled["count"],
        }
    )
    seen, unseen = (select(plain, metric=name).droplevel("metric") for name in ("seen", "unseen"))
    both = pd.DataFrame({"seen": seen.stack(), "unseen": unseen.stack()}).dropna()
    means = both.groupby(level=keys[:-1]).mean()
    harmonic = [harmonic_mean(*pair) for pair in means.itertuples(index=False)]
    places = [(*place, "harmonic") for place in means.index]
    found["harmonic_of_averages"] = pd.Series(dict(zip(places, harmonic, strict=True)), dtype=float).reindex(
        found.index
    )
    return found.reset_index().fillna({"seeds": 0}).astype({"seeds": int})
