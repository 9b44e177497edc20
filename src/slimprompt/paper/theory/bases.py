"""The bases in use against a uniformly random one: what share of P* do gaussian, orthogonal and SVD bases keep?

Only the span of a basis counts for what it keeps, neither its scale nor the angles of its columns. A Gaussian matrix spans a
uniformly random space; so do the singular vectors of a Gaussian P0, as long as P* has nothing to do with P0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slimprompt.paper.theory.asymmetry import Side, kept_share
from slimprompt.paper.theory.statement import Statement, above, expected
from slimprompt.seeds import stream_seed

BASES = "Bases in use"


@dataclass(frozen=True)
class KeptShares:
    """Shares of ‖P*‖² that one kind of basis keeps, one value per seed or run."""

    basis: str
    side: Side
    target: str
    """What P* is."""
    values: np.ndarray
    predicted: float
    """r/m or r/d."""

    @property
    def mean(self) -> float:
        """Mean over the seeds or runs."""
        return float(self.values.mean())


def start_bases(p0: np.ndarray, rank: int, seed: int) -> dict[str, np.ndarray]:
    """The token bases (m, r) a run of this seed and P0 fixes: svd, gaussian, orthogonal."""
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
    """The A (r, d) that a fixed-A run fixes: Σ_r^½ V_rᵀ of P0."""
    import torch

    from slimprompt.prompts.start import balanced_svd

    return balanced_svd(torch.from_numpy(np.ascontiguousarray(p0)).float(), rank)[1].double().numpy()


def kept_by_start_bases(m: int, d: int, rank: int, seeds: Sequence[int]) -> list[KeptShares]:
    """Kept shares of the bases in use over many seeds, for a P* that has nothing to do with P0, and for P0 itself."""
    from slimprompt.prompts.start import initial_context

    shares: dict[tuple[str, Side, str], list[float]] = {}
    for seed in seeds:
        p0 = initial_context(m, d, seed).double().numpy()
        other = np.random.default_rng(stream_seed(seed, "theory", "other ideal")).standard_normal((m, d))
        for name, basis in start_bases(p0, rank, seed).items():
            for target, ideal in (("independent", other), ("P0", p0)):
                shares.setdefault((name, "token", target), []).append(kept_share(basis, ideal))
        rows = start_coefficients(p0, rank).T
        for target, ideal in (("independent", other), ("P0", p0)):
            shares.setdefault(("svd", "embedding", target), []).append(kept_share(rows, ideal.T))
    return [
        KeptShares(basis, side, target, np.array(values), rank / (m if side == "token" else d))
        for (basis, side, target), values in shares.items()
    ]


def start_basis_statements(shares: Sequence[KeptShares]) -> list[Statement]:
    """Does each basis in use keep what a uniformly random one keeps? One that is made from P0 keeps more of P0."""
    rows = []
    for kept in shares:
        letter, size = ("B", "m") if kept.side == "token" else ("A", "d")
        known = "an independent P*" if kept.target == "independent" else "P* = P0"
        name, seeds = f"{kept.basis} {letter}, {known}", f"{kept.values.size} seeds"
        if kept.basis == "svd" and kept.target == "P0":
            claim = f"Made from P0, the svd {letter} keeps more than the share r/{size} of {known}."
            detail = f"{seeds}; the theorem is on bases that have nothing to do with P*, and this one has"
            rows.append(above(BASES, name, claim, kept.predicted, kept.values, detail=detail))
        else:
            claim = f"The {kept.basis} {letter} keeps the share r/{size} of {known}, as a uniformly random one does."
            rows.append(expected(BASES, name, claim, kept.predicted, kept.values, detail=seeds))
    return rows
