"""The local quadratic model of the true loss at a reference prompt P0, and what each update space keeps of it.

F(P0 + δ) ≈ F(P0) + ⟨g, δ⟩ + ½⟨δ, Hδ⟩ with H the Gauss–Newton matrix plus damping; the ideal update is δ* = −H⁻¹g and lowers
the model by ½⟨g, H⁻¹g⟩. Within a subspace S the best update is the H-projection of δ* onto S, and its share of the possible
decrease is 1 − ‖δ_S − δ*‖²_H / ‖δ*‖²_H. All products with H are matrix-free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slimprompt.errors import InputError
from slimprompt.paper.theory.asymmetry import Side, haar_frames, orthonormal
from slimprompt.paper.theory.objective import Objective, gradient, largest_curvature, value
from slimprompt.paper.theory.statement import Statement, above, at_most, equal, expected

LOCAL_MODEL = "Local quadratic model"

Product = Callable[[np.ndarray], np.ndarray]
#: The damping is the smallest of these, times the largest curvature, at which the model still describes the loss.
_DAMPINGS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 1e-4)
#: True over predicted decrease, up to this far from 1, counts as a description.
_TRUST = 0.5
#: Haar draws for Euclidean shares, which cost nothing.
_EUCLIDEAN_DRAWS = 200


def conjugate_gradients(
    product: Product, right: np.ndarray, *, tolerance: float = 1e-5, most: int = 1000
) -> np.ndarray:
    """x with H x = `right` for symmetric positive definite H, to the relative residual `tolerance`."""
    x = np.zeros_like(right)
    residual = right.copy()
    direction = residual.copy()
    size = float(np.sum(residual**2))
    goal = tolerance**2 * size
    for _ in range(most):
        if size <= goal:
            return x
        along = product(direction)
        step = size / float(np.sum(direction * along))
        x += step * direction
        residual -= step * along
        previous, size = size, float(np.sum(residual**2))
        direction = residual + (size / previous) * direction
    raise InputError(
        f"the local model could not be solved in {most} steps: its curvature is too uneven. Give a larger --damping."
    )


@dataclass(frozen=True)
class LocalModel:
    """F ≈ F(P0) + ⟨g, δ⟩ + ½⟨δ, Hδ⟩ and its minimiser δ* over all of (m, d)."""

    objective: Objective
    reference: np.ndarray
    gradient: np.ndarray
    damping: float
    """λ in H = Gauss–Newton + λ I."""
    relative_damping: float
    """λ over the largest Gauss–Newton eigenvalue."""
    product: Product
    """V → H V."""
    ideal: np.ndarray
    """δ* = −H⁻¹g."""
    decrease: float
    """½⟨g, H⁻¹g⟩."""
    agreement: float
    """True decrease of F at P0 + δ* over the model's (without the damping's share)."""

    def lowered(self, update: np.ndarray) -> float:
        """−⟨g, δ⟩ − ½⟨δ, Hδ⟩: by how much an update lowers the model."""
        return -float(np.sum(self.gradient * update) + 0.5 * np.sum(update * self.product(update)))

    def true_decrease(self, update: np.ndarray) -> float:
        """F(P0) − F(P0 + δ)."""
        return value(self.objective, self.reference) - value(self.objective, self.reference + update)


def local_model(objective: Objective, reference: np.ndarray, *, relative_damping: float | None = None) -> LocalModel:
    """The model at `reference`.

    relative_damping: λ over the largest Gauss–Newton eigenvalue. By default the smallest of a few at which the model still
    describes the loss: the true decrease at δ* is within ½ to 1½ times the model's.
    """
    g = gradient(objective, reference)
    if not np.any(g):
        raise InputError("the gradient at the reference prompt is zero: there is no update to speak of")
    undamped = objective.curvature(reference)
    largest = largest_curvature(undamped, objective.shape)
    found: LocalModel | None = None
    for relative in _DAMPINGS if relative_damping is None else (relative_damping,):
        damping = relative * largest

        def product(v: np.ndarray, damping: float = damping) -> np.ndarray:
            return undamped(v) + damping * v

        solution = conjugate_gradients(product, g)
        ideal = -solution
        decrease = 0.5 * float(np.sum(g * solution))
        model = LocalModel(objective, reference, g, damping, relative, product, ideal, decrease, float("nan"))
        without_damping = decrease + 0.5 * damping * float(np.sum(ideal**2))
        agreement = model.true_decrease(ideal) / without_damping
        model = LocalModel(objective, reference, g, damping, relative, product, ideal, decrease, agreement)
        if found is not None and not abs(agreement - 1) <= _TRUST:
            break
        found = model
    assert found is not None
    return found


@dataclass(frozen=True)
class Kept:
    """What one update space S keeps: of the model's possible decrease (H-metric) and of ‖δ*‖² (Euclidean)."""

    basis: str
    side: Side
    dimension: int
    curvature_share: float
    """Decrease by the best update in S over the possible decrease: 1 − ‖δ_S − δ*‖²_H/‖δ*‖²_H."""
    euclidean_share: float
    """‖Πδ*‖²/‖δ*‖²."""
    projected_share: float
    """Decrease by the Euclidean projection Πδ* over the possible decrease; below zero it raises the model."""
    true_share: float
    """True decrease of F by the best update in S over the true decrease by δ*. Both nan where they were left out."""
    update: np.ndarray
    """δ_S, (m, d)."""


def kept_by(model: LocalModel, name: str, side: Side, basis: np.ndarray, *, whole: bool = True) -> Kept:
    """S = {U X} for a token basis (m, r), S = {Y Q} for an embedding basis given as (d, r).

    whole: also the two shares that cost further passes.
    """
    frame = orthonormal(basis)

    def into(x: np.ndarray) -> np.ndarray:
        return frame @ x if side == "token" else x @ frame.T

    def onto(v: np.ndarray) -> np.ndarray:
        return frame.T @ v if side == "token" else v @ frame

    right = -onto(model.gradient)
    coordinates = conjugate_gradients(lambda x: onto(model.product(into(x))), right, tolerance=1e-4)
    update, projected = into(coordinates), into(onto(model.ideal))
    by_projection = model.lowered(projected) / model.decrease if whole else float("nan")
    true = model.true_decrease(update) / model.true_decrease(model.ideal) if whole else float("nan")
    return Kept(
        name,
        side,
        right.size,
        0.5 * float(np.sum(right * coordinates)) / model.decrease,
        float(np.sum(projected**2) / np.sum(model.ideal**2)),
        by_projection,
        true,
        update,
    )


def kept_by_random(model: LocalModel, side: Side, rank: int, draws: int, generator: np.random.Generator) -> list[Kept]:
    """The same for `draws` Haar-uniform bases."""
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
    """Everything measured at one reference prompt."""

    model: LocalModel
    in_use: tuple[Kept, ...]
    """Bases of the start rules: S_A of each token basis, S_B of the SVD's A0."""
    random: dict[Side, tuple[Kept, ...]]
    """Haar draws of each side."""
    euclidean: dict[Side, np.ndarray]
    """Euclidean shares of many more Haar draws."""


def check_local_model(
    objective: Objective,
    token_bases: dict[str, np.ndarray],
    coefficients: np.ndarray,
    *,
    draws: int,
    generator: np.random.Generator,
    relative_damping: float | None = None,
) -> LocalCheck:
    """Measure at P0 = B0 A0 with B0 = `token_bases["svd"]` (m, r), A0 = `coefficients` (r, d)."""
    rank = coefficients.shape[0]
    model = local_model(objective, token_bases["svd"] @ coefficients, relative_damping=relative_damping)
    in_use = [kept_by(model, name, "token", basis) for name, basis in token_bases.items()]
    in_use.append(kept_by(model, "svd", "embedding", coefficients.T))
    sides: tuple[Side, Side] = ("token", "embedding")
    return LocalCheck(
        model,
        tuple(in_use),
        {side: tuple(kept_by_random(model, side, rank, draws, generator)) for side in sides},
        {side: euclidean_shares(model, side, rank, _EUCLIDEAN_DRAWS, generator) for side in sides},
    )


def local_model_statements(check: LocalCheck, rank: int) -> list[Statement]:
    """The square, the order of the two modes, and whether r/m and r/d carry over from the surrogate to the loss."""
    model = check.model
    m, d = model.reference.shape
    token = next(kept for kept in check.in_use if kept.basis == "svd" and kept.side == "token")
    embedding = next(kept for kept in check.in_use if kept.side == "embedding")
    where = (
        f"damping {model.relative_damping:g} times the largest curvature; "
        f"at δ* the loss falls by {model.agreement:.2f} of what the model says"
    )
    rows = [_square(model, token), _square(model, embedding)]
    for name, claim, a, b in (
        (
            "S_A(B0) keeps more decrease",
            "Of the decrease possible in the model, the best update in S_A(B0) reaches more than the best in S_B(A0).",
            token.curvature_share,
            embedding.curvature_share,
        ),
        (
            "S_A(B0) lowers the loss more",
            "On the loss itself, the best update in S_A(B0) wins more of what δ* wins than the best in S_B(A0).",
            token.true_share,
            embedding.true_share,
        ),
    ):
        rows.append(
            Statement(
                LOCAL_MODEL, name, claim, ">", b, a, "holds" if a > b else "violated", None, f"SVD factors; {where}"
            )
        )
    for kept, space in ((token, "S_A(B0)"), (embedding, "S_B(A0)")):
        rows.append(
            at_most(
                LOCAL_MODEL,
                f"Euclidean approximation in {space}",
                f"The Euclidean projection of δ* onto {space} lowers the model at most as far as the best update there, "
                "the H-projection.",
                kept.curvature_share,
                kept.projected_share,
                tolerance=1e-6,
                detail=f"shares of the possible decrease; of ‖δ*‖² the projection keeps {kept.euclidean_share:.3g}",
            )
        )
    pairs = zip(check.random["token"], check.random["embedding"], strict=True)
    differences = [a.curvature_share - b.curvature_share for a, b in pairs]
    rows.append(
        above(
            LOCAL_MODEL,
            "A random B keeps more decrease than a random A",
            "Over random bases, the share of the possible decrease kept with B fixed minus the one with A fixed is above 0.",
            0.0,
            differences,
            detail=f"{len(differences)} pairs of Haar bases",
        )
    )
    for side, size, symbol in (("token", m, "r/m"), ("embedding", d, "r/d")):
        letter = "B" if side == "token" else "A"
        shares = check.euclidean[side]  # type: ignore[index]
        rows.append(
            expected(
                LOCAL_MODEL,
                f"Euclidean share of δ*, random {letter}",
                f"In the Euclidean metric a random fixed {letter} keeps the share {symbol} of the ideal update.",
                rank / size,
                shares,
                detail=f"{shares.size} Haar bases",
            )
        )
        random = check.random[side]  # type: ignore[index]
        rows.append(
            expected(
                LOCAL_MODEL,
                f"Curvature share of δ*, random {letter}",
                f"In the loss's own metric a random fixed {letter} keeps the same share {symbol}: the surrogate describes "
                "the loss.",
                rank / size,
                [kept.curvature_share for kept in random],
                detail=f"{len(random)} Haar bases; an isotropic H would make it so; {where}",
            )
        )
    return rows


def _square(model: LocalModel, kept: Kept) -> Statement:
    """Decrease of the model = ½‖δ*‖²_H − ½‖δ_S − δ*‖²_H, the two sides computed apart."""
    gap = kept.update - model.ideal
    distance = 0.5 * float(np.sum(model.ideal * model.product(model.ideal)) - np.sum(gap * model.product(gap)))
    space = "S_A(B0)" if kept.side == "token" else "S_B(A0)"
    return equal(
        LOCAL_MODEL,
        f"Completing the square in {space}",
        "The decrease of the model is half of ‖δ*‖²_H minus the squared H-distance of the update from δ*.",
        model.lowered(kept.update) / model.decrease,
        distance / model.decrease,
        tolerance=1e-4,  # what conjugate gradients leave
        detail="both sides as shares of the possible decrease",
    )
