"""Stochastic gradient descent on φ(A) = F(BA) with B fixed: measured σ², the bound with its L_A η σ² term, and the T^(−1/2) rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slimprompt.paper.theory.convergence import ACCURACY, CONVERGENCE, directional_smoothness
from slimprompt.paper.theory.objective import Objective
from slimprompt.paper.theory.statement import (
    Statement,
    at_most,
    at_most_everywhere,
    mean_interval,
    not_testable,
)


@dataclass(frozen=True)
class Stochastic:
    """Replicates of A_{t+1} = A_t − η G_t, G_t the gradient on a batch drawn with replacement (unbiased), t < T."""

    step_size: float
    squared_gradients: np.ndarray
    """‖∇φ(A_t)‖², full gradient, (replicates, T)."""
    squared_errors: np.ndarray
    """‖G_t − ∇φ(A_t)‖², (replicates, T)."""
    ends: np.ndarray
    """A_T of each replicate."""

    @property
    def variance(self) -> float:
        """Mean of ‖G_t − ∇φ(A_t)‖² over the path. The proof needs no more; the theorem's σ² bounds it from above."""
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
    """Stochastic gradient descent from `start`, `replicates` times."""
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
    """The stochastic theorem at several T with η = c/√T ≤ 1/L_A."""

    runs: tuple[Stochastic, ...]
    constant: float
    """L_A, the largest measured so far, on these paths too."""
    gap: float
    """φ(A_0) − φ_inf."""
    batch_size: int

    @property
    def horizons(self) -> np.ndarray:
        """The values of T."""
        return np.array([run.steps for run in self.runs])

    @property
    def bounds(self) -> np.ndarray:
        """The theorem's right-hand side at each T."""
        return np.array([run.bound(self.gap, self.constant) for run in self.runs])

    @property
    def smallest(self) -> np.ndarray:
        """min over t < T of the mean ‖∇φ(A_t)‖² over the replicates."""
        return np.array([run.squared_gradients.mean(axis=0).min() for run in self.runs])

    @property
    def covered(self) -> bool:
        """Whether every step size is within 1/L_A, also with what the paths themselves showed."""
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
    """Run each T with η = c/√T; c minimises the bound as far as η ≤ 1/`constant` allows at the smallest T.

    σ² for that choice is measured at the start; the bounds use what the paths show.
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


def rate_statements(rate: Rate) -> list[Statement]:
    """The stochastic bound at the largest T, and at every T together with the T^(−1/2) scaling."""
    names = ("Stochastic gradients", "Rate T^(−1/2)")
    claims = (
        "With unbiased gradients of variance σ², min over t < T of E‖∇φ‖² is at most 2(φ(A_0) − φ_inf)/(ηT) + L_A η σ².",
        "With η = c/√T, √T times the smallest E‖∇φ‖² stays below one constant, 2(φ(A_0) − φ_inf)/c + L_A c σ².",
    )
    if not rate.covered:
        reason = (
            f"the paths show L_A = {rate.constant:.4g}, above what the step sizes allow: the theorem does not apply"
        )
        return [not_testable(CONVERGENCE, name, claim, reason) for name, claim in zip(names, claims, strict=True)]
    last = rate.runs[-1]
    means = last.squared_gradients.mean(axis=0)
    nearest = int(means.argmin())
    interval = None
    if len(last.squared_gradients) > 1:
        interval = mean_interval(last.squared_gradients[:, nearest], 0.95)
    noise = last.squared_errors
    spread = f"σ² = {last.variance:.4g} (mean over the path; largest step {noise.mean(axis=0).max():.4g})"
    rows = [
        at_most(
            CONVERGENCE,
            names[0],
            claims[0],
            rate.bounds[-1],
            float(means[nearest]),
            interval=interval,
            detail=(
                f"T = {last.steps}, {len(noise)} replicates, batches of {rate.batch_size}; {spread}; "
                f"the average over t, which the proof bounds, is {means.mean():.4g}; 95 % interval"
            ),
        )
    ]
    roots = np.sqrt(rate.horizons)
    c = last.step_size * roots[-1]
    limit = 2 * rate.gap / c + rate.constant * c * max(run.variance for run in rate.runs)
    slope = (
        float(np.polyfit(np.log(rate.horizons), np.log(rate.smallest), 1)[0]) if len(rate.runs) > 1 else float("nan")
    )
    rows.append(
        at_most_everywhere(
            CONVERGENCE,
            names[1],
            claims[1],
            np.full(len(roots), limit),
            rate.smallest * roots,
            steps=rate.horizons,
            what="T",
            detail=f"measured exponent of T {slope:.2f}, the bound's −0.5",
        )
    )
    return rows
