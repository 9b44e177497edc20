"""Run records as a tidy table of measured values, one row per run and metric."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from slimprompt.analysis.arms import arm_label, arm_of, backbone_title, dataset_title
from slimprompt.analysis.results import CROSS_DATASET, CellKey
from slimprompt.errors import InputError
from slimprompt.lab.inputs import inputs
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.training.recipe import Recipe

#: Columns of the table that `observe` returns.
COLUMNS = (*CellKey._fields, "seed", "value", "parameters", "run")


def observe(records: Iterable[Record]) -> pd.DataFrame:
    """One row per run and metric.

    Parameters
    ----------
    records
        Complete runs.

    Returns
    -------
    pandas.DataFrame
        The columns are `COLUMNS`.

    Raises
    ------
    InputError
        If two runs have the same cell and seed; the message names the fields in which they differ.
    """
    rows: list[tuple[Any, ...]] = []
    seen: dict[tuple[CellKey, int], RunSpec] = {}
    for record in records:
        spec = record.spec
        for key, value in _cells(record):
            if (key, spec.seed) in seen:
                raise _duplicate(seen[key, spec.seed], spec, key)
            seen[key, spec.seed] = spec
            parameters = record.facts.get("trainable_parameters")
            rows.append((*key, spec.seed, float(value), parameters, str(record.folder)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _cells(record: Record) -> Iterator[tuple[CellKey, float]]:
    """Key and value of every metric of a run.

    In a cross-dataset run, the dataset of a cell is the one that was evaluated on, so that arms are compared over datasets.
    """
    spec, arm = record.spec, arm_of(record.spec)
    own = dataset_title(spec.dataset)
    for metric, value in record.metrics.items():
        dataset, source = own, dataset_title(spec.source) if spec.source else ""
        if spec.evaluate_on:
            name, other, evaluated = metric.partition("accuracy@")
            prefix = name if other else metric.removesuffix("accuracy")
            metric = prefix + CROSS_DATASET[0 if other else 1]
            dataset, source = dataset_title(evaluated) if other else own, own
        yield CellKey(backbone_title(spec), dataset, *arm, spec.shots, metric, source), value


def _duplicate(one: RunSpec, other: RunSpec, key: CellKey) -> InputError:
    theirs = other.flat()
    fields = [f"{name} ({value} and {theirs[name]})" for name, value in one.flat().items() if theirs[name] != value]
    how = "differ in " + ", ".join(fields) if fields else "have the same spec"
    cell = f"{key.backbone}, {key.dataset}, {key.shots} shots, {arm_label(key.arm)}, seed {one.seed}"
    return InputError(
        f"two runs belong to the same cell ({cell}); they {how}. "
        "A table needs one run per cell: select runs with --where field=value, or put them in separate folders."
    )


#: Fields that should have one value in all compared runs; the other fields are the axes of the studies or part of the arm.
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
        + ", ".join(f"{value} ({count} runs)" for value, count in sorted(counts.items()))
        for (what, name), counts in found.items()
        if len(counts) > 1
    ]
