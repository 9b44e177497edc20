"""The linear surrogate min ‖P* − B A‖²: projection lemmas and expected asymmetry.

Fixing B = U (m, r) with orthonormal columns keeps ‖UᵀP*‖² of ‖P*‖². Fixing A = Q (r, d) with orthonormal rows keeps
‖P*Qᵀ‖². For Haar-uniform U and Q, the expected shares kept are r/m and r/d for every P* ≠ 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from slimprompt.paper.theory.statement import CONFIDENCE, Check, Interval, Statement
from slimprompt.seeds import stream_seed

LEMMAS = "Projection lemmas"
ASYMMETRY = "Expected asymmetry"

#: Space of a fixed factor: B is fixed in token space, A in embedding space.
Side = Literal["token", "embedding"]
SIDES: tuple[Side, Side] = ("token", "embedding")
#: Symbols of each side: the fixed factor, and the dimension of its space.
SYMBOLS: dict[Side, tuple[str, str]] = {"token": ("B", "m"), "embedding": ("A", "d")}
#: Frames of rank m in memory at a time.
_BATCH = 128


def haar_frames(dimension: int, rank: int, trials: int, generator: np.random.Generator) -> np.ndarray:
    """Haar-uniform matrices with orthonormal columns, (trials, dimension, rank)."""
    q, r = np.linalg.qr(generator.standard_normal((trials, dimension, rank)))
    # QR of a normal matrix is uniform only if the diagonal of R is positive: LAPACK's signs are not random.
    return q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]


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


def lemma_statements(ideal: np.ndarray, rank: int, generator: np.random.Generator) -> list[Statement]:
    """The residual of each lemma against `numpy.linalg.lstsq`, which does not use orthonormality."""
    rows = []
    for fixed, target, residual in (("B = U", ideal, "‖(I − UUᵀ)P*‖²"), ("A = Q", ideal.T, "‖P*(I − QᵀQ)‖²")):
        frame = haar_frames(len(target), rank, 1, generator)[0]
        predicted = np.sum((target - frame @ (frame.T @ target)) ** 2)
        measured = np.sum((target - frame @ np.linalg.lstsq(frame, target, rcond=None)[0]) ** 2)
        claim = f"With {fixed} fixed, the smallest ‖P* − BA‖² is {residual}."
        rows.append(Check(LEMMAS, f"Residual, {fixed} fixed", claim).compare("=", predicted, measured))
    return rows


def mean_projector(frames: np.ndarray) -> Statement:
    """E[UUᵀ] = (r/m) I over frames (trials, m, r), the step of the proof that requires Haar-uniform U."""
    trials, m, rank = frames.shape
    rows, columns = np.triu_indices(m)
    values = (frames @ np.swapaxes(frames, 1, 2))[:, rows, columns]  # (trials, m (m + 1)/2)
    scores = _standard_errors(values, (rank / m) * (rows == columns))
    check = Check(ASYMMETRY, "Mean projector", "Over uniformly random U, the mean of UUᵀ is (r/m) I.")
    detail = f"largest deviation of {scores.size} entries in standard errors; {trials} bases"
    return check.compare("≤", _bonferroni_limit(trials, scores.size), scores.max(), detail=detail)


class ResidualCurve(NamedTuple):
    """Residual share 1 − ‖ΠP*‖²/‖P*‖² over Haar-uniform bases of one side, whose space has `dimension` m or d."""

    side: Side
    ideal: str
    dimension: int
    samples: np.ndarray
    """(trials, m); column r − 1 belongs to rank r."""

    @property
    def predicted(self) -> np.ndarray:
        """1 − r/dimension at r = 1 … m."""
        return 1 - np.arange(1, self.samples.shape[1] + 1) / self.dimension


def residual_curve(
    side: Side, name: str, ideal: np.ndarray, trials: int, generator: np.random.Generator
) -> ResidualCurve:
    """Residual shares of P* (m, d) at all ranks; the first r columns of a Haar frame of rank m are one of rank r."""
    m = len(ideal)
    target = ideal if side == "token" else ideal.T
    samples = np.empty((trials, m))
    for start in range(0, trials, _BATCH):
        stop = min(start + _BATCH, trials)
        frames = haar_frames(len(target), m, stop - start, generator)
        coordinates = np.swapaxes(frames, 1, 2) @ target  # (trials, m, other side)
        samples[start:stop] = 1.0 - np.cumsum((coordinates**2).sum(axis=2), axis=1) / np.sum(ideal**2)
    return ResidualCurve(side, name, len(target), samples)


def asymmetry_statements(token: ResidualCurve, embedding: ResidualCurve, rank: int) -> list[Statement]:
    """The theorem and the corollary's ratio at `rank`, and the formulas at all ranks."""
    from scipy import stats

    of, index = f"(P* {token.ideal})", rank - 1
    rows = []
    for curve, frame in ((token, "U"), (embedding, "Q")):
        letter, size = SYMBOLS[curve.side]
        claim = f"Over uniformly random {frame}, the mean residual is (1 − r/{size}) ‖P*‖²."
        check = Check(ASYMMETRY, f"Residual, random {letter} fixed {of}", claim)
        detail = f"{len(curve.samples)} Haar bases per side, P* {curve.ideal}"
        rows.append(check.mean("=", curve.predicted[index], curve.samples[:, index], detail))

    left, right = token.samples[:, index], embedding.samples[:, index]
    claim = "The mean residual with A fixed minus that with B fixed is above 0 (m < d)."
    welch = Interval(*stats.ttest_ind(right, left, equal_var=False).confidence_interval(CONFIDENCE))
    check = Check(ASYMMETRY, f"Fixing B loses less {of}", claim)
    rows.append(check.compare(">", 0.0, right.mean() - left.mean(), welch))

    claim = "The ratio of the two mean residuals is (1 − r/m)/(1 − r/d)."
    ratio = left.mean() / right.mean()
    # standard error of a ratio of independent means by the delta method
    variance = (left.var(ddof=1) / left.size + ratio**2 * right.var(ddof=1) / right.size) / right.mean() ** 2
    half = stats.norm.ppf(0.5 + CONFIDENCE / 2) * np.sqrt(variance)
    check = Check(ASYMMETRY, f"Residual ratio {of}", claim)
    predicted = token.predicted[index] / embedding.predicted[index]
    rows.append(check.compare("=", predicted, ratio, Interval(ratio - half, ratio + half)))

    claim = "At every r from 1 to m, on both sides, the mean residual equals the formula up to sampling error."
    scores = np.array([_standard_errors(curve.samples, curve.predicted) for curve in (token, embedding)])  # (2, m)
    side, column = np.unravel_index(scores.argmax(), scores.shape)
    check = Check(ASYMMETRY, f"Both formulas at every r {of}", claim)
    where = f"largest with {SYMBOLS[SIDES[side]][0]} fixed at r = {column + 1}"
    detail = f"in standard errors; {scores.size} comparisons, {where}"
    return [*rows, check.compare("≤", _bonferroni_limit(len(left), scores.size), scores.max(), detail=detail)]


def corollary_statements(token: ResidualCurve, embedding: ResidualCurve, rank: int) -> list[Statement]:
    """Both readings of the corollary, which says that a random basis "removes" the share that the theorem says it keeps."""
    rows = []
    for curve in (token, embedding):
        letter, size = SYMBOLS[curve.side]
        share, removed = rank / curve.dimension, curve.samples[:, rank - 1]
        claim = f"A random fixed {letter} keeps the share r/{size} of ‖P*‖² in expectation."
        check = Check(ASYMMETRY, f"Share kept, random {letter} fixed", claim)
        rows.append(check.mean("=", share, 1 - removed, "the corollary as the theorem proves it"))
        claim = f"A random fixed {letter} removes the share r/{size} of ‖P*‖² in expectation."
        detail = (
            f"the corollary says “removes”, but the share kept is r/{size} and the share removed is 1 − r/{size}; "
            "its conclusion, that fixing B preserves more, follows from the theorem"
        )
        check = Check(ASYMMETRY, f"Corollary to the letter, random {letter} fixed", claim)
        rows.append(check.mean("=", share, removed, detail))
    return rows


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
