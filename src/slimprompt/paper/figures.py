"""The figures of a set of runs: each one a function of the frame, the geometry or the records. Without its runs a figure says what it needs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slimprompt.analysis.frame import (
    average,
    axis,
    backbone_title,
    best_covered,
    dense,
    full_length,
    headline_rank,
    how,
    joint,
    main_labels,
    paired,
    select,
    summary,
)
from slimprompt.analysis.geometry import AXES, Geometry
from slimprompt.errors import InputError
from slimprompt.lab.records import CURVE, Record
from slimprompt.prompts.spec import FIXED_BASES
from slimprompt.report.methods_figures import averaged_over, plot_shots
from slimprompt.report.paper import MeasuredRuns
from slimprompt.report.plotting import (
    BLACK,
    FACTOR_STYLES,
    GREY,
    METRIC_LABELS,
    MIN_VIOLIN,
    ROLE_STYLES,
    SKY,
    category_axis,
    empty_panel,
    epoch_axis,
    error_bars,
    figure,
    log2_axis,
    panels,
    plot_means,
    shorten,
    shot_style,
    spread,
    violin,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from slimprompt.report.plotting import Figure, Plotted

#: Axis of the geometry → what two compared runs differ in.
_DIFFERENT = {"seed": "seed", "dataset": "dataset", "shots": "shot count", "rank": "rank"}
_DOTTED = (0, (1, 2))
#: Levels of a cell besides backbone, rank and shots.
_BUT_SETTING = ["dataset", "label", "variant", "basis", "metric", "source"]


@figure("accuracy_by_shots", "Accuracy and harmonic mean against the number of shots", "few-shot or base-to-new runs")
def shots_curve(frame: pd.DataFrame) -> Plotted:
    """Accuracy and H against shots: one line per label of the main comparison, with the zero-shot and chance levels."""
    metrics = [metric for metric in METRIC_LABELS if axis(frame, "backbone", metric=metric)]
    backbones = axis(frame, "backbone", metric=metrics)
    if not metrics:
        return None
    used: dict[str, list[str]] = {}
    canvas, axes = panels(len(backbones), len(metrics))
    for (row, backbone), (column, metric) in _product(backbones, metrics):
        labels = main_labels(frame, backbone, metric)
        styles = {label: ROLE_STYLES[role] for role, label in labels.items()}
        datasets = best_covered(frame, list(styles), backbone=backbone, metric=metric, source="")
        plot_shots(axes[row, column], frame, backbone, metric, datasets, styles)
        axes[row, column].set_title(shorten(backbone, 40))
        if datasets:
            used[f"{backbone}, {_metric_name(metric)}"] = datasets
    caption = (
        f"Mean and standard deviation over seeds, {averaged_over(used, frame)}. "
        "H is the harmonic mean of the accuracies on base classes (trained on) and new classes."
    )
    return canvas, caption


@figure(
    "gain_over_dense",
    "Gain of the low-rank prompt over dense, per dataset",
    "dense and jointly trained low-rank runs of one dataset and shot count",
)
def gain_over_dense(frame: pd.DataFrame) -> Plotted:
    """Joint low rank minus dense in accuracy and H, per dataset and shot count, paired by seed."""
    gains: dict[tuple[str, str], pd.DataFrame] = {}
    compared = set()
    for metric in METRIC_LABELS:
        for backbone in axis(frame, "backbone", metric=metric):
            low, full = joint(headline_rank(frame, backbone, metric)), dense(full_length(frame, backbone))
            of_low, of_full = paired(select(frame, backbone=backbone), low, full, metric=metric)
            if len(of_low):
                gains[backbone, metric] = summary(of_low - of_full).fillna({"sd": 0.0})
                compared.add(f"{low} − {full}")
    if not gains:
        return None
    backbones, metrics = (list(dict.fromkeys(names)) for names in zip(*gains, strict=True))
    shots = sorted({k for rows in gains.values() for k in axis(rows, "shots")})
    most = max(len(axis(rows, "dataset")) for rows in gains.values())
    canvas, axes = panels(len(backbones), len(metrics), height=1.1 + 0.36 * most)
    for (row, backbone), (column, metric) in _product(backbones, metrics):
        axes[row, column].set_title(f"{shorten(backbone, 40)}, {_metric_name(metric)}")
        _plot_gains(axes[row, column], gains.get((backbone, metric)), shots)
    caption = (
        f"{'; '.join(sorted(compared))}, paired by seed: mean and standard deviation of the differences. "
        "Low rank is better to the right of the line."
    )
    return canvas, caption


def _plot_gains(panel: Axes, gains: pd.DataFrame | None, shots: Sequence[int]) -> None:
    if gains is None:
        return empty_panel(panel)
    datasets = axis(gains, "dataset")
    for index, k in enumerate(shots):
        rows = select(gains, shots=k)
        at = [
            datasets.index(name) + 0.22 * (index - (len(shots) - 1) / 2)
            for name in rows.index.get_level_values("dataset")
        ]
        style = shot_style(index) | {"linestyle": "none", "label": f"{k}-shot"}
        if at:
            error_bars(panel, x=rows["mean"].to_numpy(), y=at, xerr=rows["sd"].to_numpy(), **style)
    panel.axvline(0, color=BLACK, linewidth=1)
    category_axis(panel, [shorten(name) for name in datasets])
    panel.set_xlabel("points")
    return None


@figure("accuracy_by_rank", "Accuracy against rank", "runs that train both factors")
def rank_curve(frame: pd.DataFrame) -> Plotted:
    """Accuracy against rank for every shot count: both factors trained, orthogonal B fixed, and dense as a level."""
    backbones = axis(frame, "backbone", variant="joint", metric="accuracy")
    if not backbones:
        return None
    used: dict[str, list[str]] = {}
    canvas, axes = panels(1, len(backbones), height=3.1)
    for panel, backbone in zip(axes[0], backbones, strict=True):
        here = select(frame, backbone=backbone, metric="accuracy", source="")
        used[backbone] = best_covered(here, axis(here, "label", variant="joint"))
        means = summary(average(here, used[backbone]))
        for index, k in enumerate(axis(here, "shots", variant="joint")):
            style, rows = shot_style(index), select(means, shots=k)
            plot_means(panel, select(rows, variant="joint"), "rank", spread(0, 2), linestyle="-", **style)
            fixed = select(rows, variant="fixed-B", basis="orthogonal")
            plot_means(panel, fixed, "rank", spread(1, 2), linestyle="--", **style | {"markerfacecolor": "white"})
            for level in select(rows, label=dense(full_length(frame, backbone)))["mean"]:
                panel.axhline(level, color=style["color"], linewidth=1.1, linestyle=_DOTTED, zorder=1)
            panel.plot([], [], label=f"{k}-shot", **style)
        log2_axis(panel, axis(here, "rank", variant="joint"), "rank r")
        panel.set_title(shorten(backbone, 40))
    axes[0, 0].set_ylabel(METRIC_LABELS["accuracy"])
    for label, linestyle in (("B and A trained", "-"), ("orthogonal B fixed", "--"), ("dense", _DOTTED)):
        axes[0, 0].plot([], [], color=GREY, linestyle=linestyle, label=label)
    return canvas, f"Mean and standard deviation over seeds, {averaged_over(used, frame)}. Dotted: the dense prompt."


@figure(
    "fixed_against_trained",
    "Fixed token basis against a trained one",
    "runs with a fixed B and the matching runs that train both factors",
)
def fixed_against_trained(frame: pd.DataFrame) -> Plotted:
    """Accuracy with a fixed B against that with a trained B for every cell, and the differences per basis."""
    present = {name for name in axis(frame, "basis", variant="fixed-B") if name not in ("source", "random")}
    own = sorted(present - set(FIXED_BASES))
    styles = ROLE_STYLES | {basis: {"color": SKY, "marker": "X<>*h"[index % 5]} for index, basis in enumerate(own)}
    points = {basis: _fixed_and_trained(frame, basis) for basis in (*FIXED_BASES, *own)}
    points = {basis: pairs for basis, pairs in points.items() if len(pairs)}
    if not points:
        return None
    canvas, axes = panels(1, 2, height=3.4)
    _plot_pairs(axes[0, 0], points, styles)
    right: Axes = axes[0, 1]
    for index, (basis, pairs) in enumerate(points.items()):
        style = styles[basis]
        violin(right, index, pairs[:, 1] - pairs[:, 0], style["color"], style["marker"], width=0.7, vertical=False)
    right.axvline(0, color=GREY, linewidth=1)
    category_axis(right, [f"{shorten(basis)} (n = {len(pairs)})" for basis, pairs in points.items()])
    right.set_xlabel("fixed − trained (points)")
    caption = (
        "One marker per backbone, dataset, rank and shot count (mean over seeds). On the line, fixing B costs "
        "nothing. Right: the differences, with median and interquartile range."
    )
    return canvas, caption


def _fixed_and_trained(frame: pd.DataFrame, basis: str) -> np.ndarray:
    """Mean accuracy with a trained B and with this fixed one, on their common seeds, (cells, 2)."""
    labels = [(joint(rank), f"fixed-B {basis} r{rank}") for rank in axis(frame, "rank", variant="fixed-B", basis=basis)]
    sides = [paired(frame, *pair) for pair in labels]
    found = [np.column_stack([trained.mean(axis=1), fixed.mean(axis=1)]) for trained, fixed in sides]
    return np.concatenate(found) if found else np.empty((0, 2))


def _plot_pairs(panel: Axes, points: Mapping[str, np.ndarray], styles: Mapping[str, dict[str, Any]]) -> None:
    every = np.concatenate(list(points.values()))
    low, high = float(every.min()) - 2, float(every.max()) + 2
    panel.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    for basis, pairs in points.items():
        style = styles[basis] | {"linestyle": "none", "markerfacecolor": "none"}
        panel.plot(pairs[:, 0], pairs[:, 1], label=f"{shorten(basis)} B", **style)
    panel.set_xlabel("B and A trained: accuracy (%)")
    panel.set_ylabel("B fixed, A trained: accuracy (%)")
    panel.set(xlim=(low, high), ylim=(low, high), aspect="equal")


@figure("transfer_matrix", "Transfer: one factor frozen at another dataset's values, or at random", "transfer runs")
def transfer_matrix(frame: pd.DataFrame) -> Plotted:
    """Accuracy with a frozen factor minus that with both factors trained, by target and source."""
    runs = select(frame, variant=["fixed-A", "fixed-B"], basis=["source", "random"], metric="accuracy")
    settings: list[tuple[str, int, int]] = runs.index.droplevel(_BUT_SETTING).unique().tolist()
    gaps = {(*place, frozen): _transfer_gaps(frame, *place, frozen) for place in settings for frozen in "BA"}
    if not settings:
        return None
    known = np.concatenate([[0.0, -0.1], *(values.to_numpy(dtype=float).ravel() for values in gaps.values())])
    low, high = float(np.nanmin(known)), float(np.nanmax(known))
    canvas, axes = panels(len(settings), 2, width=3.9, height=1.8 + 0.42 * max(map(len, gaps.values())))
    for row, (backbone, rank, shots) in enumerate(settings):
        for column, (frozen, trained) in enumerate((("B", "A"), ("A", "B"))):
            panel = axes[row, column]
            image = _plot_gaps(panel, gaps[backbone, rank, shots, frozen], low, high)
            panel.set_title(f"{shorten(backbone)}, r = {rank}, {shots}-shot\nfreeze {frozen}, train {trained}")
        axes[row, 0].set_ylabel("target")
    canvas.colorbar(image, ax=axes.ravel().tolist(), label="points", shrink=0.8)
    caption = (
        "Accuracy on the target minus that of the prompt that trains both factors there, mean over seeds. "
        "A dash: one of the two runs is missing. “random” is the control, an untrained random factor."
    )
    return canvas, caption


def _transfer_gaps(frame: pd.DataFrame, backbone: str, rank: int, shots: int, frozen: str) -> pd.DataFrame:
    """Differences to training both factors, targets × sources; the last column is the random factor."""
    here = select(frame, backbone=backbone, shots=shots)
    sides = [paired(here, f"fixed-{frozen} {basis} r{rank}", joint(rank)) for basis in ("source", "random")]
    gaps = pd.concat([(frozen_runs - trained).mean(axis=1) for frozen_runs, trained in sides]).droplevel(
        ["backbone", "shots"]
    )
    targets, sources = (
        axis(here, level, variant=["fixed-A", "fixed-B"], basis=basis, rank=rank, metric="accuracy")
        for level, basis in (("dataset", ["source", "random"]), ("source", "source"))
    )
    return gaps.unstack("source").reindex(index=targets, columns=[*sources, ""]).rename(columns={"": "random"})


def _plot_gaps(panel: Axes, gaps: pd.DataFrame, low: float, high: float) -> AxesImage:
    image = panel.imshow(gaps.to_numpy(dtype=float), cmap="cividis", vmin=low, vmax=high, aspect="auto")
    for (y, x), gap in np.ndenumerate(gaps.to_numpy(dtype=float)):
        text, colour = "—", GREY
        if not np.isnan(gap):
            text = f"{round(gap, 1) + 0.0:+.1f}".replace("-", "−")  # + 0.0 turns a negative zero into a positive one
            colour = BLACK if (gap - low) > 0.55 * (high - low) else "white"
        panel.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
    sources = [shorten(source) for source in gaps.columns]
    panel.set_xticks(range(len(sources)), sources, rotation=40, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(len(gaps)), [shorten(target) for target in gaps.index])
    panel.set_xlabel("source of the frozen factor")
    panel.grid(visible=False)
    panel.set_facecolor("#f2f2f2")
    return image


@figure(
    "factor_overlap",
    "Subspace overlap between independently trained prompts",
    "two jointly trained runs that differ in exactly one of seed, dataset, shots and rank",
)
def geometry_violin(geometry: Geometry) -> Plotted:
    """Overlap of A, B and BA between runs that differ in one field, with the level of random subspaces."""
    pairs = geometry.pairs
    present = [name for name in AXES if not pairs.empty and (pairs["axis"] == name).any()]
    if not present:
        return None
    levels = geometry.chance.set_index(["axis", "factor"])
    chance_line: dict[str, Any] = {"color": BLACK, "linewidth": 1.1, "linestyle": (0, (2, 1))}
    canvas, axes = panels(1, 1, width=1.3 + 1.7 * len(present), height=3.3)
    panel: Axes = axes[0, 0]
    ticks = []
    for index, name in enumerate(present):
        n = 0
        for offset, (factor, (colour, marker)) in zip((-0.28, 0.0, 0.28), FACTOR_STYLES.items(), strict=True):
            values = pairs.loc[(pairs["axis"] == name) & (pairs["factor"] == factor), "overlap"].to_numpy()
            n = len(values)
            if n:
                violin(panel, index + offset, values, colour, marker)
                level, span = levels.loc[(name, factor)], [index + offset - 0.13, index + offset + 0.13]
                low, high = level["overlap_low"], level["overlap_high"]
                panel.fill_between(span, low, high, color=GREY, alpha=0.25, linewidth=0, zorder=1)
                panel.plot(span, [level["overlap"]] * 2, zorder=4, **chance_line)
        ticks.append(f"different\n{_DIFFERENT[name]}\n({n} {'pair' if n == 1 else 'pairs'})")
    panel.plot([], [], label="chance", **chance_line)
    edge: dict[str, Any] = {"markeredgecolor": BLACK, "markeredgewidth": 0.6}
    for factor, (colour, marker) in FACTOR_STYLES.items():
        panel.plot([], [], color=colour, marker=marker, linestyle="none", label=factor, **edge)
    panel.set_xticks(range(len(present)), ticks)
    panel.grid(axis="x", visible=False)
    panel.set_ylim(0, 1.02)
    panel.set_ylabel("subspace overlap")
    caption = (
        f"Mean cosine of the principal angles, for all pairs of runs on {_class_subsets(pairs)} classes that differ only in the named "
        f"field. White markers are medians, bars the interquartile range; with fewer than {MIN_VIOLIN} pairs every pair is plotted. "
        f"Dashed: the median of {geometry.draws:,} independent random subspaces of the same dimensions, with their central 90 %. "
        "B is compared by its columns, A and BA by their rows."
    )
    return canvas, caption


def _class_subsets(frame: pd.DataFrame) -> str:
    return " and ".join(sorted(set(frame["class_subset"])))


@figure("displacement", "Distance of the factors to their start", "low-rank runs")
def displacement(geometry: Geometry) -> Plotted:
    """Distance of each trained factor to its start: angle of the subspace, and relative norm of the change."""
    frame = geometry.displacement
    trained = (("joint", "A"), ("joint", "B"), ("fixed-B", "A"), ("fixed-A", "B"))
    groups = {
        (variant, factor): frame[(frame["variant"] == variant) & (frame["factor"] == factor)]
        for variant, factor in trained
    }
    groups = {factor: rows for factor, rows in groups.items() if len(rows)}
    if not groups:
        return None
    canvas, axes = panels(1, 2, height=1.2 + 0.45 * len(groups), sharey=True)
    quantities = (("angle", "mean principal angle to the start (°)"), ("relative_norm", "‖X − X₀‖ / ‖X₀‖"))
    for panel, (column, label) in zip(axes[0], quantities, strict=True):
        for index, ((_, factor), rows) in enumerate(groups.items()):
            values = rows[column].dropna().to_numpy()
            violin(panel, index, values, *FACTOR_STYLES[factor], width=0.7, vertical=False)
        panel.set_xlabel(label)
        panel.set_xlim(left=0)
        panel.grid(axis="y", visible=False)
    category_axis(axes[0, 0], [f"{variant}: {factor} (n = {len(rows)})" for (variant, factor), rows in groups.items()])
    caption = (
        f"Runs on {_class_subsets(frame)} classes, for the factors that train: distribution, median and interquartile "
        "range. The paper could not measure this, because the start of a run was not stored."
    )
    return canvas, caption


@figure(
    "learning_curves", "Learning curves", "dense, jointly trained or fixed orthogonal runs on all classes with a curve"
)
def learning_curves(frame: pd.DataFrame, records: Sequence[Record]) -> Plotted:
    """Training loss by epoch, averaged over the runs of a label, with one panel per backbone and shot count."""
    roles = {
        (backbone, label): role
        for backbone in axis(frame, "backbone", metric="accuracy")
        for role, label in main_labels(frame, backbone).items()
        if role != "dense short"
    }
    chosen = [
        (record, place)
        for record in records
        if record.spec.class_subset == "all" and (place := (backbone_title(record.spec), how(record.spec)[0])) in roles
    ]
    if not chosen:
        return None
    counts = Counter(record.spec.recipe.epochs for record, _ in chosen)
    epochs = max(counts, key=lambda number: (counts[number], number))
    curves: dict[tuple[str, int], dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    left_out: Counter[str] = Counter()
    for record, (backbone, label) in chosen:
        loss = _losses(record, epochs)
        if isinstance(loss, str):
            left_out[loss] += 1
        else:
            curves[backbone, record.spec.shots][label].append(loss)
    if not curves:
        return None
    backbones, shots = (sorted(set(values)) for values in zip(*curves, strict=True))
    canvas, axes = panels(len(backbones), len(shots), width=2.6, height=2.4)
    for (row, backbone), (column, k) in _product(backbones, shots):
        panel: Axes = axes[row, column]
        panel.set_title(f"{shorten(backbone)}, {k}-shot")
        for label, losses in sorted(curves[backbone, k].items()):
            fewest = min(map(len, losses))
            _plot_losses(
                panel, np.stack([loss[:fewest] for loss in losses]), label, ROLE_STYLES[roles[backbone, label]]
            )
        panel.set_ylim(bottom=0)
        epoch_axis(panel)
        axes[row, 0].set_ylabel("training loss")
    lines = sorted({len(losses) for by_label in curves.values() for losses in by_label.values()})
    caption = (
        f"Mean over {' to '.join(str(n) for n in dict.fromkeys((lines[0], lines[-1])))} runs (datasets and seeds) per line; "
        "shaded: the range of the runs. Loss on the training images of each epoch, before each step."
    )
    if left_out:
        caption += f" Left out: {'; '.join(f'{n} {reason}' for reason, n in sorted(left_out.items()))}."
    return canvas, caption


def _losses(record: Record, epochs: int) -> np.ndarray | str:
    """The loss of each epoch, or why the run cannot be averaged with those of this number of epochs."""
    if record.spec.recipe.epochs != epochs:
        return f"with another number of epochs than {epochs}"
    if not (record.folder / CURVE).exists():
        return f"without {CURVE}"
    try:
        loss = record.curve()["loss"].to_numpy(dtype=float)
    except InputError:
        return f"with a damaged {CURVE}"
    return loss if np.isfinite(loss).all() else "with a loss that is not finite"


def _plot_losses(panel: Axes, losses: np.ndarray, label: str, style: Mapping[str, Any]) -> None:
    """The mean loss with the range of the runs; losses are (runs, epochs)."""
    at, colour = np.arange(1, losses.shape[1] + 1), style["color"]
    panel.plot(at, losses.mean(0), label=label, color=colour, linestyle=style["linestyle"])
    panel.fill_between(at, losses.min(0), losses.max(0), color=colour, alpha=0.12, linewidth=0)


def _product(rows: Sequence[Any], columns: Sequence[Any]) -> Iterator[tuple[tuple[int, Any], tuple[int, Any]]]:
    """Number and value of each pair of a row and a column."""
    return product(enumerate(rows), enumerate(columns))


def _metric_name(metric: str) -> str:
    return "H" if metric == "harmonic" else metric


#: In the order of the report; the last figure is that of the learning curves.
OF_FRAME = (shots_curve, gain_over_dense, rank_curve, fixed_against_trained, transfer_matrix)
OF_GEOMETRY = (geometry_violin, displacement)


def figures_of_runs(runs: MeasuredRuns) -> list[Callable[[], Figure]]:
    """A function for every figure."""
    frame = runs.results.frame
    return [
        *(partial(plot, frame) for plot in OF_FRAME),
        *(partial(plot, runs.geometry) for plot in OF_GEOMETRY),
        partial(learning_curves, frame, runs.records),
    ]
