"""The local quadratic model of the loss at P0, and the share of its decrease that each update space keeps.

F(P0 + δ) ≈ F(P0) + ⟨g, δ⟩ + ½⟨δ, Hδ⟩, where H is the Gauss–Newton matrix plus damping. The ideal update δ* = −H⁻¹g
lowers the model by ½⟨g, H⁻¹g⟩. The best update δ_S in a subspace S is the H-projection of δ* onto S, and its share of
the possible decrease is 1 − ‖δ_S − δ*‖²_H / ‖δ*‖²_H. All products with H are matrix-free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slimprompt.errors import InputError
from slimprompt.paper.theory.asymmetry import SYMBOLS, Side, haar_frames, orthonormal
from slimprompt.paper.theory.objective import Objective, Product, gradient, largest_curvature, value
from slimprompt.paper.theory.statement import Check, Statement

LOCAL_MODEL = "Local quadratic model"
_SPACES: dict[Side, str] = {"token": "S_A(B0)", "embedding": "S_B(A0)"}
#: Candidates of the damping relative to the largest curvature; the smallest one that describes the loss is used.
_DAMPINGS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 1e-4)
#: The model describes the loss if true over predicted decrease differs from 1 by at most this much.
_TRUST = 0.5
#: A share that is not computed.
_NONE = float("nan")
#: Haar bases for Euclidean shares, which are cheap.
_EUCLIDEAN_DRAWS = 200


def conjugate_gradients(
    product: Product, right: np.ndarray, *, tolerance: float = 1e-5, most: int = 1000
) -> np.ndarray:
    """Solve H x = `right` to a relative residual, in at most `most` steps; H is symmetric positive definite."""
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


class LocalModel(NamedTuple):
    """F ≈ F(P0) + ⟨g, δ⟩ + ½⟨δ, Hδ⟩ with H = Gauss–Newton + λ I, and its minimiser δ* over all (m, d)."""

    objective: Objective
    reference: np.ndarray
    """P0 (m, d)."""
    gradient: np.ndarray
    relative_damping: float
    """λ over the largest Gauss–Newton eigenvalue."""
    damping: float
    product: Product
    """V → H V."""
    ideal: np.ndarray
    """δ* = −H⁻¹g."""
    decrease: float
    """½⟨g, H⁻¹g⟩."""
    agreement: float
    """True decrease of F at P0 + δ* over the decrease of the undamped model."""

    def lowered(self, update: np.ndarray) -> float:
        """−⟨g, δ⟩ − ½⟨δ, Hδ⟩: the decrease of the model by an update."""
        return -float(np.sum(self.gradient * update) + 0.5 * np.sum(update * self.product(update)))


def true_decrease(objective: Objective, reference: np.ndarray, update: np.ndarray) -> float:
    """F(P0) − F(P0 + δ)."""
    return value(objective, reference) - value(objective, reference + update)


def local_model(objective: Objective, reference: np.ndarray, *, relative_damping: float | None = None) -> LocalModel:
    """The local model at a reference prompt P0 (m, d).

    The default damping is the smallest of a few candidates with which the true decrease at δ* is between ½ and 1½ times
    that of the model.
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
        agreement = true_decrease(objective, reference, ideal) / without_damping
        if found is not None and not abs(agreement - 1) <= _TRUST:
            break
        found = LocalModel(objective, reference, g, relative, damping, product, ideal, decrease, agreement)
    assert found is not None
    return found


class Kept(NamedTuple):
    """Shares kept by one update space S, whose best update is δ_S (m, d); Π is the Euclidean projection onto S."""

    basis: str
    side: Side
    curvature_share: float
    """Decrease of the model by δ_S over the possible decrease, 1 − ‖δ_S − δ*‖²_H/‖δ*‖²_H."""
    euclidean_share: float
    """‖Πδ*‖²/‖δ*‖²."""
    projected_share: float
    """Decrease of the model by Πδ* over the possible decrease; NaN if not computed."""
    true_share: float
    """Decrease of F by δ_S over its decrease by δ*; NaN if not computed."""
    update: np.ndarray


def kept_by(model: LocalModel, name: str, side: Side, basis: np.ndarray, *, whole: bool = True) -> Kept:
    """Shares kept by S = {U X} for a token basis (m, r), or by S = {Y Q} for an embedding basis (d, r).

    `projected_share` and `true_share` need further passes and are only computed with `whole`.
    """
    frame = orthonormal(basis)

    def into(x: np.ndarray) -> np.ndarray:
        return frame @ x if side == "token" else x @ frame.T

    def onto(v: np.ndarray) -> np.ndarray:
        return frame.T @ v if side == "token" else v @ frame

    right = -onto(model.gradient)
    coordinates = conjugate_gradients(lambda x: onto(model.product(into(x))), right, tolerance=1e-4)
    update, projected = into(coordinates), into(onto(model.ideal))
    true = (
        [true_decrease(model.objective, model.reference, one) for one in (update, model.ideal)] if whole else [_NONE, 1]
    )
    return Kept(
        name,
        side,
        curvature_share=0.5 * float(np.sum(right * coordinates)) / model.decrease,
        euclidean_share=float(np.sum(projected**2) / np.sum(model.ideal**2)),
        projected_share=model.lowered(projected) / model.decrease if whole else _NONE,
        true_share=true[0] / true[1],
        update=update,
    )


class LocalCheck(NamedTuple):
    """Shares kept at P0 = B0 A0 by the bases in use and by Haar-uniform bases of rank r of each side."""

    rank: int
    model: LocalModel
    in_use: tuple[Kept, ...]
    random: dict[Side, tuple[Kept, ...]]
    euclidean: dict[Side, np.ndarray]
    """‖Πδ*‖²/‖δ*‖² of more Haar-uniform bases."""

    def predicted(self, side: Side) -> float:
        """r/m or r/d."""
        m, d = self.model.reference.shape
        return self.rank / (m if side == "token" else d)


def check_local_model(
    objective: Objective,
    token_bases: dict[str, np.ndarray],
    coefficients: np.ndarray,
    *,
    draws: int,
    generator: np.random.Generator,
    relative_damping: float | None = None,
) -> LocalCheck:
    """Measure the local model at P0 = B0 A0, where B0 (m, r) is the token basis "svd" and A0 (r, d) the coefficients."""
    rank = len(coefficients)
    model = local_model(objective, token_bases["svd"] @ coefficients, relative_damping=relative_damping)
    in_use = [kept_by(model, name, "token", basis) for name, basis in token_bases.items()]
    in_use.append(kept_by(model, "svd", "embedding", coefficients.T))
    targets: dict[Side, np.ndarray] = {"token": model.ideal, "embedding": model.ideal.T}
    random: dict[Side, tuple[Kept, ...]] = {}
    for side, target in targets.items():
        frames = haar_frames(len(target), rank, draws, generator)
        random[side] = tuple(kept_by(model, "random", side, frame, whole=False) for frame in frames)
    euclidean: dict[Side, np.ndarray] = {}
    for side, target in targets.items():
        frames = haar_frames(len(target), rank, _EUCLIDEAN_DRAWS, generator)
        euclidean[side] = np.sum((np.swapaxes(frames, 1, 2) @ target) ** 2, axis=(1, 2)) / np.sum(target**2)
    return LocalCheck(rank, model, tuple(in_use), random, euclidean)


def local_model_statements(local: LocalCheck, title: str) -> list[Statement]:
    """Completing the square, the order of S_A and S_B, and whether r/m and r/d describe the loss called `title`."""
    model = local.model
    svd = {kept.side: kept for kept in local.in_use if kept.basis == "svd"}
    where = (
        f"{title}; damping {model.relative_damping:g} times the largest curvature; "
        f"at δ* the true decrease is {model.agreement:.2f} times that of the model"
    )
    rows = []
    for side, kept in svd.items():
        gap = kept.update - model.ideal
        distance = 0.5 * np.sum(model.ideal * model.product(model.ideal) - gap * model.product(gap))
        claim = "The decrease of the model is half of ‖δ*‖²_H minus the squared H-distance between the update and δ*."
        check = Check(LOCAL_MODEL, f"Completing the square in {_SPACES[side]}", claim)
        sides = model.lowered(kept.update) / model.decrease, distance / model.decrease
        detail = "both sides as shares of the possible decrease"
        rows.append(check.compare("=", *sides, tolerance=1e-4, detail=detail))  # accuracy of conjugate gradients

    a, b, detail = svd["token"], svd["embedding"], f"SVD factors; {where}"
    claim = "Of the decrease possible in the model, the best update in S_A(B0) reaches more than the best in S_B(A0)."
    check = Check(LOCAL_MODEL, "S_A(B0) keeps more decrease", claim)
    rows.append(check.compare(">", b.curvature_share, a.curvature_share, detail=detail))
    claim = "On the loss, the best update in S_A(B0) reaches more of the decrease by δ* than the best in S_B(A0)."
    check = Check(LOCAL_MODEL, "S_A(B0) lowers the loss more", claim)
    rows.append(check.compare(">", b.true_share, a.true_share, detail=detail))

    for side, kept in svd.items():
        claim = (
            f"The Euclidean projection of δ* onto {_SPACES[side]} lowers the model at most as much as the H-projection."
        )
        check = Check(LOCAL_MODEL, f"Euclidean approximation in {_SPACES[side]}", claim)
        detail = f"shares of the possible decrease; the projection keeps {kept.euclidean_share:.3g} of ‖δ*‖²"
        rows.append(check.compare("≤", kept.curvature_share, kept.projected_share, tolerance=1e-6, detail=detail))

    shares = {side: np.array([kept.curvature_share for kept in random]) for side, random in local.random.items()}
    claim = (
        "Over random bases, the share of the possible decrease kept with B fixed minus that with A fixed is above 0."
    )
    check = Check(LOCAL_MODEL, "A random B keeps more decrease than a random A", claim)
    draws = f"{len(shares['token'])} pairs of Haar bases"
    rows.append(check.mean(">", 0.0, shares["token"] - shares["embedding"], draws))

    for side, (letter, size) in SYMBOLS.items():
        claim = f"In the Euclidean metric, a random fixed {letter} keeps the share r/{size} of the ideal update."
        check = Check(LOCAL_MODEL, f"Euclidean share of δ*, random {letter}", claim)
        predicted = local.predicted(side)
        rows.append(check.mean("=", predicted, local.euclidean[side], f"{_EUCLIDEAN_DRAWS} Haar bases"))
        claim = f"In the metric of H, a random fixed {letter} also keeps r/{size}: the surrogate describes the loss."
        check = Check(LOCAL_MODEL, f"Curvature share of δ*, random {letter}", claim)
        detail = f"{len(shares[side])} Haar bases; true if H is isotropic; {where}"
        rows.append(check.mean("=", predicted, shares[side], detail))
    return rows
