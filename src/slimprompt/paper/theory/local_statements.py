"""Statements on the local quadratic model of the loss."""

from __future__ import annotations

import numpy as np

from slimprompt.paper.theory.asymmetry import SIDES, SYMBOLS, Side
from slimprompt.paper.theory.local_model import Kept, LocalCheck, LocalModel
from slimprompt.paper.theory.statement import Statement, above, at_most, equal, expected
from slimprompt.paper.verdict import statement_verdict

LOCAL_MODEL = "Local quadratic model"
_SPACES: dict[Side, str] = {"token": "S_A(B0)", "embedding": "S_B(A0)"}


def local_model_statements(check: LocalCheck, rank: int) -> list[Statement]:
    """Completing the square, the order of S_A and S_B, and whether r/m and r/d describe the loss."""
    model = check.model
    token = next(kept for kept in check.in_use if kept.basis == "svd" and kept.side == "token")
    embedding = next(kept for kept in check.in_use if kept.side == "embedding")
    where = (
        f"damping {model.relative_damping:g} times the largest curvature; "
        f"at δ* the true decrease is {model.agreement:.2f} times that of the model"
    )
    return [
        _square(model, token),
        _square(model, embedding),
        *_order(token, embedding, where),
        _euclidean_approximation(token),
        _euclidean_approximation(embedding),
        _random_order(check),
        *(row for side in SIDES for row in _random_shares(check, side, rank, where)),
    ]


def _square(model: LocalModel, kept: Kept) -> Statement:
    """Decrease of the model = ½‖δ*‖²_H − ½‖δ_S − δ*‖²_H, with both sides computed independently."""
    gap = kept.update - model.ideal
    distance = 0.5 * float(np.sum(model.ideal * model.product(model.ideal)) - np.sum(gap * model.product(gap)))
    return equal(
        LOCAL_MODEL,
        f"Completing the square in {_SPACES[kept.side]}",
        "The decrease of the model is half of ‖δ*‖²_H minus the squared H-distance between the update and δ*.",
        model.lowered(kept.update) / model.decrease,
        distance / model.decrease,
        tolerance=1e-4,  # accuracy of conjugate gradients
        detail="both sides as shares of the possible decrease",
    )


def _order(token: Kept, embedding: Kept, where: str) -> list[Statement]:
    """S_A(B0) keeps more than S_B(A0), on the model and on the loss."""
    on_model = (
        "S_A(B0) keeps more decrease",
        "Of the decrease possible in the model, the best update in S_A(B0) reaches more than the best in S_B(A0).",
    )
    on_loss = (
        "S_A(B0) lowers the loss more",
        "On the loss, the best update in S_A(B0) reaches more of the decrease by δ* than the best in S_B(A0).",
    )
    shares = (
        (on_model, token.curvature_share, embedding.curvature_share),
        (on_loss, token.true_share, embedding.true_share),
    )
    return [
        Statement(LOCAL_MODEL, *names, ">", b, a, statement_verdict(a > b), None, f"SVD factors; {where}")
        for names, a, b in shares
    ]


def _euclidean_approximation(kept: Kept) -> Statement:
    """The Euclidean projection of δ* lowers the model at most as much as the H-projection."""
    space = _SPACES[kept.side]
    return at_most(
        LOCAL_MODEL,
        f"Euclidean approximation in {space}",
        f"The Euclidean projection of δ* onto {space} lowers the model at most as much as the best update there, "
        "the H-projection.",
        kept.curvature_share,
        kept.projected_share,
        tolerance=1e-6,
        detail=f"shares of the possible decrease; the projection keeps {kept.euclidean_share:.3g} of ‖δ*‖²",
    )


def _random_order(check: LocalCheck) -> Statement:
    """Over random bases, fixing B keeps more of the possible decrease than fixing A."""
    pairs = zip(check.random["token"], check.random["embedding"], strict=True)
    differences = [a.curvature_share - b.curvature_share for a, b in pairs]
    return above(
        LOCAL_MODEL,
        "A random B keeps more decrease than a random A",
        "Over random bases, the share of the possible decrease kept with B fixed minus that with A fixed is above 0.",
        0.0,
        differences,
        detail=f"{len(differences)} pairs of Haar bases",
    )


def _random_shares(check: LocalCheck, side: Side, rank: int, where: str) -> list[Statement]:
    """Shares of δ* kept by random bases of one side against r/m or r/d, in the Euclidean metric and in that of H."""
    letter, size = SYMBOLS[side]
    m, d = check.model.reference.shape
    predicted = rank / (m if side == "token" else d)
    euclidean, random = check.euclidean[side], check.random[side]
    return [
        expected(
            LOCAL_MODEL,
            f"Euclidean share of δ*, random {letter}",
            f"In the Euclidean metric, a random fixed {letter} keeps the share r/{size} of the ideal update.",
            predicted,
            euclidean,
            detail=f"{euclidean.size} Haar bases",
        ),
        expected(
            LOCAL_MODEL,
            f"Curvature share of δ*, random {letter}",
            f"In the metric of H, a random fixed {letter} also keeps the share r/{size}: the surrogate describes the loss.",
            predicted,
            [kept.curvature_share for kept in random],
            detail=f"{len(random)} Haar bases; true if H is isotropic; {where}",
        ),
    ]
