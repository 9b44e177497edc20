"""Gradient descent on φ(A) = F(BA) with B fixed: smoothness, the descent inequality, and the smallest gradient.

The directional constant L_A is the largest curvature of φ. A global one cannot be measured, so it is measured along the
path; each inequality is then checked at every step, and one that fails is shown with the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slimprompt.paper.theory.objective import Objective, hessian_product, largest_curvature
from slimprompt.paper.theory.statement import (
    Statement,
    at_most,
    at_most_everywhere,
)
from slimprompt.training.recipe import Recipe

CONVERGENCE = "Convergence"

#: Relative accuracy of a measured L or L_A.
ACCURACY = 1e-2


def directional_smoothness(objective: Objective, basis: np.ndarray, coefficients: np.ndarray) -> float:
    """Largest |curvature| of φ(A) = F(BA) at A: of V → Bᵀ ∇²F(BA)(B V) on (r, d)."""
    prompt = basis @ coefficients
    return largest_curvature(
        lambda v: basis.T @ hessian_product(objective, prompt, basis @ v), coefficients.shape, tolerance=ACCURACY
    )


def smoothness(objective: Objective, prompt: np.ndarray) -> float:
    """Largest |curvature| of F at P."""
    return largest_curvature(lambda v: hessian_product(objective, prompt, v), prompt.shape, tolerance=ACCURACY)


@dataclass(frozen=True)
class Trajectory:
    """Gradient descent A_{t+1} = A_t − η ∇φ(A_t), t = 0 … T."""

    step_size: float
    points: np.ndarray
    """A_0 … A_T, (T + 1, r, d)."""
    values: np.ndarray
    """φ(A_0) … φ(A_T)."""
    squared_gradients: np.ndarray
    """‖∇φ(A_0)‖² … ‖∇φ(A_T)‖²."""

    @property
    def steps(self) -> int:
        """T."""
        return len(self.points) - 1


def descend(objective: Objective, basis: np.ndarray, start: np.ndarray, step_size: float, steps: int) -> Trajectory:
    """Full-gradient descent from `start` (r, d); stops early where the loss is no longer a number."""
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
    """A path whose step size is 1/L_A, and the constants measured on it."""

    path: Trajectory
    basis_norm: float
    """‖B‖₂."""
    constant: float
    """The L_A that set the step size."""
    places: np.ndarray
    """The t at which the constants below were measured."""
    directional: np.ndarray
    """L_A at those t."""
    full: np.ndarray
    """L at those t."""
    at_start: Trajectory
    """The path whose step size is 1/L_A of the starting point alone."""

    @property
    def confirmed(self) -> bool:
        """Whether L_A is nowhere on the path above the one that set its step size."""
        return bool(self.directional.max() <= self.constant * (1 + 2 * ACCURACY))


def check_descent(
    objective: Objective, basis: np.ndarray, start: np.ndarray, *, steps: int, places: int = 4, rounds: int = 8
) -> Descent:
    """Descend with η = 1/L_A such that no curvature found on the path is above L_A.

    L_A starts at the curvature at `start` and is raised, at most twofold at a time, until its path confirms it.
    """
    measured = {0: directional_smoothness(objective, basis, start)}
    constant = measured[0]
    first = path = descend(objective, basis, start, 1 / constant, steps)
    for round_ in range(rounds):
        if round_:
            path = descend(objective, basis, start, 1 / constant, steps)
        measured = {0: measured[0]}
        # Curvature mostly grows along the path: from its end, a path that cannot be confirmed shows at once.
        for t in np.unique(np.linspace(0, path.steps, places).round().astype(int))[:0:-1]:
            measured[int(t)] = directional_smoothness(objective, basis, path.points[t])
            if measured[int(t)] > constant * (1 + ACCURACY):
                break
        largest = max(measured.values())
        if largest <= constant * (1 + ACCURACY):
            break
        if round_ < rounds - 1:
            # A step that is too long leads to far larger curvature than a shorter one ever meets: not all at once.
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


def descent_inequality(
    path: Trajectory,
    name: str = "Descent inequality",
    claim: str = "Each step with η ≤ 1/L_A lowers the loss by at least (η/2) ‖∇φ‖².",
    detail: str = "",
) -> Statement:
    """φ(A_{t+1}) ≤ φ(A_t) − (η/2) ‖∇φ(A_t)‖² at every t."""
    with np.errstate(over="ignore"):  # a path that diverges
        bounds = path.values[:-1] - 0.5 * path.step_size * path.squared_gradients[:-1]
    return at_most_everywhere(
        CONVERGENCE,
        name,
        claim,
        bounds,
        path.values[1:],
        detail=detail,
    )


def gradient_bounds(path: Trajectory, lowest: float) -> np.ndarray:
    """2 (φ(A_0) − φ_inf) / (η T) for T = 1 … steps."""
    return 2 * (path.values[0] - lowest) / (path.step_size * np.arange(1, path.steps + 1))


def gradient_bound(path: Trajectory, lowest: float) -> Statement:
    """min_{t<T} ‖∇φ(A_t)‖² ≤ 2 (φ(A_0) − φ_inf)/(η T) at every T."""
    bounds = gradient_bounds(path, lowest)
    smallest = np.minimum.accumulate(path.squared_gradients[:-1])
    return at_most_everywhere(
        CONVERGENCE,
        "Smallest gradient",
        "After T steps the smallest ‖∇φ‖² so far is at most 2(φ(A_0) − φ_inf)/(ηT).",
        bounds,
        smallest,
        steps=np.arange(1, path.steps + 1),
        what="T",
        detail=f"with φ_inf = {lowest:g}; at T = {path.steps} {smallest[-1]:.3g} against the bound {bounds[-1]:.3g}",
    )


def descent_statements(descent: Descent, objective: Objective, *, step_size: float | None = None) -> list[Statement]:
    """Smoothness on the path, the bound by L‖B‖₂², and both inequalities of the full-gradient theorem.

    step_size: the training protocol's, to see whether the theorem covers it; by default the paper's.
    """
    eta = Recipe().lr if step_size is None else step_size
    path, scale = descent.path, descent.basis_norm**2
    largest = int(descent.directional.argmax())
    spread = f"L_A from {descent.directional.min():.4g} to {descent.directional.max():.4g} on the path"
    rows = [
        at_most(
            CONVERGENCE,
            "L_A on the path",
            "The curvature of φ is nowhere on the path above the L_A whose inverse is the step size.",
            descent.constant,
            float(descent.directional[largest]),
            tolerance=2 * ACCURACY,
            detail=f"measured at t = {', '.join(map(str, descent.places))}, largest at t = {descent.places[largest]}",
        ),
        at_most_everywhere(
            CONVERGENCE,
            "L_A by the norm of B",
            "L_A ≤ L ‖B‖₂² where F has the curvature L.",
            descent.full * scale,
            descent.directional,
            tolerance=2 * ACCURACY,
            steps=descent.places,
            what="t",
            detail=f"‖B‖₂ = {descent.basis_norm:.4g}; L from {descent.full.min():.4g} to {descent.full.max():.4g}",
        ),
        descent_inequality(path, detail=f"η = 1/L_A = {path.step_size:.4g}; {spread}"),
        gradient_bound(path, objective.lower_bound),
    ]
    if descent.at_start.step_size > path.step_size * (1 + ACCURACY):
        rows.append(
            descent_inequality(
                descent.at_start,
                "Descent inequality, L_A taken at the start",
                "The curvature at the starting point alone is enough for L_A: its step keeps the same promise.",
                f"η = {descent.at_start.step_size:.4g}; further on, larger curvature than at the start was found",
            )
        )
    rows.append(
        at_most(
            CONVERGENCE,
            "The training protocol's step size",
            "The learning rate of the training protocol is within 1/L_A, so that the theorem covers it.",
            1 / descent.constant,
            eta,
            detail="plain gradient descent; the protocol adds momentum and weight decay, which the theorem does not cover",
        )
    )
    return rows
