"""The share of P* kept by the bases that training uses (gaussian, orthogonal, svd), compared with random bases.

The share depends only on the span of a basis. The span of a Gaussian matrix is uniformly random, and so is that of the
singular vectors of a Gaussian P0 if P* is independent of P0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slimprompt.paper.theory.asymmetry import SYMBOLS, Side, kept_share
from slimprompt.paper.theory.statement import Statement, above, expected
from slimprompt.seeds import stream_seed

BASES = "Bases in use"


@dataclass(frozen=True)
class KeptShares:
    """Shares of ‖P*‖² kept by one kind of basis.

    Attributes
    ----------
    basis
        Name of the basis.
    side
        Space of the fixed factor.
    target
        Name of P*.
    values
        One share per seed.
    predicted
        r/m or r/d.
    """

    basis: str
    side: Side
    target: str
    values: np.ndarray
    predicted: float

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(self.values.mean())


def start_context(m: int, d: int, seed: int) -> np.ndarray:
    """P0 (m, d) of a run with this seed, in float64."""
    from slimprompt.prompts.start import initial_context

    return initial_context(m, d, seed).double().numpy()


def start_bases(p0: np.ndarray, rank: int, seed: int) -> dict[str, np.ndarray]:
    """The token bases B (m, r) that a run with this seed and P0 would fix: gaussian, orthogonal and svd."""
    import torch

    from slimprompt.prompts.start import balanced_svd, gaussian_basis, orthogonal_basis

    start = torch.from_numpy(np.ascontiguousarray(p0)).float()

    def stream() -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(seed, "basis"))

    bases = {
        "gaussian": gaussian_basis(start, rank, stream()),
        "orthogonal": orthogonal_basis(start, rank, stream()),
        "svd": balanced_svd(start, rank)[0],
    }
    return {name: basis.double().numpy() for name, basis in bases.items()}


def start_coefficients(p0: np.ndarray, rank: int) -> np.ndarray:
    """The coefficients A = Σ_r^½ V_rᵀ (r, d) that a fixed-A run with this P0 would fix."""
    import torch

    from slimprompt.prompts.start import balanced_svd

    return balanced_svd(torch.from_numpy(np.ascontiguousarray(p0)).float(), rank)[1].double().numpy()


def shares_of(
    token_bases: Mapping[str, np.ndarray], embedding_bases: Mapping[str, np.ndarray], ideal: np.ndarray
) -> dict[tuple[str, Side], float]:
    """Share of P* (m, d) kept by each B (m, r) and each A (r, d)."""
    shares: dict[tuple[str, Side], float] = {}
    for name, basis in token_bases.items():
        shares[name, "token"] = kept_share(basis, ideal)
    for name, coefficients in embedding_bases.items():
        shares[name, "embedding"] = kept_share(coefficients.T, ideal.T)
    return shares


def kept_by_start_bases(m: int, d: int, rank: int, seeds: Sequence[int]) -> list[KeptShares]:
    """Shares kept by the bases of many seeds, for a P* independent of P0 and for P* = P0."""
    shares: dict[tuple[str, Side, str], list[float]] = defaultdict(list)
    for seed in seeds:
        p0 = start_context(m, d, seed)
        other = np.random.default_rng(stream_seed(seed, "theory", "other ideal")).standard_normal((m, d))
        token, embedding = start_bases(p0, rank, seed), {"svd": start_coefficients(p0, rank)}
        found = {target: shares_of(token, embedding, ideal) for target, ideal in (("independent", other), ("P0", p0))}
        for name, side in found["P0"]:
            for target, values in found.items():
                shares[name, side, target].append(values[name, side])
    return [
        KeptShares(basis, side, target, np.array(values), rank / (m if side == "token" else d))
        for (basis, side, target), values in shares.items()
    ]


def start_basis_statements(shares: Sequence[KeptShares]) -> list[Statement]:
    """Each basis keeps the share that a uniformly random one keeps; the svd basis of P0 keeps more of P0."""
    rows = []
    for kept in shares:
        letter, size = SYMBOLS[kept.side]
        known = "an independent P*" if kept.target == "independent" else "P* = P0"
        name, seeds = f"{kept.basis} {letter}, {known}", f"{kept.values.size} seeds"
        if kept.basis == "svd" and kept.target == "P0" and kept.predicted < 1:  # a complete basis keeps all
            claim = f"The svd {letter} of P0 keeps more than the share r/{size} of {known}."
            detail = f"{seeds}; the theorem assumes that the basis is independent of P*, and this one is not"
            rows.append(above(BASES, name, claim, kept.predicted, kept.values, detail=detail))
        else:
            claim = f"The {kept.basis} {letter} keeps the share r/{size} of {known}, like a uniformly random one."
            rows.append(expected(BASES, name, claim, kept.predicted, kept.values, detail=seeds))
    return rows
