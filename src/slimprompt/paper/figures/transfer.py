"""Transfer: cost of freezing a factor at another dataset's values or at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slimprompt.analysis.arms import TRANSFER_MODES, joint, transfer
from slimprompt.analysis.results import Results, on_common_seeds
from slimprompt.report.figure_style import missing_figure, shorten
from slimprompt.report.plotting import BLACK, GREY, Figure, panels, plot_style, to_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


class _Grid(NamedTuple):
    """Targets and sources of one backbone, rank and shot count."""

    backbone: str
    rank: int
    shots: int
    targets: list[str]
    sources: list[str]


def transfer_matrix(results: Results) -> Figure:
    """Accuracy with a frozen factor minus that with both factors trained, by target and source."""
    name, title = "transfer_matrix", "Transfer: one factor frozen at another dataset's values, or at random"
    grids = _grids(results)
    if not grids:
        return missing_figure(name, title, "transfer runs")
    with plot_style():
        height = 1.5 + 0.42 * max(len(grid.targets) for grid in grids)
        canvas, axes = panels(len(grids), 2, width=3.9, height=height)
        matrices = {(row, side): _gaps(results, grid, side) for row, grid in enumerate(grids) for side in ("B", "A")}
        known = np.concatenate([gaps[~np.isnan(gaps)] for gaps in matrices.values()])
        low, high = (min(float(known.min()), 0.0), max(float(known.max()), 0.0)) if known.size else (-1.0, 0.0)
        for row, grid in enumerate(grids):
            for column, (side, trained) in enumerate((("B", "A"), ("A", "B"))):
                image = _plot_gaps(axes[row, column], grid, matrices[row, side], low, high)
                axes[row, column].set_title(f"freeze {side}, train {trained}")
            axes[row, 0].set_yticks(range(len(grid.targets)), [shorten(target) for target in grid.targets])
            axes[row, 0].set_ylabel(f"target ({shorten(grid.backbone)}, r = {grid.rank}, {grid.shots}-shot)")
        canvas.colorbar(image, ax=axes.ravel().tolist(), label="points against training both", shrink=0.8)
        caption = (
            "Accuracy on the target minus that of the prompt that trains both factors there, mean over seeds. "
            "A dash: one of the two runs is missing. “random” is the control, an untrained random factor."
        )
        return to_figure(name, title, caption, canvas)


def _grids(results: Results) -> list[_Grid]:
    found = {(key.backbone, key.rank, key.shots) for key in results.cells if key.basis in TRANSFER_MODES}
    grids = []
    for backbone, rank, shots in sorted(found):
        where = {"backbone": backbone, "rank": rank, "shots": shots}
        targets = results.axis("dataset", basis=set(TRANSFER_MODES), **where)
        sources = results.axis("source", basis={"source-A", "source-B"}, **where)
        grids.append(_Grid(backbone, rank, shots, targets, sources))
    return grids


def _gaps(results: Results, grid: _Grid, side: str) -> np.ndarray:
    """Differences to training both factors, (targets, sources + 1); the last column is the random factor."""
    gaps = np.full((len(grid.targets), len(grid.sources) + 1), np.nan)
    for y, target in enumerate(grid.targets):
        reference = results.cell(grid.backbone, target, joint(grid.rank), grid.shots)
        for x, source in enumerate([*grid.sources, ""]):
            arm = transfer(f"{'source' if source else 'random'}-{side}", grid.rank)
            found = results.cell(grid.backbone, target, arm, grid.shots, source=source)
            if found and reference and (pair := on_common_seeds((found, reference))):
                gaps[y, x] = pair[0].mean - pair[1].mean
    return gaps


def _plot_gaps(panel: Axes, grid: _Grid, gaps: np.ndarray, low: float, high: float) -> AxesImage:
    image = panel.imshow(gaps, cmap="cividis", vmin=low, vmax=high, aspect="auto")
    for (y, x), gap in np.ndenumerate(gaps):
        text, colour = "—", GREY
        if not np.isnan(gap):
            text = f"{round(gap, 1) + 0.0:+.1f}".replace("-", "−")  # + 0.0 turns a negative zero into a positive one
            colour = BLACK if (gap - low) > 0.55 * (high - low) else "white"
        panel.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    labels = [*(shorten(source) for source in grid.sources), "random"]
    panel.set_xticks(range(len(labels)), labels, rotation=40, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(len(grid.targets)), [""] * len(grid.targets))
    panel.set_xlabel("source of the frozen factor")
    panel.grid(visible=False)
    panel.set_facecolor("#f2f2f2")
    return image
