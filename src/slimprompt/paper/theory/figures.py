"""Figures of the theory page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slimprompt.paper.theory.adaptation import DISPLACEMENT, PROMPT
from slimprompt.paper.theory.asymmetry import SIDES, SYMBOLS, ResidualCurve, Side, top_share
from slimprompt.paper.theory.bases import KeptShares
from slimprompt.paper.theory.check import Convergence, LossCheck, SurrogateCheck, Theory
from slimprompt.paper.theory.convergence import FIXED_A, FIXED_B, Descent, FixedFactor, Trajectory, gradient_bounds
from slimprompt.paper.theory.statement import mean_interval
from slimprompt.paper.theory.stochastic import Rate
from slimprompt.report.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    VERMILION,
    Figure,
    panels,
    plot_style,
    shared_legend,
    to_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Color and marker of each side in all figures.
_LOOKS: dict[Side, dict[str, Any]] = {
    "token": {"color": BLUE, "marker": "o"},
    "embedding": {"color": VERMILION, "marker": "^"},
}
#: Label, color and marker of each P*.
_TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "independent": ("independent P*", {"color": BLUE, "marker": "o"}),
    "P0": ("P* = P0", {"color": ORANGE, "marker": "s"}),
    PROMPT: ("trained P*", {"color": GREEN, "marker": "D"}),
    DISPLACEMENT: ("P* − P0", {"color": PURPLE, "marker": "P"}),
}
#: Field of `Kept`, label, color and marker, vertical offset.
_SHARES: tuple[tuple[str, str, dict[str, Any], float], ...] = (
    ("curvature_share", "decrease, best update (H-metric)", {"color": BLUE, "marker": "o"}, 0.24),
    ("euclidean_share", "of ‖δ*‖² (Euclidean)", {"color": ORANGE, "marker": "s"}, 0.08),
    ("projected_share", "decrease, Euclidean projection", {"color": PURPLE, "marker": "v"}, -0.08),
    ("true_share", "decrease of the loss itself", {"color": GREEN, "marker": "D"}, -0.24),
)

#: Name and title of the figure of each convergence part.
_DESCENT = {
    FIXED_B: ("theory-descent", "Descent on A and its bounds"),
    FIXED_A: ("theory-descent-fixed-a", "Descent on B and its bounds"),
}


def theory_figures(theory: Theory) -> list[Figure]:
    """All figures in the order of the page; those of the loss are missing without a text encoder."""
    figures = [residual_against_rank(theory.surrogate), kept_share_per_basis(theory.surrogate)]
    if loss := theory.loss:
        return [
            *figures,
            decrease_kept(loss),
            *(descent_with_bounds(loss, one) for one in (loss.fixed_b, loss.fixed_a)),
        ]
    names = (("theory-local-model", "Share of the possible decrease"), _DESCENT[FIXED_B], _DESCENT[FIXED_A])
    reason = "it needs a text encoder: give a backbone"
    return [*figures, *(Figure(name, title, "", missing=reason) for name, title in names)]


# -- surrogate ----------------------------------------------------------------------------------------------------------


def residual_against_rank(check: SurrogateCheck) -> Figure:
    """1 − r/m and 1 − r/d as lines, Monte Carlo means with intervals as points."""
    with plot_style():
        canvas, axes = panels(1, 2, width=4.0, height=3.2)
        token, embedding = axes[0]
        for ax, side in zip(axes[0], SIDES, strict=True):
            curves = [curve for curve in check.curves if curve.side == side]
            _residual_panel(ax, curves, check.m)
        for found, _ in check.trained:
            left = [[1 - top_share(run.target(DISPLACEMENT), r) for r in range(check.m + 1)] for run in found.runs]
            label = f"best basis for P* − P0, {found.backbone}"
            token.plot(
                np.arange(check.m + 1), np.mean(left, 0), color=GREEN, linestyle="--", linewidth=1.2, label=label
            )
        token.set_title("B fixed, A trained")
        embedding.set_title("A fixed, B trained")
        token.set_ylabel("residual ‖P* − BA‖² / ‖P*‖²")
        token.set_ylim(-0.03, 1.03)
        low = 1 - check.m / check.d
        embedding.set_ylim(low - 0.08 * (1 - low), 1 + 0.08 * (1 - low))
        for ax in axes[0]:
            ax.legend(loc="upper right")
        caption = (
            f"Mean residual over {len(check.curves[0].samples)} Haar-uniform bases for two extreme P*, with 99.9 % "
            "intervals, and the lines of the theorem. The vertical axes differ: on the right the range is a few per cent."
        )
        if check.trained:
            caption += (
                " Dashed: residual of the displacement of trained dense prompts with the best basis of each rank."
            )
        return to_figure("theory-residual", "Residual against rank", caption, canvas)


def _residual_panel(ax: Axes, curves: list[ResidualCurve], m: int) -> None:
    """The line of the theorem and the Monte Carlo means of one side."""
    side, dimension = curves[0].side, curves[0].dimension
    size = SYMBOLS[side][1]
    ranks = np.arange(0, m + 1)
    ax.plot(ranks, 1 - ranks / dimension, color=BLACK, linewidth=1.2, label=f"1 − r/{size},  {size} = {dimension}")
    look = _LOOKS[side]
    for shift, curve, face in zip((-0.16, 0.16), curves, (look["color"], "white"), strict=True):
        ends = np.array([curve.interval(int(rank)) for rank in curve.ranks])  # (m, 2)
        ax.errorbar(
            curve.ranks + shift,
            curve.mean,
            yerr=[curve.mean - ends[:, 0], ends[:, 1] - curve.mean],
            linestyle="none",
            markerfacecolor=face,
            markersize=4.5,
            capsize=2,
            elinewidth=1,
            label=f"random bases, P* {'spread out' if curve.ideal == 'spread' else 'in one token'}",
            **look,
        )
    ax.set_xlabel("rank r")
    ax.set_xlim(-0.5, m + 0.5)


def kept_share_per_basis(check: SurrogateCheck) -> Figure:
    """Mean share kept by each basis of each P*, its interval, and the share kept by a random basis."""
    with plot_style():
        rows = [("start bases", shares) for shares in check.start_shares]
        for found, kept in check.trained:
            rows += [(found.backbone, shares) for shares in kept]
        sides = {side: [(backbone, one) for backbone, one in rows if one.side == side] for side in SIDES}
        most = max(len(lines) for lines in sides.values())
        canvas, axes = panels(1, 2, width=4.6, height=1.15 + 0.26 * most)
        for ax, (side, lines) in zip(axes[0], sides.items(), strict=True):
            for place, (_, shares) in enumerate(lines):
                _share_line(ax, shares, -place)
            letter = SYMBOLS[side][0]
            names = [
                f"{shares.basis} {letter}, {_TARGETS[shares.target][0]}"
                + (f", {backbone}" if len(check.trained) > 1 else "")
                for backbone, shares in lines
            ]
            ax.set_yticks([-place for place in range(len(lines))], names)
            ax.set_ylim(-most + 0.4, 0.6)
            ax.set_xlim(0, max(0.05, 1.12 * max(one.mean for _, one in lines)))
            ax.set_xlabel("share of ‖P*‖² kept")
            ax.set_title(f"{letter} fixed")
            ax.grid(axis="y", visible=False)
        shared_legend(canvas, list(axes[0]))
        caption = (
            f"Rank {check.rank}. Mean share kept, with its 95 % interval over seeds; the black tick is the share kept by a "
            "uniformly random basis. A basis computed from P0 keeps more of P0."
        )
        if check.trained:
            runs = sum(len(found.runs) for found, _ in check.trained)
            caption += f" Trained: final prompt P* and displacement P* − P0 of {runs} dense runs."
        return to_figure("theory-kept-share", "Share kept by each basis", caption, canvas)


def _share_line(ax: Axes, shares: KeptShares, y: float) -> None:
    """Tick of the random basis, interval and mean of one basis and P*."""
    label, look = _TARGETS[shares.target]
    ax.plot(
        [shares.predicted] * 2,
        [y - 0.36, y + 0.36],
        color=BLACK,
        linewidth=1.6,
        label="a random basis: r/m or r/d",
        zorder=3,
    )
    if shares.values.size > 1:
        span = mean_interval(shares.values, 0.95)
        # An interval over few seeds can leave [0, 1], the range of a share.
        ax.plot([max(span.low, 0), min(span.high, 1)], [y, y], color=look["color"])
    ax.plot(shares.mean, y, linestyle="none", label=label, **look)


# -- loss ---------------------------------------------------------------------------------------------------------------


def decrease_kept(check: LossCheck) -> Figure:
    """Shares kept by the update spaces, in the metric of H, in the Euclidean metric, and on the loss."""
    local = check.local
    with plot_style():
        canvas, axes = panels(1, 2, width=4.4, height=2.7)
        for ax, side in zip(axes[0], SIDES, strict=True):
            _decrease_panel(ax, check, side)
        shared_legend(canvas, list(axes[0]))
        caption = (
            f"{check.title}, rank {check.rank}. Share of the ideal update δ* = −H⁻¹g that each update space keeps; H is the "
            f"Gauss–Newton matrix damped by {local.model.relative_damping:g} times its largest eigenvalue. Short bars: "
            "single random bases. If H were isotropic, blue and orange would agree."
        )
        return to_figure("theory-local-model", "Share of the possible decrease", caption, canvas)


def _decrease_panel(ax: Axes, check: LossCheck, side: Side) -> None:
    """Shares of the bases in use and of random bases of one side."""
    local, (letter, symbol) = check.local, SYMBOLS[side]
    m, d = local.model.reference.shape
    predicted = check.rank / (m if side == "token" else d)
    used = [kept for kept in local.in_use if kept.side == side]
    random = local.random[side]
    ax.axvline(predicted, color=BLACK, linewidth=1.4, label="surrogate: r/m or r/d")
    for field, label, look, shift in _SHARES:
        for place, kept in enumerate(used):
            ax.plot(getattr(kept, field), -place + shift, linestyle="none", label=label, **look)
        values = np.array([getattr(kept, field) for kept in random])
        if not np.isnan(values).any():
            y = -len(used) + shift
            ax.plot(values, np.full(values.size, y), "|", color=look["color"], markersize=6, alpha=0.5)
            ax.plot(values.mean(), y, linestyle="none", **look)
    names = [f"{kept.basis} {letter}" for kept in used] + [f"random {letter}, {len(random)} draws"]
    ax.set_yticks([-place for place in range(len(names))], names)
    ax.set_ylim(-len(names) + 0.45, 0.55)
    ax.set_xlim(left=0)
    ax.grid(axis="y", visible=False)
    ax.set_title(f"{letter} fixed: {'S_A' if side == 'token' else 'S_B'},  r/{symbol} = {predicted:.3g}")
    ax.set_xlabel("share of what the ideal update δ* reaches")


def descent_with_bounds(check: LossCheck, convergence: Convergence) -> Figure:
    """Loss, smallest gradient, smoothness and stochastic rate of one convergence part, each with its bound."""
    of, descent, rate = convergence.of, convergence.descent, convergence.rate
    path = descent.path
    with plot_style():
        canvas, axes = panels(2, 2, width=4.2, height=2.9)
        _descent_panel(axes[0, 0], descent, of)
        _gradient_panel(axes[0, 1], path, check.lowest)
        _smoothness_panel(axes[1, 0], descent, of)
        _rate_panel(axes[1, 1], rate, of)
        caption = (
            f"{check.title}; {convergence.basis} {of.fixed} of rank {check.rank} fixed, "
            f"η = 1/{of.smoothness} = {path.step_size:.3g}, φ_inf = {check.lowest:g}. "
            f"Stochastic: batches of {rate.batch_size} with replacement, {len(rate.runs[0].squared_gradients)} replicates."
        )
        return to_figure(*_DESCENT[of], caption, canvas)


def _descent_panel(ax: Axes, descent: Descent, of: FixedFactor) -> None:
    """φ(A_t) and its bound φ(A_0) − (η/2) Σ ‖∇φ‖²; crosses mark steps that violate the descent inequality."""
    paths: list[tuple[Trajectory, str, str]] = [(descent.path, f"η = 1/{of.smoothness}", BLUE)]
    if descent.shortened:
        paths.append((descent.at_start, f"η = 1/{of.smoothness} of {of.trained}_0", VERMILION))
    for path, label, color in paths:
        promised = 0.5 * path.step_size * path.squared_gradients[:-1]
        steps = np.arange(path.values.size)
        ax.plot(steps, path.values, label=f"loss, {label}", color=color)
        bound = path.values[0] - np.concatenate([[0.0], np.cumsum(promised)])
        ax.plot(steps, bound, linestyle="--", linewidth=1.1, label=f"bound, {label}", color=color)
        broken = 1 + np.flatnonzero(path.values[:-1] - path.values[1:] < promised - 1e-12)
        if broken.size:
            ax.plot(
                broken, path.values[broken], "x", color=BLACK, markersize=4.5, label="inequality violated", zorder=4
            )
    values = np.concatenate([path.values[np.isfinite(path.values)] for path, _, _ in paths])
    room = 0.12 * float(np.ptp(values)) or 1.0
    # The bound of a path that violates the inequality is far below, so the losses set the range.
    ax.set_ylim(values.min() - room, min(values.max(), 2 * values[0]) + room)
    ax.set_title("Loss and bound of the descent inequality")
    ax.set_xlabel("step t")
    ax.set_ylabel(f"φ({of.trained}_t)")
    ax.legend(loc="best", fontsize=7.5)


def _gradient_panel(ax: Axes, path: Trajectory, lowest: float) -> None:
    """Smallest gradient after T steps and its bound."""
    horizons = np.arange(1, path.steps + 1)
    bounds = gradient_bounds(path, lowest)
    ax.plot(horizons, bounds, color=BLACK, linestyle="--", label="bound 2(φ₀ − φ_inf)/(ηT)")
    ax.plot(horizons, np.minimum.accumulate(path.squared_gradients[:-1]), color=BLUE, label="measured")
    ax.set_title("Smallest gradient after T steps")
    ax.set_xlabel("T")
    ax.set_ylabel("min ‖∇φ‖²")
    _logarithmic(ax, "x", "y")
    ax.legend(loc="best")


def _smoothness_panel(ax: Axes, descent: Descent, of: FixedFactor) -> None:
    """L_A along the path, L‖B‖₂² and 1/η."""
    bounds = descent.full * descent.basis_norm**2
    ax.plot(descent.places, bounds, color=BLACK, linestyle="--", marker="s", label=f"bound L‖{of.fixed}‖₂²")
    ax.plot(descent.places, descent.directional, label=of.smoothness, **_LOOKS["token"])
    ax.axhline(descent.constant, color=GREY, linestyle=":", label="1/η")
    ax.set_title("Smoothness along the path")
    ax.set_xlabel("step t")
    ax.set_ylabel("largest curvature")
    ax.margins(y=0.22)
    _logarithmic(ax, "y")
    ax.legend(loc="upper center", ncols=3)


def _rate_panel(ax: Axes, rate: Rate, of: FixedFactor) -> None:
    """Smallest expected gradient of stochastic descent at each T and its bound."""
    ax.plot(
        rate.horizons, rate.bounds, color=BLACK, linestyle="--", marker="s", label=f"bound with {of.smoothness} η σ²"
    )
    ax.plot(rate.horizons, rate.smallest, label="measured", **_LOOKS["token"])
    guide = rate.smallest[0] * np.sqrt(rate.horizons[0] / rate.horizons)
    ax.plot(rate.horizons, guide, color=LIGHT, linewidth=1, label="slope T^(−1/2)", zorder=1)
    ax.set_title("Stochastic gradients, η = c/√T")
    ax.set_xlabel("T")
    ax.set_ylabel("min E‖∇φ‖²")
    _logarithmic(ax, "x", "y")
    ax.legend(loc="best")
    ax.set_xticks(rate.horizons, [str(t) for t in rate.horizons])
    ax.minorticks_off()


def _logarithmic(ax: Axes, *axes: str) -> None:
    """Log axes with plain numbers as tick labels, since exponents would need math text."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for name in axes:
        getattr(ax, f"set_{name}scale")("log")
        axis = getattr(ax, f"{name}axis")
        low, high = axis.get_view_interval()
        wide = high > 200 * low
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())
