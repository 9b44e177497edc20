"""Shared plotting code: one style and palette, panels, violins, legends, and reproducible SVG and PNG files.

The palette is Okabe and Ito's, which is safe for all kinds of colour blindness. Markers and line styles repeat the
information of the colours, so figures can be read in greyscale.
"""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BLACK, GREY, LIGHT = "#000000", "#6b6b6b", "#b8b8b8"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # keeps text searchable, selectable and accessible to screen readers
    "svg.hashsalt": "slimprompt",  # makes the ids in the file reproducible
    "text.parse_math": False,  # class names may contain "$"
    "font.family": "DejaVu Sans",  # ships with matplotlib, so the layout is the same everywhere
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
_PNG_DPI = 160
#: With fewer values a violin would suggest more shape than the data have; single points are plotted instead.
MIN_VIOLIN = 8
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


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
            for child in [one for one in parent if one.tag == f"{{{_SVG}}}metadata"]:
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


def load_matplotlib() -> None:
    """Import what figures use; before processes that plot are forked, so that none of them has to."""
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.style  # noqa: F401


@contextmanager
def plot_style() -> Iterator[None]:
    """Apply the project's matplotlib style inside the block, whatever the user's own settings are."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.7, **options: Any) -> tuple[Canvas, Any]:
    """A matplotlib figure with `rows` × `columns` axes.

    Parameters
    ----------
    rows, columns
        Grid of axes.
    width, height
        Size of one panel in inches.
    options
        Further arguments of `matplotlib.figure.Figure.subplots`.

    Returns
    -------
    canvas, axes
        The figure and its axes as a two-dimensional array.
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
    if not png:
        return Figure(name, title, caption, text.getvalue())
    canvas.set_layout_engine("none")  # keeps the layout that was computed for the SVG
    canvas.set_dpi(_PNG_DPI)
    FigureCanvasAgg(canvas).print_png(image, metadata={"Software": None})
    return Figure(name, title, caption, text.getvalue(), image.getvalue())


def violin(
    axes: Axes,
    position: float,
    values: np.ndarray,
    colour: str,
    marker: str,
    *,
    width: float = 0.26,
    vertical: bool = True,
) -> None:
    """Plot a distribution as a violin with its median and interquartile range, or as points if there are few values.

    Parameters
    ----------
    axes
        Where to plot.
    position
        Coordinate on the category axis.
    values
        The sample.
    colour, marker
        Fill colour of the violin, and marker of the median or of the points.
    width
        Width of the violin.
    vertical
        Whether the values run along the y axis.
    """

    def plot(along: Any, across: Any, **style: Any) -> None:
        axes.plot(*((across, along) if vertical else (along, across)), **style)

    if len(values) >= MIN_VIOLIN and np.ptp(values) > 1e-9:
        orientation: Any = "vertical" if vertical else "horizontal"
        parts = axes.violinplot(
            [values], positions=[position], widths=width, showextrema=False, orientation=orientation
        )
        parts["bodies"][0].set(facecolor=colour, alpha=0.75, edgecolor=BLACK, linewidth=0.6)  # type: ignore[index]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        plot([low, high], [position, position], color=BLACK, linewidth=3, solid_capstyle="butt", zorder=3)
        plot([middle], [position], marker=marker, color="white", markeredgecolor=BLACK, markersize=5.5, zorder=5)
    else:
        edge = {"markeredgecolor": BLACK, "markeredgewidth": 0.6}
        plot(values, np.full(len(values), position), marker=marker, linestyle="none", color=colour, zorder=3, **edge)


def error_bars(axes: Axes, **options: Any) -> None:
    """`axes.errorbar` with the caps and line width that all figures share."""
    axes.errorbar(capsize=2, elinewidth=0.8, **options)


def shared_legend(canvas: Canvas, axes: Sequence[Axes]) -> None:
    """One legend above all panels without repeated entries: measured series first, then reference lines.

    A legend of more than two lines makes the figure taller, so that the panels keep their size.
    """
    from matplotlib.container import ErrorbarContainer
    from matplotlib.lines import Line2D

    measured: dict[str, Any] = {}
    references: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
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


def figure_files(figures: Sequence[Figure]) -> Iterator[tuple[str, str | bytes]]:
    """(`<name>.svg` or `<name>.png`, content) of every figure that is not missing."""
    for figure in figures:
        yield from (
            (f"{figure.name}.{kind}", content)
            for kind, content in (("svg", figure.svg), ("png", figure.png))
            if content
        )
