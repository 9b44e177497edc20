"""The theory's page: statements with both sides and a verdict, and the figures behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slimprompt.errors import InputError
from slimprompt.paper.theory import LossCheck, Statement, SurrogateCheck, Theory
from slimprompt.paper.theory.adaptation import DISPLACEMENT, PROMPT
from slimprompt.paper.theory.asymmetry import top_share
from slimprompt.paper.theory.convergence import Trajectory, gradient_bounds
from slimprompt.paper.theory.statement import mean_interval
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
    write_figures,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: B fixed and A fixed, everywhere alike.
_FIXED_B: dict[str, Any] = {"color": BLUE, "marker": "o"}
_FIXED_A: dict[str, Any] = {"color": VERMILION, "marker": "^"}
COLUMNS = ("part", "statement", "claim", "relation", "predicted", "measured", "interval", "verdict", "detail")


# -- figures ------------------------------------------------------------------------------------------------------------


def theory_figures(theory: Theory) -> list[Figure]:
    """Every figure, in the order of the page; what needs a text encoder says so where there was none."""
    figures = [residual_against_rank(theory.surrogate), kept_share_per_basis(theory.surrogate)]
    drawn = (
        ("theory-local-model", "Share of the possible decrease", decrease_kept),
        ("theory-descent", "Descent and its bounds", descent_with_bounds),
    )
    for name, title, draw in drawn:
        if theory.loss is None:
            figures.append(Figure(name, title, "", missing="it needs a text encoder: give a backbone"))
        else:
            figures.append(draw(theory.loss))
    return figures


def residual_against_rank(check: SurrogateCheck) -> Figure:
    """1 − r/m and 1 − r/d as lines, Monte Carlo means with intervals as points."""
    with plot_style():
        canvas, axes = panels(1, 2, width=4.0, height=3.2)
        trials = len(check.curves[0].samples)
        for ax, side, look, formula in (
            (axes[0, 0], "token", _FIXED_B, f"1 − r/m,  m = {check.m}"),
            (axes[0, 1], "embedding", _FIXED_A, f"1 − r/d,  d = {check.d}"),
        ):
            curves = [curve for curve in check.curves if curve.side == side]
            ranks = np.arange(0, check.m + 1)
            ax.plot(ranks, 1 - ranks / curves[0].dimension, color=BLACK, linewidth=1.2, label=formula)
            for shift, curve, face in zip((-0.16, 0.16), curves, (look["color"], "white"), strict=True):
                spans = [curve.interval(int(rank)) for rank in curve.ranks]
                error = [
                    curve.mean - np.array([span.low for span in spans]),
                    np.array([span.high for span in spans]) - curve.mean,
                ]
                ax.errorbar(
                    curve.ranks + shift,
                    curve.mean,
                    yerr=error,
                    linestyle="none",
                    markerfacecolor=face,
                    markersize=4.5,
                    capsize=2,
                    elinewidth=1,
                    label=f"random bases, P* {'spread out' if curve.ideal == 'spread' else 'in one token'}",
                    **look,
                )
            ax.set_xlabel("rank r")
            ax.set_xlim(-0.5, check.m + 0.5)
        best = [
            np.mean([[1 - top_share(run.target(DISPLACEMENT), r) for r in range(check.m + 1)] for run in found.runs], 0)
            for found, _ in check.trained
        ]
        for (found, _), curve_ in zip(check.trained, best, strict=True):
            label = f"best basis for P* − P0, {found.backbone}"
            axes[0, 0].plot(np.arange(check.m + 1), curve_, color=GREEN, linestyle="--", linewidth=1.2, label=label)
        axes[0, 0].set_title("B fixed, A trained")
        axes[0, 1].set_title("A fixed, B trained")
        axes[0, 0].set_ylabel("residual ‖P* − BA‖² / ‖P*‖²")
        axes[0, 0].set_ylim(-0.03, 1.03)
        low = 1 - check.m / check.d
        axes[0, 1].set_ylim(low - 0.08 * (1 - low), 1 + 0.08 * (1 - low))
        for ax in axes[0]:
            ax.legend(loc="upper right")
        caption = (
            f"Mean residual over {trials} Haar-uniform bases for two very different P*, with 99.9 % intervals, and the "
            "theorem's lines. The vertical axes differ: on the right the whole range is a few per cent."
        )
        if best:
            caption += " Dashed: what the best basis of each rank leaves of the displacement of trained dense prompts."
        return to_figure("theory-residual", "Residual against rank", caption, canvas)


def kept_share_per_basis(check: SurrogateCheck) -> Figure:
    """One line per basis and P*: the mean share kept, its interval, and a tick at what a random basis would keep."""
    with plot_style():
        rows = [("start bases", shares) for shares in check.start_shares]
        for found, kept in check.trained:
            rows += [(found.backbone, shares) for shares in kept]
        sides = {side: [(who, one) for who, one in rows if one.side == side] for side in ("token", "embedding")}
        most = max(len(lines) for lines in sides.values())
        canvas, axes = panels(1, 2, width=4.6, height=1.15 + 0.26 * most)
        words = {"independent": "independent P*", "P0": "P* = P0", PROMPT: "trained P*", DISPLACEMENT: "P* − P0"}
        looks = {
            "independent": {"color": BLUE, "marker": "o"},
            "P0": {"color": ORANGE, "marker": "s"},
            PROMPT: {"color": GREEN, "marker": "D"},
            DISPLACEMENT: {"color": PURPLE, "marker": "P"},
        }
        for ax, (side, lines) in zip(axes[0], sides.items(), strict=True):
            letter = "B" if side == "token" else "A"
            for place, (_, shares) in enumerate(lines):
                y = -place
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
                    # Near zero an interval over few seeds may reach below it, which a share cannot.
                    ax.plot([max(span.low, 0), min(span.high, 1)], [y, y], color=looks[shares.target]["color"])
                ax.plot(shares.mean, y, linestyle="none", label=words[shares.target], **looks[shares.target])
            names = [
                f"{shares.basis} {letter}, {words[shares.target]}" + (f", {who}" if len(check.trained) > 1 else "")
                for who, shares in lines
            ]
            ax.set_yticks([-place for place in range(len(lines))], names)
            ax.set_ylim(-most + 0.4, 0.6)
            ax.set_xlim(0, max(0.05, 1.12 * max(one.mean for _, one in lines)))
            ax.set_xlabel("share of ‖P*‖² kept")
            ax.set_title("B fixed" if side == "token" else "A fixed")
            ax.grid(axis="y", visible=False)
        shared_legend(canvas, list(axes[0]))
        caption = (
            f"Rank {check.rank}. Mean share kept with its 95 % interval over seeds; the black tick is the share that a "
            "uniformly random basis keeps. A basis made from P0 keeps more of P0 itself."
        )
        if check.trained:
            runs = sum(len(found.runs) for found, _ in check.trained)
            caption += f" Trained: {runs} dense runs, their end P* and their displacement P* − P0."
        return to_figure("theory-kept-share", "Share kept by each basis", caption, canvas)


def decrease_kept(check: LossCheck) -> Figure:
    """Shares that update spaces keep, in the loss's metric, in the Euclidean one, and on the loss itself."""
    local = check.local
    m, d = local.model.reference.shape
    with plot_style():
        canvas, axes = panels(1, 2, width=4.4, height=2.7)
        for ax, side, size, symbol in ((axes[0, 0], "token", m, "r/m"), (axes[0, 1], "embedding", d, "r/d")):
            used = [kept for kept in local.in_use if kept.side == side]
            random = local.random[side]  # type: ignore[index]
            ax.axvline(check.rank / size, color=BLACK, linewidth=1.4, label="surrogate: r/m or r/d")
            looks = (
                ("curvature_share", "decrease, best update (H-metric)", {"color": BLUE, "marker": "o"}, 0.24),
                ("euclidean_share", "of ‖δ*‖² (Euclidean)", {"color": ORANGE, "marker": "s"}, 0.08),
                ("projected_share", "decrease, Euclidean projection", {"color": PURPLE, "marker": "v"}, -0.08),
                ("true_share", "decrease of the loss itself", {"color": GREEN, "marker": "D"}, -0.24),
            )
            for field, label, look, shift in looks:
                for place, kept in enumerate(used):
                    ax.plot(getattr(kept, field), -place + shift, linestyle="none", label=label, **look)
                if field in ("true_share", "projected_share"):
                    continue
                values = np.array([getattr(kept, field) for kept in random])
                y = -len(used) + shift
                ax.plot(values, np.full(values.size, y), "|", color=look["color"], markersize=6, alpha=0.5)
                ax.plot(values.mean(), y, linestyle="none", **look)
            letter = "B" if side == "token" else "A"
            names = [f"{kept.basis} {letter}" for kept in used] + [f"random {letter}, {len(random)} draws"]
            ax.set_yticks([-place for place in range(len(names))], names)
            ax.set_ylim(-len(names) + 0.45, 0.55)
            ax.set_xlim(left=0)
            ax.grid(axis="y", visible=False)
            ax.set_title(f"B fixed: S_A,  {symbol} = {check.rank / size:.3g}" if side == "token" else
                         f"A fixed: S_B,  {symbol} = {check.rank / size:.3g}")  # fmt: skip
            ax.set_xlabel("share of what the ideal update δ* reaches")
        shared_legend(canvas, list(axes[0]))
        caption = (
            f"{check.title}, rank {check.rank}. How much of the ideal update δ* = −H⁻¹g each update space keeps; H is the "
            f"Gauss–Newton matrix damped by {local.model.relative_damping:g} times its largest eigenvalue. Short bars: single "
            "random draws. If H were isotropic, blue and orange would agree."
        )
        return to_figure("theory-local-model", "Share of the possible decrease", caption, canvas)


def descent_with_bounds(check: LossCheck) -> Figure:
    """Loss, smallest gradient, smoothness on the path, and the stochastic rate, each with its bound."""
    descent, rate = check.descent, check.rate
    with plot_style():
        canvas, axes = panels(2, 2, width=4.2, height=2.9)
        _descent_panel(axes[0, 0], check)
        path = descent.path
        horizons = np.arange(1, path.steps + 1)
        ax = axes[0, 1]
        ax.plot(
            horizons, gradient_bounds(path, check.lowest), color=BLACK, linestyle="--", label="bound 2(φ₀ − φ_inf)/(ηT)"
        )
        ax.plot(horizons, np.minimum.accumulate(path.squared_gradients[:-1]), color=BLUE, label="measured")
        ax.set_title("Smallest gradient after T steps")
        ax.set_xlabel("T")
        ax.set_ylabel("min ‖∇φ‖²")
        ax = axes[1, 0]
        ax.plot(
            descent.places,
            descent.full * descent.basis_norm**2,
            color=BLACK,
            linestyle="--",
            marker="s",
            label="bound L‖B‖₂²",
        )
        ax.plot(descent.places, descent.directional, label="L_A", **_FIXED_B)
        ax.axhline(descent.constant, color=GREY, linestyle=":", label="1/η")
        ax.set_title("Smoothness along the path")
        ax.set_xlabel("step t")
        ax.set_ylabel("largest curvature")
        ax.margins(y=0.22)
        _logarithmic(ax, "y")
        ax.legend(loc="upper center", ncols=3)
        ax = axes[1, 1]
        ax.plot(rate.horizons, rate.bounds, color=BLACK, linestyle="--", marker="s", label="bound with L_A η σ²")
        ax.plot(rate.horizons, rate.smallest, label="measured", **_FIXED_B)
        guide = rate.smallest[0] * np.sqrt(rate.horizons[0] / rate.horizons)
        ax.plot(rate.horizons, guide, color=LIGHT, linewidth=1, label="slope T^(−1/2)", zorder=1)
        ax.set_title("Stochastic gradients, η = c/√T")
        ax.set_xlabel("T")
        ax.set_ylabel("min E‖∇φ‖²")
        for ax in (axes[0, 1], axes[1, 1]):
            _logarithmic(ax, "x", "y")
            ax.legend(loc="best")
        axes[1, 1].set_xticks(rate.horizons, [str(t) for t in rate.horizons])
        axes[1, 1].minorticks_off()
        caption = (
            f"{check.title}; {check.basis} B of rank {check.rank}, η = 1/L_A = {path.step_size:.3g}, φ_inf = {check.lowest:g}. "
            f"Stochastic: batches of {rate.batch_size} with replacement, {len(rate.runs[0].squared_gradients)} replicates."
        )
        return to_figure("theory-descent", "Descent and its bounds", caption, canvas)


def _logarithmic(ax: Axes, *axes: str) -> None:
    """A log axis with plain numbers at 1, 2 and 5 of each decade: exponents would need mathematical text."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for name in axes:
        getattr(ax, f"set_{name}scale")("log")
        axis = getattr(ax, f"{name}axis")
        low, high = axis.get_view_interval()
        wide = high > 200 * low
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


def _descent_panel(ax: Axes, check: LossCheck) -> None:
    """φ(A_t) under φ(A_0) − (η/2) Σ ‖∇φ‖², the sum of what each step promises; a step that breaks its promise is a cross."""
    paths: list[tuple[Trajectory, str, dict[str, Any]]] = [(check.descent.path, "η = 1/L_A", {"color": BLUE})]
    if check.descent.at_start.step_size > check.descent.path.step_size * 1.01:
        paths.append((check.descent.at_start, "η = 1/L_A of A_0", {"color": VERMILION}))
    for path, label, look in paths:
        promised = 0.5 * path.step_size * path.squared_gradients[:-1]
        steps = np.arange(path.values.size)
        ax.plot(steps, path.values, label=f"loss, {label}", **look)
        bound = path.values[0] - np.concatenate([[0.0], np.cumsum(promised)])
        ax.plot(steps, bound, linestyle="--", linewidth=1.1, label=f"bound, {label}", **look)
        broken = 1 + np.flatnonzero(path.values[:-1] - path.values[1:] < promised - 1e-12)
        if broken.size:
            ax.plot(broken, path.values[broken], "x", color=BLACK, markersize=4.5, label="promise broken", zorder=4)
    values = np.concatenate([path.values[np.isfinite(path.values)] for path, _, _ in paths])
    room = 0.12 * float(np.ptp(values)) or 1.0
    # A path that breaks its promises leaves its bound far below: the losses set the range.
    ax.set_ylim(values.min() - room, min(values.max(), 2 * values[0]) + room)
    ax.set_title("Loss and what the steps promise")
    ax.set_xlabel("step t")
    ax.set_ylabel("φ(A_t)")
    ax.legend(loc="best", fontsize=7.5)


# -- statements ---------------------------------------------------------------------------------------------------------


def statement_rows(statements: Sequence[Statement]) -> list[dict[str, str]]:
    """The statements as text, one dict per row with the keys `COLUMNS`."""
    return [
        {
            "part": one.part,
            "statement": one.name,
            "claim": one.claim,
            "relation": one.relation,
            "predicted": number(one.predicted),
            "measured": number(one.measured),
            "interval": "" if one.interval is None else f"{number(one.interval.low)} … {number(one.interval.high)}",
            "verdict": one.verdict,
            "detail": one.detail,
        }
        for one in statements
    ]


def number(value: float | None) -> str:
    """Four significant digits; whole numbers whole; nothing for None.

    >>> number(0.25), number(2048.0), number(1.234567e-7), number(None)
    ('0.25', '2048', '1.235e-07', '')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def verdict_counts(statements: Sequence[Statement]) -> dict[str, int]:
    """How many hold, are violated, cannot be tested."""
    return {
        verdict: sum(one.verdict == verdict for one in statements) for verdict in ("holds", "violated", "not testable")
    }


# -- page ---------------------------------------------------------------------------------------------------------------


def theory_section(theory: Theory, figures: Sequence[Figure] | None = None) -> str:
    """HTML of the section alone, figures inline, to stand in any page."""
    return _render("section", theory, theory_figures(theory) if figures is None else figures)


def theory_page(theory: Theory, figures: Sequence[Figure] | None = None) -> str:
    """A whole HTML page of its own, nothing loaded from elsewhere."""
    return _render("page", theory, theory_figures(theory) if figures is None else figures)


def _render(what: str, theory: Theory, figures: Sequence[Figure]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("slimprompt.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parts: dict[str, list[dict[str, str]]] = {}
    for row in statement_rows(theory.statements):
        parts.setdefault(row["part"], []).append(row)
    surrogate = theory.surrogate
    return environment.get_template(f"theory_{what}.html").render(
        parts=parts,
        counts=verdict_counts(theory.statements),
        figures=figures,
        setting=f"m = {surrogate.m}, d = {surrogate.d}, r = {surrogate.rank}",
        loss=theory.loss.title if theory.loss else "",
    )


def write_theory(theory: Theory, folder: Path) -> list[Path]:
    """`theory.html`, `statements.csv` and the figures as SVG and PNG in `folder`; returns the files."""
    import csv

    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the page")
    folder.mkdir(parents=True, exist_ok=True)
    figures = theory_figures(theory)
    page, table = folder / "theory.html", folder / "statements.csv"
    page.write_text(theory_page(theory, figures), encoding="utf-8")
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(statement_rows(theory.statements))
    return [page, table, *write_figures(figures, folder)]
