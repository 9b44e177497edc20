"""Paired comparisons with correction for multiple tests, and averages over datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from slimprompt.analysis.frame import AVERAGE, average, axis, differences, select, summary
from slimprompt.analysis.statistics import Comparison, compare, holm
from slimprompt.training.metrics import harmonic_mean

_TESTS = ("t", "wilcoxon", "equivalence")


def compare_pairs_of_labels(
    frame: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    *,
    metric: str = "accuracy",
    unit: str = "dataset",
    margin: float = 0.5,
) -> pd.DataFrame:
    """Paired tests of first − second in every backbone and shot count that has both labels.

    Parameters
    ----------
    frame
        Cells × seeds of runs, or of the published tables.
    pairs
        (first, second) labels.
    metric
        Metric to compare.
    unit
        What counts as one observation, a key of `slimprompt.analysis.frame.UNITS`.
    margin
        Equivalence margin in points.

    Returns
    -------
    pandas.DataFrame
        One row per test: backbone, shots, first, second, metric, unit, the fields of `Comparison`, `cells` (name of the unit →
        difference), and the p-values after Holm's correction over all rows: holm_t, holm_wilcoxon, holm_equivalence.
    """
    rows = []
    for backbone in axis(frame, "backbone", metric=metric):
        for shots in axis(frame, "shots", backbone=backbone, metric=metric):
            cell = select(frame, backbone=backbone, shots=shots, metric=metric)
            for first, second in pairs:
                cells = differences(cell, first, second, backbone=backbone, shots=shots, metric=metric, unit=unit)
                if cells:
                    test = asdict(compare(list(cells.values()), margin=margin))
                    place = {"backbone": backbone, "shots": shots, "first": first, "second": second}
                    rows.append({**place, "metric": metric, "unit": unit, **test, "cells": cells})
    names = ["backbone", "shots", "first", "second", "metric", "unit", *Comparison.__dataclass_fields__, "cells"]
    found = pd.DataFrame(rows, columns=names, dtype=object)
    for test in _TESTS:
        found[f"holm_{test}"] = pd.Series(holm(found[f"p_{test}"].tolist()), found.index, dtype=object)
    return found


def aggregates(frame: pd.DataFrame) -> pd.DataFrame:
    """Averages over datasets, computed in three ways, one row per backbone, label, shots and metric.

    - macro: datasets averaged within each seed, then mean and sd over the seeds;
    - pooled: mean and sd over all dataset × seed values; this sd is mostly between datasets;
    - harmonic_of_averages, for H: 2SU/(S+U) of the averages of S and U over all runs that have both. It is never below the mean of H
      over the runs.

    Cells with a source are left out: transfers do not form a grid of datasets.

    Returns
    -------
    pandas.DataFrame
        Columns backbone, label, shots, metric, datasets, seeds, macro_mean, macro_sd, pooled_mean, pooled_sd, pooled_n and
        harmonic_of_averages.
    """
    plain = select(frame, source="", metric=[one for one in axis(frame, "metric") if not one.startswith("chance_")])
    plain = plain[plain.index.get_level_values("dataset") != AVERAGE]
    rows = []
    keys = ["backbone", "label", "shots", "metric"]
    for (backbone, label, shots, metric), group in plain.groupby(level=keys):
        datasets = axis(group, "dataset")
        values = pd.Series(group.to_numpy().ravel()).dropna()
        macro = summary(average(group, datasets))
        mean, sd, seeds = macro.iloc[0] if len(macro) else (None, None, 0)
        of_averages = None
        if metric == "harmonic":
            where = {"backbone": backbone, "label": label, "shots": shots, "dataset": datasets}
            s, u = (select(plain, metric=name, **where).groupby(level="dataset").first() for name in ("seen", "unseen"))
            both = s.notna() & u.reindex_like(s).notna()
            if both.any(axis=None):
                of_averages = harmonic_mean(s.where(both).stack().mean(), u.where(both).stack().mean())
        rows.append(
            {
                **dict(zip(keys, (backbone, label, shots, metric), strict=True)),
                "datasets": len(datasets),
                "seeds": int(seeds),
                "macro_mean": mean,
                "macro_sd": sd,
                "pooled_mean": values.mean(),
                "pooled_sd": values.std(),
                "pooled_n": len(values),
                "harmonic_of_averages": of_averages,
            }
        )
    return pd.DataFrame(rows)
