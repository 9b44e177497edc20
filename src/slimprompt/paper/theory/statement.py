"""A `Check` compares the two sides of a statement and gives it a verdict: a `Statement`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from slimprompt.analysis.verdict import Verdict

Relation = Literal["=", "≤", ">"]
Numbers = Sequence[float] | np.ndarray
#: Confidence level of intervals around sampled values. It is high because one theory has dozens of statements.
CONFIDENCE = 0.999


class Interval(NamedTuple):
    """Two-sided confidence interval of a mean."""

    low: float
    high: float


def mean_interval(samples: Numbers, confidence: float = CONFIDENCE) -> Interval:
    """mean ± t · sd/√n with the quantile t of Student's distribution with n − 1 degrees of freedom; NaN for one sample."""
    from scipy import stats

    values = np.asarray(samples, dtype=float)
    if values.size < 2:
        return Interval(math.nan, math.nan)
    half = stats.t.ppf(0.5 + confidence / 2, values.size - 1) * values.std(ddof=1) / math.sqrt(values.size)
    return Interval(float(values.mean() - half), float(values.mean() + half))


def _verdict(holds: bool | np.bool_) -> Verdict:
    return "holds" if holds else "violated"


class Statement(NamedTuple):
    """`measured relation predicted`, with its verdict; a side is None if there is no number."""

    part: str
    name: str
    claim: str
    relation: Relation
    predicted: float | None
    measured: float | None
    interval: Interval | None
    verdict: Verdict
    detail: str


class Check(NamedTuple):
    """A statement to check: part of the theory, name that is unique within the part, and claim as a sentence."""

    part: str
    name: str
    claim: str

    def compare(
        self,
        relation: Relation,
        predicted: float,
        measured: float,
        interval: Interval | None = None,
        *,
        tolerance: float = 1e-9,
        detail: str = "",
    ) -> Statement:
        """Both sides as numbers; `=` and `≤` hold up to tolerance · max(1, |predicted|).

        With the interval of a sampled value, `=` means that it contains the prediction, `≤` that it is not above it, and
        `>` that it is; `>` is undecided if the interval contains the bound.
        """
        low, high = interval or (measured, measured)
        slack = tolerance * max(1.0, abs(predicted))
        holds = low <= predicted + slack
        if relation == "=":
            holds = low - slack <= predicted <= high + slack
        elif relation == ">":
            holds = low > predicted
        verdict = _verdict(holds)
        if relation == ">" and low <= predicted < high:
            verdict = "undecided"
        return Statement(*self, relation, float(predicted), float(measured), interval, verdict, detail)

    def mean(
        self, relation: Relation, predicted: float, samples: Numbers, detail: str, *, confidence: float = CONFIDENCE
    ) -> Statement:
        """The mean of samples, decided by its interval; one sample has none and decides nothing."""
        mean = float(np.mean(samples))
        if len(samples) < 2:
            return Statement(*self, relation, predicted, mean, None, "undecided", f"{detail}; no interval")
        return self.compare(relation, predicted, mean, mean_interval(samples, confidence), detail=detail)

    def at_most_everywhere(
        self,
        bounds: Numbers,
        measured: Numbers,
        *,
        steps: Numbers | None = None,
        symbol: str = "t",
        tolerance: float = 1e-12,
        detail: str = "",
    ) -> Statement:
        """measured[t] ≤ bounds[t] at every t in `steps`, by default 0, 1, …, up to tolerance · max(1, |bound|).

        The statement shows the values at the first t that fails, or at the t that is closest to failing.
        """
        right, left = np.asarray(bounds, dtype=float), np.asarray(measured, dtype=float)
        places = np.arange(right.size) if steps is None else np.asarray(steps)
        with np.errstate(invalid="ignore"):  # ∞ − ∞
            slack = right - left + tolerance * np.maximum(1.0, np.abs(right))
        bad = np.flatnonzero(~(slack >= 0))  # NaN fails too
        worst = int(bad[0]) if bad.size else int(np.argmin(slack))
        where = f"{symbol} = {places[worst]}"
        found = f"true at all {right.size} values, closest to failing at {where}"
        if bad.size:
            found = f"fails at {bad.size} of {right.size} values, first at {where}"
        sides, remark = (float(right[worst]), float(left[worst])), "; ".join(filter(None, (found, detail)))
        return Statement(*self, "≤", *sides, None, _verdict(not bad.size), remark)

    def not_applicable(self, reason: str) -> Statement:
        """The conditions of the statement are not met, or there is nothing to measure."""
        return Statement(*self, "=", None, None, None, "not applicable", reason)
