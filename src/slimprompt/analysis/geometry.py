"""Geometry of the factors of trained prompts: overlap and principal angles between subspaces.

With orthonormal bases Q₁, Q₂ of two subspaces and σᵢ the singular values of Q₁ᵀQ₂, clipped to [0, 1]:
overlap = Σσᵢ/k and angle = Σ arccos(σᵢ)/k in degrees, where k is the smaller dimension.

B is compared by its column space (tokens), A by its row space (embeddings), and P = BA by both. P is rebuilt from the
factors in float64 and gets the rank of the factors: a product stored in low precision has rounding noise in every
direction and appears to have full rank. In exact arithmetic, the row space of BA is that of A, and its column space
is that of B.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slimprompt.analysis.observations import backbone_title, dataset_title
from slimprompt.errors import InputError
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.spreadsheet import frame_csv
from slimprompt.storage import write_file

#: Spec fields in which two compared runs may differ, one at a time.
AXES = ("seed", "dataset", "shots", "rank")
#: Compared factors; "BA" is the row space of the product, as in the paper.
FACTORS = ("A", "B", "BA", "BA columns")
#: Pairs per batch of small singular value decompositions.
_BATCH = 2048


@dataclass(frozen=True)
class Subspaces:
    """Orthonormal bases of one factor of many runs, grouped by shape for batched decompositions.

    Attributes
    ----------
    bases
        (dimension, rank) → bases (runs, dimension, rank).
    place
        Group of each run, and its position in the group.
    deficient
        Runs whose factor has a numerical rank below the given rank, so that some directions are arbitrary.
    """

    bases: dict[tuple[int, int], np.ndarray]
    place: list[tuple[tuple[int, int], int]]
    deficient: list[int]


def subspaces(matrices: Sequence[np.ndarray], ranks: Sequence[int]) -> Subspaces:
    """Orthonormal bases of the column spaces of matrices (dimension, columns): the leading left singular vectors.

    Parameters
    ----------
    matrices
        One matrix per run.
    ranks
        Rank of each matrix; it is not estimated from the singular values.

    Returns
    -------
    Subspaces
    """
    groups: dict[tuple[tuple[int, ...], int], list[int]] = defaultdict(list)
    for run, (matrix, rank) in enumerate(zip(matrices, ranks, strict=True)):
        groups[matrix.shape, rank].append(run)
    pieces: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
    place: list[tuple[tuple[int, int], int]] = [((0, 0), 0)] * len(matrices)
    deficient: list[int] = []
    for (shape, rank), runs in groups.items():
        stack = np.stack([matrices[run] for run in runs]).astype(float)  # (runs, dimension, columns)
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


def one_axis_pairs(specs: Sequence[RunSpec]) -> list[tuple[int, int, str]]:
    """All pairs of runs whose specs differ in exactly one field, one of `AXES`, as (run, other run, axis)."""
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
    """Geometry of the factors of a set of runs.

    Attributes
    ----------
    pairs
        One row per pair of runs and factor: axis, factor, overlap and angle of the final and of the initial factors,
        and the specs of both runs.
    displacement
        One row per run and factor: overlap and angle between initial and final factor, and ‖X−X₀‖/‖X₀‖.
    chance
        Overlap and angle of independent, uniformly random subspaces of the same dimensions, per axis and factor.
    draws
        Number of random pairs of subspaces behind each chance level.
    compared
        Specs of the runs that were compared in pairs.
    notes
        Runs that were left out, and warnings about single runs.
    """

    pairs: pd.DataFrame
    displacement: pd.DataFrame
    chance: pd.DataFrame
    draws: int
    compared: tuple[RunSpec, ...] = ()
    notes: tuple[str, ...] = ()

    def medians(self, by: Sequence[str] = ("axis",)) -> pd.DataFrame:
        """Median overlap and angle per factor, with the number of pairs, the initial values and the chance level."""
        return medians(self.pairs, self.chance, by)

    def displacement_medians(self) -> pd.DataFrame:
        """Median displacement per variant, basis and factor, with the number of runs n."""
        grouped = self.displacement.groupby(["variant", "basis", "factor"])
        table = grouped[["overlap", "angle", "relative_norm"]].median()
        table["n"] = grouped.size()
        return table.reset_index()

    def write(self, folder: Path) -> list[Path]:
        """Write pairs.csv, displacement.csv and chance.csv; returns the files."""
        tables = {"pairs": self.pairs, "displacement": self.displacement, "chance": self.chance}
        return [write_file(folder / f"{name}.csv", frame_csv(table)) for name, table in tables.items()]


def class_subset_of(where: Sequence[str]) -> str | None:
    """The class subset to measure: None (any) if a condition such as `split=base` selects it, otherwise "all"."""
    return None if any(condition.partition("=")[0] == "split" for condition in where) else "all"


def measure(
    records: Iterable[Record],
    *,
    variant: str = "joint",
    class_subset: str | None = "all",
    draws: int = 2000,
    seed: int = 0,
) -> Geometry:
    """Measure the factors of a set of runs.

    Parameters
    ----------
    records
        Run records; incomplete runs, dense ones and those of other methods than prompts are ignored. Prompts beyond the
        paper and cross-dataset runs are left out with a note.
    variant
        Variant of the runs compared in pairs. Displacement is measured for all variants.
    class_subset
        Use only runs trained on this class subset, "all" or "base"; None uses every run.
    draws
        Number of random pairs of subspaces behind each chance level.
    seed
        Seed of the random subspaces.

    Returns
    -------
    Geometry
    """
    factorised = [record for record in records if record.complete and record.spec.variant not in (None, "dense")]
    shallow = [record for record in factorised if record.spec.depth == 1]
    plain = [record for record in shallow if not record.spec.beyond]
    low_rank = [record for record in plain if not record.spec.evaluate_on]
    records = [record for record in low_rank if class_subset in (None, record.spec.split)]
    factors = [record.factors() for record in records]
    chosen = [index for index, record in enumerate(records) if record.spec.variant == variant]
    notes: list[str] = []
    if deep := len(factorised) - len(shallow):
        notes.append(f"geometry: {deep} runs of deep prompts are left out: they have coefficients for several layers")
    if other := len(shallow) - len(plain):
        notes.append(
            f"geometry: {other} runs of prompts with words or a loss that keeps them close to zero-shot are left out"
        )
    if repeated := len(plain) - len(low_rank):
        notes.append(
            f"geometry: {repeated} cross-dataset runs are left out: they are trained like the runs of other studies"
        )
    if left_out := len(low_rank) - len(records):
        notes.append(
            f"geometry: {left_out} runs on another class subset than {class_subset!r} are left out; "
            "select a subset with --where split=base (or split=all,base for both)"
        )
    pairs = _pair_table([records[index] for index in chosen], [factors[index] for index in chosen], notes)
    return Geometry(
        pairs,
        _displacement_table(records, factors),
        _chance_table(pairs, draws, seed),
        draws,
        tuple(records[index].spec for index in chosen),
        tuple(notes),
    )


def _matrices(factors: Sequence[dict[str, np.ndarray]], factor: str, *, start: bool = False) -> list[np.ndarray]:
    """For each run, the matrix whose columns span the subspace of the factor."""
    b, a = ("B0", "A0") if start else ("B", "A")
    if factor == "B":
        return [one[b] for one in factors]
    if factor == "A":
        return [one[a].T for one in factors]
    products = [one[b] @ one[a] for one in factors]
    return products if factor == "BA columns" else [product.T for product in products]


def _pair_table(records: Sequence[Record], factors: Sequence[dict[str, np.ndarray]], notes: list[str]) -> pd.DataFrame:
    """One row per pair of runs and factor."""
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
                f"{records[run].folder.name}: {factor} has lost rank in training, so some of its directions are arbitrary"
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
    """The columns `_DESCRIPTION` of a pair of runs."""
    a, b = one.spec, other.spec
    mine = (backbone_title(a), dataset_title(a.dataset), a.split, a.shots, a.rank, a.seed)
    return (axis, *mine, dataset_title(b.dataset), b.shots, b.rank, b.seed, str(one.folder), str(other.folder))


def _cosines(factors: Sequence[dict[str, np.ndarray]], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """⟨P₁, P₂⟩ / (‖P₁‖ ‖P₂‖) of the prompts P = BA of each pair; NaN if their shapes differ."""
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
    """One row per run and factor."""
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
    """Overlap and angle of pairs of independent, uniformly random subspaces of R^dimension.

    Parameters
    ----------
    dimension
        Dimension of the space.
    rank, other_rank
        Dimensions of the two subspaces.
    draws
        Number of pairs.
    generator
        Random generator.

    Returns
    -------
    overlap, angle : ndarray of shape (draws,)

    Raises
    ------
    InputError
        If a rank exceeds the dimension.
    """
    # By rotational invariance the first subspace can be the span of the first `rank` coordinate axes.
    if max(rank, other_rank) > dimension:
        raise InputError(f"a subspace of rank {max(rank, other_rank)} does not fit in {dimension} dimensions")
    overlap, angle = np.empty(draws), np.empty(draws)
    for start in range(0, draws, 256):
        stop = min(start + 256, draws)
        basis, _ = np.linalg.qr(generator.standard_normal((stop - start, dimension, other_rank)))
        overlap[start:stop], angle[start:stop] = _from_singular_values(basis[:, :rank])
    return overlap, angle


def _chance_table(pairs: pd.DataFrame, draws: int, seed: int) -> pd.DataFrame:
    """Median and central 90 % of the chance level per axis and factor, weighted by the shapes of the pairs."""
    generator = np.random.default_rng(seed)
    sampled: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
    rows = []
    for (axis, factor), group in pairs.groupby(["axis", "factor"], sort=True):
        shapes = zip(group["dimension"], group["rank"], group["other_rank"], strict=True)
        sizes = Counter((int(dimension), *sorted((int(rank), int(other)))) for dimension, rank, other in shapes)
        overlaps, angles, weights = [], [], []
        for shape, count in sorted(sizes.items()):
            if shape not in sampled:
                sampled[shape] = random_overlaps(*shape, draws=draws, generator=generator)
            overlaps.append(sampled[shape][0])
            angles.append(sampled[shape][1])
            weights.append(np.full(draws, count / draws))
        weight = np.concatenate(weights)
        low, middle, high = _weighted_quantiles(np.concatenate(overlaps), weight, (0.05, 0.5, 0.95))
        (angle,) = _weighted_quantiles(np.concatenate(angles), weight, (0.5,))
        rows.append((axis, factor, middle, low, high, angle))
    return pd.DataFrame(rows, columns=["axis", "factor", "overlap", "overlap_low", "overlap_high", "angle"])


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray, levels: Sequence[float]) -> list[float]:
    """Quantiles of weighted values."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    places = [min(int(np.searchsorted(reached, level)), values.size - 1) for level in levels]
    return [float(values[order][place]) for place in places]


def medians(pairs: pd.DataFrame, chance: pd.DataFrame | None = None, by: Sequence[str] = ("axis",)) -> pd.DataFrame:
    """Median overlap and angle of pairs per factor.

    Parameters
    ----------
    pairs
        `Geometry.pairs`.
    chance
        `Geometry.chance`, to add the chance levels.
    by
        Columns of `pairs` to group by, besides the factor.

    Returns
    -------
    DataFrame
        Sorted by `by`, axes in the order of `AXES`; n is the number of pairs.
    """
    columns = [*by, "factor", "overlap", "angle", "start_overlap", "start_angle", "n"]
    if pairs.empty:
        return pd.DataFrame(columns=columns)
    grouped = pairs.groupby([*by, "factor"], sort=True)
    table = grouped[["overlap", "angle", "start_overlap", "start_angle"]].median()
    table["n"] = grouped.size()
    table = table.reset_index()
    if "axis" in by:
        table = table.sort_values(
            by=[*by, "factor"], key=lambda column: column.map(AXES.index) if column.name == "axis" else column
        )
        if chance is not None:
            levels = chance.set_index(["axis", "factor"])[["overlap", "angle"]].add_prefix("chance_")
            table = table.join(levels, on=["axis", "factor"])
    return table.reset_index(drop=True)
