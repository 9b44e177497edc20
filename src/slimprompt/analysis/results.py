"""The cells that tables, figures and claims are built from.

Measured and published numbers share one vocabulary, so the same code reads both. A cell is identified by backbone,
dataset, method, basis, rank, shots, metric and source (`CellKey`) and holds mean, sd and n (`Estimate`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple, TypeVar

import pandas as pd

from slimprompt.analysis.arms import BEST_DENSE, Arm, dense
from slimprompt.analysis.statistics import macro_by_seed, summarise
from slimprompt.errors import unknown

K = TypeVar("K", bound=Hashable)

Unit = Literal["dataset", "run", "seed"]
#: What counts as one observation of a paired comparison.
UNITS: dict[str, str] = {
    "dataset": "one difference per dataset, averaged over its matched seeds",
    "run": "one difference per matched pair of runs",
    "seed": "one difference per seed, averaged over the datasets",
}


class CellKey(NamedTuple):
    """Identifies one cell of results; `method`, `basis` and `rank` are those of its arm."""

    backbone: str
    dataset: str
    method: str
    basis: str
    rank: int
    shots: int
    metric: str = "accuracy"
    source: str = ""
    """Source dataset of a transfer, or training dataset of a cross-dataset run."""

    @property
    def arm(self) -> Arm:
        """The arm of this cell."""
        return Arm(self.method, self.basis, self.rank)

    @property
    def canonical(self) -> CellKey:
        """The key without a source if its arm and metric do not depend on one."""
        depends = self.basis.startswith("source") or self.metric in CROSS_DATASET
        return self if depends else self._replace(source="")


#: Metrics of cross-dataset runs: accuracy on another dataset by its class names, and on the dataset that they were trained on.
#: In both, `CellKey.source` is the latter.
CROSS_DATASET = ("cross_dataset", "source_accuracy")


@dataclass(frozen=True)
class Estimate:
    """Mean and sample sd over n seeds."""

    mean: float
    sd: float | None
    n: int
    runs: tuple[str, ...] = ()
    """Run folders; empty for a published number."""
    by_seed: dict[int, float] = field(default_factory=dict, repr=False)
    printed: bool = False
    """Copied from a published table, not computed."""


def average(estimates: Iterable[Estimate | None]) -> Estimate | None:
    """Average within each seed, then mean and sd over the seeds that all estimates have; None if one is missing.

    Published estimates have no seeds, so theirs is the mean of the means, without an sd.
    """
    given = list(estimates)
    parts = [one for one in given if one is not None]
    if not parts or len(parts) < len(given):
        return None
    runs = tuple(dict.fromkeys(run for part in parts for run in part.runs))
    if not any(part.by_seed for part in parts):
        return Estimate(_mean([part.mean for part in parts]), None, min(part.n for part in parts), runs)
    by_seed = macro_by_seed([part.by_seed for part in parts])
    summary = summarise(list(by_seed.values()))
    return Estimate(summary.mean, summary.sd, summary.n, runs, by_seed) if summary else None


def on_common_seeds(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The estimates over the seeds that all of them have; empty if there is none. Published estimates have no seeds and stay."""
    if not estimates:
        return []
    seeds = set.intersection(*(set(one.by_seed) for one in estimates))
    if all(len(one.by_seed) == len(seeds) for one in estimates):
        return list(estimates)
    shared = [{seed: value for seed, value in one.by_seed.items() if seed in seeds} for one in estimates]
    summaries = [summarise(list(by_seed.values())) for by_seed in shared]
    return [
        Estimate(summary.mean, summary.sd, summary.n, one.runs, by_seed)
        for one, summary, by_seed in zip(estimates, summaries, shared, strict=True)
        if summary
    ]


def best_of(estimates: Mapping[K, Estimate]) -> K | None:
    """Key of the highest mean over the seeds that all estimates have; None if there is no such seed."""
    shared = on_common_seeds(list(estimates.values()))
    means = {key: one.mean for key, one in zip(estimates, shared, strict=False)}  # `shared` is complete or empty
    return max(means, key=lambda key: means[key], default=None)


class Results:
    """The cells of a set of runs, or of the published tables.

    Parameters
    ----------
    cells
        The estimates by key.
    parameters
        Trainable parameters by backbone and arm.
    printed_averages
        Published averages over datasets whose cells may not be published; their dataset is "Average".
    published
        Whether the cells come from the published tables. Published cells have no seeds.
    """

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
        self._axes: dict[Any, list[Any]] = {}  # cache of `axis`; the cells never change
        self._by_source: dict[CellKey, dict[str, Estimate]] = defaultdict(dict)
        self._index: dict[str, dict[Any, set[CellKey]]] = {name: defaultdict(set) for name in CellKey._fields}
        for key, estimate in cells.items():
            self._by_source[key._replace(source="")][key.source] = estimate
            for name, value in key._asdict().items():
                self._index[name][value].add(key)

    @classmethod
    def of(cls, observations: pd.DataFrame) -> Results:
        """The cells of a table that `observe` returned."""
        rows: dict[CellKey, list[int]] = defaultdict(list)
        keys = zip(*(observations[name].tolist() for name in CellKey._fields), strict=True)
        for row, fields in enumerate(keys):
            rows[CellKey(*fields)].append(row)
        seeds, values, runs = (observations[name].tolist() for name in ("seed", "value", "run"))
        cells = {}
        for key in sorted(rows):
            by_seed = {seeds[row]: values[row] for row in rows[key]}
            summary = summarise(list(by_seed.values()))
            assert summary is not None  # a group has at least one row
            folders = tuple(runs[row] for row in rows[key])
            cells[key] = Estimate(summary.mean, summary.sd, summary.n, folders, by_seed)
        parameters: dict[tuple[str, Arm], int] = {}
        counted = observations.dropna(subset=["parameters"])
        names = ("backbone", "method", "basis", "rank", "parameters")
        for backbone, method, basis, rank, count in zip(*(counted[name] for name in names), strict=True):
            parameters[backbone, Arm(method, basis, int(rank))] = int(count)
        return cls(cells, parameters=parameters)

    def cell(
        self, backbone: str, dataset: str, arm: Arm, shots: int, metric: str = "accuracy", source: str = ""
    ) -> Estimate | None:
        """One cell, or None if it has no runs.

        `BEST_DENSE` is chosen among the dense lengths (see `best_of`) unless it is stored as a cell. `source` is ignored for
        arms that do not depend on one.
        """
        found = self.cells.get(CellKey(backbone, dataset, *arm, shots, metric, source).canonical)
        if found is None and arm == BEST_DENSE:
            cells = {m: self.cell(backbone, dataset, dense(m), shots, metric) for m in self.dense_lengths(backbone)}
            known = {m: one for m, one in cells.items() if one}
            best = best_of(known)
            found = None if best is None else known[best]
        return found

    def of_any_arm(self, backbone: str, dataset: str, shots: int, metric: str) -> dict[int, float]:
        """Seed → value, for metrics that are the same for all arms; empty if there are no runs."""
        keys = self._matching(backbone=backbone, dataset=dataset, shots=shots, metric=metric)
        return {seed: value for key in sorted(keys) for seed, value in self.cells[key].by_seed.items()}

    def macro(
        self, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str = "accuracy"
    ) -> Estimate | None:
        """Average over `datasets` (see `average`), or the printed average if not all of their cells are published."""
        parts = (self.cell(backbone, dataset, arm, shots, metric) for dataset in datasets)
        return average(parts) or self._printed_averages.get(CellKey(backbone, "Average", *arm, shots, metric))

    def axis(self, name: str, **fixed: Any) -> list[Any]:
        """Sorted values of the key field `name` over the cells whose other fields match `fixed` (a value or a set)."""
        query = (name, *sorted((key, repr(value)) for key, value in fixed.items()))
        if query not in self._axes:
            self._axes[query] = sorted({getattr(key, name) for key in self._matching(**fixed)})
        return list(self._axes[query])

    def _matching(self, **fixed: Any) -> Collection[CellKey]:
        """The cells whose key fields match `fixed` (a value or a set)."""
        matching = [self._having(name, value) for name, value in fixed.items()]
        return set.intersection(*sorted(matching, key=len)) if matching else self.cells

    def _having(self, name: str, value: Any) -> set[CellKey]:
        """The cells whose key field `name` is this value, or one of a set of values."""
        index = self._index[name]
        if isinstance(value, (set, frozenset)):
            return set().union(*(index.get(one, ()) for one in value))
        return index.get(value, set())

    def dense_lengths(self, backbone: str | None = None) -> list[int]:
        """Context lengths of the dense prompts, in cells or printed averages."""
        where = {} if backbone is None else {"backbone": backbone}
        lengths = set(self.axis("rank", method="dense", basis="identity", **where))
        printed = (key for key in self._printed_averages if (key.method, key.basis) == ("dense", "identity"))
        return sorted(lengths | {key.rank for key in printed if backbone in (None, key.backbone)})

    def parameters(self, backbone: str, arm: Arm) -> int | None:
        """Trainable parameters of an arm, as its runs recorded them."""
        return self._parameters.get((backbone, arm))

    def differences(
        self, first: Arm, second: Arm, *, backbone: str, shots: int, metric: str = "accuracy", unit: Unit = "dataset"
    ) -> dict[str, float]:
        """Differences first − second over the cells that both arms have.

        Two arms with sources are compared on equal sources, an arm without a source with each source of the other. Several
        sources are averaged.

        Parameters
        ----------
        first, second
            The arms.
        backbone, shots, metric
            The cells to compare.
        unit
            A key of `UNITS`. Published cells have no seeds, so only "dataset" gives differences for them.

        Returns
        -------
        dict
            Name of the unit, such as "DTD, seed 1" → difference.
        """
        if unit not in UNITS:
            raise unknown("unit of comparison", unit, UNITS)
        by_dataset: dict[str, list[float]] = defaultdict(list)
        by_run: dict[tuple[str, int], list[float]] = defaultdict(list)
        for dataset, one, other in self._matched(first, second, backbone, shots, metric):
            by_dataset[dataset].append(one.mean - other.mean)
            for seed in sorted(set(one.by_seed) & set(other.by_seed)):
                by_run[dataset, seed].append(one.by_seed[seed] - other.by_seed[seed])
        if self.published:
            return {name: _mean(values) for name, values in by_dataset.items()} if unit == "dataset" else {}
        runs = {key: _mean(values) for key, values in by_run.items()}
        if unit == "run":
            return {f"{dataset}, seed {seed}": value for (dataset, seed), value in runs.items()}
        datasets, seeds = sorted({dataset for dataset, _ in runs}), sorted({seed for _, seed in runs})
        if unit == "dataset":
            return {name: _mean([value for (one, _), value in runs.items() if one == name]) for name in datasets}
        complete = [seed for seed in seeds if all((dataset, seed) in runs for dataset in datasets)]
        return {f"seed {seed}": _mean([runs[dataset, seed] for dataset in datasets]) for seed in complete}

    def _matched(
        self, first: Arm, second: Arm, backbone: str, shots: int, metric: str
    ) -> Iterator[tuple[str, Estimate, Estimate]]:
        methods = {first.method, second.method}
        for dataset in self.axis("dataset", backbone=backbone, shots=shots, metric=metric, method=methods):
            keys = (CellKey(backbone, dataset, *arm, shots, metric) for arm in (first, second))
            one, other = (self._by_source.get(key, {}) for key in keys)
            for source, other_source in product(one, other):
                if source == other_source or not (source and other_source):
                    yield dataset, one[source], other[other_source]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
