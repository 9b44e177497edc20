"""Learning curves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from slimprompt.analysis.arms import Arm, arm_label, arm_of, backbone_title, dense, fixed_basis, joint
from slimprompt.analysis.selection import nearest_rank
from slimprompt.lab.records import Record
from slimprompt.report.figure_style import ARM_STYLES, missing_figure, shorten
from slimprompt.report.plotting import Figure, panels, plot_style, shared_legend, to_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: (backbone, shots, arm) → training losses by epoch, one array per run.
_Curves = dict[tuple[str, int, Arm], list[np.ndarray]]


def learning_curves(records: Sequence[Record]) -> Figure:
    """Training loss by epoch, averaged over the runs of an arm, with one panel per backbone and shot count."""
    name, title = "learning_curves", "Learning curves"
    arms = _arms(records)
    chosen = [
        record for record in records if record.spec.class_subset == "all" and arm_of(record.spec) in arms.values()
    ]
    if not chosen:
        return missing_figure(name, title, "dense, jointly trained or fixed orthogonal runs on all classes")
    counts = Counter(record.spec.recipe.epochs for record in chosen)
    epochs = max(counts, key=lambda one: (counts[one], one))
    curves = _read_curves(chosen, epochs)
    if not curves:
        return Figure(name, title, "", missing="None of these runs has a learning curve (curve.csv).")
    backbones, shots = sorted({backbone for backbone, _, _ in curves}), sorted({k for _, k, _ in curves})
    with plot_style():
        canvas, axes = panels(len(backbones), len(shots), width=2.6, height=2.4)
        for row, backbone in enumerate(backbones):
            for column, k in enumerate(shots):
                axes[row, column].set_title(f"{shorten(backbone)}, {k}-shot")
                lines = {role: (arm, curves.get((backbone, k, arm), [])) for role, arm in arms.items()}
                _plot_curves(axes[row, column], lines)
            axes[row, 0].set_ylabel("training loss")
        shared_legend(canvas, axes.ravel())
        return to_figure(name, title, _caption(curves, len(chosen), epochs), canvas)


def _arms(records: Sequence[Record]) -> dict[str, Arm]:
    """Dense of full length, joint and fixed orthogonal at the headline rank, by role."""
    rank = nearest_rank(record.spec.rank for record in records if record.spec.variant == "joint" and record.spec.rank)
    full = max((record.spec.n_ctx for record in records if record.spec.variant == "dense"), default=16)
    return {"dense": dense(full), "trainable": joint(rank), "orthogonal": fixed_basis("orthogonal", rank)}


def _read_curves(records: Sequence[Record], epochs: int) -> _Curves:
    """The losses of the runs that have this number of epochs and a readable curve in which every loss is finite."""
    curves: _Curves = defaultdict(list)
    for record in records:
        spec = record.spec
        if spec.recipe.epochs == epochs:
            try:
                loss = record.curve()["loss"].to_numpy(dtype=float)
            except (OSError, KeyError, ValueError):
                continue
            if np.isfinite(loss).all():
                curves[backbone_title(spec), spec.shots, arm_of(spec)].append(loss)
    return curves


def _plot_curves(panel: Axes, lines: dict[str, tuple[Arm, list[np.ndarray]]]) -> None:
    """One line per arm: the mean loss, with the range of the runs."""
    from matplotlib.ticker import MaxNLocator

    for role, (arm, losses) in lines.items():
        if losses:
            n = min(len(loss) for loss in losses)
            values = np.stack([loss[:n] for loss in losses])  # (runs, epochs)
            colour, linestyle = ARM_STYLES[role]["color"], ARM_STYLES[role]["linestyle"]
            panel.plot(range(n), values.mean(0), label=arm_label(arm), color=colour, linestyle=linestyle)
            panel.fill_between(range(n), values.min(0), values.max(0), color=colour, alpha=0.12, linewidth=0)
    panel.set_ylim(bottom=0)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    panel.set_xlabel("epoch")


def _caption(curves: _Curves, n_chosen: int, epochs: int) -> str:
    counts = sorted({len(losses) for losses in curves.values()})
    several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    omitted = n_chosen - sum(len(losses) for losses in curves.values())
    caption = (
        f"Mean over {several} runs (datasets and seeds) per line; shaded: the range of the runs. "
        "Loss on the training images of each epoch, before each step."
    )
    if omitted:
        caption += f" {omitted} runs are left out: their number of epochs is not {epochs}, or they have no curve.csv."
    return caption
