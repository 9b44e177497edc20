"""How figures look and how they are stored: one palette, vector text, the same bytes for the same data.

The palette is Okabe and Ito's, which people with any kind of colour vision can tell apart; markers and dashes repeat what
the colours say, so that a grey print loses nothing.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BLACK, GREY, LIGHT = "#000000", "#6b6b6b", "#b8b8b8"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, selected and read aloud
    "svg.hashsalt": "slimprompt",  # ids inside the file do not change from run to run
    "text.parse_math": False,  # a "$" in a class name is a dollar
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the layout is the same everywhere
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
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
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Figure:
    """A drawn figure, or the reason why there is none."""

    name: str
    title: str
    caption: str
    """How to read it, what was averaged, what is left out."""
    svg: str = ""
    png: bytes = b""
    missing: str = ""
    """Why there is nothing to draw; then `svg` and `png` are empty."""

    def inline(self) -> str:
        """The SVG as an element of an HTML page: no prolog, no fixed size, ids of its own, a name for screen readers."""
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
        # Text stays readable on a phone, where the plot scrolls, and does not become huge on a wide screen.
        root.set("style", f"min-width: {0.8 * pixels:.0f}px; max-width: {1.35 * pixels:.0f}px")
        root.set("role", "img")
        root.set("aria-label", self.title)
        return ET.tostring(root, encoding="unicode")


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, everything that is drawn has the style of this project, whatever the user's own settings are."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.7, **options: Any) -> tuple[Canvas, Any]:
    """A canvas with `rows` × `columns` axes of the given size in inches, and the axes as a two-dimensional array."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(max(width * columns, 4.2), height * rows))
    return canvas, canvas.subplots(rows, columns, squeeze=False, **options)


def finished(name: str, title: str, caption: str, canvas: Canvas) -> Figure:
    """The canvas as SVG and PNG. Neither holds a date, so the same data give the same bytes."""
    text, image = io.StringIO(), io.BytesIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    canvas.set_layout_engine("none")  # the panels stay where the first pass has put them
    canvas.savefig(image, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return Figure(name, title, caption, text.getvalue(), image.getvalue())


def shared_legend(canvas: Canvas, axes: Sequence[Axes]) -> None:
    """One legend above all panels, each entry once: what was measured first, levels and references after it."""
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
    room = canvas.get_figwidth() * 12  # characters of the legend's font, roughly
    columns = max(1, int(room // (max(map(len, entries), default=1) + 7)))
    if entries:
        canvas.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=min(len(entries), columns))


def write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """`<name>.svg` and `<name>.png` of every figure that could be drawn; returns the files."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the figures")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures:
        if figure.missing:
            continue
        for suffix, content in ((".svg", figure.svg.encode()), (".png", figure.png)):
            path = folder / f"{figure.name}{suffix}"
            path.write_bytes(content)
            written.append(path)
    return written
