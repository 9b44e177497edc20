"""Run records as one long table of measured values, and the cells that tables and claims are made of.

Measured and published numbers share one vocabulary, so the same code reads both:
backbone, dataset, method, basis, rank, shots, metric, source → mean, sd, n.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd

from slimprompt.analysis.statistics import (
    Comparison,
    compare,
    harmonic_of_averages,
    holm,
    macro_average,
    macro_by_seed,
    pooled_average,
    summarise,
)
from slimprompt.errors import InputError, unknown
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.training.recipe import Recipe

#: open_clip's names of the two backbones of the paper, as its tables write them.
BACKBONE_TITLES = {
    "ViT-B-16": "ViT-B/16",
    "ViT-B-16-quickgelu": "ViT-B/16",
    "RN50": "RN50",
    "RN50-quickgelu": "RN50",
}

Unit = Literal["dataset", "run", "seed"]
UNITS: dict[str, str] = {
    "dataset": "one difference per dataset, averaged over its matched seeds",
    "run": "one difference per matched pair of runs",
    "seed": "one difference per seed, averaged over the datasets",
}


class Arm(NamedTuple):
    """One way to prompt, in the vocabulary of the published tables."""

    method: str
    """dense | factorized | fixed-B | fixed-A (the last two are the transfer study's)"""
    basis: str
    """identity, best (dense) | trainable | gaussian | orthogonal | svd | learned | source-A/B | random-A/B"""
    rank: int
    """r, or the number of context tokens of a dense prompt; 0 where it has none"""


class CellKey(NamedTuple):
    """What identifies a cell of results; the fields `method`, `basis` and `rank` are those of its arm."""

    backbone: str
    dataset: str
    method: str
    basis: str
    rank: int
    """Number of context tokens of a dense prompt."""
    shots: int
    metric: str
    source: str = ""
    """Source dataset of a transfer."""

    @property
    def arm(self) -> Arm:
        """The arm of this cell."""
        return Arm(self.method, self.basis, self.rank)


KEY = CellKey._fields
COLUMNS = (*KEY, "seed", "value", "parameters", "run")


def dense(n_ctx: int) -> Arm:
    """The dense prompt of `n_ctx` tokens."""
    return Arm("dense", "identity", n_ctx)


#: The better of the dense prompts, whatever its length.
BEST_DENSE = Arm("dense", "best", 0)


def joint(rank: int) -> Arm:
    """Both factors train."""
    return Arm("factorized", "trainable", rank)


def fixed_basis(basis: str, rank: int) -> Arm:
    """A trains over a fixed B."""
    return Arm("factorized", basis, rank)


def transfer(mode: str, rank: int) -> Arm:
    """The frozen factor comes from elsewhere: mode source-B, random-B, source-A or random-A."""
    return Arm(f"fixed-{mode[-1]}", mode, rank)


def arm_of(spec: RunSpec) -> Arm:
    """The arm a run belongs to."""
    if spec.variant == "dense":
        return dense(spec.n_ctx)
    rank = spec.rank or 0
    if spec.variant == "joint":
        return joint(rank)
    side = spec.variant[-1]
    if spec.basis in ("source", "random"):
        return transfer(f"{spec.basis}-{side}", rank)
    if spec.variant == "fixed-B":
        return fixed_basis(str(spec.basis), rank)
    return Arm(spec.variant, str(spec.basis), rank)


def arm_label(arm: Arm) -> str:
    """Short name for people: `dense m16`, `joint r4`, `fixed-B orthogonal r4`, `fixed-A source r4`."""
    if arm == BEST_DENSE:
        return "dense, best length"
    if arm.method == "dense":
        return f"dense m{arm.rank}"
    if arm.basis == "trainable":
        return f"joint r{arm.rank}"
    if arm.method == "factorized":
        return f"fixed-B {arm.basis} r{arm.rank}"
    return f"{arm.method} {arm.basis.removesuffix('-A').removesuffix('-B')} r{arm.rank}"


def backbone_title(spec: RunSpec) -> str:
    """The backbone as tables write it: "ViT-B/16" for OpenAI's weights, with the weights' name for any others."""
    title = BACKBONE_TITLES.get(spec.backbone, spec.backbone)
    weights = spec.pretrained
    if weights is None or weights == "openai" or Path(weights).stem == spec.backbone.removesuffix("-quickgelu"):
        return title  # OpenAI's own checkpoint files are called ViT-B-16.pt and RN50.pt
    return f"{title} ({Path(weights).name})"


def dataset_title(name: str) -> str:
    """The dataset as tables write it; a folder of one's own keeps its name."""
    from slimprompt.data.benchmarks import BENCHMARKS

    return BENCHMARKS[name].title if name in BENCHMARKS else name


def observe(records: Iterable[Record]) -> pd.DataFrame:
    """One row per run and metric, with `COLUMNS`. Two runs of one cell and seed are an error, not an average."""
    rows: list[tuple[Any, ...]] = []
    seen: dict[tuple[Any, ...], RunSpec] = {}
    for record in records:
        spec, arm = record.spec, arm_of(record.spec)
        backbone, dataset = backbone_title(spec), dataset_title(spec.dataset)
        source = dataset_title(spec.source) if spec.source else ""
        for metric, value in record.metrics.items():
            key = (backbone, dataset, *arm, spec.shots, metric, source, spec.seed)
            if key in seen:
                raise InputError(
                    _clash(seen[key], spec, f"{backbone}, {dataset}, {spec.shots} shots, {arm_label(arm)}")
                )
            seen[key] = spec
            parameters = record.facts.get("trainable_parameters")
            rows.append((*key, float(value), parameters, str(record.folder)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _clash(one: RunSpec, other: RunSpec, cell: str) -> str:
    differing = [f"{name} ({a} and {b})" for name, a, b in _differences(one, other)]
    what = "differ in " + ", ".join(differing) if differing else "have the same spec"
    return (
        f"two runs stand for one cell ({cell}, seed {one.seed}); they {what}. "
        "A table needs one run per cell: keep one kind with --where field=value, or put them in separate folders."
    )


def _differences(one: RunSpec, other: RunSpec) -> Iterator[tuple[str, Any, Any]]:
    mine, theirs = one.flat(), other.flat()
    for name, value in mine.items():
        if theirs[name] != value:
            yield name, value, theirs[name]


#: Fields that should be the same in all runs that are compared; the others are the axes of the studies.
_SETTINGS = ("pretrained", "n_ctx", "position", "precision", *(f"recipe.{name}" for name in Recipe.model_fields))


def mixed_settings(records: Iterable[Record]) -> list[str]:
    """One sentence per setting that is not the same in all runs of a backbone: they are not strictly comparable."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in records:
        fields = record.spec.flat()
        for name in _SETTINGS:
            if name == "n_ctx" and record.spec.variant == "dense":
                continue  # the length of a dense prompt is an axis of the study
            found[record.spec.backbone, name][str(fields[name])] += 1
    return [
        f"{backbone}: the runs mix {name} = "
        + ", ".join(f"{value} ({count} runs)" for value, count in sorted(counts.items()))
        for (backbone, name), counts in found.items()
        if len(counts) > 1
    ]


@dataclass(frozen=True)
class Estimate:
    """One cell: mean and sample sd over n seeds, and the run folders it came from (none for a published number)."""

    mean: float
    sd: float | None
    n: int
    runs: tuple[str, ...] = ()
    by_seed: dict[int, float] = field(default_factory=dict, repr=False)
    printed: bool = False
    """Taken over from a published table, not computed."""


class Results:
    """The cells of a set of runs, or of the published tables, by backbone, dataset, arm, shots, metric and source."""

    def __init__(
        self,
        cells: dict[CellKey, Estimate],
        *,
        parameters: dict[tuple[str, Arm], int] | None = None,
        printed_averages: dict[CellKey, Estimate] | None = None,
        published: bool = False,
    ) -> None:
        self.cells = cells
        self.published = published
        self._parameters = parameters or {}
        self._printed_averages = printed_averages or {}
        self._axes: dict[Any, list[Any]] = {}  # the cells do not change, and the same questions come again and again
        self._over_sources: dict[CellKey, list[Estimate]] = defaultdict(list)
        self._having: dict[str, dict[Any, set[CellKey]]] = {name: defaultdict(set) for name in KEY}
        for key, estimate in cells.items():
            self._over_sources[key._replace(source="")].append(estimate)
            for name, part in zip(KEY, key, strict=True):
                self._having[name][part].add(key)

    @classmethod
    def of(cls, observations: pd.DataFrame) -> Results:
        """The cells of the long table that `observe` makes."""
        cells = {}
        for key, rows in observations.groupby(list(KEY), sort=True):
            by_seed = dict(
                zip((int(seed) for seed in rows["seed"]), (float(value) for value in rows["value"]), strict=True)
            )
            summary = summarise(list(by_seed.values()))
            assert summary is not None  # a group has at least one row
            cells[_cell_key(key)] = Estimate(summary.mean, summary.sd, summary.n, tuple(rows["run"]), by_seed)
        parameters: dict[tuple[str, Arm], int] = {}
        counted = observations.dropna(subset=["parameters"])
        names = ("backbone", "method", "basis", "rank", "parameters")
        for backbone, method, basis, rank, count in zip(*(counted[name] for name in names), strict=True):
            parameters[backbone, Arm(method, basis, int(rank))] = int(count)
        return cls(cells, parameters=parameters)

    def cell(
        self, backbone: str, dataset: str, arm: Arm, shots: int, metric: str = "accuracy", source: str = ""
    ) -> Estimate | None:
        """One cell, or None where there are no runs. The best dense prompt is looked up or chosen among the lengths."""
        found = self.cells.get(CellKey(backbone, dataset, *arm, shots, metric, source))
        if found is None and arm == BEST_DENSE:
            lengths = [self.cell(backbone, dataset, dense(m), shots, metric) for m in self.dense_lengths(backbone)]
            found = max((one for one in lengths if one), key=lambda one: one.mean, default=None)
        return found

    def macro(
        self, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str = "accuracy"
    ) -> Estimate | None:
        """Average over `datasets` within each seed, then mean and sd over the seeds that have them all.

        Published cells have no seeds: their average is the mean of the datasets' means, or, where these are not
        published, the printed average.
        """
        parts = [self.cell(backbone, dataset, arm, shots, metric) for dataset in datasets]
        known = [part for part in parts if part is not None]
        if not parts or len(known) < len(parts):
            return self._printed_averages.get(CellKey(backbone, "Average", *arm, shots, metric))
        runs = tuple(run for part in known for run in part.runs)
        if self.published:
            return Estimate(sum(part.mean for part in known) / len(known), None, min(part.n for part in known), runs)
        by_seed = macro_by_seed([part.by_seed for part in known])
        summary = summarise(list(by_seed.values()))
        return Estimate(summary.mean, summary.sd, summary.n, runs, by_seed) if summary else None

    def axis(self, name: str, **fixed: Any) -> list[Any]:
        """The sorted values of field `name` among the cells whose other fields are as given (a value or a set)."""
        question = (name, *sorted((key, repr(value)) for key, value in fixed.items()))
        if question not in self._axes:
            self._axes[question] = self._find_axis(name, fixed)
        return list(self._axes[question])

    def _find_axis(self, name: str, fixed: dict[str, Any]) -> list[Any]:
        keys = set(self.cells)
        for field_name, value in fixed.items():
            allowed = value if isinstance(value, (set, frozenset)) else {value}
            keys &= set().union(*(self._having[field_name].get(one, ()) for one in allowed))
        return sorted({getattr(key, name) for key in keys})

    def dense_lengths(self, backbone: str | None = None) -> list[int]:
        """Context lengths of the dense prompts, in cells or printed averages."""
        where = {} if backbone is None else {"backbone": backbone}
        lengths = set(self.axis("rank", method="dense", basis="identity", **where))
        printed = (key for key in self._printed_averages if (key.method, key.basis) == ("dense", "identity"))
        return sorted(lengths | {key.rank for key in printed if backbone in (None, key.backbone)})

    def parameters(self, backbone: str, arm: Arm) -> int | None:
        """Numbers that this arm trains, as its runs recorded them."""
        return self._parameters.get((backbone, arm))

    def differences(
        self, first: Arm, second: Arm, *, backbone: str, shots: int, metric: str = "accuracy", unit: Unit = "dataset"
    ) -> dict[str, float]:
        """first − second over the cells that both have, by name of the unit. Published cells allow only unit "dataset".

        An arm with several sources enters a dataset's difference as the average over its sources.
        """
        if unit not in UNITS:
            raise unknown("unit of comparison", unit, UNITS)
        per_run: dict[tuple[str, int], list[float]] = defaultdict(list)
        per_dataset: dict[str, list[float]] = defaultdict(list)
        datasets = self.axis(
            "dataset", backbone=backbone, shots=shots, metric=metric, method={first.method, second.method}
        )
        for dataset in datasets:
            ones, others = (
                self._over_sources.get(CellKey(backbone, dataset, *arm, shots, metric), []) for arm in (first, second)
            )
            for one in ones:
                for other in others:
                    if self.published:
                        per_dataset[dataset].append(one.mean - other.mean)
                    for seed in sorted(set(one.by_seed) & set(other.by_seed)):
                        per_run[dataset, seed].append(one.by_seed[seed] - other.by_seed[seed])
        if self.published:
            return (
                {name: sum(values) / len(values) for name, values in per_dataset.items()} if unit == "dataset" else {}
            )
        runs = {key: sum(values) / len(values) for key, values in per_run.items()}
        if unit == "run":
            return {f"{dataset}, seed {seed}": value for (dataset, seed), value in runs.items()}
        names = {dataset for dataset, _ in runs}
        if unit == "dataset":
            grouped = {
                name: [value for (dataset, _), value in runs.items() if dataset == name] for name in sorted(names)
            }
        else:  # a seed counts only with all the datasets
            seeds = sorted({seed for _, seed in runs})
            by_seed = {seed: [value for (_, other), value in runs.items() if other == seed] for seed in seeds}
            grouped = {f"seed {seed}": values for seed, values in by_seed.items() if len(values) == len(names)}
        return {name: sum(values) / len(values) for name, values in grouped.items()}


def _cell_key(values: Any) -> CellKey:
    """From a row of the observations, with Python's own ints, so that look-ups by plain numbers match."""
    fields = dict(zip(KEY, values, strict=True))
    values = {name: int(value) if name in ("rank", "shots") else str(value) for name, value in fields.items()}
    return CellKey(**values)


@dataclass(frozen=True)
class ArmComparison:
    """`first − second` in one backbone and shot count; `holm_*` are corrected over the family it was tested in."""

    backbone: str
    shots: int
    first: Arm
    second: Arm
    metric: str
    unit: str
    result: Comparison
    cells: dict[str, float] = field(default_factory=dict, repr=False)
    holm_t: float | None = None
    holm_wilcoxon: float | None = None
    holm_equivalence: float | None = None


def compare_arms(
    results: Results,
    pairs: Sequence[tuple[Arm, Arm]],
    *,
    metric: str = "accuracy",
    unit: Unit = "dataset",
    margin: float = 0.5,
    backbones: Sequence[str] | None = None,
    shots: Sequence[int] | None = None,
) -> list[ArmComparison]:
    """Every pair of arms in every backbone and shot count that has both; all together are one family for Holm."""
    found: list[ArmComparison] = []
    for backbone in backbones if backbones is not None else results.axis("backbone", metric=metric):
        for k in shots if shots is not None else results.axis("shots", backbone=backbone, metric=metric):
            for first, second in pairs:
                cells = results.differences(first, second, backbone=backbone, shots=k, metric=metric, unit=unit)
                if cells:
                    result = compare(list(cells.values()), margin=margin)
                    found.append(ArmComparison(backbone, int(k), first, second, metric, unit, result, cells))
    corrected = (holm([getattr(one.result, f"p_{test}") for one in found]) for test in ("t", "wilcoxon", "equivalence"))
    return [
        ArmComparison(
            one.backbone,
            one.shots,
            one.first,
            one.second,
            one.metric,
            one.unit,
            one.result,
            one.cells,
            p_t,
            p_wilcoxon,
            p_equal,
        )
        for one, p_t, p_wilcoxon, p_equal in zip(found, *corrected, strict=True)
    ]


def aggregates(results: Results) -> pd.DataFrame:
    """The honest summaries over datasets side by side, one row per backbone, arm, shots and metric.

    Columns: datasets, seeds, macro_mean, macro_sd, pooled_mean, pooled_sd, pooled_n and, for H, harmonic_of_averages.
    Transfers (which have a source) are left out: their pairs are not a grid of datasets.
    """
    rows = []
    settings = sorted({(key.backbone, key.arm, key.shots, key.metric) for key in results.cells if not key.source})
    for backbone, arm, shots, metric in settings:
        where = {"backbone": backbone, "method": arm.method, "basis": arm.basis, "rank": arm.rank, "shots": shots}
        datasets = results.axis("dataset", metric=metric, **where)
        columns = _by_seed(results, backbone, datasets, arm, shots, metric)
        macro, pooled = macro_average(columns), pooled_average(columns)
        if pooled is None:
            continue
        of_averages = None
        if metric == "harmonic":
            seen, unseen = (_by_seed(results, backbone, datasets, arm, shots, name) for name in ("seen", "unseen"))
            of_averages = harmonic_of_averages(seen, unseen)
        rows.append(
            {
                "backbone": backbone,
                "arm": arm_label(arm),
                "shots": shots,
                "metric": metric,
                "datasets": len(datasets),
                "seeds": macro.n if macro else 0,
                "macro_mean": macro.mean if macro else None,
                "macro_sd": macro.sd if macro else None,
                "pooled_mean": pooled.mean,
                "pooled_sd": pooled.sd,
                "pooled_n": pooled.n,
                "harmonic_of_averages": of_averages.mean if of_averages else None,
            }
        )
    return pd.DataFrame(rows)


def _by_seed(
    results: Results, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str
) -> list[dict[int, float]]:
    cells = [results.cell(backbone, dataset, arm, shots, metric) for dataset in datasets]
    return [cell.by_seed if cell else {} for cell in cells]
