"""Statements of the theory, and the rules that turn measured numbers into a verdict.

Each rule is one function: `equal`, `covered`, `expected`, `at_most`, `at_most_everywhere`, `strict`, `above`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from slimprompt.paper.verdict import Verdict, statement_verdict

#: Confidence level of intervals around sampled values. It is high because one check has dozens of statements.
CONFIDENCE = 0.999


class Interval(NamedTuple):
    """Two-sided confidence interval of a mean."""

    low: float
    high: float


@dataclass(frozen=True)
class Statement:
    """One statement, `measured relation predicted`, and its verdict.

    Attributes
    ----------
    part
        Part of the theory, such as "Convergence".
    name
        Short name, unique within the part.
    claim
        The statement as a sentence.
    relation
        How the measured value must relate to the predicted one.
    predicted, measured
        The two sides; None if there is no number.
    verdict
        "holds", "violated" or "not testable".
    interval
        Confidence interval of a sampled measured value.
    detail
        Additional remark, such as the step at which an inequality fails.
    """

    part: str
    name: str
    claim: str
    relation: Literal["=", "≤", "<", ">"]
    predicted: float | None
    measured: float | None
    verdict: Verdict
    interval: Interval | None = None
    detail: str = ""


def mean_interval(samples: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """mean ± t · sd/√n, with the quantile t of Student's distribution with n − 1 degrees of freedom."""
    from scipy import stats

    values = np.asarray(samples, dtype=float)
    if values.size < 2:
        raise ValueError(f"an interval needs at least 2 samples (given: {values.size})")
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(values.size)
    half = float(stats.t.ppf(0.5 + confidence / 2, values.size - 1)) * error
    return Interval(mean - half, mean + half)


def equal(
    part: str, name: str, claim: str, predicted: float, measured: float, *, tolerance: float = 1e-9, detail: str = ""
) -> Statement:
    """|measured − predicted| ≤ tolerance · max(1, |predicted|), for two exact computations of one number."""
    close = abs(measured - predicted) <= tolerance * max(1.0, abs(predicted))
    return Statement(part, name, claim, "=", predicted, measured, statement_verdict(close), None, detail)


def covered(
    part: str, name: str, claim: str, predicted: float, measured: float, interval: Interval, *, detail: str = ""
) -> Statement:
    """E[x] = predicted: holds if the interval contains the prediction, up to rounding."""
    rounding = 1e-9 * max(1.0, abs(predicted))
    inside = interval.low - rounding <= predicted <= interval.high + rounding
    return Statement(part, name, claim, "=", predicted, measured, statement_verdict(inside), interval, detail)


def expected(
    part: str,
    name: str,
    claim: str,
    predicted: float,
    samples: Sequence[float] | np.ndarray,
    *,
    confidence: float = CONFIDENCE,
    detail: str = "",
) -> Statement:
    """E[x] = predicted: holds if the interval of the sample mean contains the prediction.

    Fewer than two samples have no interval, so the statement is not testable.
    """
    values = np.asarray(samples, dtype=float)
    if values.size < 2:
        measured = float(values[0]) if values.size else None
        note = _join(detail, f"{values.size} sample{'s' if values.size != 1 else ''}: no interval, no verdict")
        return Statement(part, name, claim, "=", predicted, measured, "not testable", None, note)
    interval = mean_interval(values, confidence)
    return covered(part, name, claim, predicted, float(values.mean()), interval, detail=detail)


def at_most(
    part: str,
    name: str,
    claim: str,
    bound: float,
    measured: float,
    *,
    interval: Interval | None = None,
    tolerance: float = 1e-9,
    detail: str = "",
) -> Statement:
    """measured ≤ bound; a sampled value violates the bound only if its whole interval is above it."""
    value = interval.low if interval else measured
    kept = value <= bound + tolerance * max(1.0, abs(bound))
    return Statement(part, name, claim, "≤", bound, measured, statement_verdict(kept), interval, detail)


def strict(
    part: str,
    name: str,
    claim: str,
    relation: Literal["<", ">"],
    bound: float,
    measured: float,
    interval: Interval | None,
    *,
    detail: str = "",
) -> Statement:
    """E[x] < bound or E[x] > bound.

    Holds if the whole interval is on that side of the bound, is violated if the whole interval is on the other side,
    and is not testable otherwise or without an interval.
    """
    holds: bool | None = None
    if interval is None:
        detail = _join(detail, "one sample: no interval")
    else:
        sign = 1 if relation == ">" else -1
        nearest, farthest = sorted(sign * (end - bound) for end in interval)
        if nearest > 0 or farthest <= 0:
            holds = nearest > 0
        else:
            detail = _join(detail, "the interval contains the bound: more samples are needed")
    return Statement(part, name, claim, relation, bound, measured, statement_verdict(holds), interval, detail)


def above(
    part: str, name: str, claim: str, bound: float, samples: Sequence[float] | np.ndarray, *, detail: str = ""
) -> Statement:
    """E[x] > bound, decided by the interval of the sample mean (see `strict`)."""
    values = np.asarray(samples, dtype=float)
    interval = mean_interval(values) if values.size > 1 else None
    return strict(part, name, claim, ">", bound, float(values.mean()), interval, detail=detail)


def at_most_everywhere(
    part: str,
    name: str,
    claim: str,
    bounds: Sequence[float] | np.ndarray,
    measured: Sequence[float] | np.ndarray,
    *,
    tolerance: float = 1e-12,
    steps: Sequence[int] | np.ndarray | None = None,
    what: str = "step",
    detail: str = "",
) -> Statement:
    """measured[t] ≤ bounds[t] for every t, up to tolerance · max(1, |bound|).

    The statement shows the values at the first t that fails, or at the t that is closest to failing.

    Parameters
    ----------
    part, name, claim, detail
        As in `Statement`.
    bounds, measured
        The two sides at every t.
    tolerance
        Relative tolerance.
    steps
        The values of t; 0, 1, … by default.
    what
        Symbol of t in the detail.
    """
    right, left = np.asarray(bounds, dtype=float), np.asarray(measured, dtype=float)
    places = np.arange(right.size) if steps is None else np.asarray(steps)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        slack = right - left + tolerance * np.maximum(1.0, np.abs(right))
    bad = np.flatnonzero(~(slack >= 0))  # NaN fails too
    worst = int(bad[0]) if bad.size else int(np.argmin(slack))
    many, one = ("steps", "step") if what == "step" else (f"values of {what}", f"{what} =")
    if bad.size:
        found = f"fails at {bad.size} of {right.size} {many}, first at {one} {places[worst]}"
    else:
        found = f"true at all {right.size} {many}, closest to failing at {one} {places[worst]}"
    verdict = statement_verdict(not bad.size)
    return Statement(
        part, name, claim, "≤", float(right[worst]), float(left[worst]), verdict, None, _join(found, detail)
    )


def not_testable(part: str, name: str, claim: str, reason: str) -> Statement:
    """A statement whose conditions are not met, or for which there is nothing to measure."""
    return Statement(part, name, claim, "=", None, None, "not testable", None, reason)


def _join(*remarks: str) -> str:
    return "; ".join(remark for remark in remarks if remark)
