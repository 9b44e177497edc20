"""Accuracy against the number of shots and against the rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slimprompt.analysis.arms import Arm, arm_label, dense, fixed_basis, joint
from slimprompt.analysis.results import Estimate, Results
from slimprompt.analysis.selection import (
    JOINT_CELLS,
    best_covered,
    full_length,
    main_arms,
    mean_if_complete,
    zero_shot,
)
from slimprompt.report.figure_style import (
    ARM_STYLES,
    METRIC_LABELS,
    averaged_over,
    empty_panel,
    log2_axis,
    metric_name,
    missing_figure,
    shorten,
    shot_style,
    spread,
    zero_shot_line,
)
from slimprompt.report.plotting import GREY, Figure, error_bars, panels, plot_style, shared_legend, to_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: (dataset, metric) → accuracy of guessing in percent.
Chance = Mapping[tuple[str, str], float]

_DOTTED = (0, (1, 2))


def shots_curve(results: Results, chance: Chance | None = None) -> Figure:
    """Accuracy and H against shots: one line per arm, with the zero-shot and chance levels.

    Parameters
    ----------
    results
        Cells of runs, or of the published tables.
    chance
        Result of `slimprompt.analysis.selection.chance_levels`.
    """
    name, title = "accuracy_by_shots", "Accuracy and harmonic mean against the number of shots"
    metrics = [metric for metric in METRIC_LABELS if results.axis("backbone", metric=metric)]
    backbones = list(dict.fromkeys(one for metric in metrics for one in results.axis("backbone", metric=metric)))
    if not metrics:
        return missing_figure(name, title, "few-shot or base-to-new runs")
    used: dict[str, list[str]] = {}
    with plot_style():
        canvas, axes = panels(len(backbones), len(metrics))
        for column, metric in enumerate(metrics):
            for row, backbone in enumerate(backbones):
                datasets = _shots_panel(axes[row, column], results, chance or {}, backbone, metric)
                if datasets:
                    used[f"{backbone}, {metric_name(metric)}"] = datasets
        shared_legend(canvas, axes.ravel())
        caption = (
            f"Mean and standard deviation over seeds, {averaged_over(used, results)}. "
            "H is the harmonic mean of the accuracies on base classes (trained on) and new classes."
        )
        return to_figure(name, title, caption, canvas)


def _shots_panel(panel: Axes, results: Results, chance: Chance, backbone: str, metric: str) -> list[str]:
    """Plot one backbone and metric; returns the datasets that were averaged."""
    arms, shots = main_arms(results, metric), results.axis("shots", backbone=backbone, metric=metric)
    datasets = best_covered(results, backbone, [(arm, k) for arm in arms.values() for k in shots], metric)
    panel.set_title(shorten(backbone, 40))
    panel.set_ylabel(METRIC_LABELS[metric])
    if not datasets:
        empty_panel(panel)
        return []
    for index, (role, arm) in enumerate(arms.items()):
        averages = {k: results.macro(backbone, datasets, arm, k, metric) for k in shots}
        _plot_averages(panel, averages, spread(index, len(arms)), label=arm_label(arm), **ARM_STYLES[role])
    zero_shot_line(panel, {k: zero_shot(results, backbone, datasets, k, metric) for k in shots})
    level = mean_if_complete([chance.get((one, metric)) for one in datasets])
    if level is not None:  # as text, because a line would compress the range of the other lines
        text = f"chance {level:.1f} %"
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the zero-shot line may be here
        panel.text(0.99, 0.02, text, transform=panel.transAxes, ha="right", color=GREY, fontsize=8, bbox=behind)
    log2_axis(panel, shots, "shots (training images per class)")
    panel.set_xlim(min(shots) / 1.4, max(shots) * 1.4)
    return datasets


def _plot_averages(panel: Axes, averages: Mapping[int, Estimate | None], factor: float, **style: Any) -> None:
    """Plot mean and sd at the x coordinates times `factor`; missing averages are left out."""
    points = [(x * factor, average.mean, average.sd or 0.0) for x, average in averages.items() if average]
    if points:
        xs, means, sds = zip(*points, strict=True)
        error_bars(panel, x=xs, y=means, yerr=sds, **style)


def rank_curve(results: Results) -> Figure:
    """Accuracy against rank for every shot count: both factors trained, orthogonal B fixed, and dense as a level."""
    name, title = "accuracy_by_rank", "Accuracy against rank"
    backbones = results.axis("backbone", **JOINT_CELLS)
    if not backbones:
        return missing_figure(name, title, "runs that train both factors")
    full = dense(full_length(results))
    with plot_style():
        canvas, axes = panels(1, len(backbones), height=3.1)
        used = {
            backbone: _rank_panel(panel, results, backbone, full)
            for panel, backbone in zip(axes[0], backbones, strict=True)
        }
        axes[0, 0].set_ylabel(METRIC_LABELS["accuracy"])
        styles = (("B and A trained", "-"), ("orthogonal B fixed", "--"), (arm_label(full), _DOTTED))
        for label, linestyle in styles:
            axes[0, 0].plot([], [], color=GREY, linestyle=linestyle, label=label)
        shared_legend(canvas, axes.ravel())
        caption = f"Mean and standard deviation over seeds, {averaged_over(used, results)}. Dotted: the dense prompt."
        return to_figure(name, title, caption, canvas)


def _rank_panel(panel: Axes, results: Results, backbone: str, full: Arm) -> list[str]:
    """Plot one backbone; returns the datasets that were averaged."""
    ranks, shots = (results.axis(axis, backbone=backbone, **JOINT_CELLS) for axis in ("rank", "shots"))
    datasets = best_covered(results, backbone, [(joint(r), k) for r in ranks for k in shots], "accuracy")
    for index, k in enumerate(shots):
        style = shot_style(index)
        trained = {r: results.macro(backbone, datasets, joint(r), k) for r in ranks}
        fixed = {r: results.macro(backbone, datasets, fixed_basis("orthogonal", r), k) for r in ranks}
        _plot_averages(panel, trained, spread(0, 2), linestyle="-", **style)
        _plot_averages(panel, fixed, spread(1, 2), linestyle="--", markerfacecolor="white", **style)
        level = results.macro(backbone, datasets, full, k)
        if level:
            panel.axhline(level.mean, color=style["color"], linewidth=1.1, linestyle=_DOTTED, zorder=1)
        panel.plot([], [], label=f"{k}-shot", **style)
    log2_axis(panel, ranks, "rank r")
    panel.set_title(shorten(backbone, 40))
    return datasets
