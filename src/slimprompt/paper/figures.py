"""The figures of a set of runs. Each is a function of the analysis; what cannot be drawn says what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slimprompt.analysis.geometry import AXES, Geometry
from slimprompt.analysis.observations import Arm, Results, arm_label, arm_of, dense, fixed_basis, joint, transfer
from slimprompt.lab.records import Record
from slimprompt.paper.tables import full_length, headline_rank
from slimprompt.prompts.variants import FIXED_BASES
from slimprompt.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Figure,
    drawing,
    finished,
    panels,
    shared_legend,
)
from slimprompt.training.metrics import harmonic_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: (dataset, metric) → accuracy of guessing, in percent.
Chance = Mapping[tuple[str, str], float]

_METRICS = {"accuracy": "accuracy, all classes (%)", "harmonic": "H of seen and new classes (%)"}
_LOOKS: dict[str, dict[str, Any]] = {
    "dense": {"color": BLACK, "marker": "s", "linestyle": "-"},
    "dense short": {"color": GREY, "marker": "s", "linestyle": "--", "markerfacecolor": "white"},
    "trainable": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "orthogonal": {"color": VERMILION, "marker": "^", "linestyle": "--"},
    "gaussian": {"color": ORANGE, "marker": "D", "linestyle": "-."},
    "svd": {"color": GREEN, "marker": "v", "linestyle": (0, (5, 1))},
    "learned": {"color": PURPLE, "marker": "P", "linestyle": (0, (1, 1))},
}
#: By place: fewest shots first. From light to dark, so that grey print keeps the order.
_SHOTS: tuple[dict[str, Any], ...] = (
    {"color": SKY, "marker": "o"},
    {"color": VERMILION, "marker": "^"},
    {"color": BLACK, "marker": "s"},
    {"color": GREEN, "marker": "D"},
    {"color": PURPLE, "marker": "v"},
)
_AXIS_WORDS = {"seed": "seeds", "dataset": "datasets", "shots": "shots", "rank": "ranks"}
#: Below this many values a violin would show more shape than there is; the values themselves are drawn.
_MIN_VIOLIN = 8


def all_figures(records: Sequence[Record], results: Results, geometry: Geometry) -> list[Figure]:
    """Every figure, in the order of the report."""
    chance = chance_levels(records)
    return [
        shots_curve(results, chance),
        gain_over_dense(results),
        rank_curve(results),
        fixed_against_trained(results),
        transfer_matrix(results),
        geometry_violin(geometry),
        displacement(geometry),
        learning_curves(records),
    ]


def chance_levels(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """What guessing gives on each dataset, as the runs recorded it; for H it is the H of both halves' chances."""
    from slimprompt.analysis.observations import dataset_title

    found: dict[tuple[str, str], float] = {}
    for record in records:
        levels = dict(record.facts.get("chance") or {})
        if "seen" in levels and "unseen" in levels:
            levels["harmonic"] = harmonic_mean(levels["seen"], levels["unseen"])
        for metric, value in levels.items():
            found[dataset_title(record.spec.dataset), metric] = float(value)
    return found


def zero_shot(results: Results, backbone: str, dataset: str, metric: str) -> float | None:
    """The hand-written prompt's accuracy on the test images, which no arm, shot count or seed changes."""
    values = [
        cell.mean
        for key, cell in results.cells.items()
        if (key.backbone, key.dataset, key.metric) == (backbone, dataset, f"zero_shot_{metric}")
    ]
    return values[0] if values else None


def main_arms(results: Results, metric: str) -> dict[str, Arm]:
    """The arms that are compared first: dense of both lengths, joint and fixed orthogonal at the headline rank."""
    rank, full = headline_rank(results, metric), full_length(results)
    arms = {
        "dense": dense(full),
        "dense short": dense(rank),
        "trainable": joint(rank),
        "orthogonal": fixed_basis("orthogonal", rank),
    }
    if full == rank:
        del arms["dense short"]
    present = {key.arm for key in results.cells if key.metric == metric}
    return {look: arm for look, arm in arms.items() if arm in present}


def best_covered(results: Results, backbone: str, cells: Sequence[tuple[Arm, int]], metric: str) -> list[str]:
    """The datasets with runs in the most of these (arm, shots) cells: an average is made over exactly these."""
    counts = Counter(
        dataset
        for dataset in results.axis("dataset", backbone=backbone, metric=metric)
        for arm, k in cells
        if results.cell(backbone, dataset, arm, k, metric)
    )
    most = max(counts.values(), default=0)
    return [dataset for dataset in sorted(counts) if counts[dataset] == most]


def _averaged_over(used: Mapping[str, Sequence[str]], results: Results) -> str:
    """The sentence that says what was averaged, per panel."""
    everything = {name for names in used.values() for name in names}
    same = len({tuple(names) for names in used.values()}) == 1
    if same:
        names = next(iter(used.values()))
        text = (
            f"on {names[0]}"
            if len(names) == 1
            else f"averaged over {len(names)} datasets ({', '.join(names)}) within each seed"
        )
    else:
        text = "averaged within each seed over " + "; ".join(
            f"{panel}: {', '.join(names)}" for panel, names in used.items()
        )
    left_out = sorted({key.dataset for key in results.cells} - everything)
    return text + (
        f"; not all runs are there yet for {', '.join(left_out)}" if left_out and not results.published else ""
    )


def _short(name: str, length: int = 26) -> str:
    """A name that fits beside a panel; of a long path the end says most."""
    return name if len(name) <= length else "…" + name[1 - length :]


def _missing(name: str, title: str, needs: str) -> Figure:
    return Figure(name, title, "", missing=f"There are no runs for this figure yet: it needs {needs}.")


def _dodge(place: int, count: int) -> float:
    """A factor near 1 that keeps marks of equal height apart on a logarithmic axis."""
    return 1.04 ** (place - (count - 1) / 2)


def _shot_ticks(axes: Axes, shots: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(shots), [str(k) for k in shots])
    axes.minorticks_off()
    axes.set_xlim(min(shots) / 1.4, max(shots) * 1.4)
    axes.set_xlabel("shots (training images per class)")


# ---------------------------------------------------------------- accuracy


def shots_curve(results: Results, chance: Chance | None = None) -> Figure:
    """Accuracy and H against shots; one line per arm, zero-shot and chance for reference."""
    name, title = "accuracy_by_shots", "Accuracy and harmonic mean against the number of shots"
    grid = [(metric, backbone) for metric in _METRICS for backbone in results.axis("backbone", metric=metric)]
    metrics = list(dict.fromkeys(metric for metric, _ in grid))
    backbones = list(dict.fromkeys(backbone for _, backbone in grid))
    if not grid:
        return _missing(name, title, "few-shot or base-to-new runs")
    used: dict[str, list[str]] = {}
    with drawing():
        canvas, axes = panels(len(backbones), len(metrics))
        for column, metric in enumerate(metrics):
            arms = main_arms(results, metric)
            for row, backbone in enumerate(backbones):
                panel: Axes = axes[row, column]
                shots = results.axis("shots", backbone=backbone, metric=metric)
                datasets = best_covered(results, backbone, [(arm, k) for arm in arms.values() for k in shots], metric)
                panel.set_title(_short(backbone, 40))
                panel.set_ylabel(_METRICS[metric])
                if not datasets:
                    _say(panel, "no runs yet")
                    continue
                used[f"{backbone}, {'H' if metric == 'harmonic' else metric}"] = datasets
                for place, (look, arm) in enumerate(arms.items()):
                    points = [(k, found) for k in shots if (found := results.macro(backbone, datasets, arm, k, metric))]
                    if points:
                        panel.errorbar(
                            [k * _dodge(place, len(arms)) for k, _ in points],
                            [one.mean for _, one in points],
                            yerr=[one.sd or 0.0 for _, one in points],
                            label=arm_label(arm),
                            capsize=2,
                            elinewidth=0.8,
                            **_LOOKS[look],
                        )
                level = _known_mean([zero_shot(results, backbone, one, metric) for one in datasets])
                if level is not None:
                    panel.axhline(level, color=GREY, linewidth=1.1, linestyle=(0, (4, 2)), label="zero-shot", zorder=1)
                level = _known_mean([(chance or {}).get((one, metric)) for one in datasets])
                if level is not None:  # as words: a line would squeeze everything else
                    panel.text(
                        0.99,
                        0.02,
                        f"chance {level:.1f} %",
                        transform=panel.transAxes,
                        ha="right",
                        color=GREY,
                        fontsize=8,
                    )
                _shot_ticks(panel, shots)
        shared_legend(canvas, axes.ravel())
        caption = (
            f"Mean and standard deviation over seeds, {_averaged_over(used, results)}. "
            "H is the harmonic mean of the accuracy on the seen classes (trained on) and on the new ones."
        )
        return finished(name, title, caption, canvas)


def _known_mean(values: Sequence[float | None]) -> float | None:
    """The mean, if all are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _say(panel: Axes, text: str) -> None:
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", va="center", color=GREY)
    panel.set_xticks([])
    panel.set_yticks([])


def rank_curve(results: Results) -> Figure:
    """Accuracy against rank for every shot count: both factors trained, orthogonal B fixed, and dense as a level."""
    name, title = "accuracy_by_rank", "Accuracy against rank"
    where: dict[str, Any] = {"metric": "accuracy", "method": "factorized", "basis": "trainable"}
    backbones = results.axis("backbone", **where)
    if not backbones:
        return _missing(name, title, "runs that train both factors")
    full, used = dense(full_length(results)), {}
    with drawing():
        canvas, axes = panels(1, len(backbones), height=3.1)
        for panel, backbone in zip(axes[0], backbones, strict=True):
            ranks, shots = (results.axis(axis, backbone=backbone, **where) for axis in ("rank", "shots"))
            used[backbone] = datasets = best_covered(
                results, backbone, [(joint(r), k) for r in ranks for k in shots], "accuracy"
            )
            for place, k in enumerate(shots):
                look = _SHOTS[place % len(_SHOTS)]
                for side, (make, style) in enumerate(((joint, "-"), (_orthogonal, "--"))):
                    points = [(r, found) for r in ranks if (found := results.macro(backbone, datasets, make(r), k))]
                    panel.errorbar(
                        [r * _dodge(side, 2) for r, _ in points],
                        [one.mean for _, one in points],
                        yerr=[one.sd or 0.0 for _, one in points],
                        linestyle=style,
                        capsize=2,
                        elinewidth=0.8,
                        **look,
                        **({"markerfacecolor": "white"} if side else {}),
                    )
                level = results.macro(backbone, datasets, full, k)
                if level:
                    panel.axhline(level.mean, color=look["color"], linewidth=1.1, linestyle=(0, (1, 2)), zorder=1)
                panel.plot([], [], label=f"{k}-shot", **look)
            panel.set_xscale("log", base=2)
            panel.set_xticks(ranks, [str(r) for r in ranks])
            panel.minorticks_off()
            panel.set_xlabel("rank r")
            panel.set_title(_short(backbone, 40))
        axes[0, 0].set_ylabel(_METRICS["accuracy"])
        styles = (("B and A trained", "-"), ("orthogonal B fixed", "--"), (arm_label(full), (0, (1, 2))))
        for label, dashes in styles:
            axes[0, 0].plot([], [], color=GREY, linestyle=dashes, label=label)
        shared_legend(canvas, axes.ravel())
        caption = (
            f"Mean and standard deviation over seeds, {_averaged_over(used, results)}. Dotted levels: the dense prompt."
        )
        return finished(name, title, caption, canvas)


def _orthogonal(rank: int) -> Arm:
    return fixed_basis("orthogonal", rank)


def gain_over_dense(results: Results) -> Figure:
    """Joint low rank minus dense, per dataset and shot count, in accuracy and H."""
    name, title = "gain_over_dense", "Gain of the low-rank prompt over dense, per dataset"
    grid: dict[tuple[str, str], dict[str, dict[int, tuple[float, float]]]] = {}
    labels = set()
    for metric in _METRICS:
        low, full = joint(headline_rank(results, metric)), dense(full_length(results))
        for backbone in results.axis("backbone", metric=metric):
            found: dict[str, dict[int, tuple[float, float]]] = {}
            for dataset in results.axis("dataset", backbone=backbone, metric=metric):
                gains = {
                    k: gain
                    for k in results.axis("shots", backbone=backbone, metric=metric)
                    if (gain := _gain(results, backbone, dataset, low, full, k, metric))
                }
                if gains:
                    found[dataset] = gains
            if found:
                grid[metric, backbone] = found
                labels.add(f"{arm_label(low)} − {arm_label(full)}")
    if not grid:
        return _missing(name, title, "dense and jointly trained low-rank runs of one dataset and shot count")
    metrics = list(dict.fromkeys(metric for metric, _ in grid))
    backbones = list(dict.fromkeys(backbone for _, backbone in grid))
    tallest = max(len(found) for found in grid.values())
    shots = sorted({k for found in grid.values() for gains in found.values() for k in gains})
    with drawing():
        canvas, axes = panels(len(backbones), len(metrics), height=1.1 + 0.36 * tallest)
        for column, metric in enumerate(metrics):
            for row, backbone in enumerate(backbones):
                panel: Axes = axes[row, column]
                panel.set_title(f"{_short(backbone, 40)}, {'H' if metric == 'harmonic' else metric}")
                found = grid.get((metric, backbone), {})
                if not found:
                    _say(panel, "no runs yet")
                    continue
                for place, k in enumerate(shots):
                    offset = 0.22 * (place - (len(shots) - 1) / 2)
                    points = [(gains[k], y + offset) for y, gains in enumerate(found.values()) if k in gains]
                    panel.errorbar(
                        [mean for (mean, _), _ in points],
                        [y for _, y in points],
                        xerr=[sd for (_, sd), _ in points],
                        linestyle="none",
                        capsize=2,
                        elinewidth=0.8,
                        label=f"{k}-shot",
                        **_SHOTS[place % len(_SHOTS)],
                    )
                panel.axvline(0, color=BLACK, linewidth=1)
                panel.set_yticks(range(len(found)), [_short(dataset) for dataset in found])
                panel.set_ylim(len(found) - 0.5, -0.5)
                panel.grid(axis="y", visible=False)
                panel.set_xlabel("points")
        shared_legend(canvas, axes.ravel())
        caption = f"{'; '.join(sorted(labels))}, paired by seed: mean and standard deviation of the differences. Right of the line low rank is better."
        return finished(name, title, caption, canvas)


def _gain(
    results: Results, backbone: str, dataset: str, first: Arm, second: Arm, shots: int, metric: str
) -> tuple[float, float] | None:
    """Mean and sd of the differences over the seeds that both arms have; of the means where no seeds are known."""
    one, other = (results.cell(backbone, dataset, arm, shots, metric) for arm in (first, second))
    if one is None or other is None:
        return None
    if results.published:
        return one.mean - other.mean, 0.0
    differences = [one.by_seed[seed] - other.by_seed[seed] for seed in one.by_seed if seed in other.by_seed]
    if not differences:
        return None
    return float(np.mean(differences)), float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0


def fixed_against_trained(results: Results) -> Figure:
    """Every cell with a fixed and a trained B: accuracies against each other, and their differences per basis."""
    name, title = "fixed_against_trained", "Fixed token basis against a trained one"
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (backbone, dataset, method, basis, rank, k, metric, _), cell in results.cells.items():
        trained = (
            results.cell(backbone, dataset, joint(rank), k)
            if method == "factorized" and basis in FIXED_BASES and metric == "accuracy"
            else None
        )
        if trained:
            points[basis].append((trained.mean, cell.mean))
    if not points:
        return _missing(name, title, "runs with a fixed B and the matching runs that train both factors")
    with drawing():
        canvas, axes = panels(1, 2, height=3.4)
        left, right = axes[0]
        values = [value for pairs in points.values() for pair in pairs for value in pair]
        low, high = min(values) - 2, max(values) + 2
        left.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
        bases = [basis for basis in FIXED_BASES if basis in points]
        for place, basis in enumerate(bases):
            look = {key: value for key, value in _LOOKS[basis].items() if key != "linestyle"}
            trained_values, fixed_values = (np.array(side) for side in zip(*points[basis], strict=True))
            left.plot(
                trained_values, fixed_values, linestyle="none", markerfacecolor="none", label=f"{basis} B", **look
            )
            gaps = fixed_values - trained_values
            _violin(right, place, gaps, look["color"], look["marker"], width=0.7, upright=False)
        left.set_xlabel("B and A trained: accuracy (%)")
        left.set_ylabel("B fixed, A trained: accuracy (%)")
        left.set_xlim(low, high)
        left.set_ylim(low, high)
        left.set_aspect("equal")
        right.axvline(0, color=GREY, linewidth=1)
        right.set_yticks(range(len(bases)), [f"{basis} (n = {len(points[basis])})" for basis in bases])
        right.set_ylim(len(bases) - 0.5, -0.5)
        right.grid(axis="y", visible=False)
        right.set_xlabel("fixed − trained (points)")
        shared_legend(canvas, axes.ravel())
        caption = "One mark per backbone, dataset, rank and shot count (mean over its seeds). On the line, fixing B costs nothing. Right: the differences, median and middle half."
        return finished(name, title, caption, canvas)


# ---------------------------------------------------------------- transfer


def transfer_matrix(results: Results) -> Figure:
    """Target × source: what a frozen factor of another dataset costs against training both, with the random control."""
    name, title = "transfer_matrix", "Transfer: one factor frozen at another dataset's, or at random"
    settings = sorted(
        {(key.backbone, key.rank, key.shots) for key in results.cells if key.basis.startswith(("source-", "random-"))}
    )
    if not settings:
        return _missing(name, title, "transfer runs")
    with drawing():
        sizes = [len(_targets(results, setting)) for setting in settings]
        canvas, axes = panels(len(settings), 2, width=3.9, height=1.5 + 0.42 * max(sizes))
        drawn: list[tuple[Any, Any, np.ndarray]] = []
        for row, setting in enumerate(settings):
            backbone, rank, k = setting
            targets = _targets(results, setting)
            sources = results.axis("source", backbone=backbone, rank=rank, shots=k, basis={"source-A", "source-B"})
            for column, (side, trained) in enumerate((("B", "A"), ("A", "B"))):
                panel: Axes = axes[row, column]
                gaps = np.full((len(targets), len(sources) + 1), np.nan)
                for y, target in enumerate(targets):
                    reference = results.cell(backbone, target, joint(rank), k)
                    for x, source in enumerate([*sources, ""]):
                        mode = f"{'source' if source else 'random'}-{side}"
                        found = results.cell(backbone, target, transfer(mode, rank), k, source=source)
                        if found and reference:
                            gaps[y, x] = found.mean - reference.mean
                drawn.append((panel, gaps, gaps))
                panel.set_title(f"freeze {side}, train {trained}")
                panel.set_yticks(range(len(targets)), [_short(name) if column == 0 else "" for name in targets])
                panel.set_xticks(
                    range(len(sources) + 1),
                    [*(_short(name) for name in sources), "random"],
                    rotation=40,
                    ha="right",
                    rotation_mode="anchor",
                )
                panel.set_xlabel("source of the frozen factor")
                panel.grid(visible=False)
                panel.set_facecolor("#f2f2f2")
            axes[row, 0].set_ylabel(f"target ({_short(backbone)}, r = {rank}, {k}-shot)")
        known = np.concatenate([gaps[~np.isnan(gaps)] for _, gaps, _ in drawn])
        low, high = (min(float(known.min()), 0.0), max(float(known.max()), 0.0)) if known.size else (-1.0, 0.0)
        for panel, gaps, _ in drawn:
            image = panel.imshow(gaps, cmap="cividis", vmin=low, vmax=high, aspect="auto")
            for (y, x), gap in np.ndenumerate(gaps):
                bright = not np.isnan(gap) and (gap - low) > 0.55 * (high - low)
                text = "—" if np.isnan(gap) else f"{round(gap, 1) + 0.0:+.1f}".replace("-", "−")
                panel.text(
                    x,
                    y,
                    text,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=GREY if np.isnan(gap) else BLACK if bright else "white",
                )
        canvas.colorbar(image, ax=axes.ravel().tolist(), label="points against training both", shrink=0.8)
        caption = "Accuracy on the target minus that of the prompt that trains both factors there, mean over seeds. A dash: no run (or no such reference). “random” is the control: a factor that nothing has trained."
        return finished(name, title, caption, canvas)


def _targets(results: Results, setting: tuple[str, int, int]) -> list[str]:
    backbone, rank, k = setting
    return results.axis(
        "dataset", backbone=backbone, rank=rank, shots=k, basis={"source-A", "source-B", "random-A", "random-B"}
    )


# ---------------------------------------------------------------- geometry


def geometry_violin(geometry: Geometry) -> Figure:
    """Overlap of A, B and BA between runs that differ in one thing, beside what random subspaces give."""
    name, title = "factor_overlap", "Subspace overlap between independently trained prompts"
    pairs = geometry.pairs
    axes_present = [axis for axis in AXES if not pairs.empty and (pairs["axis"] == axis).any()]
    if not axes_present:
        return _missing(
            name, title, "two jointly trained runs that differ in exactly one of seed, dataset, shots and rank"
        )
    levels = {(row["axis"], row["factor"]): row for row in geometry.chance.to_dict("records")}
    looks = {"B": (BLUE, "o"), "A": (VERMILION, "^"), "BA": (LIGHT, "s")}
    with drawing():
        canvas, axes = panels(1, 1, width=1.3 + 1.7 * len(axes_present), height=3.3)
        panel: Axes = axes[0, 0]
        ticks = []
        for place, axis in enumerate(axes_present):
            counts = 0
            for index, (factor, (colour, marker)) in enumerate(looks.items()):
                x = place + 0.28 * (index - 1)
                values = pairs.loc[(pairs["axis"] == axis) & (pairs["factor"] == factor), "overlap"].to_numpy()
                counts = len(values)
                if not counts:
                    continue
                _violin(panel, x, values, colour, marker)
                level = levels[axis, factor]
                panel.fill_between(
                    [x - 0.13, x + 0.13],
                    level["overlap_low"],
                    level["overlap_high"],
                    color=GREY,
                    alpha=0.25,
                    linewidth=0,
                    zorder=1,
                )
                panel.plot(
                    [x - 0.13, x + 0.13],
                    [level["overlap"]] * 2,
                    color=BLACK,
                    linewidth=1.1,
                    linestyle=(0, (2, 1)),
                    zorder=4,
                    label="chance" if place == index == 0 else None,
                )
            ticks.append(f"different\n{_AXIS_WORDS[axis]}\n({counts} pairs)")
        for factor, (colour, marker) in looks.items():
            panel.plot(
                [],
                [],
                color=colour,
                marker=marker,
                linestyle="none",
                markeredgecolor=BLACK,
                markeredgewidth=0.6,
                label=factor,
            )
        panel.set_xticks(range(len(axes_present)), ticks)
        panel.grid(axis="x", visible=False)
        panel.set_ylim(0, 1.02)
        panel.set_ylabel("subspace overlap")
        shared_legend(canvas, [panel])
        caption = (
            "Mean cosine of the principal angles, for all pairs of runs that differ in the named thing only. White marks are medians, bars the "
            f"middle half; with fewer than {_MIN_VIOLIN} pairs every one is drawn. Dashed: the median of {geometry.draws:,} independent random "
            "subspaces of the same dimensions, with their central 90 %. B by columns, A and BA by rows."
        )
        return finished(name, title, caption, canvas)


def _violin(
    panel: Axes,
    place: float,
    values: np.ndarray,
    colour: str,
    marker: str,
    *,
    width: float = 0.26,
    upright: bool = True,
) -> None:
    """Shape, median and middle half of the values at one place of the axis; few values are drawn one by one."""

    def plot(along: Any, across: Any, **look: Any) -> None:
        panel.plot(*((across, along) if upright else (along, across)), **look)

    if len(values) >= _MIN_VIOLIN and np.ptp(values) > 1e-9:
        orientation: Any = "vertical" if upright else "horizontal"
        drawn = panel.violinplot([values], positions=[place], widths=width, showextrema=False, orientation=orientation)
        drawn["bodies"][0].set(facecolor=colour, alpha=0.75, edgecolor=BLACK, linewidth=0.6)  # type: ignore[index]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        plot([low, high], [place, place], color=BLACK, linewidth=3, solid_capstyle="butt", zorder=3)
        plot([middle], [place], marker=marker, color="white", markeredgecolor=BLACK, markersize=5.5, zorder=5)
    else:
        edge = {"markeredgecolor": BLACK, "markeredgewidth": 0.6}
        plot(values, np.full(len(values), place), marker=marker, linestyle="none", color=colour, zorder=3, **edge)


def displacement(geometry: Geometry) -> Figure:
    """How far each factor has moved from its own start: angle of the subspace, and relative size of the change."""
    name, title = "displacement", "How far the factors move from their start"
    frame = geometry.displacement
    moving = {"joint": ("A", "B"), "fixed-B": ("A",), "fixed-A": ("B",)}
    groups = [
        (f"{variant}: {factor}", factor, frame[(frame["variant"] == variant) & (frame["factor"] == factor)])
        for variant, factors in moving.items()
        for factor in factors
    ]
    groups = [group for group in groups if len(group[2])]
    if not groups:
        return _missing(name, title, "low-rank runs")
    with drawing():
        canvas, axes = panels(1, 2, height=1.2 + 0.45 * len(groups), sharey=True)
        for panel, column, label in zip(
            axes[0],
            ("angle", "relative_norm"),
            ("mean principal angle to the start (°)", "‖X − X₀‖ / ‖X₀‖"),
            strict=True,
        ):
            for place, (_, factor, rows) in enumerate(groups):
                values = rows[column].dropna().to_numpy()
                colour, marker = {"A": (VERMILION, "^"), "B": (BLUE, "o")}[factor]
                _violin(panel, place, values, colour, marker, width=0.7, upright=False)
            panel.set_xlabel(label)
            panel.set_xlim(left=0)
            panel.grid(axis="y", visible=False)
        axes[0, 0].set_yticks(range(len(groups)), [f"{label} (n = {len(rows)})" for label, _, rows in groups])
        axes[0, 0].set_ylim(len(groups) - 0.5, -0.5)
        caption = "All runs, for the factors that train: shape, median and middle half. The paper could not measure this: the start of a run was not stored."
        return finished(name, title, caption, canvas)


# ---------------------------------------------------------------- training


def learning_curves(records: Sequence[Record]) -> Figure:
    """Training loss by epoch, averaged over the runs of an arm, one panel per backbone and shot count."""
    name, title = "learning_curves", "Learning curves"
    results_rank = [record.spec.rank for record in records if record.spec.variant == "joint" and record.spec.rank]
    rank = min(results_rank, key=lambda one: (abs(one - 4), one), default=4)
    lengths = [record.spec.n_ctx for record in records if record.spec.variant == "dense"]
    arms = {
        "dense": dense(max(lengths, default=16)),
        "trainable": joint(rank),
        "orthogonal": fixed_basis("orthogonal", rank),
    }
    chosen = [record for record in records if record.spec.split == "all" and arm_of(record.spec) in arms.values()]
    epochs = Counter(record.spec.recipe.epochs for record in chosen)
    if not chosen:
        return _missing(name, title, "dense, jointly trained or fixed orthogonal runs on all classes")
    length = max(epochs, key=lambda one: (epochs[one], one))
    curves: dict[tuple[str, int, Arm], list[np.ndarray]] = defaultdict(list)
    from slimprompt.analysis.observations import backbone_title

    lost = 0
    for record in chosen:
        loss = _loss(record)
        if loss is None or record.spec.recipe.epochs != length:
            lost += 1
            continue
        curves[backbone_title(record.spec), record.spec.shots, arm_of(record.spec)].append(loss)
    if not curves:
        return Figure(name, title, "", missing="None of these runs has a learning curve (curve.csv).")
    backbones, shots = sorted({key[0] for key in curves}), sorted({key[1] for key in curves})
    with drawing():
        from matplotlib.ticker import MaxNLocator

        canvas, axes = panels(len(backbones), len(shots), width=2.6, height=2.4)
        for row, backbone in enumerate(backbones):
            for column, k in enumerate(shots):
                panel: Axes = axes[row, column]
                panel.set_title(f"{_short(backbone)}, {k}-shot")
                for look, arm in arms.items():
                    runs = curves.get((backbone, k, arm))
                    if not runs:
                        continue
                    n = min(len(run) for run in runs)
                    stack = np.stack([run[:n] for run in runs])
                    style = {key: value for key, value in _LOOKS[look].items() if key in ("color", "linestyle")}
                    panel.plot(range(n), stack.mean(0), label=arm_label(arm), **style)
                    panel.fill_between(
                        range(n), stack.min(0), stack.max(0), color=style["color"], alpha=0.12, linewidth=0
                    )
                panel.set_ylim(bottom=0)
                panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
                panel.set_xlabel("epoch")
            axes[row, 0].set_ylabel("training loss")
        shared_legend(canvas, axes.ravel())
        counts = sorted({len(runs) for runs in curves.values()})
        several = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        caption = f"Mean over {several} runs (datasets and seeds) per line; shaded: from the lowest to the highest of them. Loss on the training images of each epoch, before each step."
        caption += (
            f" {lost} runs are left out: another number of epochs than {length}, or no curve.csv." if lost else ""
        )
        return finished(name, title, caption, canvas)


def _loss(record: Record) -> np.ndarray | None:
    try:
        return record.curve()["loss"].to_numpy(dtype=float)
    except (OSError, KeyError, ValueError):
        return None


# ---------------------------------------------------------------- one classifier


def confusion_matrix(class_names: Sequence[str], counts: np.ndarray) -> Figure:
    """Share of each class's images (rows) that were taken for each class (columns)."""
    name, title = "confusion_matrix", "Confusion matrix of the learned prompt"
    n = len(class_names)
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(100.0 * counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    with drawing():
        side = float(np.clip(1.8 + 0.24 * n, 3.6, 11.0))
        canvas, axes = panels(1, 1, width=side + 1.0, height=side)
        panel: Axes = axes[0, 0]
        image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        labels = [one if len(one) <= 28 else one[:27] + "…" for one in class_names]
        size = float(np.clip(300 / n, 3.0, 8.0))
        panel.set_yticks(range(n), labels, fontsize=size)
        panel.set_xticks(range(n), labels, rotation=90, fontsize=size)
        panel.grid(visible=False)
        panel.set_facecolor("#f2f2f2")
        if n <= 15:
            for (y, x), count in np.ndenumerate(counts):
                if count:
                    panel.text(
                        x,
                        y,
                        f"{int(count)}",
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white" if shares[y, x] > 55 else BLACK,
                    )
        panel.set_ylabel("true class")
        panel.set_xlabel("predicted class")
        canvas.colorbar(image, ax=panel, label="% of the true class's images", shrink=0.7)
        caption = "Rows are true classes, columns what the prompt said. A perfect prompt has only the diagonal."
        caption += " Numbers are images." if n <= 15 else ""
        return finished(name, title, caption, canvas)


def training_curve(epochs: Sequence[tuple[float, float]]) -> Figure:
    """Loss and accuracy on the training images, (loss, accuracy) by epoch."""
    name, title = "training_curve", "Learning curve"
    losses, accuracies = zip(*epochs, strict=True)
    with drawing():
        canvas, axes = panels(1, 2, height=2.2)
        for panel, values, label in zip(
            axes[0], (losses, accuracies), ("training loss", "training accuracy (%)"), strict=True
        ):
            panel.plot(range(1, len(values) + 1), values, color=BLUE, marker="o" if len(values) < 3 else "")
            panel.set_xlabel("epoch")
            panel.set_ylabel(label)
            panel.set_ylim(bottom=0)
        axes[0, 1].set_ylim(0, 102)
        caption = "On the training images of each epoch, before each step. It says nothing about new images."
        return finished(name, title, caption, canvas)
