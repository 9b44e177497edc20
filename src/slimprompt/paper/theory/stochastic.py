"""Stochastic gradient descent on φ(A) = F(BA) with B fixed: measured σ², gradient bound and T^(−1/2) rate.

With A fixed, use the transposed problem (see `convergence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slimprompt.paper.theory.convergence import ACCURACY, FIXED_B, FixedFactor, directional_smoothness
from slimprompt.paper.theory.objective import Objective
from slimprompt.paper.theory.statement import Statement, at_most, at_most_everywhere, mean_interval, not_testable


@dataclass(frozen=True)
class Stochastic:
    """Replicates of A_{t+1} = A_t − η G_t for t < T, with the gradient G_t of a batch sampled with replacement.

    Attributes
    ----------
    step_size
        η.
    squared_gradients
        ‖∇φ(A_t)‖² of the full gradient, (replicates, T).
    squared_errors
        ‖G_t − ∇φ(A_t)‖², (replicates, T).
    ends
        A_T of each replicate, (replicates, r, d).
    """

    step_size: float
    squared_gradients: np.ndarray
    squared_errors: np.ndarray
    ends: np.ndarray

    @property
    def variance(self) -> float:
        """σ²: mean of ‖G_t − ∇φ(A_t)‖² over the path. The proof needs only this mean, which the theorem's σ² bounds."""
        return float(self.squared_errors.mean())

    @property
    def steps(self) -> int:
        """T."""
        return self.squared_gradients.shape[1]

    def bound(self, gap: float, constant: float) -> float:
        """2 (φ(A_0) − φ_inf)/(ηT) + L_A η σ²."""
        return 2 * gap / (self.step_size * self.steps) + constant * self.step_size * self.variance


def stochastic_descent(
    objective: Objective,
    basis: np.ndarray,
    start: np.ndarray,
    step_size: float,
    steps: int,
    *,
    batch_size: int,
    replicates: int,
    generator: np.random.Generator,
) -> Stochastic:
    """Run stochastic gradient descent several times from the same start.

    Parameters
    ----------
    objective
        F.
    basis
        B (m, r).
    start
        A_0 (r, d).
    step_size, steps
        η and T.
    batch_size
        Examples per batch.
    replicates
        Number of runs.
    generator
        Random generator of the batches.

    Returns
    -------
    Stochastic
    """
    squares, errors = np.empty((replicates, steps)), np.empty((replicates, steps))
    ends = []
    for replicate in range(replicates):
        point = start
        for t in range(steps):
            batch = generator.integers(objective.n_examples, size=batch_size)
            _, slopes = objective.gradients(basis @ point, [None, batch])
            full, sampled = (basis.T @ slope for slope in slopes)
            squares[replicate, t] = np.sum(full**2)
            errors[replicate, t] = np.sum((sampled - full) ** 2)
            point = point - step_size * sampled
        ends.append(point)
    return Stochastic(step_size, squares, errors, np.array(ends))


@dataclass(frozen=True)
class Rate:
    """The stochastic theorem at several T with η = c/√T ≤ 1/L_A.

    Attributes
    ----------
    runs
        One entry per T.
    constant
        The largest L_A measured, including these paths.
    gap
        φ(A_0) − φ_inf.
    batch_size
        Examples per batch.
    """

    runs: tuple[Stochastic, ...]
    constant: float
    gap: float
    batch_size: int

    @property
    def horizons(self) -> np.ndarray:
        """The values of T."""
        return np.array([run.steps for run in self.runs])

    @property
    def bounds(self) -> np.ndarray:
        """The bound of the theorem at each T."""
        return np.array([run.bound(self.gap, self.constant) for run in self.runs])

    @property
    def smallest(self) -> np.ndarray:
        """min over t < T of the mean of ‖∇φ(A_t)‖² over the replicates."""
        return np.array([run.squared_gradients.mean(axis=0).min() for run in self.runs])

    @property
    def covered(self) -> bool:
        """Whether every step size is at most 1/L_A."""
        return all(run.step_size <= (1 + 2 * ACCURACY) / self.constant for run in self.runs)


def check_rate(
    objective: Objective,
    basis: np.ndarray,
    start: np.ndarray,
    constant: float,
    *,
    horizons: Sequence[int],
    batch_size: int,
    replicates: int,
    generator: np.random.Generator,
) -> Rate:
    """Run stochastic gradient descent at several T with η = c/√T.

    c minimises the bound subject to η ≤ 1/L_A at the smallest T, with σ² measured at the start. The bounds use σ²
    measured on the paths.

    Parameters
    ----------
    objective
        F.
    basis
        B (m, r).
    start
        A_0 (r, d).
    constant
        L_A.
    horizons
        The values of T, increasing.
    batch_size
        Examples per batch.
    replicates
        Runs per T.
    generator
        Random generator of the batches.

    Returns
    -------
    Rate
    """
    gap = objective.gradients(basis @ start, [])[0] - objective.lower_bound
    batches = [generator.integers(objective.n_examples, size=batch_size) for _ in range(16)]
    _, slopes = objective.gradients(basis @ start, [None, *batches])
    full, *sampled = (basis.T @ slope for slope in slopes)
    noise = float(np.mean([np.sum((one - full) ** 2) for one in sampled]))
    allowed = np.sqrt(min(horizons)) / constant
    best = np.sqrt(2 * gap / (constant * noise)) if noise > 0 else np.inf
    c = float(min(allowed, best))
    runs = tuple(
        stochastic_descent(
            objective,
            basis,
            start,
            c / float(np.sqrt(steps)),
            steps,
            batch_size=batch_size,
            replicates=replicates,
            generator=generator,
        )
        for steps in horizons
    )
    seen = directional_smoothness(objective, basis, runs[-1].ends[0])
    return Rate(runs, max(constant, seen), gap, batch_size)


def rate_statements(rate: Rate, of: FixedFactor = FIXED_B) -> list[Statement]:
    """The stochastic bound at the largest T, and the T^(−1/2) rate at every T."""
    gap, symbol = f"2(φ({of.trained}_0) − φ_inf)", of.smoothness
    bound = (
        of.part,
        "Stochastic gradients",
        f"With unbiased gradients of variance σ², min over t < T of E‖∇φ‖² is at most {gap}/(ηT) + {symbol} η σ².",
    )
    scaling = (
        of.part,
        "Rate T^(−1/2)",
        f"With η = c/√T, √T times the smallest E‖∇φ‖² stays below the constant {gap}/c + {symbol} c σ².",
    )
    if not rate.covered:
        reason = (
            f"the paths have {symbol} = {rate.constant:.4g}, too large for the step sizes: the theorem does not apply"
        )
        return [not_testable(*statement, reason) for statement in (bound, scaling)]
    return [_stochastic_bound(rate, bound), _rate_scaling(rate, scaling)]


def _stochastic_bound(rate: Rate, statement: tuple[str, str, str]) -> Statement:
    """min over t < T of E‖∇φ‖² ≤ 2 (φ(A_0) − φ_inf)/(ηT) + L_A η σ² at the largest T."""
    last = rate.runs[-1]
    means, noise = last.squared_gradients.mean(axis=0), last.squared_errors
    smallest = int(means.argmin())
    interval = mean_interval(last.squared_gradients[:, smallest], 0.95) if len(noise) > 1 else None
    spread = f"σ² = {last.variance:.4g} (mean over the path; largest step {noise.mean(axis=0).max():.4g})"
    return at_most(
        *statement,
        rate.bounds[-1],
        float(means[smallest]),
        interval=interval,
        detail=(
            f"T = {last.steps}, {len(noise)} replicates, batches of {rate.batch_size}; {spread}; "
            f"the average over t, which the proof bounds, is {means.mean():.4g}; 95 % interval"
        ),
    )


def _rate_scaling(rate: Rate, statement: tuple[str, str, str]) -> Statement:
    """√T · min over t < T of E‖∇φ‖² ≤ 2 (φ(A_0) − φ_inf)/c + L_A c σ² at every T."""
    roots = np.sqrt(rate.horizons)
    c = rate.runs[-1].step_size * roots[-1]
    limit = 2 * rate.gap / c + rate.constant * c * max(run.variance for run in rate.runs)
    slope = float("nan")
    if len(rate.runs) > 1:
        slope = float(np.polyfit(np.log(rate.horizons), np.log(rate.smallest), 1)[0])
    return at_most_everywhere(
        *statement,
        np.full(len(roots), limit),
        rate.smallest * roots,
        steps=rate.horizons,
        what="T",
        detail=f"measured exponent of T {slope:.2f}; exponent of the bound −0.5",
    )
