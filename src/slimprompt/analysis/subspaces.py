"""Overlap and principal angles between subspaces, for many pairs at once.

With orthonormal bases Q₁, Q₂ of two subspaces and σᵢ the singular values of Q₁ᵀQ₂, clipped to [0, 1]:
overlap = Σσᵢ/k and angle = Σ arccos(σᵢ)/k in degrees, where k is the smaller dimension.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slimprompt.errors import InputError

#: Pairs per batch of small singular value decompositions.
_BATCH = 256


@dataclass(frozen=True)
class Subspaces:
    """Orthonormal bases of one factor of many runs, grouped by shape for batched decompositions."""

    bases: dict[tuple[int, int], np.ndarray]
    """(dimension, rank) → bases (runs, dimension, rank)."""
    place: list[tuple[tuple[int, int], int]]
    """Group of each run, and its position in the group."""
    deficient: list[int]
    """Runs whose factor has a numerical rank below the given rank, so that some directions are arbitrary."""


def subspaces(matrices: Sequence[np.ndarray], ranks: Sequence[int]) -> Subspaces:
    """Orthonormal bases of the column spaces of matrices (dimension, columns), one per run: the leading left singular vectors.

    The ranks are given, not estimated from the singular values.
    """
    groups: dict[tuple[tuple[int, ...], int], list[int]] = defaultdict(list)
    for run, (matrix, rank) in enumerate(zip(matrices, ranks, strict=True)):
        groups[matrix.shape, rank].append(run)
    pieces: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
    place: list[tuple[tuple[int, int], int]] = [((0, 0), 0)] * len(matrices)
    deficient: list[int] = []
    for (shape, rank), runs in groups.items():
        stack = np.stack([matrices[run] for run in runs], dtype=float)  # (runs, dimension, columns)
        if shape[1] > shape[0]:  # X = RᵀQᵀ has the column space of the smaller Rᵀ
            stack = np.swapaxes(np.linalg.qr(np.swapaxes(stack, 1, 2), mode="r"), 1, 2)
        orthonormal, triangle = np.linalg.qr(stack)
        left, sizes, _ = np.linalg.svd(triangle)  # small and square, with the singular values of X
        leading = orthonormal @ left[:, :, :rank]  # (runs, dimension, rank)
        group = (shape[0], rank)
        for position, run in enumerate(runs, start=len(pieces[group])):
            place[run] = (group, position)
        pieces[group].extend(leading)
        weak = sizes[:, rank - 1] <= 1e-9 * sizes[:, 0]
        deficient.extend(run for run, low in zip(runs, weak, strict=True) if low)
    return Subspaces({group: np.stack(parts) for group, parts in pieces.items()}, place, sorted(deficient))


def overlap_and_angle(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Overlap and mean principal angle in degrees of a batch of orthonormal bases (…, dimension, rank)."""
    # scipy.linalg.subspace_angles takes one pair at a time; a study has thousands.
    return _from_singular_values(np.swapaxes(first, -1, -2) @ second)


def _from_singular_values(products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean cosine and mean angle from the singular values of Q₁ᵀQ₂ (…, rank, rank)."""
    cosines = np.linalg.svd(products, compute_uv=False).clip(0.0, 1.0)  # (…, k)
    return cosines.mean(axis=-1), np.degrees(np.arccos(cosines)).mean(axis=-1)


def compare_pairs(
    first: Subspaces, second: Subspaces, pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Overlap and angle of each pair (run of `first`, run of `second`), in the order of `pairs`."""
    overlap, angle = np.full(len(pairs), np.nan), np.full(len(pairs), np.nan)
    groups: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = defaultdict(list)
    for index, (one, other) in enumerate(pairs):
        groups[first.place[one][0], second.place[other][0]].append(index)
    for (group_one, group_other), indices in groups.items():
        for start in range(0, len(indices), _BATCH):
            chunk = indices[start : start + _BATCH]
            ones = [first.place[pairs[index][0]][1] for index in chunk]
            others = [second.place[pairs[index][1]][1] for index in chunk]
            overlap[chunk], angle[chunk] = overlap_and_angle(
                first.bases[group_one][ones], second.bases[group_other][others]
            )
    return overlap, angle


def random_overlaps(
    dimension: int, rank: int, other_rank: int, *, draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Overlap and angle (draws,) of pairs of independent, uniformly random subspaces of R^dimension of two ranks."""
    # By rotational invariance the first subspace can be the span of the first `rank` coordinate axes.
    if max(rank, other_rank) > dimension:
        raise InputError(f"a subspace of rank {max(rank, other_rank)} does not fit in {dimension} dimensions")
    overlap, angle = np.empty(draws), np.empty(draws)
    for start in range(0, draws, 256):
        stop = min(start + 256, draws)
        basis, _ = np.linalg.qr(generator.standard_normal((stop - start, dimension, other_rank)))
        overlap[start:stop], angle[start:stop] = _from_singular_values(basis[:, :rank])
    return overlap, angle
