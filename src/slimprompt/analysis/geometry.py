"""How the factors of trained prompts lie to each other: principal angles between runs, from the start, and by chance.

With orthonormal bases Q₁, Q₂ of two subspaces and σᵢ the singular values of Q₁ᵀQ₂, clipped to [0, 1]:
overlap = Σσᵢ/k and angle = Σ arccos(σᵢ)/k in degrees, k the smaller dimension.

B is compared by its columns (in token space), A by its rows (in embedding space), P = BA by its rows and its columns.
P is rebuilt from the factors in float64 and has the rank of the factors, by construction: a product that was stored
in low precision carries rounding noise in every direction and looks like full rank. In exact arithmetic the rows of
BA span what the rows of A span, and its columns what the columns of B span.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from slimprompt.analysis.observations import backbone_title, dataset_title
from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec

#: What two compared runs may differ in, one at a time.
AXES = ("seed", "dataset", "shots", "rank")
#: What is compared; "BA" is the row space, as in the paper.
FACTORS = ("A", "B", "BA", "BA columns")
#: Pairs in one batch of small singular value decompositions.
_BATCH = 2048


@dataclass(frozen=True)
class Subspaces:
    """Orthonormal bases of one factor of many runs, grouped by shape so that they can be decomposed in batches."""

    bases: dict[tuple[int, int], np.ndarray]
    """(dimension, rank) → (runs, dimension, rank)"""
    place: list[tuple[tuple[int, int], int]]
    """For each run: its group and its position there."""
    deficient: list[int]
    """Runs whose factor has a numerical rank below its number of columns: some of its directions are arbitrary."""


def subspaces(matrices: Sequence[np.ndarray], ranks: Sequence[int]) -> Subspaces:
    """Orthonormal bases of the column spaces of `matrices` (dimension, any), with the given ranks.

    The basis spans the leading left singular vectors; the rank is given, never read off a threshold.
    """
    groups: dict[tuple[tuple[int, ...], int], list[int]] = defaultdict(list)
    for run, (matrix, rank) in enumerate(zip(matrices, ranks, strict=True)):
        groups[matrix.shape, rank].append(run)
    pieces: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
    place: list[tuple[tuple[int, int], int]] = [((0, 0), 0)] * len(matrices)
    deficient: list[int] = []
    for (shape, rank), runs in groups.items():
        stack = np.stack([matrices[run] for run in runs]).astype(float)  # (runs, dimension, any)
        if shape[1] > shape[0]:  # X = RᵀQᵀ has the column space of the small Rᵀ
            stack = np.swapaxes(np.linalg.qr(np.swapaxes(stack, 1, 2), mode="r"), 1, 2)
        orthonormal, triangle = np.linalg.qr(stack)
        left, sizes, _ = np.linalg.svd(triangle)  # of a small square, with the singular values of X
        leading = orthonormal @ left[:, :, :rank]  # (runs, dimension, rank)
        group = (shape[0], rank)
        for position, run in enumerate(runs, start=len(pieces[group])):
            place[run] = (group, position)
        pieces[group].extend(leading)
        weak = sizes[:, rank - 1] <= 1e-9 * sizes[:, 0]
        deficient.extend(run for run, low in zip(runs, weak, strict=True) if low)
    return Subspaces({group: np.stack(parts) for group, parts in pieces.items()}, place, sorted(deficient))


def overlap_and_angle(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Overlap and mean principal angle (degrees) of orthonormal bases (…, dimension, rank), for a whole batch."""
    cosines = np.linalg.svd(np.swapaxes(first, -1, -2) @ second, compute_uv=False).clip(0.0, 1.0)  # (…, k)
    return cosines.mean(axis=-1), np.degrees(np.arccos(cosines)).mean(axis=-1)


def compare_pairs(
    first: Subspaces, second: Subspaces, pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Overlap and angle of (a run of `first`, a run of `second`) for every pair, in the order of `pairs`."""
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


def one_axis_pairs(specs: Sequence[RunSpec]) -> list[tuple[int, int, str]]:
    """(run, other run, axis) for all pairs of runs that differ in exactly one of `AXES` and in nothing else."""
    fields = [spec.model_dump(mode="json") for spec in specs]
    pairs: list[tuple[int, int, str]] = []
    for axis in AXES:
        alike: dict[str, list[int]] = defaultdict(list)
        for run, values in enumerate(fields):
            alike[repr([value for name, value in values.items() if name != axis])].append(run)
        for runs in alike.values():
            different = combinations(runs, 2)
            pairs.extend((one, other, axis) for one, other in different if fields[one][axis] != fields[other][axis])
    return pairs


@dataclass(frozen=True)
class Geometry:
    """Everything measured on the factors of a set of runs, as plain tables."""

    pairs: pd.DataFrame
    """One row per pair of runs and factor: axis, factor, overlap, angle, the same of the starts, and who they are."""
    displacement: pd.DataFrame
    """One row per run and factor: overlap and angle between start and end, and ‖X−X₀‖/‖X₀‖."""
    chance: pd.DataFrame
    """What independent, uniformly random subspaces of the same dimensions give, per axis and factor."""
    draws: int
    """Random pairs of subspaces behind each line of `chance`."""
    notes: tuple[str, ...] = ()

    def medians(self, by: Sequence[str] = ("axis",)) -> pd.DataFrame:
        """Median overlap and angle per factor, with n pairs, the starts' overlap and the chance level."""
        return medians(self.pairs, self.chance, by)


def measure(records: Iterable[Record], *, variant: str = "joint", draws: int = 2000, seed: int = 0) -> Geometry:
    """Pair geometry of the runs of one variant, displacement of all low-rank runs, and the chance reference.

    The paper compares runs that train both factors; a frozen factor tells nothing about training.
    """
    records = [record for record in records if record.complete and record.spec.variant != "dense"]
    factors = [record.factors() for record in records]
    chosen = [index for index, record in enumerate(records) if record.spec.variant == variant]
    notes: list[str] = []
    pairs = _pair_table([records[index] for index in chosen], [factors[index] for index in chosen], notes)
    return Geometry(
        pairs, _displacement_table(records, factors), _chance_table(pairs, draws, seed), draws, tuple(notes)
    )


def _matrices(factors: Sequence[dict[str, np.ndarray]], factor: str, *, start: bool = False) -> list[np.ndarray]:
    """For each run the matrix whose columns span the factor's subspace."""
    b, a = ("B0", "A0") if start else ("B", "A")
    if factor == "B":
        return [one[b] for one in factors]
    if factor == "A":
        return [one[a].T for one in factors]
    products = [one[b] @ one[a] for one in factors]
    return products if factor == "BA columns" else [product.T for product in products]


def _pair_table(records: Sequence[Record], factors: Sequence[dict[str, np.ndarray]], notes: list[str]) -> pd.DataFrame:
    specs = [record.spec for record in records]
    found = one_axis_pairs(specs)
    index_pairs = [(one, other) for one, other, _ in found]
    ranks = [int(spec.rank or 0) for spec in specs]
    frames = []
    for factor in FACTORS:
        ends = subspaces(_matrices(factors, factor), ranks)
        starts = subspaces(_matrices(factors, factor, start=True), ranks)
        for run in ends.deficient:
            notes.append(
                f"{records[run].folder.name}: {factor} has lost rank in training; some of its directions are arbitrary"
            )
        overlap, angle = compare_pairs(ends, ends, index_pairs)
        start_overlap, start_angle = compare_pairs(starts, starts, index_pairs)
        measured = {"overlap": overlap, "angle": angle, "start_overlap": start_overlap, "start_angle": start_angle}
        dimension = [ends.place[one][0][0] for one, _ in index_pairs]
        cosine = _cosines(factors, index_pairs) if factor == "BA" else np.nan
        frames.append(pd.DataFrame({"factor": factor, **measured, "cosine": cosine, "dimension": dimension}))
    described = pd.DataFrame(
        [_describe(records[one], records[other], axis) for one, other, axis in found], columns=_DESCRIPTION
    )
    return pd.concat([pd.concat([described, frame], axis=1) for frame in frames], ignore_index=True)


_DESCRIPTION = [
    *("axis", "backbone", "dataset", "split", "shots", "rank", "seed"),
    *("other_dataset", "other_shots", "other_rank", "other_seed", "run", "other_run"),
]


def _describe(one: Record, other: Record, axis: str) -> tuple[Any, ...]:
    a, b = one.spec, other.spec
    mine = (backbone_title(a), dataset_title(a.dataset), a.split, a.shots, a.rank, a.seed)
    return (axis, *mine, dataset_title(b.dataset), b.shots, b.rank, b.seed, str(one.folder), str(other.folder))


def _cosines(factors: Sequence[dict[str, np.ndarray]], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """⟨P₁, P₂⟩ / (‖P₁‖ ‖P₂‖): how alike the prompts themselves are, whatever their subspaces."""
    cosines = np.full(len(pairs), np.nan)
    unit: dict[int, np.ndarray] = {}
    for index, (one, other) in enumerate(pairs):
        for run in (one, other):
            if run not in unit:
                product = factors[run]["B"] @ factors[run]["A"]
                unit[run] = product / (np.linalg.norm(product) or 1.0)
        if unit[one].shape == unit[other].shape:
            cosines[index] = float(np.vdot(unit[one], unit[other]))
    return cosines


def _displacement_table(records: Sequence[Record], factors: Sequence[dict[str, np.ndarray]]) -> pd.DataFrame:
    ranks = [int(record.spec.rank or 0) for record in records]
    rows: list[dict[str, Any]] = []
    for factor in ("A", "B", "BA"):
        before, after = _matrices(factors, factor, start=True), _matrices(factors, factor)
        itself = [(run, run) for run in range(len(records))]
        overlaps, angles = compare_pairs(subspaces(before, ranks), subspaces(after, ranks), itself)
        for run, record in enumerate(records):
            spec = record.spec
            size = float(np.linalg.norm(before[run]))
            rows.append(
                {
                    "backbone": backbone_title(spec),
                    "dataset": dataset_title(spec.dataset),
                    "split": spec.split,
                    "shots": spec.shots,
                    "variant": spec.variant,
                    "basis": spec.basis or "trainable",
                    "rank": spec.rank,
                    "seed": spec.seed,
                    "factor": factor,
                    "overlap": float(overlaps[run]),
                    "angle": float(angles[run]),
                    "relative_norm": float(np.linalg.norm(after[run] - before[run])) / size if size else np.nan,
                    "run": str(record.folder),
                }
            )
    columns = ["backbone", "dataset", "split", "shots", "variant", "basis", "rank", "seed"]
    return pd.DataFrame(rows, columns=[*columns, "factor", "overlap", "angle", "relative_norm", "run"])


def random_overlaps(
    dimension: int, rank: int, other_rank: int, *, draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Overlap and angle of `draws` pairs of independent uniformly random subspaces of R^dimension.

    Only the position of one relative to the other matters, so the first is the span of the first `rank` axes.
    """
    if max(rank, other_rank) > dimension:
        raise InputError(f"a subspace of rank {max(rank, other_rank)} does not fit in {dimension} dimensions")
    overlap, angle = np.empty(draws), np.empty(draws)
    for start in range(0, draws, 256):
        stop = min(start + 256, draws)
        basis, _ = np.linalg.qr(generator.standard_normal((stop - start, dimension, other_rank)))
        cosines = np.linalg.svd(basis[:, :rank], compute_uv=False).clip(0.0, 1.0)
        overlap[start:stop], angle[start:stop] = cosines.mean(axis=-1), np.degrees(np.arccos(cosines)).mean(axis=-1)
    return overlap, angle


def _chance_table(pairs: pd.DataFrame, draws: int, seed: int) -> pd.DataFrame:
    """Per axis and factor: median and central 90 % of chance, over the mixture of dimensions that the pairs have."""
    generator = np.random.default_rng(seed)
    drawn: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}
    rows = []
    for (axis, factor), group in pairs.groupby(["axis", "factor"], sort=True):
        shapes = zip(group["dimension"], group["rank"], group["other_rank"], strict=True)
        sizes = Counter((int(dimension), *_ordered(int(rank), int(other))) for dimension, rank, other in shapes)
        overlaps, angles, weights = [], [], []
        for shape, count in sorted(sizes.items()):
            if shape not in drawn:
                drawn[shape] = random_overlaps(*shape, draws=draws, generator=generator)
            overlaps.append(drawn[shape][0])
            angles.append(drawn[shape][1])
            weights.append(np.full(draws, count / draws))
        weight = np.concatenate(weights)
        low, middle, high = _weighted_quantiles(np.concatenate(overlaps), weight, (0.05, 0.5, 0.95))
        (angle,) = _weighted_quantiles(np.concatenate(angles), weight, (0.5,))
        rows.append((axis, factor, middle, low, high, angle))
    return pd.DataFrame(rows, columns=["axis", "factor", "overlap", "overlap_low", "overlap_high", "angle"])


def _ordered(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one <= other else (other, one)


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray, levels: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    places = [min(int(np.searchsorted(reached, level)), values.size - 1) for level in levels]
    return [float(values[order][place]) for place in places]


def medians(pairs: pd.DataFrame, chance: pd.DataFrame | None = None, by: Sequence[str] = ("axis",)) -> pd.DataFrame:
    """Median overlap and angle per `by` and factor, with the number of pairs; rows in the order of `AXES`."""
    columns = [*by, "factor", "overlap", "angle", "start_overlap", "start_angle", "n"]
    if pairs.empty:
        return pd.DataFrame(columns=columns)
    grouped = pairs.groupby([*by, "factor"], sort=True)
    table = grouped[["overlap", "angle", "start_overlap", "start_angle"]].median()
    table["n"] = grouped.size()
    table = table.reset_index()
    if "axis" in by:
        table = table.sort_values(
            by=[*by, "factor"], key=lambda column: column.map(_order) if column.name == "axis" else column
        )
        if chance is not None:
            levels = chance.set_index(["axis", "factor"])[["overlap", "angle"]].add_prefix("chance_")
            table = table.join(levels, on=["axis", "factor"])
    return table.reset_index(drop=True)


def _order(axis: str) -> int:
    return AXES.index(axis)
