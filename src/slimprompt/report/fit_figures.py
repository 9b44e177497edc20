"""Figures of the page about one fitted classifier: its confusion matrix, its reliability diagram and its learning curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from slimprompt.calibration import ReliabilityBin
from slimprompt.report.plotting import BLACK, BLUE, epoch_axis, figure, panels

if TYPE_CHECKING:
    from slimprompt.report.plotting import Plotted

#: With more classes the counts would not fit into the squares.
_MAX_COUNTED = 15


@figure("confusion_matrix", "Confusion matrix", png=False)
def confusion_matrix(class_names: Sequence[str], counts: np.ndarray) -> Plotted:
    """Percentage of the images of each class (row) that were predicted as each class (column).

    `counts` are the numbers of images by true and predicted class, (n_classes, n_classes).
    """
    n = len(class_names)
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(100.0 * counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    side = float(np.clip(1.8 + 0.24 * n, 3.6, 11.0))
    canvas, axes = panels(1, 1, width=side + 1.0, height=side)
    panel = axes[0, 0]
    image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    labels = [name if len(name) <= 28 else name[:27] + "…" for name in class_names]
    size = float(np.clip(300 / n, 3.0, 8.0))
    panel.set_yticks(range(n), labels, fontsize=size)
    panel.set_xticks(range(n), labels, rotation=90, fontsize=size)
    panel.grid(visible=False)
    panel.set_facecolor("#f2f2f2")
    for (y, x), number in np.ndenumerate(counts):
        if number and n <= _MAX_COUNTED:
            colour = "white" if shares[y, x] > 55 else BLACK
            panel.text(x, y, f"{int(number)}", ha="center", va="center", fontsize=7, color=colour)
    panel.set_ylabel("true class")
    panel.set_xlabel("predicted class")
    canvas.colorbar(image, ax=panel, label="% of the true class", shrink=0.7)
    caption = "Rows are true classes, columns are predicted classes. A perfect classifier has only the diagonal."
    return canvas, caption + (" The numbers count images." if n <= _MAX_COUNTED else "")


@figure("reliability_diagram", "Reliability diagram", png=False)
def reliability_diagram(bins: Sequence[ReliabilityBin], error: float) -> Plotted:
    """Accuracy by confidence, and how many images have which confidence; `error` is the calibration error in percent."""
    filled = [part for part in bins if part.n_images]
    left, width = [part.low for part in bins], [part.high - part.low for part in bins]
    canvas, axes = panels(1, 2, height=2.6)
    accuracy, images = axes[0]
    accuracy.plot([0, 1], [0, 1], color=BLACK, linewidth=0.8, linestyle="--")
    accuracy.plot([part.confidence for part in filled], [part.accuracy for part in filled], color=BLUE, marker="o")
    accuracy.set_ylabel("accuracy")
    accuracy.set_ylim(0, 1.02)
    images.bar(left, [part.n_images for part in bins], width=width, align="edge", color=BLUE)
    images.set_ylabel("images")
    for panel in (accuracy, images):
        panel.set_xlim(0, 1.02)
        panel.set_xlabel("confidence")
    caption = (
        "Left: share of correct predictions among the images with about the same confidence, the probability of the predicted "
        "class. On the dashed line the probabilities are calibrated; below it the classifier is overconfident. Right: number of "
        f"images. The expected calibration error is {error:.1f} %."
    )
    return canvas, caption


@figure("training_curve", "Learning curve", png=False)
def training_curve(epochs: Sequence[tuple[float, float]]) -> Plotted:
    """Loss and accuracy in percent on the training images by epoch."""
    losses, accuracies = zip(*epochs, strict=True)
    canvas, axes = panels(1, 2, height=2.2)
    for panel, values, label in zip(
        axes[0], (losses, accuracies), ("training loss", "training accuracy (%)"), strict=True
    ):
        panel.plot(range(1, len(values) + 1), values, color=BLUE, marker="o" if len(values) < 3 else "")
        epoch_axis(panel)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
    axes[0, 1].set_ylim(0, 102)
    return canvas, "Measured on the training images of each epoch, before each step; not an estimate for new images."
