"""Shared plotting code: one style and palette, the panels and lines that figures share, and reproducible SVG and PNG files.

The palette is Okabe and Ito's, which is safe for all kinds of colour blindness. Markers and line styles repeat the
information of the colours, so figures can be read in greyscale.
"""

from __future__ import annotations

import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    #: A canvas and its caption, or None without runs to plot.
    Plotted: TypeAlias = tuple[Canvas, str] | None

Arguments = ParamSpec("Arguments")

BLACK, GREY, LIGHT = "#000000", "#6b6b6b", "#b8b8b8"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"

#: Metric → axis label.
METRIC_LABELS = {"accuracy": "accuracy, all classes (%)", "harmonic": "H of base and new classes (%)"}
#: Role of a prompt in the main comparison, or basis → line style.
ROLE_STYLES: dict[str, dict[str, Any]] = {
    "dense": {"color": BLACK, "marker": "s", "linestyle": "-"},
    "dense short": {"color": GREY, "marker": "s", "linestyle": "--", "markerfacecolor": "white"},
    "trainable": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "orthogonal": {"color": VERMILION, "marker": "^", "linestyle": "--"},
    "gaussian": {"color": ORANGE, "marker": "D", "linestyle": "-."},
    "svd": {"color": GREEN, "marker": "v", "linestyle": (0, (5, 1))},
    "learned": {"color": PURPLE, "marker": "P", "linestyle": (0, (1, 1))},
}
#: Factor → colour and marker.
FACTOR_STYLES = {"B": (BLUE, "o"), "A": (VERMILION, "^"), "BA": (LIGHT, "s")}
_SHOT_STYLES: tuple[dict[str, Any], ...] = (  # light to dark, which keeps the order in greyscale
    {"color": SKY, "marker": "o"},
    {"color": VERMILION, "marker": "^"},
    {"color": BLACK, "marker": "s"},
    {"color": GREEN, "marker": "D"},
    {"color": PURPLE, "marker": "v"},
)

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # keeps text searchable, selectable and accessible to screen readers
    "svg.hashsalt": "slimprompt",  # makes the ids in the file reproducible
    "text.parse_math": False,  # class names may contain "$"
    "font.sans-serif": [
        "DejaVu Sans",
        "Verdana",
        "Arial",
    ],  # the first ships with matplotlib, so the layout is the same everywhere
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # where it is anyway with ticks below; matplotlib would measure all tick labels again to find out
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,
}
#: Fonts with scripts that DejaVu Sans lacks; those that are installed are used in PNG files. SVG files use the reader's fonts.
_FURTHER_FONTS = (
    *(
        "Noto Sans CJK SC",
        "Noto Sans CJK JP",
        "Noto Sans SC",
        "Source Han Sans SC",
        "WenQuanYi Zen Hei",
        "Droid Sans Fallback",
    ),
    *(
        "PingFang SC",
        "Hiragino Sans",
        "Microsoft YaHei",
        "Yu Gothic",
        "Malgun Gothic",
        "Arial Unicode MS",
        "Noto Sans Devanagari",
    ),
)
_PNG_DPI = 160
#: With fewer values a violin would suggest more shape than the data have; single points are plotted instead.
MIN_VIOLIN = 8
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


# --- figures and files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A finished figure, or the reason why it could not be plotted."""

    name: str
    title: str
    caption: str
    """How to read the figure, what was averaged, what is left out."""
    svg: str = ""
    png: bytes = b""
    """Empty if the figure is only shown on a page."""
    missing: str = ""
    """Reason why nothing is plotted; `svg` and `png` are then empty."""

    def inline(self) -> str:
        """The SVG as an element of an HTML page, without prolog and fixed size, with unique ids and a label."""
        ET.register_namespace("", _SVG)
        ET.register_namespace("xlink", _XLINK)
        root = ET.fromstring(self.svg)
        for parent in list(root.iter()):
            for child in [child for child in parent if child.tag == f"{{{_SVG}}}metadata"]:
                parent.remove(child)
        for element in root.iter():
            for key, value in list(element.attrib.items()):
                if key == "id":
                    element.set(key, f"{self.name}-{value}")
                elif key == f"{{{_XLINK}}}href" and value.startswith("#"):
                    del element.attrib[key]
                    element.set("href", f"#{self.name}-{value[1:]}")
                elif "url(#" in value:
                    element.set(key, re.sub(r"url\(#", f"url(#{self.name}-", value))
        root.attrib.pop("height", None)
        pixels = float(root.attrib.pop("width").removesuffix("pt")) * 96 / 72
        # Keeps text readable on a phone, where the plot scrolls, and limits its size on a wide screen.
        root.set("style", f"min-width: {0.8 * pixels:.0f}px; max-width: {1.35 * pixels:.0f}px")
        root.set("role", "img")
        root.set("aria-label", self.title)
        return ET.tostring(root, encoding="unicode")


def figure(
    name: str, title: str, needs: str = "", *, png: bool = True
) -> Callable[[Callable[Arguments, Plotted]], Callable[Arguments, Figure]]:
    """Turn a function that plots into one that returns the `Figure`, with a legend above all panels.

    The function returns a canvas and a caption, or None without runs: the figure then says that it needs `needs`.
    """

    def decorate(plot: Callable[Arguments, Plotted]) -> Callable[Arguments, Figure]:
        @wraps(plot)
        def make(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
            with plot_style():
                plotted = plot(*args, **kwargs)
                if plotted is None:
                    return Figure(name, title, "", missing=f"There are no runs for this figure yet: it needs {needs}.")
                canvas, caption = plotted
                shared_legend(canvas)
                return to_figure(name, title, caption, canvas, png=png)

        return make

    return decorate


@cache
def _fonts() -> list[str]:
    """Font families, of which the first that has a character shows it."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _FURTHER_FONTS if name in installed), "sans-serif"]


@contextmanager
def plot_style() -> Iterator[None]:
    """Apply the project's matplotlib style inside the block, whatever the user's own settings are."""
    from matplotlib import style

    with style.context(["default", _STYLE, {"font.family": _fonts()}]), warnings.catch_warnings():
        # Of a script without an installed font: the SVG files and pages show it in the reader's fonts.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.7, **options: Any) -> tuple[Canvas, Any]:
    """A canvas with `rows` × `columns` axes of this size in inches, and the axes as a two-dimensional array.

    `options` are those of `matplotlib.figure.Figure.subplots`.
    """
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(max(width * columns, 4.2), height * rows))
    return canvas, canvas.subplots(rows, columns, squeeze=False, **options)


def to_figure(name: str, title: str, caption: str, canvas: Canvas, *, png: bool = True) -> Figure:
    """Save a canvas as SVG and, with `png`, as PNG, without a date: the same data give the same bytes.

    `Figure.savefig` would draw each of the two files twice, the first time only for the layout.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text, image = io.StringIO(), io.BytesIO()
    FigureCanvasSVG(canvas).print_svg(text, metadata={"Date": None, "Creator": None})
    if png:
        canvas.set_layout_engine("none")  # keeps the layout that was computed for the SVG
        canvas.set_dpi(_PNG_DPI)
        FigureCanvasAgg(canvas).print_png(image, metadata={"Software": None})
    return Figure(name, title, caption, text.getvalue(), image.getvalue())


def figure_files(figures: Sequence[Figure]) -> Iterator[tuple[str, str | bytes]]:
    """(`<name>.svg` or `<name>.png`, content) of every figure that is not missing."""
    for made in figures:
        files = ((f"{made.name}.svg", made.svg), (f"{made.name}.png", made.png))
        yield from ((name, content) for name, content in files if content)


def shared_legend(canvas: Canvas) -> None:
    """One legend above all panels without repeated entries: measured series first, then reference lines.

    A legend of more than two lines makes the figure taller, so that the panels keep their size.
    """
    from matplotlib.container import ErrorbarContainer
    from matplotlib.lines import Line2D

    measured: dict[str, Any] = {}
    references: dict[str, Any] = {}
    for panel in canvas.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            marked = isinstance(handle, Line2D) and handle.get_marker() not in ("None", "")
            group = measured if marked or isinstance(handle, ErrorbarContainer) else references
            group.setdefault(label, handle)
    entries = {**measured, **references}
    room = canvas.get_figwidth() * 12  # approximate number of characters per line
    columns = max(1, int(room // (max(map(len, entries), default=1) + 7)))
    lines = math.ceil(len(entries) / columns)
    if lines > 2:
        canvas.set_figheight(canvas.get_figheight() + 0.2 * (lines - 2))
    if entries:
        canvas.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=min(len(entries), columns))


# --- parts of panels ---------------------------------------------------------------------------------------------------


def error_bars(panel: Axes, **options: Any) -> None:
    """`Axes.errorbar` with the caps and line width that all figures share."""
    panel.errorbar(capsize=2, elinewidth=0.8, **options)


def plot_means(panel: Axes, means: pd.DataFrame, level: str, factor: float = 1.0, **style: Any) -> None:
    """Plot a `slimprompt.analysis.frame.summary` with sd against an index level, at `factor` times its values."""
    if len(means):
        at = means.index.get_level_values(level).to_numpy(dtype=float) * factor
        error_bars(panel, x=at, y=means["mean"].to_numpy(), yerr=means["sd"].fillna(0.0).to_numpy(), **style)


def spread(index: int, count: int) -> float:
    """A factor near 1 that separates overlapping markers on a logarithmic axis."""
    return 1.04 ** (index - (count - 1) / 2)


def shot_style(index: int) -> dict[str, Any]:
    """Line style of the shot count with this index, fewest shots first."""
    return _SHOT_STYLES[index % len(_SHOT_STYLES)]


def reference_lines(panel: Axes, zero_shot: Mapping[int, float | None], chance: float | None = None) -> None:
    """The zero-shot accuracy by shots, one level or a line if the test images depend on the shots, and the level of guessing."""
    known = {k: level for k, level in zero_shot.items() if level is not None}
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
    if chance is not None:  # as text, because a line would compress the range of the other lines
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the zero-shot line may be here
        text = f"chance {chance:.1f} %"
        panel.text(0.99, 0.02, text, transform=panel.transAxes, ha="right", color=GREY, fontsize=8, bbox=behind)


def empty_panel(panel: Axes) -> None:
    """Write "no runs yet" into a panel."""
    panel.text(0.5, 0.5, "no runs yet", transform=panel.transAxes, ha="center", va="center", color=GREY)
    panel.set_xticks([])
    panel.set_yticks([])


def log2_axis(panel: Axes, ticks: Sequence[int], label: str) -> None:
    """A logarithmic x axis with these ticks and some room beside them."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(ticks), [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlim(min(ticks) / 1.4, max(ticks) * 1.4)
    panel.set_xlabel(label)


def log10_axis(panel: Axes, label: str) -> None:
    """A logarithmic x axis with plain numbers at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(label)


def epoch_axis(panel: Axes) -> None:
    """An x axis of whole epochs; the first one is 1."""
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    panel.set_xlabel("epoch")


def category_axis(panel: Axes, labels: Sequence[str]) -> None:
    """A y axis with one label per row, from top to bottom."""
    panel.set_yticks(range(len(labels)), list(labels))
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)


def shorten(name: str, length: int = 26) -> str:
    """A name that fits next to a panel; a long name keeps its end, which says most about a path."""
    return name if len(name) <= length else "…" + name[1 - length :]


def violin(
    panel: Axes,
    position: float,
    values: np.ndarray,
    colour: str,
    marker: str,
    *,
    width: float = 0.26,
    vertical: bool = True,
) -> None:
    """Plot a distribution as a violin with its median and interquartile range, or as points if there are few values.

    `position` is the place on the category axis, `marker` that of the median or of the points.
    """

    def plot(along: Any, across: Any, **style: Any) -> None:
        panel.plot(*((across, along) if vertical else (along, across)), **style)

    if len(values) >= MIN_VIOLIN and np.ptp(values) > 1e-9:
        orientation: Any = "vertical" if vertical else "horizontal"
        parts = panel.violinplot(
            [values], positions=[position], widths=width, showextrema=False, orientation=orientation
        )
        parts["bodies"][0].set(facecolor=colour, alpha=0.75, edgecolor=BLACK, linewidth=0.6)  # type: ignore[index]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        plot([low, high], [position, position], color=BLACK, linewidth=3, solid_capstyle="butt", zorder=3)
        plot([middle], [position], marker=marker, color="white", markeredgecolor=BLACK, markersize=5.5, zorder=5)
    else:
        edge = {"markeredgecolor": BLACK, "markeredgewidth": 0.6}
        plot(values, np.full(len(values), position), marker=marker, linestyle="none", color=colour, zorder=3, **edge)
