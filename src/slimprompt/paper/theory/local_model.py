"""The local quadratic model of the loss at P0, and the share of its decrease that each update space keeps.

F(P0 + δ) ≈ F(P0) + ⟨g, δ⟩ + ½⟨δ, Hδ⟩, where H is the Gauss–Newton matrix plus damping. The ideal update δ* = −H⁻¹g
lowers the model by ½⟨g, H⁻¹g⟩. The best update δ_S in a subspace S is the H-projection of δ* onto S, and its share of
the possible decrease is 1 − ‖δ_S − δ*‖²_H / ‖δ*‖²_H. All products with H are matrix-free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slimprompt.errors import InputError
from slimprompt.paper.theory.asymmetry import SIDES, Side, haar_frames, orthonormal
from slimprompt.paper.theory.objective import Objective, gradient, largest_curvature, value

Product = Callable[[np.ndarray], np.ndarray]
#: Candidates of the damping relative to the largest curvature; the smallest one that describes the loss is used.
_DAMPINGS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 1e-4)
#: The model describes the loss if true over predicted decrease differs from 1 by at most this much.
_TRUST = 0.5
#: Haar bases for Euclidean shares, which are cheap.
_EUCLIDEAN_DRAWS = 200


def conjugate_gradients(
    product: Product, right: np.ndarray, *, tolerance: float = 1e-5, most: int = 1000
) -> np.ndarray:
    """Solve H x = `right`.

    Parameters
    ----------
    product
        The product with H, symmetric positive definite, on matrices of the shape of `right`.
    right
        Right-hand side.
    tolerance
        Relative residual at which to stop.
    most
        Maximum number of iterations.

    Raises
    ------
    InputError
        If the iterations do not converge.
    """
    from scipy.sparse.linalg import LinearOperator, cg

    size = right.size
    operator = LinearOperator((size, size), matvec=lambda v: product(v.reshape(right.shape)).ravel(), dtype=float)
    solution, failed = cg(operator, right.ravel(), rtol=tolerance, atol=0.0, maxiter=most)
    if failed:
        raise InputError(
            f"the local model could not be solved in {most} steps because its curvature varies too much. "
            "Give a larger --damping."
        )
    return np.asarray(solution).reshape(right.shape)


@dataclass(frozen=True)
class LocalModel:
    """F ≈ F(P0) + ⟨g, δ⟩ + ½⟨δ, Hδ⟩ and its minimiser δ* over all (m, d).

    Attributes
    ----------
    objective
        F.
    reference
        P0 (m, d).
    gradient
        g (m, d).
    relative_damping
        λ over the largest Gauss–Newton eigenvalue.
    damping
        λ in H = Gauss–Newton + λ I.
    product
        The product V → H V.
    ideal
        δ* = −H⁻¹g.
    decrease
        ½⟨g, H⁻¹g⟩.
    agreement
        True decrease of F at P0 + δ* over the decrease of the undamped model.
    """

    objective: Objective
    reference: np.ndarray
    gradient: np.ndarray
    relative_damping: float
    damping: float
    product: Product
    ideal: np.ndarray
    decrease: float
    agreement: float

    def lowered(self, update: np.ndarray) -> float:
        """−⟨g, δ⟩ − ½⟨δ, Hδ⟩: the decrease of the model by an update."""
        return -float(np.sum(self.gradient * update) + 0.5 * np.sum(update * self.product(update)))

    def true_decrease(self, update: np.ndarray) -> float:
        """F(P0) − F(P0 + δ)."""
        return _true_decrease(self.objective, self.reference, update)


def _true_decrease(objective: Objective, reference: np.ndarray, update: np.ndarray) -> float:
    return value(objective, reference) - value(objective, reference + update)


def local_model(objective: Objective, reference: np.ndarray, *, relative_damping: float | None = None) -> LocalModel:
    """The local model at a reference prompt.

    Parameters
    ----------
    objective
        F.
    reference
        P0 (m, d).
    relative_damping
        λ over the largest Gauss–Newton eigenvalue. By default the smallest of a few candidates with which the true
        decrease at δ* is between ½ and 1½ times that of the model.

    Returns
    -------
    LocalModel

    Raises
    ------
    InputError
        If the gradient at P0 is zero.
    """
    g = gradient(objective, reference)
    if not np.any(g):
        raise InputError("the gradient at the reference prompt is zero, so there is no update to measure")
    undamped = objective.curvature(reference)
    largest = largest_curvature(undamped, objective.shape)
    found: LocalModel | None = None
    for relative in _DAMPINGS if relative_damping is None else (relative_damping,):
        damping = relative * largest

        def product(v: np.ndarray, damping: float = damping) -> np.ndarray:
            return undamped(v) + damping * v

        ideal = -conjugate_gradients(product, g)
        decrease = -0.5 * float(np.sum(g * ideal))
        without_damping = decrease + 0.5 * damping * float(np.sum(ideal**2))
        agreement = _true_decrease(objective, reference, ideal) / without_damping
        if found is not None and not abs(agreement - 1) <= _TRUST:
            break
        found = LocalModel(objective, reference, g, relative, damping, product, ideal, decrease, agreement)
    assert found is not None
    return found


@dataclass(frozen=True)
class Kept:
    """Shares kept by one update space S.

    Attributes
    ----------
    basis
        Name of the fixed factor.
    side
        Space of the fixed factor.
    dimension
        dim S.
    curvature_share
        Decrease of the model by δ_S over the possible decrease, 1 − ‖δ_S − δ*‖²_H/‖δ*‖²_H.
    euclidean_share
        ‖Πδ*‖²/‖δ*‖², where Π is the Euclidean projection onto S.
    projected_share
        Decrease of the model by Πδ* over the possible decrease; NaN if not computed.
    true_share
        Decrease of F by δ_S over its decrease by δ*; NaN if not computed.
    update
        δ_S (m, d).
    """

    basis: str
    side: Side
    dimension: int
    curvature_share: float
    euclidean_share: float
    projected_share: float
    true_share: float
    update: np.ndarray


def kept_by(model: LocalModel, name: str, side: Side, basis: np.ndarray, *, whole: bool = True) -> Kept:
    """Shares kept by S = {U X} for a token basis (m, r), or by S = {Y Q} for an embedding basis (d, r).

    Parameters
    ----------
    model
        Local model.
    name
        Name of the basis.
    side
        Space of the fixed factor.
    basis
        The fixed factor, by columns.
    whole
        Also compute `projected_share` and `true_share`, which need further passes.

    Returns
    -------
    Kept
    """
    frame = orthonormal(basis)

    def into(x: np.ndarray) -> np.ndarray:
        return frame @ x if side == "token" else x @ frame.T

    def onto(v: np.ndarray) -> np.ndarray:
        return frame.T @ v if side == "token" else v @ frame

    right = -onto(model.gradient)
    coordinates = conjugate_gradients(lambda x: onto(model.product(into(x))), right, tolerance=1e-4)
    update, projected = into(coordinates), into(onto(model.ideal))
    return Kept(
        name,
        side,
        right.size,
        curvature_share=0.5 * float(np.sum(right * coordinates)) / model.decrease,
        euclidean_share=float(np.sum(projected**2) / np.sum(model.ideal**2)),
        projected_share=model.lowered(projected) / model.decrease if whole else float("nan"),
        true_share=model.true_decrease(update) / model.true_decrease(model.ideal) if whole else float("nan"),
        update=update,
    )


def kept_by_random(model: LocalModel, side: Side, rank: int, draws: int, generator: np.random.Generator) -> list[Kept]:
    """Shares kept by each of `draws` Haar-uniform bases."""
    size = model.reference.shape[0] if side == "token" else model.reference.shape[1]
    frames = haar_frames(size, rank, draws, generator)
    return [kept_by(model, "random", side, frame, whole=False) for frame in frames]


def euclidean_shares(
    model: LocalModel, side: Side, rank: int, draws: int, generator: np.random.Generator
) -> np.ndarray:
    """‖Πδ*‖²/‖δ*‖² over Haar-uniform bases, (draws,)."""
    target = model.ideal if side == "token" else model.ideal.T
    frames = haar_frames(target.shape[0], rank, draws, generator)
    return np.sum((np.swapaxes(frames, 1, 2) @ target) ** 2, axis=(1, 2)) / np.sum(target**2)


@dataclass(frozen=True)
class LocalCheck:
    """Measurements at one reference prompt.

    Attributes
    ----------
    model
        Local model.
    in_use
        S_A of each token basis of the start rules, and S_B of the A0 of the SVD.
    random
        Shares kept by Haar-uniform bases of each side.
    euclidean
        Euclidean shares of more Haar-uniform bases of each side.
    """

    model: LocalModel
    in_use: tuple[Kept, ...]
    random: dict[Side, tuple[Kept, ...]]
    euclidean: dict[Side, np.ndarray]


def check_local_model(
    objective: Objective,
    token_bases: dict[str, np.ndarray],
    coefficients: np.ndarray,
    *,
    draws: int,
    generator: np.random.Generator,
    relative_damping: float | None = None,
) -> LocalCheck:
    """Measure the local model at P0 = B0 A0.

    Parameters
    ----------
    objective
        F.
    token_bases
        Token bases (m, r); "svd" is B0.
    coefficients
        A0 (r, d).
    draws
        Number of random bases per side.
    generator
        Random generator of the bases.
    relative_damping
        As in `local_model`.

    Returns
    -------
    LocalCheck
    """
    rank = coefficients.shape[0]
    model = local_model(objective, token_bases["svd"] @ coefficients, relative_damping=relative_damping)
    in_use = [kept_by(model, name, "token", basis) for name, basis in token_bases.items()]
    in_use.append(kept_by(model, "svd", "embedding", coefficients.T))
    return LocalCheck(
        model,
        tuple(in_use),
        {side: tuple(kept_by_random(model, side, rank, draws, generator)) for side in SIDES},
        {side: euclidean_shares(model, side, rank, _EUCLIDEAN_DRAWS, generator) for side in SIDES},
    )
