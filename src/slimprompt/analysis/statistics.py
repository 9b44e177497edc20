"""Means, spreads and tests: what a set of accuracies says, and how surely.

Everything here works on plain numbers; where the numbers come from is the business of `observations`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from slimprompt.training.metrics import harmonic_mean

MACRO = "macro: datasets averaged within each seed, then mean and sd over the seeds"
POOLED = "pooled: mean and sd over all dataset × seed values"
HARMONIC_OF_AVERAGES = "H of the averaged S and the averaged U"


@dataclass(frozen=True)
class Summary:
    """mean = Σx/n, sd = √(Σ(x−mean)²/(n−1)): the sample standard deviation, None for n < 2."""

    mean: float
    sd: float | None
    n: int
    label: str = ""
    """What was averaged in which order; the same data have several honest summaries."""


def summarise(values: Sequence[float] | np.ndarray, label: str = "") -> Summary | None:
    """Mean and sample standard deviation; None where there are no values."""
    data = np.asarray(values, dtype=float)
    if data.size == 0:
        return None
    return Summary(float(data.mean()), float(data.std(ddof=1)) if data.size > 1 else None, int(data.size), label)


#: The values of one dataset by seed.
BySeed = Mapping[int, float]


def macro_by_seed(datasets: Sequence[BySeed]) -> dict[int, float]:
    """The mean over the datasets within each seed.

    A seed without all the datasets is left out: an average over fewer datasets is another quantity.
    """
    if not datasets:
        return {}
    seeds = sorted(set.intersection(*(set(values) for values in datasets)))
    return {seed: sum(values[seed] for values in datasets) / len(datasets) for seed in seeds}


def macro_average(datasets: Sequence[BySeed]) -> Summary | None:
    """Mean over datasets within each seed first, then mean and sd over the seeds."""
    return summarise(list(macro_by_seed(datasets).values()), MACRO)


def pooled_average(datasets: Sequence[BySeed]) -> Summary | None:
    """Mean and sd over every dataset × seed value. Its sd is mostly between datasets, not between seeds."""
    return summarise([value for values in datasets for value in values.values()], POOLED)


def harmonic_of_averages(seen: Sequence[BySeed], unseen: Sequence[BySeed]) -> Summary | None:
    """H of the mean S and the mean U over all runs that have both: what much of the field prints.

    Never below the mean of H. One number computed from averages, so it has no standard deviation of its own.
    """
    pairs = [(s[seed], u[seed]) for s, u in zip(seen, unseen, strict=True) for seed in s if seed in u]
    if not pairs:
        return None
    averages = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return Summary(harmonic_mean(*averages), None, len(pairs), HARMONIC_OF_AVERAGES)


@dataclass(frozen=True)
class Comparison:
    """Paired differences d = first − second over n matched cells, tested for a difference and for equivalence.

    `p_t`: paired t-test; `p_wilcoxon`: exact signed-rank test; both two-sided, of "no difference".
    `p_equivalence`: the larger of the two one-sided t-tests of |mean d| ≥ margin; small means equivalent.
    A test that cannot be made is None, and `note` says why.
    """

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
    """d_z = mean / sd of the differences."""
    p_t: float | None = None
    p_wilcoxon: float | None = None
    p_equivalence: float | None = None
    note: str = ""


def compare(differences: Sequence[float] | np.ndarray, *, margin: float = 0.5, confidence: float = 0.95) -> Comparison:
    """All of `Comparison` from the paired differences. NaN (an unmatched cell) is not allowed: match first."""
    from scipy.special import stdtr, stdtrit  # Student's t: P(T ≤ t), and its inverse

    d = np.asarray(differences, dtype=float)
    n = int(d.size)
    if np.isnan(d).any():
        raise ValueError("differences contain NaN; give matched cells only")
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
        # Equal differences leave no spread to test against (t = 0/0 or infinite): take the limits.
        p_t, p_equivalence = float(mean == 0), float(abs(mean) >= margin)
        note = "all differences are equal: no variance"
        return replace(located, sd=0.0, low=mean, high=mean, p_t=p_t, p_equivalence=p_equivalence, note=note)
    error, freedom = sd / math.sqrt(n), n - 1
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * error
    too_low, too_high = stdtr(freedom, -(mean + margin) / error), stdtr(freedom, (mean - margin) / error)
    return replace(
        located,
        low=mean - half,
        high=mean + half,
        effect=mean / sd,
        p_t=float(2 * stdtr(freedom, -abs(mean) / error)),
        p_equivalence=float(max(too_low, too_high)),
    )


def signed_rank_p(differences: Sequence[float] | np.ndarray) -> float:
    """Exact two-sided p of Wilcoxon's signed-rank test; zeros are dropped, tied sizes share their mean rank.

    The null distribution of W⁺ is counted, not approximated: each rank enters with either sign.
    Twice the ranks are whole numbers even with ties, so a count over sums is enough.
    """
    # Differences of printed numbers such as 0.1+0.2 carry rounding dust that would break their ties.
    d = np.round(np.asarray(differences, dtype=float), 9)
    d = d[d != 0]
    if d.size == 0:
        return 1.0
    doubled = np.rint(2 * pd.Series(np.abs(d)).rank().to_numpy()).astype(int)
    ways = np.zeros(int(doubled.sum()) + 1)
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] = ways[rank:] + ways[: ways.size - rank]
    probability = ways / ways.sum()
    positive = int(doubled[d > 0].sum())
    smaller = min(positive, int(doubled.sum()) - positive)
    return float(min(1.0, 2 * probability[: smaller + 1].sum()))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment: p₍ᵢ₎ → max over j ≤ i of min(1, (k−j+1) p₍ⱼ₎).

    A missing test stays missing and is not counted in k.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None and not math.isnan(p))
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for position, (p, index) in enumerate(known):
        running = max(running, min(1.0, (len(known) - position) * p))
        adjusted[index] = running
    return adjusted
