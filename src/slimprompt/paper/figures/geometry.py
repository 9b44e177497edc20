"""Geometry of the factors: overlap between runs, and distance to the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from slimprompt.analysis.geometry import AXES, Geometry
from slimprompt.paper.published import AXIS_NAMES
from slimprompt.report.figure_style import FACTOR_STYLES, category_axis, missing_figure
from slimprompt.report.plotting import (
    BLACK,
    GREY,
    LIGHT,
    MIN_VIOLIN,
    Figure,
    panels,
    plot_style,
    shared_legend,
    to_figure,
    violin,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colour and marker of each factor, from left to right.
_STYLES = {"B": FACTOR_STYLES["B"], "A": FACTOR_STYLES["A"], "BA": (LIGHT, "s")}


def geometry_violin(geometry: Geometry) -> Figure:
    """Overlap of A, B and BA between runs that differ in one field, with the level of random subspaces."""
    name, title = "factor_overlap", "Subspace overlap between independently trained prompts"
    pairs = geometry.pairs
    present = [axis for axis in AXES if not pairs.empty and (pairs["axis"] == axis).any()]
    if not present:
        needs = "two jointly trained runs that differ in exactly one of seed, dataset, shots and rank"
        return missing_figure(name, title, needs)
    levels = {(row["axis"], row["factor"]): row for row in geometry.chance.to_dict("records")}
    with plot_style():
        canvas, axes = panels(1, 1, width=1.3 + 1.7 * len(present), height=3.3)
        panel: Axes = axes[0, 0]
        ticks = []
        for index, axis in enumerate(present):
            n = 0
            for offset, (factor, (colour, marker)) in zip((-0.28, 0.0, 0.28), _STYLES.items(), strict=True):
                chosen = (pairs["axis"] == axis) & (pairs["factor"] == factor)
                values = pairs.loc[chosen, "overlap"].to_numpy()
                n = len(values)
                if n:
                    violin(panel, index + offset, values, colour, marker)
                    _plot_chance(panel, index + offset, levels[axis, factor])
            ticks.append(f"different\n{AXIS_NAMES[axis]}\n({n} pairs)")
        _add_legend_entries(panel)
        panel.set_xticks(range(len(present)), ticks)
        panel.grid(axis="x", visible=False)
        panel.set_ylim(0, 1.02)
        panel.set_ylabel("subspace overlap")
        shared_legend(canvas, [panel])
        caption = (
            "Mean cosine of the principal angles, for all pairs of runs on "
            f"{_class_subsets(pairs)} classes that differ only in the named field. White "
            "markers are medians, bars the interquartile range; with fewer than "
            f"{MIN_VIOLIN} pairs every pair is plotted. Dashed: the median of {geometry.draws:,} independent random "
            "subspaces of the same dimensions, with their central 90 %. B is compared by its columns, A and BA by their rows."
        )
        return to_figure(name, title, caption, canvas)


def _class_subsets(frame: pd.DataFrame) -> str:
    return " and ".join(sorted(set(frame["class_subset"])))


def _plot_chance(panel: Axes, x: float, level: dict[Any, Any]) -> None:
    """The median and the central 90 % of random subspaces."""
    span = [x - 0.13, x + 0.13]
    panel.fill_between(span, level["overlap_low"], level["overlap_high"], color=GREY, alpha=0.25, linewidth=0, zorder=1)
    panel.plot(span, [level["overlap"]] * 2, zorder=4, **_CHANCE_LINE)


_CHANCE_LINE: dict[str, Any] = {"color": BLACK, "linewidth": 1.1, "linestyle": (0, (2, 1))}


def _add_legend_entries(panel: Axes) -> None:
    panel.plot([], [], label="chance", **_CHANCE_LINE)
    edge: dict[str, Any] = {"markeredgecolor": BLACK, "markeredgewidth": 0.6}
    for factor, (colour, marker) in _STYLES.items():
        panel.plot([], [], color=colour, marker=marker, linestyle="none", label=factor, **edge)


def displacement(geometry: Geometry) -> Figure:
    """Distance of each trained factor to its start: angle of the subspace, and relative norm of the change."""
    name, title = "displacement", "Distance of the factors to their start"
    frame = geometry.displacement
    trained = (("joint", "A"), ("joint", "B"), ("fixed-B", "A"), ("fixed-A", "B"))
    groups: dict[tuple[str, str], pd.DataFrame] = {}
    for variant, factor in trained:
        rows = frame[(frame["variant"] == variant) & (frame["factor"] == factor)]
        if len(rows):
            groups[variant, factor] = rows
    if not groups:
        return missing_figure(name, title, "low-rank runs")
    with plot_style():
        canvas, axes = panels(1, 2, height=1.2 + 0.45 * len(groups), sharey=True)
        quantities = (("angle", "mean principal angle to the start (°)"), ("relative_norm", "‖X − X₀‖ / ‖X₀‖"))
        for panel, (column, label) in zip(axes[0], quantities, strict=True):
            for index, ((_, factor), rows) in enumerate(groups.items()):
                values = rows[column].dropna().to_numpy()
                violin(panel, index, values, *FACTOR_STYLES[factor], width=0.7, vertical=False)
            panel.set_xlabel(label)
            panel.set_xlim(left=0)
            panel.grid(axis="y", visible=False)
        labels = [f"{variant}: {factor} (n = {len(rows)})" for (variant, factor), rows in groups.items()]
        category_axis(axes[0, 0], labels)
        caption = (
            f"Runs on {_class_subsets(frame)} classes, for the factors that train: distribution, median and interquartile range. The paper could not "
            "measure this, because the start of a run was not stored."
        )
        return to_figure(name, title, caption, canvas)
