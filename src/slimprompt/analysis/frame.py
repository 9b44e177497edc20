"""The frame that tables, figures and claims read: cells × seeds.

A *cell* is a row: one way to adapt (its label) on one backbone, dataset and number of shots, measured in one metric. Its index has
the levels `CELL`, its columns are the seeds, and a missing seed is NaN:

    backbone dataset label    variant basis rank shots metric   source |     1     2     3
    RN50     DTD     dense m4 dense         4    1     accuracy        |  50.1  51.2   NaN
    RN50     DTD     joint r4 joint         4    1     accuracy        |  51.0  52.3  51.8

So the usual questions are pandas expressions or one of the functions below:

    frame = cells(observations(records))              # of runs
    frame = published()[["mean"]]                     # of the paper: one column instead of seeds (slimprompt.paper.published)
    summary(select(frame, metric="accuracy"))         # mean, sd and n of each cell
    average(frame, ["DTD", "Food101"])                # over datasets within each seed
    first, second = paired(frame, "joint r4", "dense m16")
    (first - second).mean(axis=1)                     # on the seeds that both have
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from slimprompt.errors import InputError, count
from slimprompt.lab.inputs import inputs
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.training.metrics import harmonic_mean
from slimprompt.training.recipe import Recipe

#: Index levels that say how a cell was adapted. The label is `RunSpec.label` without the source: `joint r4`, `fixed-B svd r2`,
#: `tip-adapter`, `joint r4 depth 3`. It determines the other three, which are only set for the prompts P = B A of the paper (with an
#: empty `RunSpec.beyond`), so `variant="joint"` selects no others. The basis is "" unless a factor is fixed. The rank of a dense
#: prompt (B = I) is its number of tokens.
HOW = ("label", "variant", "basis", "rank")
#: Index levels of a cell. The source is the source dataset of a transfer, or the training dataset of a cross-dataset run, or "".
CELL = ("backbone", "dataset", *HOW, "shots", "metric", "source")
#: Metrics of cross-dataset runs: accuracy on another dataset by its class names, and on the dataset that they were trained on.
CROSS_DATASET = ("cross_dataset", "source_accuracy")
#: Dataset of the printed averages in the published frame; measured frames have no such row.
AVERAGE = "Average"
#: Label of the best of the dense prompts over their lengths, see `with_best_dense`.
BEST_DENSE = "dense, best length"
#: A frame, or a series with the same index.
Rows = TypeVar("Rows", pd.DataFrame, pd.Series)
#: open_clip's names of the paper's two backbones → their names in the tables.
BACKBONE_TITLES = {
    "ViT-B-16": "ViT-B/16",
    "ViT-B-16-quickgelu": "ViT-B/16",
    "RN50": "RN50",
    "RN50-quickgelu": "RN50",
}


# --- labels ------------------------------------------------------------------------------------------------------------


def dense(n_ctx: int) -> str:
    """Label of the dense prompt of `n_ctx` tokens."""
    return f"dense m{n_ctx}"


def joint(rank: int) -> str:
    """Label of the low-rank prompt that trains both factors."""
    return f"joint r{rank}"


def fixed_b(basis: str, rank: int) -> str:
    """Label of the low-rank prompt that trains A; the basis is fixed, learned, or in transfers "source" or "random"."""
    return f"fixed-B {basis} r{rank}"


def fixed_a(basis: str, rank: int) -> str:
    """Label of the low-rank prompt of a transfer that trains B; `basis` is "source" or "random"."""
    return f"fixed-A {basis} r{rank}"


def how(spec: RunSpec) -> tuple[str, str, str, int]:
    """The values of the levels `HOW` of a run."""
    label = spec.model_copy(update={"source": None}).label  # the source is a level of its own
    if spec.variant is None or spec.beyond:
        return label, "", "", 0
    return label, spec.variant, spec.basis or "", (spec.n_ctx if spec.variant == "dense" else spec.rank) or 0


def backbone_title(spec: RunSpec) -> str:
    """The backbone's name in tables: `ViT-B/16` for OpenAI's weights, with the name of the weights for all others."""
    title = BACKBONE_TITLES.get(spec.backbone, spec.backbone)
    weights = spec.pretrained
    if weights is None or weights == "openai" or Path(weights).stem == spec.backbone.removesuffix("-quickgelu"):
        return title  # OpenAI's own checkpoint files are called ViT-B-16.pt and RN50.pt
    return f"{title} ({Path(weights).name})"


def dataset_title(name: str) -> str:
    """The dataset's name in tables; the path of a folder or CSV file is returned unchanged."""
    from slimprompt.data.benchmarks import BENCHMARKS

    return BENCHMARKS[name].title if name in BENCHMARKS else name


# --- from records to cells ---------------------------------------------------------------------------------------------


def observations(records: Iterable[Record]) -> pd.DataFrame:
    """One row per run and metric: the levels `CELL`, seed, value, run (its folder), n_ctx, parameters and seconds.

    Besides its own metrics (`accuracy`; `seen`, `unseen`, `harmonic`; `CROSS_DATASET`) a run gives the zero-shot levels
    (`zero_shot_accuracy`, …) and the levels of guessing (`chance_accuracy`, …), which are the same for all labels. `parameters` are
    the numbers that it trained, `seconds` the time of training. Two runs with the same cell and seed are an `InputError`.
    """
    rows: list[tuple[Any, ...]] = []
    specs: dict[tuple[Any, ...], RunSpec] = {}
    for record in records:
        spec, facts = record.spec, record.facts
        sizes = spec.n_ctx or 0, facts.get("trainable_parameters"), facts.get("times", {}).get("training")
        for cell, value in _cells_of(record):
            if (cell, spec.seed) in specs:
                raise _duplicate(specs[cell, spec.seed], spec, cell)
            specs[cell, spec.seed] = spec
            rows.append((*cell, spec.seed, float(value), str(record.folder), *sizes))
    columns = [*CELL, "seed", "value", "run", "n_ctx", "parameters", "seconds"]
    # Selecting and grouping by Python's strings takes less time than by pandas' own, which are made for longer columns.
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    whole = dict.fromkeys(("rank", "shots", "seed", "n_ctx"), int)
    return frame.astype({**whole, "value": float, "parameters": float, "seconds": float})


def _cells_of(record: Record) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Cell and value of every metric of a run. The dataset of a cross-dataset cell is the one that was evaluated on."""
    spec, arm = record.spec, how(record.spec)
    backbone, own = backbone_title(spec), dataset_title(spec.dataset)
    levels = dict(record.facts.get("chance") or {})
    if "seen" in levels and "unseen" in levels:
        levels["harmonic"] = harmonic_mean(levels["seen"], levels["unseen"])
    measured = record.metrics if spec.evaluate_on else record.metrics | {f"chance_{k}": v for k, v in levels.items()}
    for metric, value in measured.items():
        dataset, source = own, dataset_title(spec.source) if spec.source else ""
        if spec.evaluate_on:
            name, other, evaluated = metric.partition("accuracy@")
            prefix = name if other else metric.removesuffix("accuracy")
            metric = prefix + CROSS_DATASET[0 if other else 1]
            dataset, source = dataset_title(evaluated) if other else own, own
        yield (backbone, dataset, *arm, spec.shots, metric, source), value


def _duplicate(one: RunSpec, other: RunSpec, cell: tuple[Any, ...]) -> InputError:
    theirs, place = other.flat(), dict(zip(CELL, cell, strict=True))
    fields = [f"{name} ({value} and {theirs[name]})" for name, value in one.flat().items() if theirs[name] != value]
    differ = "differ in " + ", ".join(fields) if fields else "have the same spec"
    where = f"{place['backbone']}, {place['dataset']}, {place['shots']} shots, {place['label']}, seed {one.seed}"
    return InputError(
        f"two runs belong to the same cell ({where}); they {differ}. "
        "A table needs one run per cell: select runs with --where field=value, or put them in separate folders."
    )


def cells(observed: pd.DataFrame) -> pd.DataFrame:
    """The cells of `observations`, in sorted order: one row per cell, one column per seed, NaN for a missing seed."""
    return observed.pivot(index=list(CELL), columns="seed", values="value").sort_index()


def runs_of(observed: pd.DataFrame) -> pd.Series:
    """Cell → its run folders, as a tuple."""
    return observed.groupby(list(CELL))["run"].agg(tuple)


def costs_of(observed: pd.DataFrame) -> pd.DataFrame:
    """(backbone, dataset, label, shots) → trained parameters and seconds of training, averaged over the runs on all classes."""
    on_all_classes = observed[observed["metric"] == "accuracy"]
    return on_all_classes.groupby(["backbone", "dataset", "label", "shots"])[["parameters", "seconds"]].mean()


class Measurements(NamedTuple):
    """What tables and figures read."""

    frame: pd.DataFrame
    """See `cells`."""
    runs: pd.Series | None = None
    """See `runs_of`; None for published numbers."""
    costs: pd.DataFrame | None = None
    """See `costs_of`."""

    @classmethod
    def of(cls, observed: pd.DataFrame) -> Measurements:
        """Those of `observations`."""
        return cls(cells(observed), runs_of(observed), costs_of(observed))

    def with_best_dense(self) -> Measurements:
        """These and the best of the dense prompts, see `with_best_dense`; its runs are those of the best one."""
        chosen = best_dense(self.frame)
        frame = with_best_dense(self.frame, chosen)
        if self.runs is None:
            return self._replace(frame=frame)
        added = self.runs.reindex(chosen.index).set_axis(_named_best(chosen.index))
        return self._replace(frame=frame, runs=pd.concat([self.runs, added]))


# --- selection ---------------------------------------------------------------------------------------------------------


def select(frame: Rows, **where: Any) -> Rows:
    """The rows of a frame or series whose index levels have the given value, or one of a list, tuple or set of values."""
    index = frame.index
    assert isinstance(index, pd.MultiIndex)
    chosen = np.ones(len(frame), dtype=bool)
    for name, value in where.items():
        level = index.names.index(name)
        several = isinstance(value, Collection) and not isinstance(value, str)
        known = index.levels[level].get_indexer(pd.Index(list(value) if several else [value]))
        chosen &= np.isin(index.codes[level], known[known >= 0])
    return frame[chosen]


def axis(frame: pd.DataFrame, name: str, **where: Any) -> list[Any]:
    """Sorted values of an index level over the cells that match `where` (see `select`); `AVERAGE` is not a dataset."""
    values = select(frame, **where).index.get_level_values(name).unique()
    return sorted(value for value in values.tolist() if (name, value) != ("dataset", AVERAGE))


def headline_rank(frame: pd.DataFrame, backbone: str, metric: str = "accuracy") -> int:
    """The rank that represents low rank on a backbone: that of its joint prompts which is nearest to the paper's 4."""
    ranks = axis(frame, "rank", backbone=backbone, variant="joint", metric=metric)
    return min(ranks, key=lambda rank: (abs(rank - 4), rank), default=4)


def full_length(frame: pd.DataFrame, backbone: str) -> int:
    """Number of tokens of the longest dense prompt on a backbone."""
    return max(axis(frame, "rank", backbone=backbone, variant="dense", basis=""), default=16)


def main_labels(frame: pd.DataFrame, backbone: str, metric: str = "accuracy") -> dict[str, str]:
    """The labels of the main comparison that have results on a backbone, by role.

    The roles are "dense", "dense short" (as many tokens as the rank), "trainable" and "orthogonal".
    """
    rank, full = headline_rank(frame, backbone, metric), full_length(frame, backbone)
    labels = {"dense": dense(full), "dense short": dense(rank)} if full != rank else {"dense": dense(full)}
    labels |= {"trainable": joint(rank), "orthogonal": fixed_b("orthogonal", rank)}
    present = set(axis(frame, "label", backbone=backbone, metric=metric))
    return {role: label for role, label in labels.items() if label in present}


def best_covered(frame: pd.DataFrame, labels: Sequence[str], **where: Any) -> list[str]:
    """The datasets that have results in most of the (label, shots) cells that match `where`; averages are over these datasets."""
    chosen = select(frame, label=labels, **where)
    counts = Counter(name for name in chosen.index.get_level_values("dataset") if name != AVERAGE)
    return sorted(name for name, count in counts.items() if count == max(counts.values()))


def sorted_backbones(frame: pd.DataFrame, *, resnet_first: bool, **where: Any) -> list[str]:
    """Backbones of the cells that match `where`, ResNets before or after the others, as in the paper's tables."""

    def is_resnet(name: str) -> bool:
        return "rn" in name.lower() or "resnet" in name.lower()

    return sorted(axis(frame, "backbone", **where), key=lambda name: (is_resnet(name) != resnet_first, name))


# --- statistics --------------------------------------------------------------------------------------------------------


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean, sample standard deviation (NaN for one seed) and number n of seeds of each row; rows without a seed are left out."""
    known = frame.dropna(how="all")
    return pd.DataFrame({"mean": known.mean(axis=1), "sd": known.std(axis=1), "n": known.count(axis=1)})


def complete_means(frame: pd.DataFrame, levels: Sequence[Any]) -> pd.DataFrame:
    """Mean of the rows with the same `levels` within each seed, NaN where one of them is missing."""
    grouped = frame.groupby(level=list(levels))
    return grouped.mean().where(grouped.count().eq(grouped.size(), axis=0))


def average(frame: pd.DataFrame, datasets: Sequence[str]) -> pd.DataFrame:
    """Mean over `datasets` within each seed, NaN where one of them is missing; the index has no dataset.

    Where not every dataset is published, it is the printed average.
    """
    levels = [name for name in frame.index.names if name != "dataset"]
    chosen = select(frame, dataset=datasets)
    grouped = chosen.groupby(level=levels)
    means = grouped.mean().where(grouped.count() == len(set(datasets)))
    printed = select(frame, dataset=AVERAGE).droplevel("dataset")
    return means.combine_first(printed).dropna(how="all")


def on_common_seeds(frame: pd.DataFrame, along: Sequence[str]) -> pd.DataFrame:
    """The rows, with NaN in the seeds that not all rows have which differ only in the levels `along`."""
    others = [name for name in frame.index.names if name not in along]
    complete = frame.notna()
    return frame.where(complete.groupby(level=others).transform("all") if others else complete.all())


def best(frame: pd.DataFrame, along: Sequence[str]) -> pd.DataFrame:
    """Of the rows that differ only in the levels `along`, the one with the highest mean over the seeds that all of them have.

    Rows without a common seed have no best one.
    """
    means = on_common_seeds(frame, along).mean(axis=1).dropna().to_frame("mean")
    others = [name for name in frame.index.names if name not in along]
    first = means.sort_values("mean", ascending=False, kind="stable").groupby(level=others).head(1)
    return frame.loc[frame.index.isin(first.index)]


def best_dense(frame: pd.DataFrame) -> pd.DataFrame:
    """The best of the dense prompts over their lengths, per backbone, dataset, shots and metric."""
    lengths = select(frame, variant="dense", basis="", source="")
    return best(lengths[lengths.index.get_level_values("dataset") != AVERAGE], HOW)


def with_best_dense(frame: pd.DataFrame, chosen: pd.DataFrame | None = None) -> pd.DataFrame:
    """The frame with a further row `BEST_DENSE` for each of `best_dense`, unless it has one (as the published frame)."""
    chosen = best_dense(frame) if chosen is None else chosen
    known = select(frame, label=BEST_DENSE).index.droplevel(list(HOW))
    added = chosen.set_axis(_named_best(chosen.index))
    return pd.concat([frame, added[~added.index.droplevel(list(HOW)).isin(known)]]).sort_index()


def _named_best(index: pd.Index) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(index.to_frame(index=False).assign(label=BEST_DENSE, basis="best", rank=0))


def paired(
    frame: pd.DataFrame, first: str, second: str, *, metric: str = "accuracy"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells that two labels have in common, on the seeds that both have.

    Both frames have the same index, (backbone, dataset, shots, source), and NaN in the same places. If only one of them depends on
    a source, the other one is repeated for each source.
    """
    sides = [select(frame, label=label, metric=metric).droplevel([*HOW, "metric"]) for label in (first, second)]
    sides = [side[side.index.get_level_values("dataset") != AVERAGE] for side in sides]
    sourced = [bool((side.index.get_level_values("source") != "").any()) for side in sides]
    if sourced[0] != sourced[1]:
        plain, other = sourced.index(False), sides[sourced.index(True)]
        repeated = sides[plain].droplevel("source").reindex(other.index.droplevel("source"))
        sides[plain] = repeated.set_axis(other.index)
    one, two = sides[0].align(sides[1], join="inner")
    both = one.notna() & two.notna()
    kept = both.any(axis=1)
    return one.where(both)[kept], two.where(both)[kept]


#: What counts as one observation of a paired comparison.
UNITS: dict[str, str] = {
    "dataset": "one difference per dataset, averaged over its matched seeds",
    "run": "one difference per matched pair of runs",
    "seed": "one difference per seed, averaged over the datasets",
}


def differences(
    frame: pd.DataFrame,
    first: str,
    second: str,
    *,
    backbone: str,
    shots: int,
    metric: str = "accuracy",
    unit: str = "dataset",
) -> dict[str, float]:
    """Differences first − second in one backbone and shot count (see `by_unit`)."""
    one, other = paired(select(frame, backbone=backbone, shots=shots), first, second, metric=metric)
    return by_unit(one - other, unit)


def by_unit(difference: pd.DataFrame, unit: str = "dataset") -> dict[str, float]:
    """Name of the unit, such as "DTD, seed 1" → difference, from the differences of the two frames of `paired`.

    `unit` is a key of `UNITS`. Several sources of a dataset are averaged.
    """
    by_dataset = difference.groupby(level="dataset").mean()  # datasets × seeds
    if unit == "dataset":
        return {str(name): value for name, value in by_dataset.mean(axis=1).items()}
    if unit == "run":
        runs = by_dataset.stack().dropna().to_dict()
        return {f"{dataset}, seed {seed}": value for (dataset, seed), value in runs.items()}  # type: ignore[misc]
    complete = by_dataset.dropna(axis=1) if len(by_dataset) else by_dataset
    return {f"seed {seed}": value for seed, value in complete.mean().dropna().items()}


def reference(
    frame: pd.DataFrame, level: str, backbone: str, datasets: Sequence[str], shots: int, metric: str
) -> float | None:
    """The level "zero_shot" or "chance" in a metric, averaged over datasets; None if one of them has no runs.

    It is the same for all labels. In a folder without test images, the images that are held out depend on shots and seed.
    """
    found = select(frame, backbone=backbone, dataset=datasets, shots=shots, metric=f"{level}_{metric}")
    if found.empty:
        return None
    by_dataset = found.groupby(level="dataset").first().mean(axis=1)  # the first label that has the seed
    return float(by_dataset.mean()) if len(by_dataset) == len(set(datasets)) else None


# --- settings that should agree ----------------------------------------------------------------------------------------

#: Fields that should have one value in all compared runs; the other fields are axes of the studies or part of the label.
_SETTINGS = ("pretrained", "precision")
_PROMPT_SETTINGS = (
    *("n_ctx", "position"),
    *(f"recipe.{name}" for name in Recipe.model_fields if name not in ("anchor", "prograd", "class_weights")),
)


def mixed_settings(records: Iterable[Record]) -> list[str]:
    """One sentence per setting that differs between runs of one backbone, and per backbone or dataset that changed between runs.

    Such runs are not strictly comparable.
    """
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in records:
        spec = record.spec
        fields = spec.flat()
        for name in (*_SETTINGS, *(_PROMPT_SETTINGS if spec.is_prompt else ())):
            if name == "n_ctx" and (spec.variant == "dense" or spec.words):
                continue  # the length of a dense prompt is an axis of the study, and words decide theirs
            found[spec.backbone, name][str(fields[name])] += 1
        for one, fingerprint in inputs(spec, record.facts).items():
            found[one][fingerprint] += 1
    return [
        f"{what}: the runs mix {name} = "
        + ", ".join(f"{value} ({count(number, 'run')})" for value, number in sorted(counts.items()))
        for (what, name), counts in found.items()
        if len(counts) > 1
    ]
