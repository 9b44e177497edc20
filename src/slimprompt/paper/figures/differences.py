"""Differences between arms: low rank against dense per dataset, and fixed against trained B."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from slimprompt.analysis.arms import Arm, arm_label, dense, joint
from slimprompt.analysis.results import Results, on_common_seeds
from slimprompt.analysis.selection import full_length, headline_rank, own_bases
from slimprompt.prompts.spec import FIXED_BASES
from slimprompt.report.figure_style import (
    ARM_STYLES,
    METRIC_LABELS,
    category_axis,
    empty_panel,
    metric_name,
    missing_figure,
    shorten,
    shot_style,
)
from slimprompt.report.plotting import (
    BLACK,
    GREY,
    SKY,
    Figure,
    error_bars,
    panels,
    plot_style,
    shared_legend,
    to_figure,
    violin,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Dataset → shots → mean and sd of the gain.
_Gains = dict[str, dict[int, tuple[float, float]]]


def gain_over_dense(results: Results) -> Figure:
    """Joint low rank minus dense in accuracy and H, per dataset and shot count."""
    name, title = "gain_over_dense", "Gain of the low-rank prompt over dense, per dataset"
    full = dense(full_length(results))
    grid: dict[tuple[str, str], _Gains] = {}
    labels = set()
    for metric in METRIC_LABELS:
        low = joint(headline_rank(results, metric))
        for backbone in results.axis("backbone", metric=metric):
            if found := _gains(results, backbone, low, full, metric):
                grid[metric, backbone] = found
                labels.add(f"{arm_label(low)} − {arm_label(full)}")
    if not grid:
        return missing_figure(name, title, "dense and jointly trained low-rank runs of one dataset and shot count")
    metrics = list(dict.fromkeys(metric for metric, _ in grid))
    backbones = list(dict.fromkeys(backbone for _, backbone in grid))
    shots = sorted({k for found in grid.values() for gains in found.values() for k in gains})
    with plot_style():
        height = 1.1 + 0.36 * max(len(found) for found in grid.values())
        canvas, axes = panels(len(backbones), len(metrics), height=height)
        for column, metric in enumerate(metrics):
            for row, backbone in enumerate(backbones):
                panel: Axes = axes[row, column]
                panel.set_title(f"{shorten(backbone, 40)}, {metric_name(metric)}")
                if (metric, backbone) in grid:
                    _plot_gains(panel, grid[metric, backbone], shots)
                else:
                    empty_panel(panel)
        shared_legend(canvas, axes.ravel())
        caption = (
            f"{'; '.join(sorted(labels))}, paired by seed: mean and standard deviation of the differences. "
            "Low rank is better to the right of the line."
        )
        return to_figure(name, title, caption, canvas)


def _gains(results: Results, backbone: str, low: Arm, full: Arm, metric: str) -> _Gains:
    found: _Gains = defaultdict(dict)
    for dataset in results.axis("dataset", backbone=backbone, metric=metric):
        for k in results.axis("shots", backbone=backbone, metric=metric):
            if gain := paired_gain(results, backbone, dataset, low, full, k, metric):
                found[dataset][k] = gain
    return found


def paired_gain(
    results: Results, backbone: str, dataset: str, first: Arm, second: Arm, shots: int, metric: str
) -> tuple[float, float] | None:
    """Mean and sd of first − second over the common seeds, or the difference of the means of published cells."""
    one, other = (results.cell(backbone, dataset, arm, shots, metric) for arm in (first, second))
    if one is None or other is None:
        return None
    if results.published:
        return one.mean - other.mean, 0.0
    differences = [one.by_seed[seed] - other.by_seed[seed] for seed in one.by_seed if seed in other.by_seed]
    if not differences:
        return None
    return float(np.mean(differences)), float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0


def _plot_gains(panel: Axes, found: _Gains, shots: list[int]) -> None:
    for index, k in enumerate(shots):
        offset = 0.22 * (index - (len(shots) - 1) / 2)
        points = [(y + offset, *gains[k]) for y, gains in enumerate(found.values()) if k in gains]
        if points:
            ys, means, sds = zip(*points, strict=True)
            style = shot_style(index) | {"linestyle": "none", "label": f"{k}-shot"}
            error_bars(panel, x=means, y=ys, xerr=sds, **style)
    panel.axvline(0, color=BLACK, linewidth=1)
    category_axis(panel, [shorten(dataset) for dataset in found])
    panel.set_xlabel("points")


def fixed_against_trained(results: Results) -> Figure:
    """Accuracy with a fixed B against that with a trained B for every cell, and the differences per basis."""
    name, title = "fixed_against_trained", "Fixed token basis against a trained one"
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    own = own_bases(results, metric="accuracy")
    styles = ARM_STYLES | {basis: {"color": SKY, "marker": "X<>*h"[index % 5]} for index, basis in enumerate(own)}
    bases = (*FIXED_BASES, *own)
    for key, cell in results.cells.items():
        if key.method == "factorized" and key.basis in bases and key.metric == "accuracy":
            trained = results.cell(key.backbone, key.dataset, joint(key.rank), key.shots)
            if trained and (pair := on_common_seeds((trained, cell))):
                found[key.basis].append((pair[0].mean, pair[1].mean))
    if not found:
        return missing_figure(name, title, "runs with a fixed B and the matching runs that train both factors")
    points = {basis: np.array(found[basis]) for basis in bases if basis in found}  # (cells, 2)
    with plot_style():
        canvas, axes = panels(1, 2, height=3.4)
        _plot_pairs(axes[0, 0], points, styles)
        right: Axes = axes[0, 1]
        for index, (basis, pairs) in enumerate(points.items()):
            style = styles[basis]
            violin(right, index, pairs[:, 1] - pairs[:, 0], style["color"], style["marker"], width=0.7, vertical=False)
        right.axvline(0, color=GREY, linewidth=1)
        category_axis(right, [f"{shorten(basis)} (n = {len(pairs)})" for basis, pairs in points.items()])
        right.set_xlabel("fixed − trained (points)")
        shared_legend(canvas, axes.ravel())
        caption = (
            "One marker per backbone, dataset, rank and shot count (mean over seeds). On the line, fixing B costs "
            "nothing. Right: the differences, with median and interquartile range."
        )
        return to_figure(name, title, caption, canvas)


def _plot_pairs(panel: Axes, points: dict[str, np.ndarray], styles: dict[str, dict[str, Any]]) -> None:
    every = np.concatenate(list(points.values()))
    low, high = float(every.min()) - 2, float(every.max()) + 2
    panel.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    for basis, pairs in points.items():
        style = styles[basis] | {"linestyle": "none", "markerfacecolor": "none"}
        panel.plot(pairs[:, 0], pairs[:, 1], label=f"{shorten(basis)} B", **style)
    panel.set_xlabel("B and A trained: accuracy (%)")
    panel.set_ylabel("B fixed, A trained: accuracy (%)")
    panel.set_xlim(low, high)
    panel.set_ylim(low, high)
    panel.set_aspect("equal")
