"""Spaces of the updates with one factor fixed: S_A(B0) = Col(I_d ⊗ B0) and S_B(A0) = Col(A0ᵀ ⊗ I_m), at any width d."""

from __future__ import annotations

import numpy as np

from slimprompt.paper.theory.bases import start_context, start_factors
from slimprompt.paper.theory.statement import Check, Statement

UPDATE_SPACE = "Update spaces"


def update_dimensions(basis: np.ndarray, coefficients: np.ndarray) -> tuple[int, int]:
    """dim S_A(B0) = d · rank B0 and dim S_B(A0) = m · rank A0, of B0 (m, r) and A0 (r, d)."""
    m, d = len(basis), coefficients.shape[1]
    # rank(X ⊗ Y) = rank X · rank Y, and the rank of an identity is its size
    return d * int(np.linalg.matrix_rank(basis)), m * int(np.linalg.matrix_rank(coefficients))


def dimension_statements(m: int, d: int, rank: int, seed: int) -> list[Statement]:
    """Both dimensions and their ratio d/m, at the SVD factors of P0 (m, d)."""
    bases, coefficients = start_factors(start_context(m, d, seed), rank, seed)
    dim_a, dim_b = update_dimensions(bases["svd"], coefficients)
    of_a = "Training A with B0 of rank r fixed moves P in r·d dimensions."
    of_b = "Training B with A0 of rank r fixed moves P in m·r dimensions."
    gap = "Fixing B leaves d/m times as many directions as fixing A."
    return [
        Check(UPDATE_SPACE, "Dimension of S_A(B0)", of_a).compare("=", rank * d, dim_a, detail=f"rank(I_{d} ⊗ B0)"),
        Check(UPDATE_SPACE, "Dimension of S_B(A0)", of_b).compare("=", m * rank, dim_b, detail=f"rank(A0ᵀ ⊗ I_{m})"),
        Check(UPDATE_SPACE, "Dimension gap", gap).compare("=", d / m, dim_a / dim_b),
    ]
