"""Figures that compare methods: accuracy against shots, against trained numbers and against training time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd

from slimprompt.analysis.frame import (
    CROSS_DATASET,
    Measurements,
    average,
    axis,
    best_covered,
    reference,
    select,
    summary,
)
from slimprompt.methods.table import METHODS
from slimprompt.report.methods_tables import compared_labels
from slimprompt.report.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    METRIC_LABELS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Figure,
    empty_panel,
    error_bars,
    figure,
    log2_axis,
    log10_axis,
    panels,
    plot_means,
    reference_lines,
    shorten,
    spread,
)
from slimprompt.user_functions import is_user_function

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from slimprompt.report.plotting import Plotted

_METRIC = "accuracy"
_COLOURS = (BLUE, VERMILION, BLACK, GREEN, PURPLE, ORANGE, SKY, GREY)
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")

#: Groups of labels.
_METHODS, _PROMPTS = "methods without a prompt", "prompts"
_NEEDED = "runs of other methods, or of prompts beyond the paper, on all classes"

#: Label → line style.
Styles = Mapping[str, dict[str, Any]]


def plot_shots(
    panel: Axes, frame: pd.DataFrame, backbone: str, metric: str, datasets: Sequence[str], styles: Styles
) -> None:
    """Plot averages over datasets against shots, one line per label, with the levels of zero-shot and of guessing."""
    panel.set_ylabel(METRIC_LABELS[metric])
    if not datasets:
        return empty_panel(panel)
    shots = axis(frame, "shots", backbone=backbone, metric=metric)
    chosen = select(frame, backbone=backbone, metric=metric, source="", label=list(styles))
    means = summary(average(chosen, datasets))
    for index, (label, style) in enumerate(styles.items()):
        rows = select(means, label=label)
        plot_means(panel, rows, "shots", spread(index, len(styles)), **{"label": label, "linestyle": "-", **style})
    zero_shot = {k: reference(frame, "zero_shot", backbone, datasets, k, metric) for k in shots}
    reference_lines(panel, zero_shot, reference(frame, "chance", backbone, datasets, shots[0], metric))
    return log2_axis(panel, shots, "shots (training images per class)")


def averaged_over(used: Mapping[str, Sequence[str]], frame: pd.DataFrame) -> str:
    """Part of a caption: the datasets that each panel averages over, and those that are incomplete."""
    if len({tuple(names) for names in used.values()}) == 1:
        names = next(iter(used.values()))
        several = f"averaged over {len(names)} datasets ({', '.join(names)}) within each seed"
        text = f"on {names[0]}" if len(names) == 1 else several
    else:
        parts = (f"{panel}: {', '.join(names)}" for panel, names in used.items())
        text = "averaged within each seed over " + "; ".join(parts)
    metrics = [name for name in axis(frame, "metric") if not name.endswith(CROSS_DATASET)]
    omitted = set(axis(frame, "dataset", metric=metrics)) - {name for names in used.values() for name in names}
    return text + (f"; left out because some runs are missing: {', '.join(sorted(omitted))}" if omitted else "")


def methods_figures(results: Measurements) -> list[Figure]:
    """All figures that compare methods; none if there are no runs of other methods or of prompts beyond the paper."""
    made = methods_by_shots(results.frame), by_trained_numbers(results), by_seconds(results)
    return [plotted for plotted in made if not plotted.missing]


@figure("methods_by_shots", "Methods: accuracy against shots", _NEEDED)
def methods_by_shots(frame: pd.DataFrame) -> Plotted:
    """Accuracy against shots: methods without a prompt on the left, prompts on the right."""
    styles = {backbone: _styles(frame, backbone) for backbone in _backbones(frame)}
    if not styles:
        return None
    groups = [name for name in (_METHODS, _PROMPTS) if any(groups[name] for groups in styles.values())]
    used = {backbone: _covered(frame, backbone) for backbone in styles}
    canvas, axes = panels(len(styles), len(groups), width=3.8, height=3.0, sharey="row")
    for row, backbone in enumerate(styles):
        for panel, name in zip(axes[row], groups, strict=True):
            plot_shots(panel, frame, backbone, _METRIC, used[backbone], styles[backbone][name])
            panel.set_title(f"{shorten(backbone, 24)}, {name}")
            panel.label_outer()
    return canvas, f"Mean and standard deviation over seeds, {averaged_over(used, frame)}."


@figure("methods_by_trained_numbers", "Methods: accuracy against trained numbers", _NEEDED)
def by_trained_numbers(results: Measurements) -> Plotted:
    """Accuracy against the numbers that are learned, at the highest number of shots."""
    return _by_cost(results, "parameters", "numbers learned from the training images")


@figure("methods_by_seconds", "Methods: accuracy against training time", _NEEDED)
def by_seconds(results: Measurements) -> Plotted:
    """Accuracy against the time of training, at the highest number of shots."""
    return _by_cost(results, "seconds", "seconds of training, without encoding images")


def _by_cost(results: Measurements, cost: str, label: str) -> Plotted:
    """Accuracy against a column of the costs; None if no run recorded it."""
    frame = results.frame
    backbones = _backbones(frame)
    if not backbones or results.costs is None:
        return None
    costs = results.costs.loc[results.costs[cost] > 0, [cost]]
    used = {backbone: _covered(frame, backbone) for backbone in backbones}
    canvas, axes = panels(1, len(backbones), width=max(4.2, 7.6 / len(backbones)), height=3.3)
    plotted = 0
    for panel, backbone in zip(axes[0], backbones, strict=True):
        most, datasets = axis(frame, "shots", backbone=backbone, metric=_METRIC)[-1], used[backbone]
        panel.set_title(f"{shorten(backbone, 30)}, {most}-shot")
        means = summary(average(select(frame, backbone=backbone, metric=_METRIC, shots=most, source=""), datasets))
        for name, style in chain.from_iterable(group.items() for group in _styles(frame, backbone).values()):
            paid = select(costs, backbone=backbone, label=name, shots=most, dataset=datasets)
            rows = select(means, label=name)
            if len(paid) == len(datasets) and len(rows):
                mean, sd = rows["mean"].to_numpy(), rows["sd"].fillna(0.0).to_numpy()
                error_bars(panel, x=paid.mean(), y=mean, yerr=sd, **style, linestyle="none", label=name)
                plotted += 1
        if panel.containers:
            reference_lines(panel, {most: reference(frame, "zero_shot", backbone, datasets, most, _METRIC)})
            log10_axis(panel, label)
        else:
            empty_panel(panel)
    axes[0, 0].set_ylabel(METRIC_LABELS[_METRIC])
    caption = (
        f"Mean and standard deviation over seeds, {averaged_over(used, frame)}; the cost is averaged in the same way. "
        "Filled: methods without a prompt; open: prompts. In a prompt batch the time is divided by the number of prompts."
    )
    return (canvas, caption) if plotted else None


def _backbones(frame: pd.DataFrame) -> list[str]:
    """Backbones with labels to compare."""
    return [name for name in axis(frame, "backbone", metric=_METRIC) if compared_labels(frame, name)]


def _styles(frame: pd.DataFrame, backbone: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Group → label → line style: methods have filled markers, prompts open ones. Zero-shot is a level and has none."""
    styles: dict[str, dict[str, dict[str, Any]]] = {_METHODS: {}, _PROMPTS: {}}
    for label in compared_labels(frame, backbone):
        is_method = label in METHODS or is_user_function(label)
        group = styles[_METHODS if is_method else _PROMPTS]
        times, place = divmod(len(group), len(_COLOURS))
        style = {"color": _COLOURS[place], "marker": _MARKERS[(place + times) % len(_MARKERS)]}
        if label != "zero-shot":
            group[label] = style if is_method else style | {"markerfacecolor": "white"}
    return styles


def _covered(frame: pd.DataFrame, backbone: str) -> list[str]:
    return best_covered(frame, compared_labels(frame, backbone), backbone=backbone, metric=_METRIC, source="")
