"""Paired tests on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Comparison:
    """Paired comparison from the differences d = first − second over n matched cells, with the t interval of their mean."""

    n: int
    wins: int
    ties: int
    losses: int
    margin: float
    confidence: float
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    effect: float | None = None
    """d_z = mean / sd."""
    p_t: float | None = None
    """Two-sided, as that of Wilcoxon's signed-rank test."""
    p_wilcoxon: float | None = None
    p_equivalence: float | None = None
    """Larger p of the two one-sided t-tests of |mean d| ≥ margin; a small value shows equivalence."""
    note: str = ""
    """Why a test could not be made; its result is None."""


def compare(differences: Sequence[float] | np.ndarray, *, margin: float = 0.5, confidence: float = 0.95) -> Comparison:
    """Test paired differences, one per matched cell and without NaN, for a difference and for equivalence."""
    # scipy.stats has these tests, but its import takes as long as reading thousands of runs.
    from scipy.special import stdtr, stdtrit

    d = np.asarray(differences, dtype=float)
    n = int(d.size)
    if np.isnan(d).any():
        raise ValueError("differences contain NaN; give matched cells only")
    d = np.where(np.abs(d) < 1e-9, 0.0, d)  # ties of averages that differ only by float rounding
    if margin <= 0:
        raise ValueError(f"the equivalence margin must be above 0 (given: {margin})")
    wins, losses = int((d > 0).sum()), int((d < 0).sum())
    counted = Comparison(n, wins, n - wins - losses, losses, margin, confidence)
    if n == 0:
        return replace(counted, note="no matched cells")
    mean = float(d.mean())
    if n == 1:
        return replace(counted, mean=mean, note="one matched cell: nothing can be tested")
    sd = float(d.std(ddof=1))
    located = replace(counted, mean=mean, sd=sd, p_wilcoxon=signed_rank_p(d))
    if sd <= 1e-12 * max(1.0, abs(mean)):
        # t is 0/0 or infinite without variance, so use the limits of the p-values.
        p_t, p_equivalence = float(mean == 0), float(abs(mean) >= margin)
        note = "all differences are equal: no variance"
        return replace(located, sd=0.0, low=mean, high=mean, p_t=p_t, p_equivalence=p_equivalence, note=note)
    error = np.sqrt(np.mean((d - mean) ** 2) * (n / (n - 1)) / n)  # of the mean; in the order of scipy.stats
    df = n - 1.0
    tail = (1 - confidence) / 2
    return replace(
        located,
        low=float(stdtrit(df, tail) * error + mean),
        high=float(stdtrit(df, 1 - tail) * error + mean),
        effect=mean / sd,
        p_t=float(2 * stdtr(df, -abs(mean / error))),
        p_equivalence=float(max(stdtr(df, -(mean + margin) / error), stdtr(df, (mean - margin) / error))),
    )


def signed_rank_p(differences: Sequence[float] | np.ndarray) -> float:
    """Exact two-sided p of the Wilcoxon signed-rank test; zeros are dropped, ties share their mean rank."""
    # Rounding restores ties between differences such as 0.1 + 0.2 and 0.3.
    d = np.round(np.asarray(differences, dtype=float), 9)
    d = d[d != 0]
    if d.size == 0:
        return 1.0
    # With ties, scipy.stats.wilcoxon is exact only by enumerating all 2ⁿ sign patterns (1 s for n = 12, 140 s for
    # n = 19, impossible for n = 63). Adding one rank after the other to the distribution of the rank sum takes
    # milliseconds. Doubled ranks are integers, and only sums up to the observed one are needed.
    doubled = np.rint(2 * _mean_ranks(np.abs(d))).astype(int)
    positive = int(doubled[d > 0].sum())
    smaller = min(positive, int(doubled.sum()) - positive)
    probability = np.zeros(smaller + 1)
    probability[0] = 1.0
    for rank in doubled:
        probability *= 0.5  # probabilities, because the number of sign patterns, 2ⁿ, overflows from n = 1024 on
        if rank <= smaller:
            probability[rank:] += probability[:-rank]
    return float(min(1.0, 2 * probability.sum()))


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment: p₍ᵢ₎ → max over j ≤ i of min(1, (k−j+1) p₍ⱼ₎).

    Missing p-values stay missing and do not count in k.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None and not math.isnan(p))
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for position, (p, index) in enumerate(known):
        running = max(running, min(1.0, (len(known) - position) * p))
        adjusted[index] = running
    return adjusted
