"""Geometry of the factors of trained prompts: overlap and principal angles between subspaces.

B is compared by its column space (tokens), A by its row space (embeddings), and P = BA by both. P is rebuilt from the
factors in float64 and gets the rank of the factors: a product stored in low precision has rounding noise in every
direction and appears to have full rank. In exact arithmetic, the row space of BA is that of A, and its column space
is that of B.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from slimprompt.analysis.frame import backbone_title, dataset_title
from slimprompt.analysis.subspaces import compare_pairs, random_overlaps, subspaces
from slimprompt.forked import run_forked
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.progress import progress
from slimprompt.spreadsheet import frame_csv

if TYPE_CHECKING:
    from pandas.api.typing import DataFrameGroupBy

#: Spec fields in which two compared runs may differ, one at a time.
AXES = ("seed", "dataset", "shots", "rank")
#: Compared factors; "BA" is the row space of the product, as in the paper.
FACTORS = ("A", "B", "BA", "BA columns")
#: Runs whose displacement is measured together.
_RUNS = 256


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
    draws, seed
        Number of random pairs of subspaces of each shape behind the chance levels, and their seed.
    compared
        Specs of the runs that were compared in pairs.
    notes
        Runs that were left out, and warnings about single runs.
    """

    pairs: pd.DataFrame
    displacement: pd.DataFrame
    chance: pd.DataFrame
    draws: int
    seed: int = 0
    compared: tuple[RunSpec, ...] = ()
    notes: tuple[str, ...] = ()

    def medians(self, by: Sequence[str] = ("axis",)) -> pd.DataFrame:
        """Median overlap and angle per group of pairs and factor (see `medians`), with the chance level of these pairs."""
        table = medians(self.pairs, by)
        chance = self.chance if tuple(by) == ("axis",) else _chance_table(self.pairs, self.draws, self.seed, by)
        levels = chance.rename(columns={"overlap": "chance_overlap", "angle": "chance_angle"})
        return table.merge(levels[[*by, "factor", "chance_overlap", "chance_angle"]], on=[*by, "factor"])

    def displacement_medians(self) -> pd.DataFrame:
        """Median displacement per variant, basis and factor, with the number of runs n."""
        grouped = self.displacement.groupby(["variant", "basis", "factor"])
        table = grouped[["overlap", "angle", "relative_norm"]].median()
        table["n"] = grouped.size()
        return table.reset_index()

    def files(self) -> dict[str, str]:
        """pairs.csv, displacement.csv and chance.csv with their content."""
        tables = {"pairs": self.pairs, "displacement": self.displacement, "chance": self.chance}
        return {f"{name}.csv": frame_csv(table) for name, table in tables.items()}


def class_subset_of(where: Sequence[str]) -> str | None:
    """The class subset to measure: None (any) if a condition such as `class_subset=base` selects it, otherwise "all"."""
    return None if any(condition.partition("=")[0] == "class_subset" for condition in where) else "all"


def measure(
    records: Iterable[Record],
    *,
    variant: str = "joint",
    class_subset: str | None = "all",
    draws: int = 2000,
    seed: int = 0,
    show: bool = False,
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
    show
        Show the progress.

    Returns
    -------
    Geometry
    """
    factorised = [record for record in records if record.complete and record.spec.variant not in (None, "dense")]
    shallow = [record for record in factorised if record.spec.depth == 1]
    plain = [record for record in shallow if not record.spec.beyond]
    low_rank = [record for record in plain if not record.spec.evaluate_on]
    records = [record for record in low_rank if class_subset in (None, record.spec.class_subset)]
    chosen = [record for record in records if record.spec.variant == variant]
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
            "select a subset with --where class_subset=base (or class_subset=all,base for both)"
        )
    specs = [record.spec for record in chosen]
    found = one_axis_pairs(specs)
    groups = _by_backbone(specs)  # two runs of a pair have the same one
    parts = [records[start : start + _RUNS] for start in range(0, len(records), _RUNS)]
    jobs: list[Callable[[], Any]] = [partial(_compare_runs, chosen, group, found) for group in groups]
    jobs += [partial(_displacements, part) for part in parts]
    with progress("geometry", len(jobs), "parts", show=show) as advance:
        measured = run_forked(jobs, advance=lambda _: advance())
    compared, moved = measured[: len(groups)], measured[len(groups) :]
    notes += _lost_rank(chosen, compared)
    pairs = _pair_table(chosen, found, compared)
    return Geometry(
        pairs,
        _displacement_table(records, moved),
        _chance_table(pairs, draws, seed),
        draws,
        seed,
        tuple(specs),
        tuple(notes),
    )


def _by_backbone(specs: Sequence[RunSpec]) -> list[list[int]]:
    """The runs of each backbone."""
    groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for run, spec in enumerate(specs):
        groups[spec.backbone, spec.pretrained].append(run)
    return list(groups.values())


def _matrices(factors: Sequence[dict[str, np.ndarray]], factor: str, *, start: bool = False) -> list[np.ndarray]:
    """For each run, the matrix whose columns span the subspace of the factor."""
    b, a = ("B0", "A0") if start else ("B", "A")
    if factor == "B":
        return [one[b] for one in factors]
    if factor == "A":
        return [one[a].T for one in factors]
    products = [one[b] @ one[a] for one in factors]
    return products if factor == "BA columns" else [product.T for product in products]


class _Compared(NamedTuple):
    """Pairs of runs of one backbone."""

    pairs: list[int]
    """Their numbers."""
    values: dict[str, dict[str, np.ndarray]]
    """Factor → column of `Geometry.pairs` → values."""
    deficient: dict[str, list[int]]
    """Factor → runs that have lost rank in it."""


def _compare_runs(records: Sequence[Record], group: Sequence[int], found: Sequence[tuple[int, int, str]]) -> _Compared:
    """Compare the pairs `found` whose runs are in `group`."""
    place = {run: position for position, run in enumerate(group)}
    numbers = [number for number, (one, _, _) in enumerate(found) if one in place]
    pairs = [(place[one], place[other]) for one, other, _ in (found[number] for number in numbers)]
    ranks = [int(records[run].spec.rank or 0) for run in group]
    factors = [records[run].factors() for run in group]
    values, deficient = {}, {}
    for factor in FACTORS:
        ends = subspaces(_matrices(factors, factor), ranks)
        starts = subspaces(_matrices(factors, factor, start=True), ranks)
        overlap, angle = compare_pairs(ends, ends, pairs)
        start_overlap, start_angle = compare_pairs(starts, starts, pairs)
        values[factor] = {
            "overlap": overlap,
            "angle": angle,
            "start_overlap": start_overlap,
            "start_angle": start_angle,
            "cosine": _cosines(factors, pairs) if factor == "BA" else np.full(len(pairs), np.nan),
            "dimension": np.array([ends.place[one][0][0] for one, _ in pairs], dtype=int),
        }
        deficient[factor] = [group[run] for run in ends.deficient]
    return _Compared(numbers, values, deficient)


def _lost_rank(records: Sequence[Record], compared: Sequence[_Compared]) -> list[str]:
    """A note for each factor that has lost rank in training."""
    return [
        f"{records[run].folder.name}: {factor} has lost rank in training, so some of its directions are arbitrary"
        for factor in FACTORS
        for run in sorted(run for part in compared for run in part.deficient[factor])
    ]


def _pair_table(
    records: Sequence[Record], found: Sequence[tuple[int, int, str]], compared: Sequence[_Compared]
) -> pd.DataFrame:
    """One row per pair of runs and factor."""
    described = pd.DataFrame(
        [_describe(records[one], records[other], axis) for one, other, axis in found], columns=_DESCRIPTION
    )
    order = np.argsort(np.array([number for part in compared for number in part.pairs], dtype=int))
    frames = []
    for factor in FACTORS:
        columns: dict[str, Any] = {
            name: np.concatenate([part.values[factor][name] for part in compared])[order] if compared else []
            for name in _MEASURED
        }
        frames.append(pd.concat([described, pd.DataFrame({"factor": factor, **columns})], axis=1))
    return pd.concat(frames, ignore_index=True)


_MEASURED = ("overlap", "angle", "start_overlap", "start_angle", "cosine", "dimension")
_DESCRIPTION = [
    *("axis", "backbone", "dataset", "class_subset", "shots", "rank", "seed"),
    *("other_dataset", "other_shots", "other_rank", "other_seed", "run", "other_run"),
]


def _describe(one: Record, other: Record, axis: str) -> tuple[Any, ...]:
    """The columns `_DESCRIPTION` of a pair of runs."""
    a, b = one.spec, other.spec
    mine = (backbone_title(a), dataset_title(a.dataset), a.class_subset, a.shots, a.rank, a.seed)
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


def _displacements(records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Factor → overlap, angle and ‖X−X₀‖/‖X₀‖ between initial and final factor, (3, runs)."""
    ranks = [int(record.spec.rank or 0) for record in records]
    factors = [record.factors() for record in records]
    itself = [(run, run) for run in range(len(records))]
    found = {}
    for factor in _MOVED:
        before, after = _matrices(factors, factor, start=True), _matrices(factors, factor)
        overlaps, angles = compare_pairs(subspaces(before, ranks), subspaces(after, ranks), itself)
        sizes = [float(np.linalg.norm(start)) for start in before]
        changes = [float(np.linalg.norm(end - start)) for start, end in zip(before, after, strict=True)]
        norms = [change / size if size else np.nan for change, size in zip(changes, sizes, strict=True)]
        found[factor] = np.stack([overlaps, angles, norms])
    return found


_MOVED = ("A", "B", "BA")


def _displacement_table(records: Sequence[Record], moved: Sequence[dict[str, np.ndarray]]) -> pd.DataFrame:
    """One row per run and factor."""
    specs = [record.spec for record in records]
    described = pd.DataFrame(
        {
            "backbone": [backbone_title(spec) for spec in specs],
            "dataset": [dataset_title(spec.dataset) for spec in specs],
            "class_subset": [spec.class_subset for spec in specs],
            "shots": [spec.shots for spec in specs],
            "variant": [spec.variant for spec in specs],
            "basis": [spec.basis or "trainable" for spec in specs],
            "rank": [spec.rank for spec in specs],
            "seed": [spec.seed for spec in specs],
        }
    )
    frames = []
    for factor in _MOVED:
        values = np.concatenate([np.empty((3, 0)), *(part[factor] for part in moved)], axis=1)
        columns = dict(zip(("overlap", "angle", "relative_norm"), values, strict=True))
        frames.append(described.assign(factor=factor, **columns, run=[str(record.folder) for record in records]))
    return pd.concat(frames, ignore_index=True)


def _chance_table(pairs: pd.DataFrame, draws: int, seed: int, by: Sequence[str] = ("axis",)) -> pd.DataFrame:
    """Median and central 90 % of the chance level per group and factor, weighted by the shapes of the pairs."""
    # The order of the shapes does not depend on `by`, so that a shape has the same draws in every grouping.
    alike = (members for _, members in pairs.groupby(["axis", "factor"], sort=True))
    shapes = dict.fromkeys(shape for members in alike for shape in sorted(_shapes(members)))
    generator = np.random.default_rng(seed)
    sampled = {shape: random_overlaps(*shape, draws=draws, generator=generator) for shape in shapes}
    rows = []
    for group, members in _grouped(pairs, by):
        counts = sorted(_shapes(members).items())
        overlaps, angles = (np.concatenate([sampled[shape][column] for shape, _ in counts]) for column in (0, 1))
        weight = np.concatenate([np.full(draws, count / draws) for _, count in counts])
        low, middle, high = _weighted_quantiles(overlaps, weight, (0.05, 0.5, 0.95))
        (angle,) = _weighted_quantiles(angles, weight, (0.5,))
        rows.append((*group, middle, low, high, angle))
    return pd.DataFrame(rows, columns=[*by, "factor", "overlap", "overlap_low", "overlap_high", "angle"])


def _shapes(pairs: pd.DataFrame) -> Counter[tuple[int, int, int]]:
    """(dimension, smaller rank, larger rank) → number of pairs."""
    found = zip(pairs["dimension"], pairs["rank"], pairs["other_rank"], strict=True)
    return Counter((int(dimension), int(min(ranks)), int(max(ranks))) for dimension, *ranks in found)


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray, levels: Sequence[float]) -> list[float]:
    """Quantiles of weighted values."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    places = [min(int(np.searchsorted(reached, level)), values.size - 1) for level in levels]
    return [float(values[order][place]) for place in places]


def medians(pairs: pd.DataFrame, by: Sequence[str] = ("axis",)) -> pd.DataFrame:
    """Median overlap and angle of pairs, of the final and of the initial factors, per group and factor.

    Parameters
    ----------
    pairs
        `Geometry.pairs`.
    by
        Columns of `pairs` to group by, besides the factor. Two runs that differ in such a column belong to the group of
        both values, such as "1–4".

    Returns
    -------
    DataFrame
        Sorted by `by`, axes in the order of `AXES`; n is the number of pairs.
    """
    grouped = _grouped(pairs, by)
    table = grouped[["overlap", "angle", "start_overlap", "start_angle"]].median()
    table["n"] = grouped.size()
    table = table.reset_index()
    return table.astype(dict.fromkeys(by, object)).infer_objects()


def _grouped(pairs: pd.DataFrame, by: Sequence[str]) -> DataFrameGroupBy[Any, Any]:
    """The pairs, grouped by the values of these columns in both runs, and by the factor."""
    values = (pd.Series(_values(pairs, name), pairs.index, name=name) for name in by)
    return pairs.groupby([*values, pairs["factor"]], observed=True)


def _values(pairs: pd.DataFrame, column: str) -> pd.Categorical:
    """The value of a column in both runs of each pair, in the order 1, "1–4", 4."""
    if column == "axis":
        return pd.Categorical(pairs["axis"], AXES, ordered=True)
    others = pairs.get(f"other_{column}", pairs[column])
    both = [tuple(sorted({one, other})) for one, other in zip(pairs[column], others, strict=True)]
    names = {values: "–".join(map(str, values)) if len(values) > 1 else values[0] for values in sorted(set(both))}
    return pd.Categorical([names[values] for values in both], list(names.values()), ordered=True)
