"""Paired comparisons of arms with correction for multiple tests, and averages over datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from slimprompt.analysis.arms import Arm, arm_label
from slimprompt.analysis.results import Results, Unit
from slimprompt.analysis.statistics import (
    Comparison,
    compare,
    harmonic_of_averages,
    holm,
    macro_average,
    pooled_average,
)


@dataclass(frozen=True)
class ArmComparison:
    """Paired test of `first − second` in one backbone and shot count."""

    backbone: str
    shots: int
    first: Arm
    second: Arm
    metric: str
    unit: str
    result: Comparison
    cells: dict[str, float] = field(default_factory=dict, repr=False)
    """Name of the unit → difference."""
    holm_t: float | None = None
    """p value of the t-test after Holm's correction over the family; likewise the next two."""
    holm_wilcoxon: float | None = None
    holm_equivalence: float | None = None


def compare_arms(
    results: Results,
    pairs: Sequence[tuple[Arm, Arm]],
    *,
    metric: str = "accuracy",
    unit: Unit = "dataset",
    margin: float = 0.5,
    backbones: Sequence[str] | None = None,
    shots: Sequence[int] | None = None,
) -> list[ArmComparison]:
    """Compare every pair of arms in every backbone and shot count that has both.

    Parameters
    ----------
    results
        Cells of runs, or of the published tables.
    pairs
        (first, second) arms.
    metric
        Metric to compare.
    unit
        What counts as one observation, a key of `slimprompt.analysis.results.UNITS`.
    margin
        Equivalence margin in points.
    backbones, shots
        Restrict the comparison; None for all.

    Returns
    -------
    list of ArmComparison
        Together they are one family for Holm's correction.
    """
    found: list[ArmComparison] = []
    for backbone in backbones if backbones is not None else results.axis("backbone", metric=metric):
        for k in shots if shots is not None else results.axis("shots", backbone=backbone, metric=metric):
            for first, second in pairs:
                cells = results.differences(first, second, backbone=backbone, shots=k, metric=metric, unit=unit)
                if cells:
                    result = compare(list(cells.values()), margin=margin)
                    found.append(ArmComparison(backbone, int(k), first, second, metric, unit, result, cells))
    corrected = (holm([getattr(one.result, f"p_{test}") for one in found]) for test in ("t", "wilcoxon", "equivalence"))
    return [
        replace(one, holm_t=p_t, holm_wilcoxon=p_wilcoxon, holm_equivalence=p_equivalence)
        for one, p_t, p_wilcoxon, p_equivalence in zip(found, *corrected, strict=True)
    ]


def aggregates(results: Results) -> pd.DataFrame:
    """Averages over datasets, computed in three ways, one row per backbone, arm, shots and metric.

    Cells with a source are left out: transfer pairs do not form a grid of datasets.

    Returns
    -------
    pandas.DataFrame
        Columns backbone, arm, shots, metric, datasets, seeds, macro_mean, macro_sd, pooled_mean, pooled_sd, pooled_n
        and, for H, harmonic_of_averages.
    """
    rows = []
    settings = sorted({(key.backbone, key.arm, key.shots, key.metric) for key in results.cells if not key.source})
    for backbone, arm, shots, metric in settings:
        datasets = results.axis("dataset", backbone=backbone, **arm._asdict(), shots=shots, metric=metric)

        where = (backbone, datasets, arm, shots)
        values = _by_seed(results, *where, metric)
        macro, pooled = macro_average(values), pooled_average(values)
        if pooled is None:
            continue
        of_averages = None
        if metric == "harmonic":
            of_averages = harmonic_of_averages(*(_by_seed(results, *where, name) for name in ("seen", "unseen")))
        rows.append(
            {
                "backbone": backbone,
                "arm": arm_label(arm),
                "shots": shots,
                "metric": metric,
                "datasets": len(datasets),
                "seeds": macro.n if macro else 0,
                "macro_mean": macro.mean if macro else None,
                "macro_sd": macro.sd if macro else None,
                "pooled_mean": pooled.mean,
                "pooled_sd": pooled.sd,
                "pooled_n": pooled.n,
                "harmonic_of_averages": of_averages.mean if of_averages else None,
            }
        )
    return pd.DataFrame(rows)


def _by_seed(
    results: Results, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str
) -> list[dict[int, float]]:
    cells = [results.cell(backbone, dataset, arm, shots, metric) for dataset in datasets]
    return [cell.by_seed if cell else {} for cell in cells]
