"""Figures that compare methods: accuracy against shots, against trained numbers and against training time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slimprompt.analysis.arms import Arm, arm_label
from slimprompt.analysis.methods import Cost, Costs, MethodArms, average_cost, method_arms
from slimprompt.analysis.results import Results
from slimprompt.analysis.selection import best_covered, zero_shot
from slimprompt.report.figure_style import (
    METRIC_LABELS,
    averaged_over,
    empty_panel,
    log2_axis,
    log10_axis,
    shorten,
    spread,
    zero_shot_line,
)
from slimprompt.report.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Figure,
    error_bars,
    panels,
    plot_style,
    shared_legend,
    to_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METRIC = "accuracy"
_ZERO_SHOT = Arm("zero-shot", "", 0)
_COLOURS = (BLUE, VERMILION, BLACK, GREEN, PURPLE, ORANGE, SKY, GREY)
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")

#: Arm → line style.
_Styles = Mapping[Arm, dict[str, Any]]


def methods_figures(results: Results, costs: Costs) -> list[Figure]:
    """All figures that compare methods; none if there are no runs of other methods or of prompts beyond the paper.

    Parameters
    ----------
    results
        Cells of runs.
    costs
        Result of `slimprompt.analysis.methods.costs`.
    """
    arms = method_arms(results, _METRIC)
    if not arms.all:
        return []
    trained = _cost_figure(
        results,
        costs,
        "methods_by_trained_numbers",
        "Accuracy against trained numbers",
        "numbers learned from the training images",
        lambda cost: cost.trained,
    )
    seconds = _cost_figure(
        results,
        costs,
        "methods_by_seconds",
        "Accuracy against training time",
        "seconds of training, without encoding images",
        lambda cost: cost.seconds,
    )
    return [methods_by_shots(results), *(figure for figure in (trained, seconds) if figure)]


def methods_by_shots(results: Results) -> Figure:
    """Accuracy against shots: methods without a prompt on the left, prompts on the right."""
    arms, styles = method_arms(results, _METRIC), _styles(method_arms(results, _METRIC))
    backbones = results.axis("backbone", metric=_METRIC)
    groups = {"methods without a prompt": arms.methods, "prompts": arms.prompts}
    groups = {name: group for name, group in groups.items() if group}
    with plot_style():
        canvas, axes = panels(len(backbones), len(groups), width=3.8, height=3.0, sharey="row")
        used = {}
        for row, backbone in enumerate(backbones):
            shots = results.axis("shots", backbone=backbone, metric=_METRIC)
            used[backbone] = _covered(results, backbone, arms, shots)
            for column, (name, group) in enumerate(groups.items()):
                panel: Axes = axes[row, column]
                panel.set_title(f"{shorten(backbone, 24)}, {name}")
                _plot_shots(panel, results, backbone, used[backbone], group, shots, styles)
            axes[row, 0].set_ylabel(METRIC_LABELS[_METRIC])
        shared_legend(canvas, axes.ravel())
        caption = f"Mean and standard deviation over seeds, {averaged_over(used, results)}."
        return to_figure("methods_by_shots", "Methods: accuracy against shots", caption, canvas)


def _plot_shots(
    panel: Axes,
    results: Results,
    backbone: str,
    datasets: Sequence[str],
    arms: Sequence[Arm],
    shots: Sequence[int],
    styles: _Styles,
) -> None:
    shown = [arm for arm in arms if arm != _ZERO_SHOT]
    for index, arm in enumerate(shown):
        averages = [(k, results.macro(backbone, datasets, arm, k, _METRIC)) for k in shots]
        points = [(k * spread(index, len(shown)), one.mean, one.sd or 0.0) for k, one in averages if one]
        if points:
            xs, means, sds = zip(*points, strict=True)
            error_bars(panel, x=xs, y=means, yerr=sds, label=arm_label(arm), linestyle="-", **styles[arm])
    zero_shot_line(panel, {k: zero_shot(results, backbone, datasets, k, _METRIC) for k in shots})
    log2_axis(panel, shots, "shots (training images per class)")
    panel.set_xlim(min(shots) / 1.4, max(shots) * 1.4)


def _cost_figure(
    results: Results, costs: Costs, name: str, title: str, axis: str, of: Callable[[Cost], float]
) -> Figure | None:
    """Accuracy against one part of the cost, at the highest number of shots; None if no run recorded its cost."""
    arms = method_arms(results, _METRIC)
    styles, backbones = _styles(arms), results.axis("backbone", metric=_METRIC)
    shots = {backbone: results.axis("shots", backbone=backbone, metric=_METRIC) for backbone in backbones}
    used = {backbone: _covered(results, backbone, arms, shots[backbone]) for backbone in backbones}
    plotted = False
    with plot_style():
        canvas, axes = panels(1, len(backbones), width=max(4.2, 7.6 / len(backbones)), height=3.3)
        for panel, backbone in zip(axes[0], backbones, strict=True):
            most = shots[backbone][-1]
            panel.set_title(f"{shorten(backbone, 30)}, {most}-shot")
            points = 0
            for arm in arms.all:
                cost = average_cost(costs, backbone, used[backbone], arm, most)
                mean = results.macro(backbone, used[backbone], arm, most, _METRIC)
                if cost and mean and arm != _ZERO_SHOT and of(cost) > 0:
                    style = styles[arm] | {"linestyle": "none", "label": arm_label(arm)}
                    error_bars(panel, x=[of(cost)], y=[mean.mean], yerr=[mean.sd or 0.0], **style)
                    points += 1
            if not points:
                empty_panel(panel)
                continue
            plotted = True
            zero_shot_line(panel, {most: zero_shot(results, backbone, used[backbone], most, _METRIC)})
            log10_axis(panel, axis)
        axes[0, 0].set_ylabel(METRIC_LABELS[_METRIC])
        shared_legend(canvas, axes.ravel())
        caption = (
            f"Mean and standard deviation over seeds, {averaged_over(used, results)}; the cost is averaged in the same way. "
            "Filled: methods without a prompt; open: prompts. In a prompt batch the time is divided by the number of prompts."
        )
        return to_figure(name, f"Methods: {title[0].lower()}{title[1:]}", caption, canvas) if plotted else None


def _covered(results: Results, backbone: str, arms: MethodArms, shots: Sequence[int]) -> list[str]:
    return best_covered(results, backbone, [(arm, k) for arm in arms.all for k in shots], _METRIC)


def _styles(arms: MethodArms) -> _Styles:
    """A colour and marker for each arm; methods have filled markers, prompts open ones."""
    styles: dict[Arm, dict[str, Any]] = {}
    for group, look in ((arms.methods, {}), (arms.prompts, {"markerfacecolor": "white"})):
        shown = [arm for arm in group if arm != _ZERO_SHOT]
        for index, arm in enumerate(shown):
            place = index % len(_COLOURS)
            marker = _MARKERS[(place + index // len(_COLOURS)) % len(_MARKERS)]
            styles[arm] = {"color": _COLOURS[place], "marker": marker, **look}
    return styles
