"""The share of P* kept by the bases that training uses, compared with the shares r/m and r/d of a random basis.

The share depends only on the span of a basis. The span of a Gaussian matrix is uniformly random, and so is that of the
singular vectors of a Gaussian P0 if P* is independent of P0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slimprompt.paper.theory.asymmetry import SYMBOLS, Side, kept_share
from slimprompt.paper.theory.statement import Check, Statement
from slimprompt.seeds import stream_seed

BASES = "Bases in use"
INDEPENDENT, START = "an independent P*", "P* = P0"


def start_context(m: int, d: int, seed: int) -> np.ndarray:
    """P0 (m, d) of a run with this seed, in float64."""
    from slimprompt.prompts.start import initial_context

    return initial_context(m, d, seed).double().numpy()


def start_factors(p0: np.ndarray, rank: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The token bases B (m, r) that runs with this seed and P0 would fix, and the coefficients A (r, d) of the SVD."""
    import torch

    from slimprompt.prompts.start import balanced_svd, gaussian_basis, orthogonal_basis

    start = torch.from_numpy(np.ascontiguousarray(p0)).float()

    def stream() -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(seed, "basis"))

    svd, coefficients = balanced_svd(start, rank)
    bases = {
        "gaussian": gaussian_basis(start, rank, stream()),
        "orthogonal": orthogonal_basis(start, rank, stream()),
        "svd": svd,
    }
    return {name: basis.double().numpy() for name, basis in bases.items()}, coefficients.double().numpy()


class Case(NamedTuple):
    """A P0 (m, d) with its seed, the P* (m, d) by name, and the learned factors (B, A) of a run from it, if there is one."""

    seed: int
    p0: np.ndarray
    targets: Mapping[str, np.ndarray]
    learned: tuple[np.ndarray, np.ndarray] | None = None


class KeptShares(NamedTuple):
    """Shares of ‖P*‖² kept by one basis of one side, a value per seed; a random basis keeps `predicted`, r/m or r/d."""

    basis: str
    side: Side
    target: str
    values: np.ndarray
    predicted: float


def kept_shares(cases: Iterable[Case], rank: int) -> list[KeptShares]:
    """Shares of each P* that each basis keeps; the value of a seed is the mean over its cases, which share the bases."""
    shares: dict[tuple[str, Side, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        m, d = case.p0.shape
        token, svd = start_factors(case.p0, rank, case.seed)
        embedding = {"svd": svd}
        if case.learned is not None:
            token["learned"], embedding["learned"] = case.learned
        for name, ideal in case.targets.items():
            for basis, b in token.items():
                shares[basis, "token", name][case.seed].append(kept_share(b, ideal))
            for basis, a in embedding.items():
                shares[basis, "embedding", name][case.seed].append(kept_share(a.T, ideal.T))
    return [
        KeptShares(basis, side, name, seed_means(values), rank / (m if side == "token" else d))
        for (basis, side, name), values in shares.items()
    ]


def seed_means(values: Mapping[int, Sequence[float]]) -> np.ndarray:
    """The mean of each seed, in the order of the seeds."""
    return np.array([np.mean(values[seed]) for seed in sorted(values)])


def start_cases(m: int, d: int, seeds: Iterable[int]) -> list[Case]:
    """P0 of many seeds, each with a P* that is independent of it and with itself as P*."""
    cases = []
    for seed in seeds:
        p0 = start_context(m, d, seed)
        independent = np.random.default_rng(stream_seed(seed, "theory", "other ideal")).standard_normal((m, d))
        cases.append(Case(seed, p0, {INDEPENDENT: independent, START: p0}))
    return cases


def start_statements(shares: Iterable[KeptShares]) -> list[Statement]:
    """Each basis keeps the share that a uniformly random one keeps; the svd basis of P0 keeps more of P0."""
    rows = []
    for kept in shares:
        letter, size = SYMBOLS[kept.side]
        name, detail = f"{kept.basis} {letter}, {kept.target}", f"{kept.values.size} seeds"
        if kept.basis == "svd" and kept.target == START and kept.predicted < 1:  # a complete basis keeps all
            check = Check(BASES, name, f"The svd {letter} of P0 keeps more than the share r/{size} of P* = P0.")
            detail += "; the theorem assumes that the basis is independent of P*, and this one is not"
            rows.append(check.mean(">", kept.predicted, kept.values, detail))
        else:
            claim = f"The {kept.basis} {letter} keeps the share r/{size} of {kept.target}, like a uniformly random one."
            rows.append(Check(BASES, name, claim).mean("=", kept.predicted, kept.values, detail))
    return rows
