"""The linear surrogate min ‖P* − B A‖²: projection lemmas and expected asymmetry.

Fixing B = U (m×r, orthonormal columns) keeps ‖UᵀP*‖² of ‖P*‖² and loses the rest; fixing A = Q (r×d, orthonormal rows)
keeps ‖P*Qᵀ‖². For Haar-uniform U and Q the kept shares are r/m and r/d in expectation, whatever P* ≠ 0 is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from slimprompt.paper.theory.statement import (
    CONFIDENCE,
    Interval,
    Statement,
    at_most,
    equal,
    expected,
    mean_interval,
)
from slimprompt.seeds import stream_seed

LEMMAS = "Projection lemmas"
ASYMMETRY = "Expected asymmetry"

Side = Literal["token", "embedding"]
#: Frames in one batch of QR decompositions.
_BATCH = 128


def haar_frames(dimension: int, rank: int, trials: int, generator: np.random.Generator) -> np.ndarray:
    """(trials, dimension, rank), orthonormal columns, uniform on the Stiefel manifold.

    QR of a normal matrix is uniform only with a positive diagonal of R: LAPACK's signs are not random.
    """
    frames = np.empty((trials, dimension, rank))
    for start in range(0, trials, _BATCH):
        stop = min(start + _BATCH, trials)
        q, r = np.linalg.qr(generator.standard_normal((stop - start, dimension, rank)))
        frames[start:stop] = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    return frames


def orthonormal(matrix: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the column space, (dimension, numerical rank)."""
    left, sizes, _ = np.linalg.svd(np.asarray(matrix, dtype=float), full_matrices=False)
    return left[:, sizes > sizes[0] * 1e-9] if sizes[0] > 0 else left[:, :0]


def kept_share(basis: np.ndarray, ideal: np.ndarray) -> float:
    """‖Π P*‖² / ‖P*‖², Π the projector onto the columns of `basis`; scale and angles of the columns do not matter."""
    return float(np.sum((orthonormal(basis).T @ ideal) ** 2) / np.sum(ideal**2))


def top_share(ideal: np.ndarray, rank: int) -> float:
    """Σ_{k≤r} σ_k² / Σ σ_k²: what the best basis of that rank keeps (Eckart–Young)."""
    energies = np.linalg.svd(ideal, compute_uv=False) ** 2
    return float(energies[:rank].sum() / energies.sum())


def ideal_prompts(m: int, d: int, seed: int) -> dict[str, np.ndarray]:
    """Two extreme P* (m, d) of unit norm: energy spread over everything, and all of it in one token."""
    spread = np.random.default_rng(stream_seed(seed, "theory", "ideal")).standard_normal((m, d))
    one = np.zeros((m, d))
    one[0] = spread[0]
    return {"spread": spread / np.linalg.norm(spread), "one token": one / np.linalg.norm(one)}


# -- projection lemmas --------------------------------------------------------------------------------------------------


def projection_lemmas(ideal: np.ndarray, rank: int, generator: np.random.Generator) -> list[Statement]:
    """Both lemmas against `numpy.linalg.lstsq`, which knows nothing of orthonormality."""
    m, d = ideal.shape
    rows: list[Statement] = []
    for letter, other, size, target, formulas in (
        ("B = U", "A", m, ideal, ("UᵀP*", "‖(I − UUᵀ)P*‖²")),
        ("A = Q", "B", d, ideal.T, ("P*Qᵀ", "‖P*(I − QᵀQ)‖²")),
    ):
        frame = haar_frames(size, rank, 1, generator)[0]
        solved, *_ = np.linalg.lstsq(frame, target, rcond=None)
        closed = frame.T @ target
        gap = float(np.linalg.norm(solved - closed) / max(np.linalg.norm(closed), 1e-300))
        rows.append(
            equal(
                LEMMAS,
                f"Minimiser, {letter} fixed",
                f"With {letter} fixed, the best {other} is {formulas[0]}.",
                0.0,
                gap,
                detail="relative distance between the formula and the least-squares solver",
            )
        )
        residual = float(np.sum((target - frame @ solved) ** 2))
        formula = float(np.sum(((np.eye(size) - frame @ frame.T) @ target) ** 2))
        rows.append(
            equal(
                LEMMAS,
                f"Residual, {letter} fixed",
                f"With {letter} fixed, the smallest ‖P* − BA‖² is {formulas[1]}.",
                formula,
                residual,
            )
        )
    return rows


# -- expected asymmetry -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResidualCurve:
    """Residual share 1 − ‖ΠP*‖²/‖P*‖² at r = 1 … m over Haar-uniform bases of one side."""

    side: Side
    ideal: str
    """Which P*."""
    dimension: int
    """m on the token side, d on the embedding side."""
    samples: np.ndarray
    """(trials, m): column r − 1 belongs to rank r."""

    @property
    def ranks(self) -> np.ndarray:
        """1 … m."""
        return np.arange(1, self.samples.shape[1] + 1)

    @property
    def predicted(self) -> np.ndarray:
        """1 − r/dimension."""
        return 1.0 - self.ranks / self.dimension

    @property
    def mean(self) -> np.ndarray:
        """Monte Carlo mean at each r."""
        return self.samples.mean(axis=0)

    def interval(self, rank: int, confidence: float = CONFIDENCE) -> Interval:
        """Confidence interval of the mean at one r."""
        return mean_interval(self.samples[:, rank - 1], confidence)


def residual_curve(
    side: Side, name: str, ideal: np.ndarray, trials: int, generator: np.random.Generator
) -> ResidualCurve:
    """The curve for P* (m, d) from `trials` Haar frames of rank m, whose first r columns are a Haar frame of rank r."""
    m = ideal.shape[0]
    target = ideal if side == "token" else ideal.T
    samples = np.empty((trials, m))
    for start in range(0, trials, _BATCH):
        stop = min(start + _BATCH, trials)
        frames = haar_frames(target.shape[0], m, stop - start, generator)
        coordinates = np.swapaxes(frames, 1, 2) @ target  # (trials, m, other side)
        samples[start:stop] = 1.0 - np.cumsum((coordinates**2).sum(axis=2), axis=1) / np.sum(ideal**2)
    return ResidualCurve(side, name, target.shape[0], samples)


def asymmetry_statements(
    token: ResidualCurve, embedding: ResidualCurve, rank: int, *, confidence: float = CONFIDENCE
) -> list[Statement]:
    """The theorem and its corollary at `rank`, and at all ranks at once."""
    m, d = token.dimension, embedding.dimension
    trials = f"{len(token.samples)} Haar bases per side, P* {token.ideal}"
    of = f"(P* {token.ideal})"
    left, right = token.samples[:, rank - 1], embedding.samples[:, rank - 1]
    return [
        expected(
            ASYMMETRY,
            f"Residual, random B fixed {of}",
            "Over uniformly random U, the mean residual is (1 − r/m) ‖P*‖².",
            1 - rank / m,
            left,
            confidence=confidence,
            detail=trials,
        ),
        expected(
            ASYMMETRY,
            f"Residual, random A fixed {of}",
            "Over uniformly random Q, the mean residual is (1 − r/d) ‖P*‖².",
            1 - rank / d,
            right,
            confidence=confidence,
            detail=trials,
        ),
        _strictly_smaller(left, right, of, confidence),
        _ratio(left, right, (1 - rank / m) / (1 - rank / d), of, confidence),
        _all_ranks(token, embedding, of, confidence),
    ]


def _strictly_smaller(left: np.ndarray, right: np.ndarray, of: str, confidence: float) -> Statement:
    """Independent samples: the interval of the difference of the means (Welch)."""
    from scipy import stats

    difference = float(left.mean() - right.mean())
    a, b = left.var(ddof=1) / left.size, right.var(ddof=1) / right.size
    freedom = (a + b) ** 2 / (a**2 / (left.size - 1) + b**2 / (right.size - 1)) if a + b > 0 else 1.0
    half = float(stats.t(df=freedom).ppf(0.5 + confidence / 2)) * float(np.sqrt(a + b))
    interval = Interval(difference - half, difference + half)
    verdict = "holds" if interval.high < 0 else "violated" if interval.low >= 0 else "not testable"
    detail = "" if verdict != "not testable" else "the interval covers 0: more trials are needed"
    return Statement(
        ASYMMETRY,
        f"Fixing B loses less {of}",
        "The mean residual with B fixed minus the one with A fixed is below 0 (m < d).",
        "<",
        0.0,
        difference,
        verdict,  # type: ignore[arg-type]
        interval,
        detail,
    )


def _ratio(left: np.ndarray, right: np.ndarray, predicted: float, of: str, confidence: float) -> Statement:
    """Ratio of two independent means, its error by the delta method."""
    from scipy import stats

    ratio = float(left.mean() / right.mean())
    spread = np.sqrt(
        left.var(ddof=1) / left.size / right.mean() ** 2 + ratio**2 * right.var(ddof=1) / right.size / right.mean() ** 2
    )
    half = float(stats.norm.ppf(0.5 + confidence / 2) * spread)
    interval = Interval(ratio - half, ratio + half)
    covered = interval.low - 1e-9 <= predicted <= interval.high + 1e-9
    return Statement(
        ASYMMETRY,
        f"Residual ratio {of}",
        "The two mean residuals stand in the ratio (1 − r/m)/(1 − r/d).",
        "=",
        predicted,
        ratio,
        "holds" if covered else "violated",
        interval,
    )


def _all_ranks(token: ResidualCurve, embedding: ResidualCurve, of: str, confidence: float) -> Statement:
    """max over both sides and all r of |mean − prediction| / standard error, against the Bonferroni limit."""
    from scipy import stats

    worst, where, tests = 0.0, "", 0
    for curve, letter in ((token, "B"), (embedding, "A")):
        scores = _standard_errors(curve.samples, curve.predicted)  # at r = m the basis is complete: no spread
        tests += scores.size
        if scores.max() >= worst:
            worst, where = (
                float(scores.max()),
                f"largest with {letter} fixed at r = {int(curve.ranks[scores.argmax()])}",
            )
    limit = float(stats.t(df=len(token.samples) - 1).ppf(1 - (1 - confidence) / (2 * tests)))
    return at_most(
        ASYMMETRY,
        f"Both formulas at every r {of}",
        "At every r from 1 to m, on both sides, the mean residual is the formula's, up to sampling error.",
        limit,
        worst,
        detail=f"in standard errors; {tests} comparisons, {where}",
    )


def rotational_invariance(frames: np.ndarray) -> Statement:
    """E[UUᵀ] = (r/m) I over the frames (trials, m, r): the step of the proof that needs Haar-uniform U."""
    from scipy import stats

    trials, m, rank = frames.shape
    upper = np.triu_indices(m)
    values = (frames @ np.swapaxes(frames, 1, 2))[:, upper[0], upper[1]]  # (trials, m (m + 1)/2)
    scores = _standard_errors(values, (rank / m) * np.eye(m)[upper])
    limit = float(stats.t(df=trials - 1).ppf(1 - (1 - CONFIDENCE) / (2 * scores.size)))
    return at_most(
        ASYMMETRY,
        "Mean projector",
        "Over uniformly random U, the mean of UUᵀ is (r/m) I.",
        limit,
        float(scores.max()),
        detail=f"largest deviation of the {scores.size} entries in standard errors; {trials} bases",
    )


def _standard_errors(samples: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """|mean − predicted| in standard errors, for each column; 0 or ∞ where the samples have no spread at all."""
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    gap = np.abs(samples.mean(axis=0) - predicted)
    return np.where(error > 1e-12, gap / np.maximum(error, 1e-12), np.where(gap < 1e-9, 0.0, np.inf))


def corollary_wording(token: ResidualCurve, embedding: ResidualCurve, rank: int) -> list[Statement]:
    """The corollary says that a random basis "removes" r/m (r/d) of the energy; the theorem gives that share as kept."""
    rows = []
    for curve, letter, size in ((token, "B", "m"), (embedding, "A", "d")):
        removed = curve.samples[:, rank - 1]
        share = rank / curve.dimension
        rows.append(
            expected(
                ASYMMETRY,
                f"Share kept, random {letter} fixed",
                f"A random fixed {letter} keeps the share r/{size} of ‖P*‖² in expectation.",
                share,
                1 - removed,
                detail="the corollary, read as the theorem proves it",
            )
        )
        rows.append(
            expected(
                ASYMMETRY,
                f"Corollary to the letter, random {letter} fixed",
                f"A random fixed {letter} removes the share r/{size} of ‖P*‖² in expectation.",
                share,
                removed,
                detail=(
                    f"the corollary's word is “removes”, but r/{size} is the share that is kept and 1 − r/{size} the one "
                    "that is removed; its conclusion, that fixing B preserves more, is the theorem's and stands"
                ),
            )
        )
    return rows
