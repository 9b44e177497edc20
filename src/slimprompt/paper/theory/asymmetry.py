"""The linear surrogate min ‖P* − B A‖²: projection lemmas and expected asymmetry.

Fixing B = U (m, r) with orthonormal columns keeps ‖UᵀP*‖² of ‖P*‖². Fixing A = Q (r, d) with orthonormal rows keeps
‖P*Qᵀ‖². For Haar-uniform U and Q, the expected shares kept are r/m and r/d for every P* ≠ 0.
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
    covered,
    equal,
    expected,
    mean_interval,
    strict,
)
from slimprompt.seeds import stream_seed

LEMMAS = "Projection lemmas"
ASYMMETRY = "Expected asymmetry"

#: Space of a fixed factor: B is fixed in token space, A in embedding space.
Side = Literal["token", "embedding"]
SIDES: tuple[Side, Side] = ("token", "embedding")
#: Symbols of each side: the fixed factor, and the dimension of its space.
SYMBOLS: dict[Side, tuple[str, str]] = {"token": ("B", "m"), "embedding": ("A", "d")}
#: Frames per batch of QR decompositions.
_BATCH = 128


def haar_frames(dimension: int, rank: int, trials: int, generator: np.random.Generator) -> np.ndarray:
    """Haar-uniform matrices with orthonormal columns, (trials, dimension, rank)."""
    frames = np.empty((trials, dimension, rank))
    for start in range(0, trials, _BATCH):
        stop = min(start + _BATCH, trials)
        q, r = np.linalg.qr(generator.standard_normal((stop - start, dimension, rank)))
        # QR of a normal matrix is uniform only if the diagonal of R is positive: LAPACK's signs are not random.
        frames[start:stop] = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
    return frames


def orthonormal(matrix: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the column space, (dimension, numerical rank)."""
    left, sizes, _ = np.linalg.svd(np.asarray(matrix, dtype=float), full_matrices=False)
    return left[:, sizes > sizes[0] * 1e-9] if sizes[0] > 0 else left[:, :0]


def kept_share(basis: np.ndarray, ideal: np.ndarray) -> float:
    """‖Π P*‖² / ‖P*‖², where Π projects onto the column space of `basis`."""
    return float(np.sum((orthonormal(basis).T @ ideal) ** 2) / np.sum(ideal**2))


def top_share(ideal: np.ndarray, rank: int) -> float:
    """Σ_{k≤r} σ_k² / Σ σ_k², the share kept by the best basis of this rank (Eckart–Young)."""
    energies = np.linalg.svd(ideal, compute_uv=False) ** 2
    return float(energies[:rank].sum() / energies.sum())


def ideal_prompts(m: int, d: int, seed: int) -> dict[str, np.ndarray]:
    """Two extreme cases of P* (m, d) with unit norm: spread over all entries, and concentrated in one token."""
    spread = np.random.default_rng(stream_seed(seed, "theory", "ideal")).standard_normal((m, d))
    one = np.zeros((m, d))
    one[0] = spread[0]
    return {"spread": spread / np.linalg.norm(spread), "one token": one / np.linalg.norm(one)}


# -- projection lemmas --------------------------------------------------------------------------------------------------


def projection_lemmas(ideal: np.ndarray, rank: int, generator: np.random.Generator) -> list[Statement]:
    """Minimiser and residual of both lemmas, compared with `numpy.linalg.lstsq`, which does not use orthonormality."""
    m, d = ideal.shape
    rows: list[Statement] = []
    for letter, other, size, target, (minimiser, residual) in (
        ("B = U", "A", m, ideal, ("UᵀP*", "‖(I − UUᵀ)P*‖²")),
        ("A = Q", "B", d, ideal.T, ("P*Qᵀ", "‖P*(I − QᵀQ)‖²")),
    ):
        frame = haar_frames(size, rank, 1, generator)[0]
        solved, *_ = np.linalg.lstsq(frame, target, rcond=None)
        closed = frame.T @ target
        rows.append(
            equal(
                LEMMAS,
                f"Minimiser, {letter} fixed",
                f"With {letter} fixed, the best {other} is {minimiser}.",
                0.0,
                float(np.linalg.norm(solved - closed) / max(np.linalg.norm(closed), 1e-300)),
                detail="relative distance between the formula and the least-squares solver",
            )
        )
        rows.append(
            equal(
                LEMMAS,
                f"Residual, {letter} fixed",
                f"With {letter} fixed, the smallest ‖P* − BA‖² is {residual}.",
                float(np.sum(((np.eye(size) - frame @ frame.T) @ target) ** 2)),
                float(np.sum((target - frame @ solved) ** 2)),
            )
        )
    return rows


# -- expected asymmetry -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResidualCurve:
    """Residual share 1 − ‖ΠP*‖²/‖P*‖² at r = 1 … m over Haar-uniform bases of one side.

    Attributes
    ----------
    side
        Space of the fixed factor.
    ideal
        Name of P*.
    dimension
        m for the token side, d for the embedding side.
    samples
        Residual shares (trials, m); column r − 1 belongs to rank r.
    """

    side: Side
    ideal: str
    dimension: int
    samples: np.ndarray

    @property
    def ranks(self) -> np.ndarray:
        """1 … m."""
        return np.arange(1, self.samples.shape[1] + 1)

    @property
    def predicted(self) -> np.ndarray:
        """1 − r/dimension at each r."""
        return 1.0 - self.ranks / self.dimension

    @property
    def mean(self) -> np.ndarray:
        """Monte Carlo mean at each r."""
        return self.samples.mean(axis=0)

    def interval(self, rank: int) -> Interval:
        """Confidence interval of the mean at one r."""
        return mean_interval(self.samples[:, rank - 1])


def residual_curve(
    side: Side, name: str, ideal: np.ndarray, trials: int, generator: np.random.Generator
) -> ResidualCurve:
    """Residual shares of P* (m, d) at all ranks.

    Each trial samples one Haar frame of rank m, whose first r columns are a Haar frame of rank r.

    Parameters
    ----------
    side
        Space of the fixed factor.
    name
        Name of P*.
    ideal
        P* (m, d).
    trials
        Number of random bases.
    generator
        Random generator.

    Returns
    -------
    ResidualCurve
    """
    m = ideal.shape[0]
    target = ideal if side == "token" else ideal.T
    samples = np.empty((trials, m))
    for start in range(0, trials, _BATCH):
        stop = min(start + _BATCH, trials)
        frames = haar_frames(target.shape[0], m, stop - start, generator)
        coordinates = np.swapaxes(frames, 1, 2) @ target  # (trials, m, other side)
        samples[start:stop] = 1.0 - np.cumsum((coordinates**2).sum(axis=2), axis=1) / np.sum(ideal**2)
    return ResidualCurve(side, name, target.shape[0], samples)


def asymmetry_statements(token: ResidualCurve, embedding: ResidualCurve, rank: int) -> list[Statement]:
    """The theorem and its corollary at `rank`, and the formulas at all ranks."""
    of = f"(P* {token.ideal})"
    rows = []
    for curve, frame in ((token, "U"), (embedding, "Q")):
        letter, size = SYMBOLS[curve.side]
        rows.append(
            expected(
                ASYMMETRY,
                f"Residual, random {letter} fixed {of}",
                f"Over uniformly random {frame}, the mean residual is (1 − r/{size}) ‖P*‖².",
                1 - rank / curve.dimension,
                curve.samples[:, rank - 1],
                detail=f"{len(curve.samples)} Haar bases per side, P* {curve.ideal}",
            )
        )
    left, right = token.samples[:, rank - 1], embedding.samples[:, rank - 1]
    ratio = (1 - rank / token.dimension) / (1 - rank / embedding.dimension)
    return [*rows, _strictly_smaller(left, right, of), _ratio(left, right, ratio, of), _all_ranks(token, embedding, of)]


def _strictly_smaller(left: np.ndarray, right: np.ndarray, of: str) -> Statement:
    """Difference of two independent means with Welch's interval."""
    from scipy import stats

    interval = stats.ttest_ind(left, right, equal_var=False).confidence_interval(CONFIDENCE)
    return strict(
        ASYMMETRY,
        f"Fixing B loses less {of}",
        "The mean residual with B fixed minus that with A fixed is below 0 (m < d).",
        "<",
        0.0,
        float(left.mean() - right.mean()),
        Interval(float(interval.low), float(interval.high)),
    )


def _ratio(left: np.ndarray, right: np.ndarray, predicted: float, of: str) -> Statement:
    """Ratio of two independent means, with a standard error by the delta method."""
    from scipy import stats

    ratio = float(left.mean() / right.mean())
    spread = np.sqrt(
        left.var(ddof=1) / left.size / right.mean() ** 2 + ratio**2 * right.var(ddof=1) / right.size / right.mean() ** 2
    )
    half = float(stats.norm.ppf(0.5 + CONFIDENCE / 2) * spread)
    claim = "The ratio of the two mean residuals is (1 − r/m)/(1 − r/d)."
    return covered(ASYMMETRY, f"Residual ratio {of}", claim, predicted, ratio, Interval(ratio - half, ratio + half))


def _all_ranks(token: ResidualCurve, embedding: ResidualCurve, of: str) -> Statement:
    """Largest |mean − prediction| in standard errors over both sides and all r, against the Bonferroni limit."""
    worst, where, tests = 0.0, "", 0
    for curve in (token, embedding):
        scores = _standard_errors(curve.samples, curve.predicted)
        tests += scores.size
        if scores.max() >= worst:
            rank = int(curve.ranks[scores.argmax()])
            worst, where = float(scores.max()), f"largest with {SYMBOLS[curve.side][0]} fixed at r = {rank}"
    return at_most(
        ASYMMETRY,
        f"Both formulas at every r {of}",
        "At every r from 1 to m, on both sides, the mean residual equals the formula up to sampling error.",
        _bonferroni_limit(len(token.samples), tests),
        worst,
        detail=f"in standard errors; {tests} comparisons, {where}",
    )


def rotational_invariance(frames: np.ndarray) -> Statement:
    """E[UUᵀ] = (r/m) I over frames (trials, m, r), the step of the proof that requires Haar-uniform U."""
    trials, m, rank = frames.shape
    upper = np.triu_indices(m)
    values = (frames @ np.swapaxes(frames, 1, 2))[:, upper[0], upper[1]]  # (trials, m (m + 1)/2)
    scores = _standard_errors(values, (rank / m) * np.eye(m)[upper])
    return at_most(
        ASYMMETRY,
        "Mean projector",
        "Over uniformly random U, the mean of UUᵀ is (r/m) I.",
        _bonferroni_limit(trials, scores.size),
        float(scores.max()),
        detail=f"largest deviation of {scores.size} entries in standard errors; {trials} bases",
    )


def _standard_errors(samples: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """|mean − predicted| of each column in standard errors; 0 or ∞ for a column without spread."""
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    gap = np.abs(samples.mean(axis=0) - predicted)
    # A complete basis (r = m) leaves no residual, so its samples have no spread.
    return np.where(error > 1e-12, gap / np.maximum(error, 1e-12), np.where(gap < 1e-9, 0.0, np.inf))


def _bonferroni_limit(trials: int, tests: int) -> float:
    """Quantile of Student's t that all of `tests` two-sided comparisons stay below with probability CONFIDENCE."""
    from scipy import stats

    return float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * tests), trials - 1))


def corollary_wording(token: ResidualCurve, embedding: ResidualCurve, rank: int) -> list[Statement]:
    """Both readings of the corollary, which says that a random basis "removes" the share that the theorem says it keeps."""
    rows = []
    for curve in (token, embedding):
        letter, size = SYMBOLS[curve.side]
        removed = curve.samples[:, rank - 1]
        share = rank / curve.dimension
        rows.append(
            expected(
                ASYMMETRY,
                f"Share kept, random {letter} fixed",
                f"A random fixed {letter} keeps the share r/{size} of ‖P*‖² in expectation.",
                share,
                1 - removed,
                detail="the corollary as the theorem proves it",
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
                    f"the corollary says “removes”, but the share kept is r/{size} and the share removed is "
                    f"1 − r/{size}; its conclusion, that fixing B preserves more, follows from the theorem"
                ),
            )
        )
    return rows
