"""Spaces of the updates with one factor fixed: S_A(B0) = Col(I_d ⊗ B0) and S_B(A0) = Col(A0ᵀ ⊗ I_m).

dim S_A = r·d and dim S_B = m·r. Ranks use rank(X ⊗ Y) = rank X · rank Y, so that no large product is formed.
"""

from __future__ import annotations

import numpy as np

from slimprompt.paper.theory.statement import Statement, equal, not_testable

UPDATE_SPACE = "Update spaces"

#: (m, d, r) at which the Kronecker products are formed explicitly.
_SMALL = (4, 6, 2)


def kronecker_rank(left: np.ndarray, right: np.ndarray) -> int:
    """rank(left ⊗ right) = rank(left) · rank(right)."""
    return int(np.linalg.matrix_rank(left)) * int(np.linalg.matrix_rank(right))


def update_dimensions(basis: np.ndarray, coefficients: np.ndarray) -> tuple[int, int]:
    """(dim S_A(B0), dim S_B(A0)) for B0 (m, r) and A0 (r, d)."""
    m, d = basis.shape[0], coefficients.shape[1]
    # the rank of the identity is its size
    return d * int(np.linalg.matrix_rank(basis)), m * int(np.linalg.matrix_rank(coefficients))


def update_space_statements(
    basis: np.ndarray, coefficients: np.ndarray, generator: np.random.Generator
) -> list[Statement]:
    """Both dimensions and their ratio at B0 (m, r) and A0 (r, d); rank rule and vec identity at a small size."""
    m, r = basis.shape
    d = coefficients.shape[1]
    rank_b, rank_a = int(np.linalg.matrix_rank(basis)), int(np.linalg.matrix_rank(coefficients))
    names = ("Dimension of S_A(B0)", "Dimension of S_B(A0)", "Dimension gap")
    claims = (
        "Training A with B0 of rank r fixed moves P in r·d dimensions.",
        "Training B with A0 of rank r fixed moves P in m·r dimensions.",
        "Fixing B leaves d/m times as many directions as fixing A.",
    )
    if rank_b < r or rank_a < r:
        reason = (
            f"the factors must have full rank r = {r}; rank B0 = {rank_b} and rank A0 = {rank_a}, "
            f"so the spaces have {rank_b * d} and {m * rank_a} dimensions"
        )
        rows = [not_testable(UPDATE_SPACE, name, claim, reason) for name, claim in zip(names, claims, strict=True)]
    else:
        dim_a, dim_b = update_dimensions(basis, coefficients)
        rule = "by rank(X ⊗ Y) = rank X · rank Y"
        rows = [
            equal(UPDATE_SPACE, names[0], claims[0], r * d, dim_a, detail=f"rank(I_{d} ⊗ B0), {rule}"),
            equal(UPDATE_SPACE, names[1], claims[1], m * r, dim_b, detail=f"rank(A0ᵀ ⊗ I_{m}), {rule}"),
            equal(UPDATE_SPACE, names[2], claims[2], d / m, dim_a / dim_b),
        ]
    return [*rows, *_in_full(generator)]


def _in_full(generator: np.random.Generator) -> list[Statement]:
    """The rank rule and the vec identities with explicit Kronecker products."""
    m, d, r = _SMALL
    basis, coefficients = generator.standard_normal((m, r)), generator.standard_normal((r, d))
    to_a, to_b = np.kron(np.eye(d), basis), np.kron(coefficients.T, np.eye(m))  # (md, rd), (md, mr)
    x, y = generator.standard_normal((r, d)), generator.standard_normal((m, r))
    gap = max(
        float(np.abs(_vec(basis @ x) - to_a @ _vec(x)).max()),
        float(np.abs(_vec(y @ coefficients) - to_b @ _vec(y)).max()),
    )
    size = f"computed explicitly at m = {m}, d = {d}, r = {r}"
    return [
        equal(
            UPDATE_SPACE,
            "Updates as Kronecker products",
            "vec(B0 X) = (I ⊗ B0) vec X and vec(Y A0) = (A0ᵀ ⊗ I) vec Y.",
            0.0,
            gap,
            detail=f"largest difference, {size}",
        ),
        equal(
            UPDATE_SPACE,
            "Rank of I_d ⊗ B0 in full",
            "rank(I_d ⊗ B0) = r·d.",
            kronecker_rank(np.eye(d), basis),
            int(np.linalg.matrix_rank(to_a)),
            detail=size,
        ),
        equal(
            UPDATE_SPACE,
            "Rank of A0ᵀ ⊗ I_m in full",
            "rank(A0ᵀ ⊗ I_m) = m·r.",
            kronecker_rank(coefficients.T, np.eye(m)),
            int(np.linalg.matrix_rank(to_b)),
            detail=size,
        ),
    ]


def _vec(matrix: np.ndarray) -> np.ndarray:
    """The columns of a matrix, stacked."""
    return matrix.reshape(-1, order="F")
