"""Claims about the subspaces of the trained factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slimprompt.analysis.geometry import AXES
from slimprompt.paper.claims.claim import SAME_NUMBER, Claim, Measured, Outcome, missing
from slimprompt.paper.claims.evidence import Evidence

_NEEDS = "pairs of joint runs that differ in dataset, shots or rank"


def _median(e: Evidence, axis: str, factor: str, column: str) -> float | None:
    """One entry of the table of medians, or None."""
    if e.geometry is None or e.geometry.empty:
        return None
    rows = e.geometry[(e.geometry["axis"] == axis) & (e.geometry["factor"] == factor)]
    return float(rows[column].iloc[0]) if len(rows) else None


def _over_tasks(e: Evidence, factors: Sequence[str], column: str) -> list[float]:
    """The available medians on all axes but the seed, sorted."""
    found = [_median(e, axis, factor, column) for axis in AXES if axis != "seed" for factor in factors]
    return sorted(value for value in found if value is not None)


def _lines(e: Evidence) -> tuple[str, ...]:
    """One line of text per axis and factor."""
    rows = e.geometry.to_dict("records") if e.geometry is not None else []
    return tuple(
        f"{row['axis']}, {row['factor']}: overlap {row['overlap']:.2f}, angle {row['angle']:.1f}°"
        + (f", {row['n']} pairs" if "n" in row else "")
        + (f", chance {row['chance_overlap']:.2f}" if "chance_overlap" in row else "")
        for row in rows
    )


def _range(values: Sequence[float], digits: int) -> str:
    """Smallest and largest of sorted values."""
    return f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"


def _overlap_claim(
    e: Evidence, factors: Sequence[str], paper: str, bound: bool | None, note: str = ""
) -> list[Outcome]:
    """Range of overlaps and angles of some factors on all axes but the seed."""
    overlaps, angles = _over_tasks(e, factors, "overlap"), _over_tasks(e, factors, "angle")
    if not overlaps:
        return missing(paper, _NEEDS)
    value = f"{_range(overlaps, 2)} (angles {_range(angles, 1)}°)"
    if e.published:
        rounded = f"{_range(overlaps, 2)} (angles near {round(angles[0])}–{round(angles[-1])}°)"
        return [Measured(value, rounded == paper, len(overlaps), _lines(e), note).outcome(paper)]
    return [Measured(value, bound, len(overlaps), _lines(e)).outcome(paper)]


def b_overlap_across_tasks(e: Evidence) -> list[Outcome]:
    """Median overlap of B between runs of one seed that differ in dataset, shots or rank."""
    bound = all(overlap >= 0.8 for overlap in _over_tasks(e, ("B",), "overlap"))
    note = 'the text says "on average"; the table gives medians'
    return _overlap_claim(e, ("B",), "0.86 to 0.89 (angles near 27–30°)", bound, note)


def a_overlap_across_tasks(e: Evidence) -> list[Outcome]:
    """Median overlap of A and BA between runs of one seed that differ in dataset, shots or rank."""
    bound = all(overlap <= 0.4 for overlap in _over_tasks(e, ("A", "BA"), "overlap"))
    return _overlap_claim(e, ("A", "BA"), "0.17 to 0.35 (angles near 70–80°)", bound)


def _extreme(values: Iterable[tuple[float | None, str]], *, largest: bool) -> str | None:
    """Name of the largest or smallest of three values; None if one is missing."""
    known = [(value, name) for value, name in values if value is not None]
    return (max(known) if largest else min(known))[1] if len(known) == 3 else None


def b_most_stable(e: Evidence) -> list[Outcome]:
    """Axes on which B has the largest median overlap and the smallest median angle of A, B and BA."""
    paper = "B in all four comparisons"
    stable, compared = [], []
    for axis in AXES:
        overlap = _extreme(((_median(e, axis, f, "overlap"), f) for f in ("A", "B", "BA")), largest=True)
        angle = _extreme(((_median(e, axis, f, "angle"), f) for f in ("A", "B", "BA")), largest=False)
        if overlap and angle:
            compared.append(axis)
            if overlap == angle == "B":
                stable.append(axis)
    if not compared:
        return missing(paper, "pairs of joint runs")
    value = f"B in {len(stable)} of {len(compared)} ({', '.join(stable) or 'none'})"
    return [Measured(value, stable == compared, len(compared), _lines(e)).outcome(paper)]


def b_least_alike_across_seeds(e: Evidence) -> list[Outcome]:
    """Median overlap of B between seeds, compared with the other axes."""
    paper = "0.41, lower than across any other axis"
    seed, others = _median(e, "seed", "B", "overlap"), _over_tasks(e, ("B",), "overlap")
    if seed is None or not others:
        return missing(paper, "pairs of joint runs that differ in the seed, and pairs with the same seed")
    holds = seed < others[0] and (not e.published or f"{seed:.2f}" == "0.41")
    chance = _median(e, "seed", "B", "chance_overlap") if not e.published else None
    note = f"chance level {chance:.2f}" if chance is not None else ""
    return [Measured(f"{seed:.2f} against {_range(others, 2)}", holds, 1 + len(others), _lines(e), note).outcome(paper)]


def b_hardly_moves(e: Evidence) -> list[Outcome]:
    """Median overlap between the initial and the final B of joint runs."""
    paper = "moves very little (not measured in the paper)"
    rows = e.displacement[e.displacement["variant"] == "joint"] if e.displacement is not None else None
    if rows is None or rows.empty:
        return missing(paper, "joint runs with their initial and final factors")
    middle = rows.groupby("factor")[["overlap", "angle", "relative_norm"]].median()
    found = {str(factor): dict(zip(middle.columns, row, strict=True)) for factor, *row in middle.itertuples()}
    lines = tuple(
        f"{factor}: overlap {row['overlap']:.3f}, angle {row['angle']:.1f}°, relative change {row['relative_norm']:.3f}"
        for factor, row in found.items()
    )
    b, count = found["B"], int((rows["factor"] == "B").sum())
    value = (
        f"overlap {b['overlap']:.2f} with the initial B (angle {b['angle']:.1f}°, norm change {b['relative_norm']:.2f})"
    )
    return [Measured(value, b["overlap"] >= 0.9, count, lines, "medians over joint runs").outcome(paper)]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "b_overlap_across_tasks",
        "§6 geometry",
        "B spans nearly the same subspace across datasets, shots and ranks.",
        SAME_NUMBER + "a median overlap of at least 0.8 on these axes",
        b_overlap_across_tasks,
        unit="median",
    ),
    Claim(
        "a_overlap_across_tasks",
        "§6 geometry",
        "A and BA are weakly aligned across datasets, shots and ranks.",
        SAME_NUMBER + "a median overlap of at most 0.4 on these axes",
        a_overlap_across_tasks,
        unit="median",
    ),
    Claim(
        "b_most_stable",
        "Table factor_geometry",
        "B is more stable than A and BA in every comparison.",
        "largest overlap and smallest angle on every axis",
        b_most_stable,
        unit="comparison",
    ),
    Claim(
        "b_least_alike_across_seeds",
        "§6 geometry",
        "B is less similar across seeds than across any other axis.",
        "the median overlap is lowest on the seed axis",
        b_least_alike_across_seeds,
        unit="median",
    ),
    Claim(
        "b_hardly_moves",
        "§6 geometry",
        "Training moves B very little from its initial value.",
        "median overlap of at least 0.9 with its initial value",
        b_hardly_moves,
        unit="run",
    ),
)
