"""A statement of the theory as a value: what is claimed, both sides as numbers, and the verdict.

Each rule that turns numbers into a verdict is one function here: `equal`, `expected`, `at_most`, `above`,
`at_most_everywhere`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Verdict = Literal["holds", "violated", "not testable"]

#: Of the intervals around sampled values: wide, so that one run with dozens of statements raises no false alarm.
CONFIDENCE = 0.999


class Interval(NamedTuple):
    """Two-sided confidence interval of a mean."""

    low: float
    high: float


@dataclass(frozen=True)
class Statement:
    """One claim: `measured` `relation` `predicted`, with the verdict. A side that has no number is None."""

    part: str
    name: str
    claim: str
    relation: Literal["=", "≤", "<", ">"]
    predicted: float | None
    measured: float | None
    verdict: Verdict
    interval: Interval | None = None
    """Of the measured value, where it was sampled."""
    detail: str = ""
    """What else a reader should know: where an inequality failed, what was averaged, how far the bound is."""


def mean_interval(samples: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """mean ± t · sd/√n, Student's t with n − 1 degrees of freedom."""
    from scipy import stats

    values = np.asarray(samples, dtype=float)
    if values.size < 2:
        raise ValueError(f"an interval needs at least 2 samples (given: {values.size})")
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(values.size)
    half = float(stats.t(df=values.size - 1).ppf(0.5 + confidence / 2)) * error
    return Interval(mean - half, mean + half)


def equal(
    part: str, name: str, claim: str, predicted: float, measured: float, *, tolerance: float = 1e-9, detail: str = ""
) -> Statement:
    """|measured − predicted| ≤ tolerance · max(1, |predicted|): two exact computations of one number."""
    close = abs(measured - predicted) <= tolerance * max(1.0, abs(predicted))
    return Statement(part, name, claim, "=", predicted, measured, "holds" if close else "violated", None, detail)


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
    """E[x] = predicted: holds where the interval of the sample mean covers the prediction.

    One sample has no interval and decides nothing. Samples that are all alike are compared up to rounding.
    """
    values = np.asarray(samples, dtype=float)
    if values.size < 2:
        measured = float(values[0]) if values.size else None
        note = f"{values.size} sample{'s' if values.size != 1 else ''}: no interval, no verdict"
        return Statement(
            part, name, claim, "=", predicted, measured, "not testable", None, f"{detail}; {note}" if detail else note
        )
    interval = mean_interval(values, confidence)
    rounding = 1e-9 * max(1.0, abs(predicted))
    covered = interval.low - rounding <= predicted <= interval.high + rounding
    return Statement(
        part,
        name,
        claim,
        "=",
        predicted,
        float(values.mean()),
        "holds" if covered else "violated",
        interval,
        detail,
    )


def at_most(
    part: str,
    name: str,
    claim: str,
    bound: float,
    measured: float,
    *,
    interval: Interval | None = None,
    tolerance: float = 1e-9,
    strict: bool = False,
    detail: str = "",
) -> Statement:
    """measured ≤ bound (or <). Where the value was sampled, violated means that even its interval lies above the bound."""
    value = interval.low if interval else measured
    slack = tolerance * max(1.0, abs(bound))
    kept = value < bound - slack if strict else value <= bound + slack
    return Statement(
        part, name, claim, "<" if strict else "≤", bound, measured, "holds" if kept else "violated", interval, detail
    )


def above(
    part: str,
    name: str,
    claim: str,
    bound: float,
    samples: Sequence[float] | np.ndarray,
    *,
    confidence: float = CONFIDENCE,
    detail: str = "",
) -> Statement:
    """E[x] > bound: holds where the whole interval is above, violated where none of it is, else undecided."""
    values = np.asarray(samples, dtype=float)
    interval = mean_interval(values, confidence) if values.size > 1 else None
    verdict: Verdict = "not testable"
    if interval is None or interval.low <= bound < interval.high:
        reason = "the interval covers the bound: more samples are needed" if interval else "one sample: no interval"
        detail = f"{detail}; {reason}" if detail else reason
    else:
        verdict = "holds" if interval.low > bound else "violated"
    return Statement(part, name, claim, ">", bound, float(values.mean()), verdict, interval, detail)


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
    """measured[t] ≤ bounds[t] for every t, up to `tolerance` · max(1, |bound|).

    Shows the first t that fails, or the t that comes nearest to failing.
    """
    right, left = np.asarray(bounds, dtype=float), np.asarray(measured, dtype=float)
    places = np.arange(right.size) if steps is None else np.asarray(steps)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        slack = right - left + tolerance * np.maximum(1.0, np.abs(right))
    bad = np.flatnonzero(~(slack >= 0))  # a value that is not a number fails too
    worst = int(bad[0]) if bad.size else int(np.argmin(slack))
    many, one = ("steps", "step") if what == "step" else (f"values of {what}", f"{what} =")
    if bad.size:
        found = f"fails at {bad.size} of {right.size} {many}, first at {one} {places[worst]}"
    else:
        found = f"true at all {right.size} {many}, nearest to failing at {one} {places[worst]}"
    return Statement(
        part,
        name,
        claim,
        "≤",
        float(right[worst]),
        float(left[worst]),
        "violated" if bad.size else "holds",
        None,
        f"{found}; {detail}" if detail else found,
    )


def not_testable(part: str, name: str, claim: str, reason: str) -> Statement:
    """A claim whose conditions are not met here, or for which nothing was given to measure."""
    return Statement(part, name, claim, "=", None, None, "not testable", None, reason)
