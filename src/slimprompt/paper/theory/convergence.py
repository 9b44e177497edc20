"""Gradient descent on φ(A) = F(BA) with B fixed: smoothness, and the full-gradient and the stochastic theorem.

L_A is the largest curvature of φ. A global constant cannot be measured, so L_A is measured along the path and each
inequality is checked at every step.

The code is written for B fixed. With A fixed, φ(B) = F(BA), pass `Transposed(objective)`, the basis Aᵀ (d, r), the start
Bᵀ (r, m), and `FIXED_A` to the functions that make statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slimprompt.paper.theory.objective import Objective, hessian_product, largest_curvature
from slimprompt.paper.theory.statement import Check, Statement, mean_interval
from slimprompt.training.recipe import Recipe

#: Relative accuracy of a measured L or L_A.
ACCURACY = 1e-2
#: Batches at the start behind the σ² that sets the step size.
_NOISE_BATCHES = 16


class FixedFactor(NamedTuple):
    """Names in the statements: part of the theory, fixed factor, trained factor, directional smoothness."""

    part: str
    fixed: str
    trained: str
    smoothness: str


FIXED_B = FixedFactor("Convergence with B fixed", "B", "A", "L_A")
FIXED_A = FixedFactor("Convergence with A fixed", "A", "B", "L_B")


def directional_smoothness(objective: Objective, basis: np.ndarray, coefficients: np.ndarray) -> float:
    """L_A: largest |curvature| of φ(A) = F(BA) at A, of the operator V → Bᵀ ∇²F(BA)(B V) on (r, d)."""
    prompt = basis @ coefficients
    return largest_curvature(
        lambda v: basis.T @ hessian_product(objective, prompt, basis @ v), coefficients.shape, tolerance=ACCURACY
    )


def smoothness(objective: Objective, prompt: np.ndarray) -> float:
    """L: largest |curvature| of F at P."""
    return largest_curvature(lambda v: hessian_product(objective, prompt, v), prompt.shape, tolerance=ACCURACY)


class Trajectory(NamedTuple):
    """Gradient descent A_{t+1} = A_t − η G_t, t = 0 … T, where G_t = ∇φ(A_t) or the gradient of a batch."""

    step_size: float
    points: np.ndarray
    """A_t, (T + 1, r, d)."""
    values: np.ndarray
    """φ(A_t)."""
    squared_gradients: np.ndarray
    """‖∇φ(A_t)‖² of the full gradient."""
    squared_errors: np.ndarray
    """‖G_t − ∇φ(A_t)‖²."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.points) - 1

    @property
    def descent_bounds(self) -> np.ndarray:
        """φ(A_t) − (η/2) ‖∇φ(A_t)‖², the bound of φ(A_{t+1}), for t < T."""
        with np.errstate(over="ignore"):  # a diverging path
            return self.values[:-1] - 0.5 * self.step_size * self.squared_gradients[:-1]

    @property
    def smallest_gradients(self) -> np.ndarray:
        """min over t < T of ‖∇φ(A_t)‖² at T = 1 … steps."""
        return np.minimum.accumulate(self.squared_gradients[:-1])

    def gradient_bounds(self, lowest: float) -> np.ndarray:
        """2 (φ(A_0) − φ_inf) / (η T) at T = 1 … steps."""
        return 2 * (self.values[0] - lowest) / (self.step_size * np.arange(1, self.steps + 1))


def descend(
    objective: Objective,
    basis: np.ndarray,
    start: np.ndarray,
    step_size: float,
    steps: int,
    *,
    batch_size: int | None = None,
    generator: np.random.Generator | None = None,
) -> Trajectory:
    """Descent from A_0 (r, d) with B (m, r) fixed; full-gradient descent stops early if the loss is not finite.

    With a generator, G_t is the gradient of a batch sampled with replacement, which is unbiased.
    """
    points, values, squares, errors = [start], [], [], []
    for t in range(steps + 1):
        groups: list[np.ndarray | None] = [None]
        if generator is not None and t < steps:
            groups.append(generator.integers(objective.n_examples, size=batch_size))
        level, slopes = objective.gradients(basis @ points[-1], groups)
        full, step = basis.T @ slopes[0], basis.T @ slopes[-1]
        values.append(level)
        squares.append(np.sum(full**2))
        errors.append(np.sum((step - full) ** 2))
        if t == steps or (generator is None and not np.isfinite(level)):
            break
        points.append(points[-1] - step_size * step)
    return Trajectory(step_size, *map(np.array, (points, values, squares, errors)))


# -- full gradients -----------------------------------------------------------------------------------------------------


class Descent(NamedTuple):
    """A path with step size 1/L_A and the constants measured on it."""

    path: Trajectory
    basis_norm: float
    """‖B‖₂, the norm of the fixed factor."""
    constant: float
    """The L_A that sets the step size."""
    places: np.ndarray
    """The steps t at which the constants were measured."""
    directional: np.ndarray
    """L_A at those steps."""
    full: np.ndarray
    """L at those steps."""
    at_start: Trajectory
    """The path whose step size is 1/L_A of the starting point."""

    @property
    def shortened(self) -> bool:
        """Whether the step size had to be reduced below 1/L_A of the starting point."""
        return self.at_start.step_size > self.path.step_size * (1 + ACCURACY)


def check_descent(
    objective: Objective, basis: np.ndarray, start: np.ndarray, *, steps: int, places: int = 4, rounds: int = 8
) -> Descent:
    """Find a path from A_0 (r, d) with B (m, r) and η = 1/L_A on which no curvature exceeds L_A.

    L_A starts at the curvature at A_0 and is increased, at most twofold per round, until the path confirms it at `places`
    steps or there is no round left.
    """
    at_start = constant = directional_smoothness(objective, basis, start)
    first = path = descend(objective, basis, start, 1 / constant, steps)
    for remaining in reversed(range(rounds)):
        measured = {0: at_start}
        # Curvature tends to grow along the path, so going backwards rejects an unsuitable path early.
        for t in np.unique(np.linspace(0, path.steps, places).round().astype(int))[:0:-1]:
            measured[int(t)] = directional_smoothness(objective, basis, path.points[t])
            if measured[int(t)] > constant * (1 + ACCURACY):
                break
        else:
            break
        if remaining:
            # Too large a step reaches curvature that smaller steps never meet, so limit the increase.
            constant = min(measured[int(t)], 2 * constant)
            path = descend(objective, basis, start, 1 / constant, steps)
    at, directional = map(np.array, zip(*sorted(measured.items()), strict=True))
    full = np.array([smoothness(objective, basis @ path.points[t]) for t in at])
    return Descent(path, float(np.linalg.norm(basis, 2)), constant, at, directional, full, first)


def descent_inequality(path: Trajectory, of: FixedFactor = FIXED_B, *, detail: str = "") -> Statement:
    """φ(A_{t+1}) ≤ φ(A_t) − (η/2) ‖∇φ(A_t)‖² at every t, on the path with a measured L_A."""
    claim = f"Each step with η ≤ 1/{of.smoothness} lowers the loss by at least (η/2) ‖∇φ‖²."
    check = Check(of.part, "Descent inequality", claim)
    return check.at_most_everywhere(path.descent_bounds, path.values[1:], detail=detail)


def gradient_bound(path: Trajectory, lowest: float, of: FixedFactor = FIXED_B) -> Statement:
    """min_{t<T} ‖∇φ(A_t)‖² ≤ 2 (φ(A_0) − φ_inf)/(η T) at every T."""
    bounds, smallest = path.gradient_bounds(lowest), path.smallest_gradients
    claim = f"After T steps the smallest ‖∇φ‖² so far is at most 2(φ({of.trained}_0) − φ_inf)/(ηT)."
    detail = f"with φ_inf = {lowest:g}; at T = {path.steps} {smallest[-1]:.3g}, bound {bounds[-1]:.3g}"
    check = Check(of.part, "Smallest gradient", claim)
    return check.at_most_everywhere(bounds, smallest, steps=range(1, path.steps + 1), symbol="T", detail=detail)


def descent_statements(
    descent: Descent, lowest: float, of: FixedFactor = FIXED_B, *, step_size: float | None = None
) -> list[Statement]:
    """Smoothness on the path and both inequalities of the full-gradient theorem, with φ_inf = `lowest`.

    `step_size` is the learning rate of the training protocol, to see whether the theorem covers it; the paper's by default.
    """
    path, symbol, norm, places = descent.path, of.smoothness, f"‖{of.fixed}‖₂", ", ".join(map(str, descent.places))
    largest = int(descent.directional.argmax())
    claim = f"The curvature of φ on the path never exceeds the {symbol} that sets the step size."
    detail = f"measured at t = {places}, largest at t = {descent.places[largest]}"
    on_path = Check(of.part, f"{symbol} on the path", claim).compare(
        "≤", descent.constant, descent.directional[largest], tolerance=2 * ACCURACY, detail=detail
    )
    claim = f"{symbol} ≤ L {norm}², where L is the curvature of F."
    detail = f"{norm} = {descent.basis_norm:.4g}; L from {descent.full.min():.4g} to {descent.full.max():.4g}"
    bounds = descent.full * descent.basis_norm**2
    by_norm = Check(of.part, f"{symbol} by the norm of {of.fixed}", claim).at_most_everywhere(
        bounds, descent.directional, steps=descent.places, tolerance=2 * ACCURACY, detail=detail
    )
    spread = f"{symbol} from {descent.directional.min():.4g} to {descent.directional.max():.4g} on the path"
    inequality = descent_inequality(path, of, detail=f"η = 1/{symbol} = {path.step_size:.4g}; {spread}")
    rows = [on_path, by_norm, inequality, gradient_bound(path, lowest, of)]
    if descent.shortened:
        first = descent.at_start
        claim = f"The {symbol} of the starting point is enough: with its step size the inequality holds at every step."
        check = Check(of.part, f"Descent inequality, {symbol} taken at the start", claim)
        detail = f"η = {first.step_size:.4g}; larger curvature than at the start was found on the path"
        rows.append(check.at_most_everywhere(first.descent_bounds, first.values[1:], detail=detail))
    claim = f"The learning rate of the training protocol is at most 1/{symbol}, so that the theorem covers it."
    detail = "plain gradient descent; the theorem does not cover the protocol's momentum and weight decay"
    protocol = Check(of.part, "The training protocol's step size", claim)
    rows.append(protocol.compare("≤", 1 / descent.constant, step_size or Recipe().lr, detail=detail))
    return rows


# -- stochastic gradients -----------------------------------------------------------------------------------------------


class Rate(NamedTuple):
    """The stochastic theorem at several T with η = c/√T ≤ 1/L_A, from replicates of a path for each T."""

    horizons: np.ndarray
    """The values of T."""
    step_sizes: np.ndarray
    """The η of each T."""
    squared_gradients: list[np.ndarray]
    """For each T, ‖∇φ(A_t)‖² of the full gradient at t < T, (replicates, T)."""
    squared_errors: list[np.ndarray]
    """For each T, ‖G_t − ∇φ(A_t)‖² at t < T, (replicates, T)."""
    constant: float
    """The largest L_A measured, including these paths."""
    gap: float
    """φ(A_0) − φ_inf."""
    batch_size: int

    @property
    def variances(self) -> np.ndarray:
        """σ² at each T: mean of ‖G_t − ∇φ(A_t)‖² over the paths. The proof needs only this mean, which σ² bounds."""
        return np.array([errors.mean() for errors in self.squared_errors])

    @property
    def bounds(self) -> np.ndarray:
        """2 (φ(A_0) − φ_inf)/(ηT) + L_A η σ² at each T."""
        return 2 * self.gap / (self.step_sizes * self.horizons) + self.constant * self.step_sizes * self.variances

    @property
    def smallest(self) -> np.ndarray:
        """min over t < T of the mean of ‖∇φ(A_t)‖² over the replicates, at each T."""
        return np.array([squares.mean(axis=0).min() for squares in self.squared_gradients])

    @property
    def covered(self) -> bool:
        """Whether every step size is at most 1/L_A."""
        return bool(self.step_sizes.max() <= (1 + 2 * ACCURACY) / self.constant)


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
    """Stochastic descent from A_0 for several increasing T with η = c/√T, where `constant` is L_A.

    c minimises the bound subject to η ≤ 1/L_A at the smallest T, with σ² measured at the start. The bounds use σ²
    measured on the paths.
    """
    batches = [generator.integers(objective.n_examples, size=batch_size) for _ in range(_NOISE_BATCHES)]
    level, slopes = objective.gradients(basis @ start, [None, *batches])
    gap = level - objective.lower_bound
    full, *sampled = (basis.T @ slope for slope in slopes)
    noise = float(np.mean([np.sum((one - full) ** 2) for one in sampled]))
    c = min(np.sqrt(min(horizons)) / constant, np.sqrt(2 * gap / (constant * noise)) if noise > 0 else np.inf)
    squares, errors, step_sizes = [], [], c / np.sqrt(horizons)
    for steps, eta in zip(horizons, step_sizes, strict=True):
        settings = objective, basis, start, float(eta), steps
        paths = [descend(*settings, batch_size=batch_size, generator=generator) for _ in range(replicates)]
        squares.append(np.array([path.squared_gradients[:-1] for path in paths]))
        errors.append(np.array([path.squared_errors[:-1] for path in paths]))
    on_path = directional_smoothness(objective, basis, paths[0].points[-1])
    return Rate(np.array(horizons), step_sizes, squares, errors, max(constant, on_path), gap, batch_size)


def rate_statements(rate: Rate, of: FixedFactor = FIXED_B) -> list[Statement]:
    """min over t < T of E‖∇φ‖² ≤ 2 (φ(A_0) − φ_inf)/(ηT) + L_A η σ² at the largest T, and its T^(−1/2) rate at every T."""
    gap, symbol = f"2(φ({of.trained}_0) − φ_inf)", of.smoothness
    claim = f"With unbiased gradients of variance σ², min over t < T of E‖∇φ‖² is at most {gap}/(ηT) + {symbol} η σ²."
    bound = Check(of.part, "Stochastic gradients", claim)
    claim = f"With η = c/√T, √T times the smallest E‖∇φ‖² stays below the constant {gap}/c + {symbol} c σ²."
    scaling = Check(of.part, "Rate T^(−1/2)", claim)
    if not rate.covered:
        large = f"the paths have {symbol} = {rate.constant:.4g}, too large for the step sizes"
        return [check.not_applicable(f"{large}: the theorem does not apply") for check in (bound, scaling)]

    squares, errors, variance = rate.squared_gradients[-1], rate.squared_errors[-1], rate.variances[-1]
    means = squares.mean(axis=0)
    smallest = int(means.argmin())
    detail = (
        f"T = {rate.horizons[-1]}, {len(squares)} replicates, batches of {rate.batch_size}; "
        f"σ² = {variance:.4g} (mean over the path; largest step {errors.mean(axis=0).max():.4g}); "
        f"the average over t, which the proof bounds, is {means.mean():.4g}; 95 % interval"
    )
    interval = mean_interval(squares[:, smallest], 0.95)
    rows = [bound.compare("≤", rate.bounds[-1], means[smallest], interval, detail=detail)]

    roots = np.sqrt(rate.horizons)
    c = rate.step_sizes[-1] * roots[-1]
    limit = 2 * rate.gap / c + rate.constant * c * rate.variances.max()
    slope = np.polyfit(np.log(rate.horizons), np.log(rate.smallest), 1)[0] if len(roots) > 1 else np.nan
    detail = f"measured exponent of T {slope:.2f}; exponent of the bound −0.5"
    bounds, measured = np.full(len(roots), limit), rate.smallest * roots
    return [*rows, scaling.at_most_everywhere(bounds, measured, steps=rate.horizons, symbol="T", detail=detail)]
