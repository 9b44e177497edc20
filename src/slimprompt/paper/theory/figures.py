"""Figures of the theory: their numbers as `Series`, their texts as a table, and one function that plots any of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slimprompt.paper.theory.adaptation import DISPLACEMENT, PROMPT
from slimprompt.paper.theory.asymmetry import SYMBOLS, ResidualCurve, top_share
from slimprompt.paper.theory.bases import INDEPENDENT, START, Case, KeptShares
from slimprompt.paper.theory.convergence import Descent, FixedFactor, Rate
from slimprompt.paper.theory.local_model import LocalCheck
from slimprompt.paper.theory.statement import mean_interval
from slimprompt.report import plotting
from slimprompt.report.plotting import Figure, error_bars, panels, plot_style, shared_legend, to_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A look is a colour, which has a marker, and a kind of line.
COLOURS = {
    "black": (plotting.BLACK, "x"),
    "grey": (plotting.GREY, "d"),
    "blue": (plotting.BLUE, "o"),
    "vermilion": (plotting.VERMILION, "^"),
    "orange": (plotting.ORANGE, "s"),
    "green": (plotting.GREEN, "D"),
    "purple": (plotting.PURPLE, "v"),
}
KINDS = {"line": "-", "dashed": "--", "dotted": ":", "points": "none"}
#: Points of a series.
_MOST_POINTS = 500
#: Look of each P*, and label and look of each field of `Kept`.
_TARGET_LOOKS = {
    INDEPENDENT: "blue points",
    START: "orange points",
    PROMPT: "green points",
    DISPLACEMENT: "purple points",
}
_SHARES = {
    "curvature_share": ("decrease, best update (H-metric)", "blue points"),
    "euclidean_share": ("of ‖δ*‖² (Euclidean)", "orange points"),
    "projected_share": ("decrease, Euclidean projection", "purple points"),
    "true_share": ("decrease of the loss itself", "green points"),
}


class Panel(NamedTuple):
    """Texts of one panel, and its logarithmic axes."""

    title: str
    at: str
    value: str
    log: str = ""


class Layout(NamedTuple):
    """Texts of one figure, and its panels by name; with `categories`, values run along the horizontal axis."""

    title: str
    caption: str
    panels: dict[str, Panel]
    categories: bool = False


def _descent_layout(fixed: str, trained: str) -> Layout:
    caption = (
        f"{fixed} fixed. The step size is 1/L with the largest curvature on the path or at its start. Crosses violate the "
        "descent inequality; losses above twice the first are left out. The bounds use constants measured on the paths."
    )
    loss = Panel("Loss and bound of the descent inequality", "step t", f"φ({trained}_t)")
    smallest = Panel("Smallest gradient after T steps", "T", "min ‖∇φ‖²", "xy")
    curvature = Panel("Smoothness along the path", "step t", "largest curvature", "y")
    rate = Panel("Stochastic gradients, η = c/√T", "T", "min E‖∇φ‖²", "xy")
    descent = {"loss": loss, "gradient": smallest, "smoothness": curvature, "rate": rate}
    return Layout(f"Descent on {trained} and its bounds", caption, descent)


#: All figures in the order of the page.
LAYOUTS = {
    "theory-residual": Layout(
        "Residual against rank",
        "Means over Haar-uniform bases for two extreme P*, with 99.9 % intervals, and the lines of the theorem. On the right "
        "the range is a few per cent. Dashed: displacement of trained prompts, with the best basis of each rank.",
        {
            "token": Panel("B fixed, A trained", "rank r", "residual ‖P* − BA‖² / ‖P*‖²"),
            "embedding": Panel("A fixed, B trained", "rank r", ""),
        },
    ),
    "theory-kept-share": Layout(
        "Share kept by each basis",
        "Means with 95 % intervals over seeds. A basis computed from P0 keeps more of P0.",
        {side: Panel(f"{letter} fixed", "", "share of ‖P*‖² kept") for side, (letter, _) in SYMBOLS.items()},
        categories=True,
    ),
    "theory-local-model": Layout(
        "Share of the possible decrease",
        "Share of the ideal update δ* = −H⁻¹g that each update space keeps; of random bases, mean and range. If H, the damped "
        "Gauss–Newton matrix, were isotropic, blue and orange would agree.",
        {side: Panel(f"{letter} fixed", "", "share of what δ* reaches") for side, (letter, _) in SYMBOLS.items()},
        categories=True,
    ),
    "theory-descent": _descent_layout("B", "A"),
    "theory-descent-fixed-a": _descent_layout("A", "B"),
}


# -- numbers ------------------------------------------------------------------------------------------------------------


class Series(NamedTuple):
    """Values at numbers or at categories in one panel of a figure, with intervals, which are NaN where there is none."""

    figure: str
    panel: str
    label: str
    look: str
    at: np.ndarray
    """Numbers, or names of categories; the empty name is a value for all of them."""
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray


def make_series(
    figure: str, panel: str, label: str, look: str, at: Any, values: Any, low: Any = np.nan, high: Any = np.nan
) -> Series:
    """A series of the finite values; of more than `_MOST_POINTS`, evenly spaced ones are kept."""
    columns = [np.broadcast_to(column, len(at)) for column in (at, values, low, high)]
    finite = np.flatnonzero(np.isfinite(columns[1]))
    kept = finite[np.unique(np.linspace(0, finite.size - 1, min(finite.size, _MOST_POINTS)).round().astype(int))]
    return Series(figure, panel, label, look, *(column[kept] for column in columns))


def residual_series(curves: Sequence[ResidualCurve], trained: Mapping[str, Sequence[Case]]) -> list[Series]:
    """Residuals of random bases, the theorem's lines, and residuals of trained displacements with the best basis."""
    name, ranks = "theory-residual", np.arange(1, curves[0].samples.shape[1] + 1)
    rows = []
    for curve in curves:
        size, spread = SYMBOLS[curve.side][1], curve.ideal == "spread"
        label, look = f"random bases, P* {curve.ideal}", "blue points" if spread else "orange points"
        low, high = np.transpose([mean_interval(column) for column in curve.samples.T])
        rows.append(make_series(name, curve.side, label, look, ranks, curve.samples.mean(axis=0), low, high))
        if spread:
            label = f"1 − r/{size}, {size} = {curve.dimension}"
            rows.append(make_series(name, curve.side, label, "black line", ranks, curve.predicted))
    for backbone, cases in trained.items():
        best = [np.mean([1 - top_share(case.targets[DISPLACEMENT], rank) for case in cases]) for rank in ranks]
        label = f"best basis for P* − P0, {backbone}"
        rows.append(make_series(name, "token", label, "green dashed", ranks, best))
    return rows


def share_series(shares: Sequence[KeptShares], note: str = "") -> list[Series]:
    """Mean shares kept by each basis, with intervals over seeds; `note` stands after the name of each basis."""
    name, rows = "theory-kept-share", []
    for side, (letter, size) in SYMBOLS.items():
        own = [kept for kept in shares if kept.side == side]
        for target, look in _TARGET_LOOKS.items():
            kept = [one for one in own if one.target == target]
            means, bases = [one.values.mean() for one in kept], [f"{one.basis} {letter}{note}" for one in kept]
            # An interval over few seeds can leave [0, 1], the range of a share.
            ends = [np.clip(mean_interval(one.values, 0.95), 0, 1) for one in kept]
            rows.append(make_series(name, side, target, look, bases, means, *np.reshape(ends, (-1, 2)).T))
        random = own[0].predicted
        rows.append(make_series(name, side, f"a random basis: r/{size} = {random:.3g}", "black line", [""], random))
    return rows


def local_series(local: LocalCheck) -> list[Series]:
    """Shares of the ideal update kept by the bases in use and, as mean and range, by random bases."""
    name, rows = "theory-local-model", []
    for side, (letter, _) in SYMBOLS.items():
        used = [kept for kept in local.in_use if kept.side == side]
        bases, none = [f"{kept.basis} {letter}" for kept in used], [np.nan] * len(used)
        for field, (label, look) in _SHARES.items():
            values = [getattr(kept, field) for kept in used]
            random = np.array([getattr(kept, field) for kept in local.random[side]])
            means, low, high = [*values, random.mean()], [*none, random.min()], [*none, random.max()]
            rows.append(make_series(name, side, label, look, [*bases, f"random {letter}"], means, low, high))
        rows.append(make_series(name, side, "surrogate: r/m or r/d", "black line", [""], local.predicted(side)))
    return rows


def descent_series(name: str, of: FixedFactor, descent: Descent, rate: Rate, lowest: float) -> list[Series]:
    """Loss, smallest gradient, smoothness and stochastic rate, each with its bound."""
    rows: list[Series] = []

    def add(panel: str, label: str, look: str, at: np.ndarray, values: np.ndarray) -> None:
        rows.append(make_series(name, panel, label, look, at, values))

    path, places, horizons = descent.path, descent.places, rate.horizons
    paths = {f"η = 1/{of.smoothness}": (path, "blue")}
    if descent.shortened:
        paths[f"η = 1/{of.smoothness} of {of.trained}_0"] = (descent.at_start, "vermilion")
    for label, (one, colour) in paths.items():
        shown = np.flatnonzero(one.values <= 2 * one.values[0])  # a path may diverge
        after = shown[shown > 0]
        bounds = one.descent_bounds[after - 1]
        broken = after[one.values[after] > bounds + 1e-12]
        add("loss", f"loss, {label}", f"{colour} line", shown, one.values[shown])
        add("loss", f"bound, {label}", f"{colour} dashed", after, bounds)
        add("loss", "inequality violated", "black points", broken, one.values[broken])
    steps = np.arange(1, path.steps + 1)
    add("gradient", "bound 2(φ₀ − φ_inf)/(ηT)", "black dashed", steps, path.gradient_bounds(lowest))
    add("gradient", "measured", "blue line", steps, path.smallest_gradients)
    add("smoothness", f"bound L‖{of.fixed}‖₂²", "black dashed", places, descent.full * descent.basis_norm**2)
    add("smoothness", of.smoothness, "blue line", places, descent.directional)
    add("smoothness", "1/η", "grey dotted", places, np.full(len(places), descent.constant))
    add("rate", f"bound with {of.smoothness} η σ²", "black dashed", horizons, rate.bounds)
    add("rate", "measured", "blue line", horizons, rate.smallest)
    add("rate", "slope T^(−1/2)", "grey dotted", horizons, rate.smallest[0] * np.sqrt(horizons[0] / horizons))
    return rows


# -- plots --------------------------------------------------------------------------------------------------------------


def plot_figures(series: Iterable[Series], *, png: bool = True) -> list[Figure]:
    """All figures in the order of the page, as SVG and, with `png`, as PNG; one without series is missing."""
    by_figure: dict[str, list[Series]] = {name: [] for name in LAYOUTS}
    for one in series:
        if one.at.size:
            by_figure[one.figure].append(one)
    missing = "It needs a text encoder: give a backbone."
    return [
        _plot(name, own, png) if own else Figure(name, LAYOUTS[name].title, "", missing=missing)
        for name, own in by_figure.items()
    ]


def _plot(name: str, series: Sequence[Series], png: bool) -> Figure:
    layout = LAYOUTS[name]
    by_panel = {key: [one for one in series if one.panel == key] for key in layout.panels}
    lines = [len({at for one in own for at in one.at if at}) for own in by_panel.values()]
    with plot_style():
        height = 1.0 + 0.45 * max(lines) if layout.categories else 2.9
        canvas, axes = panels(len(by_panel) // 2, 2, width=4.4, height=height)
        for ax, panel, own in zip(axes.flat, layout.panels.values(), by_panel.values(), strict=True):
            ax.set_title(panel.title)
            plot_panel = _plot_categories if layout.categories else _plot_curves
            plot_panel(ax, panel, own)
        if layout.categories:
            shared_legend(canvas)
        return to_figure(name, layout.title, layout.caption, canvas, png=png)


def _plot_curves(ax: Axes, panel: Panel, series: Sequence[Series]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for one in series:
        if np.isnan(one.low).all():
            ax.plot(one.at, one.values, **_look(one))
        else:
            error_bars(ax, x=one.at, y=one.values, yerr=_lengths(one), **_look(one))
    ax.set(xlabel=panel.at, ylabel=panel.value)
    ax.locator_params("x", integer=True)
    for name in panel.log:
        ax.set(**{f"{name}scale": "log"})
        axis = getattr(ax, f"{name}axis")
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > 200 * low else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")  # exponents would need math text
        axis.set_minor_formatter(NullFormatter())
    ax.legend(loc="best", fontsize=7.5)


def _plot_categories(ax: Axes, panel: Panel, series: Sequence[Series]) -> None:
    names = list(dict.fromkeys(at for one in series for at in one.at if at))
    labels = list(dict.fromkeys(one.label for one in series if one.at[0]))
    for one in series:
        if not one.at[0]:
            ax.axvline(one.values[0], color=plotting.BLACK, label=one.label)
            continue
        shift = (labels.index(one.label) - (len(labels) - 1) / 2) * 0.7 / len(labels)
        places = [-names.index(at) - shift for at in one.at]
        error_bars(ax, x=one.values, y=places, xerr=_lengths(one), **_look(one))
    ax.set_yticks([-place for place in range(len(names))], names)
    ax.set(xlabel=panel.value, ylim=(0.5 - len(names), 0.5))
    ax.set_xlim(left=0)
    ax.grid(axis="y", visible=False)


def _look(one: Series) -> dict[str, Any]:
    name, kind = one.look.split()
    colour, marker = COLOURS[name]
    return {"color": colour, "linestyle": KINDS[kind], "marker": marker if kind == "points" else "", "label": one.label}


def _lengths(one: Series) -> np.ndarray:
    """Lengths of both halves of the intervals; rounding may put a value outside of its own."""
    return np.maximum([one.values - one.low, one.high - one.values], 0)
