"""The interface of an objective F(P), and its second derivatives by finite differences.

Hessian products are central differences of exact gradients. In double precision, a step of 1e-5 gives a relative error
near 1e-9, and the gradients need not be differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

#: Step of a central difference, relative to max(1, ‖P‖).
STEP = 1e-5


class Objective(Protocol):
    """F: (m, d) → ℝ, a mean over examples, in float64.

    Attributes
    ----------
    shape
        (m, d).
    n_examples
        Number of examples.
    lower_bound
        A lower bound of F.
    """

    shape: tuple[int, int]
    n_examples: int
    lower_bound: float

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        """F(P) over all examples, and the gradient (m, d) of the mean over each group of examples; None is all."""
        ...

    def curvature(self, prompt: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """The product V (m, d) → H V (m, d) with the Gauss–Newton matrix H ⪰ 0 of F at P."""
        ...


class Transposed:
    """F̃(Q) = F(Qᵀ), Q (d, m).

    Since (BA)ᵀ = AᵀBᵀ, training B with A fixed in F is training Bᵀ with the basis Aᵀ fixed in F̃. Norms and curvatures
    are the same.

    Parameters
    ----------
    objective
        F.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.shape = (objective.shape[1], objective.shape[0])
        self.n_examples, self.lower_bound = objective.n_examples, objective.lower_bound

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        """F̃(Q) over all examples, and the gradient (d, m) of the mean over each group of examples; None is all."""
        level, slopes = self._objective.gradients(prompt.T, groups)
        return level, [slope.T for slope in slopes]

    def curvature(self, prompt: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """The product V (d, m) → H V (d, m) with the Gauss–Newton matrix of F̃ at Q."""
        product = self._objective.curvature(prompt.T)
        return lambda v: product(v.T).T


def value(objective: Objective, prompt: np.ndarray) -> float:
    """F(P)."""
    return objective.gradients(prompt, [])[0]


def gradient(objective: Objective, prompt: np.ndarray) -> np.ndarray:
    """∇F(P), (m, d)."""
    return objective.gradients(prompt, [None])[1][0]


def difference_step(prompt: np.ndarray) -> float:
    """Step h of a central difference at P along a unit direction."""
    return STEP * max(1.0, float(np.linalg.norm(prompt)))


def hessian_product(objective: Objective, prompt: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """∇²F(P) V ≈ (∇F(P + hV̂) − ∇F(P − hV̂)) ‖V‖ / 2h, V̂ = V/‖V‖."""
    size = float(np.linalg.norm(direction))
    if size == 0:
        return np.zeros_like(direction)
    h = difference_step(prompt)
    ahead = gradient(objective, prompt + (h / size) * direction)
    behind = gradient(objective, prompt - (h / size) * direction)
    return (ahead - behind) * (size / (2 * h))


def largest_curvature(
    product: Callable[[np.ndarray], np.ndarray], shape: tuple[int, int], *, tolerance: float = 1e-3, seed: int = 0
) -> float:
    """max |λ| of a symmetric operator on matrices, by the Lanczos method.

    The result is a Rayleigh quotient, so it never exceeds the true value.

    Parameters
    ----------
    product
        The operator.
    shape
        Shape of the matrices.
    tolerance
        Relative tolerance.
    seed
        Seed of the starting vector.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    size = shape[0] * shape[1]
    if size <= 2:  # too small for eigsh
        columns = [product(unit.reshape(shape)).ravel() for unit in np.eye(size)]
        return float(np.abs(np.linalg.eigvalsh(np.array(columns))).max())
    operator = LinearOperator((size, size), matvec=lambda v: product(v.reshape(shape)).ravel(), dtype=float)
    start = np.random.default_rng(seed).standard_normal(size)
    (found,) = eigsh(operator, k=1, which="LM", ncv=min(size, 10), tol=tolerance, v0=start, return_eigenvectors=False)
    return float(abs(found))
