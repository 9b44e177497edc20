"""Geometry of the factors of trained prompts: overlap and principal angles between subspaces.

B is compared by its column space (tokens), A by its row space (embeddings), and P = BA by its row space, as in the paper. P is rebuilt
from the factors in float64 and gets the rank of the factors: a product stored in low precision has rounding noise in every direction
and appears to have full rank. In exact arithmetic, the row space of BA is that of A, and its column space that of B.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slimprompt.analysis.frame import backbone_title, dataset_title
from slimprompt.analysis.subspaces import compare_pairs, random_overlaps, subspaces
from slimprompt.errors import count
from slimprompt.forked import run_forked
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.progress import progress
from slimprompt.spreadsheet import frame_csv

if TYPE_CHECKING:
    from pandas.api.typing import DataFrameGroupBy

#: Spec fields in which two compared runs may differ, one at a time.
AXES = ("seed", "dataset", "shots", "rank")
#: Compared factors.
FACTORS = ("A", "B", "BA")
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
    """Geometry of the factors of a set of runs."""

    pairs: pd.DataFrame
    """One row per pair of runs and factor: axis, factor, overlap and angle of the final and of the initial factors, and the specs of
    both runs."""
    displacement: pd.DataFrame
    """One row per run and factor: overlap and angle between initial and final factor, and ‖X−X₀‖/‖X₀‖."""
    chance: pd.DataFrame
    """Overlap and angle of independent, uniformly random subspaces of the same dimensions, per axis and factor."""
    draws: int
    """Number of random pairs of subspaces of each shape behind the chance levels."""
    seed: int = 0
    """Seed of the random subspaces."""
    compared: tuple[RunSpec, ...] = ()
    """Specs of the runs that were compared in pairs."""
    notes: tuple[str, ...] = ()
    """Runs that were left out, and warnings about single runs."""

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
    """Measure the factors of prompts: displacement of all variants, and pairs of runs of one `variant`; notes name what is left out.

    `class_subset` None uses the runs of every class subset; `draws` is the number of random pairs of subspaces behind each chance level.
    """
    factorised = [record for record in records if record.complete and record.spec.variant not in (None, "dense")]
    kept, notes = _left_out(factorised, class_subset)
    chosen = [record for record in kept if record.spec.variant == variant]
    specs = [record.spec for record in chosen]
    found = one_axis_pairs(specs)
    groups = defaultdict(list)  # by backbone: two runs of a pair have the same one
    for run, spec in enumerate(specs):
        groups[spec.model].append(run)
    parts = [kept[start : start + _RUNS] for start in range(0, len(kept), _RUNS)]
    jobs: list[Callable[[], Any]] = [partial(_compare_runs, chosen, group, found) for group in groups.values()]
    jobs += [partial(_displacements, part) for part in parts]
    with progress("geometry", len(jobs), "parts", show=show) as advance:
        measured = run_forked(jobs, advance=lambda _: advance())
    compared, moved = measured[: len(groups)], measured[len(groups) :]
    pairs = _together([pairs for pairs, _ in compared], ["factor", "number"]).drop(columns="number")
    lost = [note for _, lost in compared for note in lost]
    displacement = _together(moved, ["factor"])
    chance = _chance_table(pairs, draws, seed)
    return Geometry(pairs, displacement, chance, draws, seed, tuple(specs), (*notes, *lost))


def _left_out(records: Sequence[Record], class_subset: str | None) -> tuple[list[Record], list[str]]:
    """The runs that can be compared, and a note for each kind of runs that cannot."""
    reasons: list[tuple[Callable[[RunSpec], bool], str]] = [
        (lambda spec: spec.depth > 1, "of deep prompts left out, which have coefficients for several layers"),
        (
            lambda spec: bool(spec.beyond),
            "left out, of prompts with words or a loss that keeps them close to zero-shot",
        ),
        (lambda spec: bool(spec.evaluate_on), "left out: cross-dataset runs are trained like those of other studies"),
        (
            lambda spec: class_subset not in (None, spec.class_subset),
            f"left out, not trained on {class_subset} classes; "
            "for these add --where class_subset=base, or class_subset=all,base for both",
        ),
    ]
    kept, notes = list(records), []
    for is_left_out, reason in reasons:
        before = len(kept)
        kept = [record for record in kept if not is_left_out(record.spec)]
        if before > len(kept):
            notes.append(f"geometry: {count(before - len(kept), 'run')} {reason}")
    return kept, notes


def _matrices(factors: Sequence[dict[str, np.ndarray]], factor: str, *, start: bool = False) -> list[np.ndarray]:
    """For each run, the matrix whose columns span the subspace of the factor."""
    b, a = ("B0", "A0") if start else ("B", "A")
    if factor == "B":
        return [one[b] for one in factors]
    return [(one[a] if factor == "A" else one[b] @ one[a]).T for one in factors]


def _compare_runs(
    records: Sequence[Record], group: Sequence[int], found: Sequence[tuple[int, int, str]]
) -> tuple[pd.DataFrame, list[str]]:
    """One row per factor and pair of `found` whose runs are in `group`, and notes on factors that have lost rank."""
    place = {run: position for position, run in enumerate(group)}
    numbers = [number for number, (one, _, _) in enumerate(found) if one in place]
    pairs = [(place[found[number][0]], place[found[number][1]]) for number in numbers]
    ranks = [int(records[run].spec.rank or 0) for run in group]
    factors = [records[run].factors() for run in group]
    described = _described([records[run] for run in group])
    first, second = (described.iloc[[pair[side] for pair in pairs]].reset_index(drop=True) for side in (0, 1))
    others = second[["dataset", "shots", "rank", "seed", "run"]].add_prefix("other_")
    columns = {"number": numbers, "axis": [found[number][2] for number in numbers]}
    places = pd.concat([pd.DataFrame(columns), first.drop(columns=["variant", "basis"]), others], axis=1)
    frames, lost = [], []
    for factor in FACTORS:
        ends = subspaces(_matrices(factors, factor), ranks)
        starts = subspaces(_matrices(factors, factor, start=True), ranks)
        values = dict(zip(("overlap", "angle"), compare_pairs(ends, ends, pairs), strict=True))
        values |= dict(zip(("start_overlap", "start_angle"), compare_pairs(starts, starts, pairs), strict=True))
        dimension = np.array([ends.place[one][0][0] for one, _ in pairs], dtype=int)
        frames.append(places.assign(factor=factor, **values, dimension=dimension))
        lost += [
            f"{records[group[run]].folder.name}: {factor} has lost rank in training, so some of its directions are arbitrary"
            for run in ends.deficient
        ]
    return pd.concat(frames), lost


def _displacements(records: Sequence[Record]) -> pd.DataFrame:
    """One row per factor and run: overlap, angle and ‖X−X₀‖/‖X₀‖ between initial and final factor."""
    ranks = [int(record.spec.rank or 0) for record in records]
    factors = [record.factors() for record in records]
    described = _described(records)
    itself = [(run, run) for run in range(len(records))]
    frames = []
    for factor in FACTORS:
        before, after = _matrices(factors, factor, start=True), _matrices(factors, factor)
        overlap, angle = compare_pairs(subspaces(before, ranks), subspaces(after, ranks), itself)
        sizes = [float(np.linalg.norm(start)) or np.nan for start in before]
        moved = [float(np.linalg.norm(end - start)) for start, end in zip(before, after, strict=True)]
        values = {"overlap": overlap, "angle": angle, "relative_norm": np.array(moved) / np.array(sizes)}
        frames.append(described.assign(factor=factor, **values))
    return pd.concat(frames)


def _described(records: Sequence[Record]) -> pd.DataFrame:
    """The specs of the runs in the terms of tables, one row per run."""
    fields = ("class_subset", "shots", "variant", "rank", "seed")
    rows = [
        {
            "backbone": backbone_title(record.spec),
            "dataset": dataset_title(record.spec.dataset),
            **{name: getattr(record.spec, name) for name in fields},
            "basis": record.spec.basis or "trainable",
            "run": str(record.folder),
        }
        for record in records
    ]
    return pd.DataFrame(rows, columns=["backbone", "dataset", *fields, "basis", "run"])


def _together(parts: Sequence[pd.DataFrame], order: Sequence[str]) -> pd.DataFrame:
    """The parts as one frame; the rows of a factor keep the order of the runs."""
    frames = parts or [_compare_runs([], [], [])[0] if "number" in order else _displacements([])]
    return pd.concat(frames).sort_values(list(order), kind="stable").reset_index(drop=True)


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
    """Median overlap and angle of pairs, of the final and of the initial factors, per group and factor; n counts the pairs.

    `by` are columns of `Geometry.pairs`. Two runs that differ in such a column belong to the group of both values, such as "1–4". The
    rows are sorted by `by`, axes in the order of `AXES`.
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
