"""Line styles, labels and messages that figures about runs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slimprompt.analysis.results import CROSS_DATASET, Results
from slimprompt.report.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Metric → axis label.
METRIC_LABELS = {"accuracy": "accuracy, all classes (%)", "harmonic": "H of base and new classes (%)"}

#: Role or basis of an arm → line style.
ARM_STYLES: dict[str, dict[str, Any]] = {
    "dense": {"color": BLACK, "marker": "s", "linestyle": "-"},
    "dense short": {"color": GREY, "marker": "s", "linestyle": "--", "markerfacecolor": "white"},
    "trainable": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "orthogonal": {"color": VERMILION, "marker": "^", "linestyle": "--"},
    "gaussian": {"color": ORANGE, "marker": "D", "linestyle": "-."},
    "svd": {"color": GREEN, "marker": "v", "linestyle": (0, (5, 1))},
    "learned": {"color": PURPLE, "marker": "P", "linestyle": (0, (1, 1))},
}

#: Colour and marker of each factor.
FACTOR_STYLES = {"A": (VERMILION, "^"), "B": (BLUE, "o")}

_SHOT_STYLES: tuple[dict[str, Any], ...] = (  # light to dark, which keeps the order in greyscale
    {"color": SKY, "marker": "o"},
    {"color": VERMILION, "marker": "^"},
    {"color": BLACK, "marker": "s"},
    {"color": GREEN, "marker": "D"},
    {"color": PURPLE, "marker": "v"},
)


def shot_style(index: int) -> dict[str, Any]:
    """Line style of the shot count with this index, fewest shots first."""
    return _SHOT_STYLES[index % len(_SHOT_STYLES)]


def metric_name(metric: str) -> str:
    """Short name of a metric: `accuracy` or `H`."""
    return "H" if metric == "harmonic" else metric


def shorten(name: str, length: int = 26) -> str:
    """A name that fits next to a panel; a long name keeps its end, which says most about a path."""
    return name if len(name) <= length else "…" + name[1 - length :]


def missing_figure(name: str, title: str, needs: str) -> Figure:
    """The figure that says which runs it needs."""
    return Figure(name, title, "", missing=f"There are no runs for this figure yet: it needs {needs}.")


def empty_panel(panel: Axes) -> None:
    """Write "no runs yet" into a panel."""
    panel.text(0.5, 0.5, "no runs yet", transform=panel.transAxes, ha="center", va="center", color=GREY)
    panel.set_xticks([])
    panel.set_yticks([])


def spread(index: int, count: int) -> float:
    """A factor near 1 that separates overlapping markers on a logarithmic axis."""
    return 1.04 ** (index - (count - 1) / 2)


def zero_shot_line(panel: Axes, levels: Mapping[int, float | None]) -> None:
    """The zero-shot accuracy by shots: one level, or a line if the test images depend on the shots; unknown ones are left out."""
    known = {k: level for k, level in levels.items() if level is not None}
    style: dict[str, Any] = {
        "color": GREY,
        "linewidth": 1.1,
        "linestyle": (0, (4, 2)),
        "label": "zero-shot",
        "zorder": 1,
    }
    if len({round(level, 6) for level in known.values()}) == 1:
        panel.axhline(next(iter(known.values())), **style)
    elif known:
        panel.plot(list(known), list(known.values()), **style)


def log2_axis(panel: Axes, ticks: Sequence[int], label: str) -> None:
    """A logarithmic x axis with these ticks."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(ticks), [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel(label)


def log10_axis(panel: Axes, label: str) -> None:
    """A logarithmic x axis with plain numbers at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(label)


def category_axis(panel: Axes, labels: Sequence[str]) -> None:
    """A y axis with one label per row, from top to bottom."""
    panel.set_yticks(range(len(labels)), list(labels))
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)


def averaged_over(used: Mapping[str, Sequence[str]], results: Results) -> str:
    """Part of a caption: the datasets that each panel averages over, and those without all runs.

    Parameters
    ----------
    used
        Panel → its datasets.
    results
        All results.
    """
    if len({tuple(names) for names in used.values()}) == 1:
        names = next(iter(used.values()))
        several = f"averaged over {len(names)} datasets ({', '.join(names)}) within each seed"
        text = f"on {names[0]}" if len(names) == 1 else several
    else:
        panels = (f"{panel}: {', '.join(names)}" for panel, names in used.items())
        text = "averaged within each seed over " + "; ".join(panels)
    present = {key.dataset for key in results.cells if not key.metric.endswith(CROSS_DATASET)}
    omitted = sorted(present - {name for names in used.values() for name in names})
    if omitted and not results.published:
        text += f"; left out because some runs are missing: {', '.join(omitted)}"
    return text
