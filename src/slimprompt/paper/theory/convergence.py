"""Gradient descent on φ(A) = F(BA) with B fixed: smoothness, descent inequality and smallest gradient.

L_A is the largest curvature of φ. A global constant cannot be measured, so L_A is measured along the path and each
inequality is checked at every step.

The code is written for B fixed. With A fixed, φ(B) = F(BA), pass `Transposed(objective)`, the basis Aᵀ (d, r), the start
Bᵀ (r, m), and `FIXED_A` to the functions that make statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slimprompt.paper.theory.objective import Objective, hessian_product, largest_curvature
from slimprompt.paper.theory.statement import Statement, at_most, at_most_everywhere
from slimprompt.training.recipe import Recipe


class FixedFactor(NamedTuple):
    """Names in the statements: part of the theory, fixed factor and trained factor."""

    part: str
    fixed: str
    trained: str

    @property
    def smoothness(self) -> str:
        """Symbol of the directional smoothness: L_A or L_B."""
        return f"L_{self.trained}"


FIXED_B = FixedFactor("Convergence with B fixed", "B", "A")
FIXED_A = FixedFactor("Convergence with A fixed", "A", "B")

#: Relative accuracy of a measured L or L_A.
ACCURACY = 1e-2


def directional_smoothness(objective: Objective, basis: np.ndarray, coefficients: np.ndarray) -> float:
    """L_A: largest |curvature| of φ(A) = F(BA) at A, of the operator V → Bᵀ ∇²F(BA)(B V) on (r, d)."""
    prompt = basis @ coefficients
    return largest_curvature(
        lambda v: basis.T @ hessian_product(objective, prompt, basis @ v), coefficients.shape, tolerance=ACCURACY
    )


def smoothness(objective: Objective, prompt: np.ndarray) -> float:
    """L: largest |curvature| of F at P."""
    return largest_curvature(lambda v: hessian_product(objective, prompt, v), prompt.shape, tolerance=ACCURACY)


@dataclass(frozen=True)
class Trajectory:
    """Gradient descent A_{t+1} = A_t − η ∇φ(A_t), t = 0 … T.

    Attributes
    ----------
    step_size
        η.
    points
        A_0 … A_T, (T + 1, r, d).
    values
        φ(A_0) … φ(A_T).
    squared_gradients
        ‖∇φ(A_0)‖² … ‖∇φ(A_T)‖².
    """

    step_size: float
    points: np.ndarray
    values: np.ndarray
    squared_gradients: np.ndarray

    @property
    def steps(self) -> int:
        """T."""
        return len(self.points) - 1


def descend(objective: Objective, basis: np.ndarray, start: np.ndarray, step_size: float, steps: int) -> Trajectory:
    """Full-gradient descent from `start` (r, d); stops early if the loss is not finite."""
    points, values, squares = [start], [], []
    for _ in range(steps + 1):
        level, (slope,) = objective.gradients(basis @ points[-1], [None])
        gradient = basis.T @ slope
        values.append(level)
        squares.append(float(np.sum(gradient**2)))
        if len(values) > steps or not np.isfinite(level):
            break
        points.append(points[-1] - step_size * gradient)
    return Trajectory(step_size, np.array(points), np.array(values), np.array(squares))


@dataclass(frozen=True)
class Descent:
    """A path with step size 1/L_A and the constants measured on it.

    Attributes
    ----------
    path
        The path.
    basis_norm
        ‖B‖₂, the norm of the fixed factor.
    constant
        The L_A that sets the step size.
    places
        The steps t at which the constants were measured.
    directional, full
        L_A and L at those steps.
    at_start
        The path whose step size is 1/L_A of the starting point.
    """

    path: Trajectory
    basis_norm: float
    constant: float
    places: np.ndarray
    directional: np.ndarray
    full: np.ndarray
    at_start: Trajectory

    @property
    def confirmed(self) -> bool:
        """Whether no measured L_A exceeds the one that sets the step size."""
        return bool(self.directional.max() <= self.constant * (1 + 2 * ACCURACY))

    @property
    def shortened(self) -> bool:
        """Whether the step size had to be reduced below 1/L_A of the starting point."""
        return self.at_start.step_size > self.path.step_size * (1 + ACCURACY)


def check_descent(
    objective: Objective, basis: np.ndarray, start: np.ndarray, *, steps: int, places: int = 4, rounds: int = 8
) -> Descent:
    """Find a path with η = 1/L_A on which no curvature exceeds L_A.

    L_A starts at the curvature at `start` and is increased, at most twofold per round, until the path confirms it.

    Parameters
    ----------
    objective
        F.
    basis
        B (m, r).
    start
        A_0 (r, d).
    steps
        Length of the path.
    places
        Number of steps at which the curvature is measured.
    rounds
        Maximum number of paths.

    Returns
    -------
    Descent
    """
    at_start = directional_smoothness(objective, basis, start)
    constant = at_start
    first = path = descend(objective, basis, start, 1 / constant, steps)
    measured = {0: at_start}
    for round_ in range(rounds):
        if round_:
            path = descend(objective, basis, start, 1 / constant, steps)
        measured = {0: at_start} | _curvatures(objective, basis, path, places, constant)
        largest = max(measured.values())
        if largest <= constant * (1 + ACCURACY):
            break
        if round_ < rounds - 1:
            # Too large a step reaches curvature that smaller steps never meet, so limit the increase.
            constant = min(largest, 2 * constant)
    measured = dict(sorted(measured.items()))
    return Descent(
        path,
        float(np.linalg.norm(basis, 2)),
        constant,
        np.array(list(measured)),
        np.array(list(measured.values())),
        np.array([smoothness(objective, basis @ path.points[t]) for t in measured]),
        first,
    )


def _curvatures(
    objective: Objective, basis: np.ndarray, path: Trajectory, places: int, constant: float
) -> dict[int, float]:
    """L_A at evenly spaced steps after the first; ends at the first value above `constant`."""
    measured: dict[int, float] = {}
    # Curvature tends to grow along the path, so going backwards rejects an unsuitable path early.
    for t in np.unique(np.linspace(0, path.steps, places).round().astype(int))[:0:-1]:
        measured[int(t)] = directional_smoothness(objective, basis, path.points[t])
        if measured[int(t)] > constant * (1 + ACCURACY):
            break
    return measured


def descent_inequality(path: Trajectory, of: FixedFactor = FIXED_B, *, detail: str = "") -> Statement:
    """φ(A_{t+1}) ≤ φ(A_t) − (η/2) ‖∇φ(A_t)‖² at every t, on the path with a measured L_A."""
    claim = f"Each step with η ≤ 1/{of.smoothness} lowers the loss by at least (η/2) ‖∇φ‖²."
    return _descent_inequality(path, of, "Descent inequality", claim, detail)


def _descent_inequality(path: Trajectory, of: FixedFactor, name: str, claim: str, detail: str) -> Statement:
    with np.errstate(over="ignore"):  # a diverging path
        bounds = path.values[:-1] - 0.5 * path.step_size * path.squared_gradients[:-1]
    return at_most_everywhere(of.part, name, claim, bounds, path.values[1:], detail=detail)


def gradient_bounds(path: Trajectory, lowest: float) -> np.ndarray:
    """2 (φ(A_0) − φ_inf) / (η T) for T = 1 … steps."""
    return 2 * (path.values[0] - lowest) / (path.step_size * np.arange(1, path.steps + 1))


def gradient_bound(path: Trajectory, lowest: float, of: FixedFactor = FIXED_B) -> Statement:
    """min_{t<T} ‖∇φ(A_t)‖² ≤ 2 (φ(A_0) − φ_inf)/(η T) at every T."""
    bounds = gradient_bounds(path, lowest)
    smallest = np.minimum.accumulate(path.squared_gradients[:-1])
    return at_most_everywhere(
        of.part,
        "Smallest gradient",
        f"After T steps the smallest ‖∇φ‖² so far is at most 2(φ({of.trained}_0) − φ_inf)/(ηT).",
        bounds,
        smallest,
        steps=np.arange(1, path.steps + 1),
        what="T",
        detail=f"with φ_inf = {lowest:g}; at T = {path.steps} {smallest[-1]:.3g}, bound {bounds[-1]:.3g}",
    )


def smoothness_statements(descent: Descent, of: FixedFactor = FIXED_B) -> list[Statement]:
    """L_A on the path against the L_A that sets the step size, and against L ‖B‖₂²."""
    largest = int(descent.directional.argmax())
    norm = f"‖{of.fixed}‖₂"
    return [
        at_most(
            of.part,
            f"{of.smoothness} on the path",
            f"The curvature of φ on the path never exceeds the {of.smoothness} that sets the step size.",
            descent.constant,
            float(descent.directional[largest]),
            tolerance=2 * ACCURACY,
            detail=f"measured at t = {', '.join(map(str, descent.places))}, largest at t = {descent.places[largest]}",
        ),
        at_most_everywhere(
            of.part,
            f"{of.smoothness} by the norm of {of.fixed}",
            f"{of.smoothness} ≤ L {norm}², where L is the curvature of F.",
            descent.full * descent.basis_norm**2,
            descent.directional,
            tolerance=2 * ACCURACY,
            steps=descent.places,
            what="t",
            detail=f"{norm} = {descent.basis_norm:.4g}; L from {descent.full.min():.4g} to {descent.full.max():.4g}",
        ),
    ]


def descent_statements(
    descent: Descent, objective: Objective, of: FixedFactor = FIXED_B, *, step_size: float | None = None
) -> list[Statement]:
    """Smoothness on the path and both inequalities of the full-gradient theorem.

    Parameters
    ----------
    descent
        Measured path.
    objective
        F, for its lower bound.
    of
        Which factor is fixed.
    step_size
        Learning rate of the training protocol, to see whether the theorem covers it; the paper's by default.

    Returns
    -------
    list of Statement
    """
    path, symbol = descent.path, of.smoothness
    spread = f"{symbol} from {descent.directional.min():.4g} to {descent.directional.max():.4g} on the path"
    rows = [
        *smoothness_statements(descent, of),
        descent_inequality(path, of, detail=f"η = 1/{symbol} = {path.step_size:.4g}; {spread}"),
        gradient_bound(path, objective.lower_bound, of),
    ]
    if descent.shortened:
        rows.append(
            _descent_inequality(
                descent.at_start,
                of,
                f"Descent inequality, {symbol} taken at the start",
                f"The {symbol} of the starting point is enough: with its step size the inequality holds at every step.",
                f"η = {descent.at_start.step_size:.4g}; larger curvature than at the start was found on the path",
            )
        )
    rows.append(
        at_most(
            of.part,
            "The training protocol's step size",
            f"The learning rate of the training protocol is at most 1/{symbol}, so that the theorem covers it.",
            1 / descent.constant,
            Recipe().lr if step_size is None else step_size,
            detail="plain gradient descent; the theorem does not cover the protocol's momentum and weight decay",
        )
    )
    return rows
