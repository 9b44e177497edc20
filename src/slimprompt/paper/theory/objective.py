"""The interface of an objective F(P), and its second derivatives by finite differences.

Hessian products are central differences of exact gradients. In double precision, a step of 1e-5 gives a relative error
near 1e-9, and the gradients need not be differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

#: A linear operator on matrices, V → H V.
Product = Callable[[np.ndarray], np.ndarray]
#: Step of a central difference, relative to max(1, ‖P‖).
_STEP = 1e-5


class Objective(Protocol):
    """F: (m, d) → ℝ, a mean over examples, in float64."""

    title: str
    shape: tuple[int, int]
    n_examples: int
    lower_bound: float
    """A lower bound of F."""

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        """F(P) over all examples, and the gradient (m, d) of the mean over each group of examples; None is all."""
        ...

    def curvature(self, prompt: np.ndarray) -> Product:
        """The product V (m, d) → H V (m, d) with the Gauss–Newton matrix H ⪰ 0 of F at P."""
        ...


class Transposed:
    """F̃(Q) = F(Qᵀ), Q (d, m), with the norms and curvatures of F.

    Since (BA)ᵀ = AᵀBᵀ, training B with A fixed in F is training Bᵀ with the basis Aᵀ fixed in F̃.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.title, self.shape = objective.title, (objective.shape[1], objective.shape[0])
        self.n_examples, self.lower_bound = objective.n_examples, objective.lower_bound

    def gradients(self, prompt: np.ndarray, groups: Sequence[np.ndarray | None]) -> tuple[float, list[np.ndarray]]:
        """As `Objective.gradients`, of F̃."""
        level, slopes = self._objective.gradients(prompt.T, groups)
        return level, [slope.T for slope in slopes]

    def curvature(self, prompt: np.ndarray) -> Product:
        """As `Objective.curvature`, of F̃."""
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
    return _STEP * max(1.0, float(np.linalg.norm(prompt)))


def hessian_product(objective: Objective, prompt: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """∇²F(P) V ≈ (∇F(P + hV̂) − ∇F(P − hV̂)) ‖V‖ / 2h, V̂ = V/‖V‖."""
    size, h = float(np.linalg.norm(direction)), difference_step(prompt)
    ahead = gradient(objective, prompt + (h / size) * direction)
    behind = gradient(objective, prompt - (h / size) * direction)
    return (ahead - behind) * (size / (2 * h))


def largest_curvature(product: Product, shape: tuple[int, ...], *, tolerance: float = 1e-3) -> float:
    """max |λ| of a symmetric operator on matrices of this shape, by the Lanczos method.

    The result is a Rayleigh quotient, so it never exceeds the true value.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    size = int(np.prod(shape))
    operator = LinearOperator((size, size), matvec=lambda v: product(v.reshape(shape)).ravel(), dtype=float)
    start = np.random.default_rng(0).standard_normal(size)
    (found,) = eigsh(operator, k=1, which="LM", ncv=min(size, 10), tol=tolerance, v0=start, return_eigenvectors=False)
    return float(abs(found))
