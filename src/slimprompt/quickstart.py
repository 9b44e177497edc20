"""The first command of a new user: a small comparison of prompts on the embedded model, offline, in about a minute.

It is a study like every other: a grid, the means over its seeds, and the page of its runs. The best prompt is saved.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.data import Benchmark, load_benchmark
from slimprompt.errors import InputError, unknown
from slimprompt.lab.display import shown
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import Executor, default_workers
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.executors.processes import ProcessExecutor
from slimprompt.lab.grid import Grid
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.study import open_study, outcome_of, run_study
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.training.recipe import RECIPES, Recipe

if TYPE_CHECKING:
    from slimprompt.classifier import Classifier
    from slimprompt.clip.backbone import Backbone

BACKBONE, SHOTS, SEEDS, RECIPE = "pocket", (1, 4, 16), (1, 2, 3), RECIPES["fast"]
#: The compared prompts, by their name in the table.
PROMPTS: dict[str, dict[str, Any]] = {
    "dense CoOp": {"variant": "dense"},
    "joint rank 4": {"variant": "joint", "rank": 4},
    "fixed orthogonal B": {"variant": "fixed-B", "basis": "orthogonal", "rank": 4},
}
METRICS = ("accuracy", "seen", "unseen", "harmonic")
_IMAGES = 12  # test images whose predictions are shown


class Line(NamedTuple):
    """One row of the results: a prompt at one number of shots, or zero-shot."""

    method: str
    shots: int
    scores: dict[str, tuple[float, float]]
    """Metric → mean and sample standard deviation over the seeds, in percent."""
    parameters: int
    seconds: float
    """Mean training time of a prompt on all classes."""


class Prediction(NamedTuple):
    """The prediction of the saved prompt for one test image."""

    image: Path
    true: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class Quickstart:
    """The results of the quickstart."""

    benchmark: Benchmark
    records: list[Record]
    lines: list[Line]
    best: Record
    """The run of the saved prompt, selected on validation images."""
    validation_accuracy: float
    model: Path
    predictions: list[Prediction]


def quickstart_specs(benchmark: str, recipe: Recipe) -> list[RunSpec]:
    """3 prompts × 3 numbers of shots × 3 seeds, on all classes and on the base classes: 54 runs."""
    grid = Grid(backbones=(BACKBONE,), datasets=(benchmark,), shots=SHOTS, seeds=SEEDS, recipe=recipe)
    subsets = ("all", "base")
    specs = [spec for subset in subsets for one in PROMPTS.values() for spec in grid.specs(class_subset=subset, **one)]
    return sorted(specs, key=lambda spec: spec.sample)


def run_quickstart(
    out: Path, benchmark: str = "pocket-sketch", *, recipe: Recipe | None = None, workers: int | None = None
) -> Quickstart:
    """Execute the runs in `out/runs`, save the best prompt to `out/model.safetensors`, and predict some test images."""
    from slimprompt.saved import FILE

    if benchmark not in POCKET_BENCHMARKS:
        raise unknown(
            "pocket benchmark", benchmark, POCKET_BENCHMARKS, next_step="On real benchmarks use `slimprompt study`."
        )
    model = out / FILE
    if model.exists() and not _is_quickstart(model):
        raise InputError(f"{model} exists and was not written by quickstart; choose another --out")
    images = load_benchmark(benchmark)
    environment = RunEnvironment(runs=out / "runs", device="cpu", invocation=("slimprompt", "quickstart"))
    study = open_study(quickstart_specs(benchmark, recipe or RECIPE), environment.runs)
    workers = workers or min(default_workers(environment), 4)
    executor: Executor = ProcessExecutor(environment, workers) if workers > 1 else InlineExecutor(environment)
    outcome = outcome_of(study, shown("quickstart", study, run_study(study, executor, prompt_batch=len(PROMPTS))))
    if outcome.failed:
        raise InputError(f"{len(outcome.failed)} runs failed, the first with: {outcome.failed[0].error}")
    records = sorted((*outcome.present, *outcome.complete), key=lambda record: record.spec.fingerprint)
    best, accuracy, classifier = best_on_validation(records, images)
    classifier.save(model, overwrite=True, validation_accuracy=accuracy, run=best.spec.fingerprint)
    return Quickstart(images, records, results(records), best, accuracy, model, _predictions(classifier, images))


def _is_quickstart(model: Path) -> bool:
    from slimprompt.saved import read_model

    return "validation_accuracy" in read_model(model).entries


def results(records: Sequence[Record]) -> list[Line]:
    """Zero-shot, and every prompt at every number of shots: means over the seeds."""
    plain = {metric: (_mean(records, f"zero_shot_{metric}")[0], 0.0) for metric in METRICS}
    lines = [Line("zero-shot", 0, plain, 0, 0.0)]
    for name in PROMPTS:
        for shots in SHOTS:
            mine = [record for record in records if (title(record), record.spec.shots) == (name, shots)]
            whole = [record for record in mine if record.spec.class_subset == "all"]
            seconds = fmean(record.facts["times"]["training"] for record in whole)
            scores = {metric: _mean(mine, metric) for metric in METRICS}
            lines.append(Line(name, shots, scores, whole[0].facts["trainable_parameters"], seconds))
    return lines


def title(record: Record) -> str:
    """The name of a run's prompt in the table."""
    spec = record.spec
    return next(
        name for name, one in PROMPTS.items() if (one["variant"], one.get("basis")) == (spec.variant, spec.basis)
    )


def _mean(records: Sequence[Record], metric: str) -> tuple[float, float]:
    values = [record.metrics[metric] for record in records if metric in record.metrics]
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def best_on_validation(records: Sequence[Record], images: Benchmark) -> tuple[Record, float, Classifier]:
    """The best run on all classes, its accuracy on the validation images, and its classifier.

    There are few validation images, so the prompt and number of shots with the best mean over the seeds are selected first,
    then the best of their seeds. Ties go to the smaller prompt.
    """
    from slimprompt.clip.backbone import load_backbone
    from slimprompt.images.bank import FeatureBank
    from slimprompt.training.evaluation import make_eval_set

    backbone = load_backbone(BACKBONE, device="cpu")
    paths, labels = [images.path(item) for item in images.val], [item.label for item in images.val]
    eval_set = make_eval_set(FeatureBank(backbone), paths, labels, images.class_names, images.decode)
    scores: dict[tuple[str, int], list[tuple[float, int, Record]]] = defaultdict(list)
    for record in records:
        if record.spec.class_subset == "all":
            correct = _classifier(record, images, backbone).head_.correct(eval_set)
            score = 100 * float(correct.double().mean())
            scores[title(record), record.spec.shots].append((score, -record.spec.seed, record))

    def standing(group: list[tuple[float, int, Record]]) -> tuple[float, int]:
        return fmean(score for score, _, _ in group), -int(group[0][2].facts["trainable_parameters"])

    group = max(scores.values(), key=standing)
    score, _, best = max(group, key=lambda row: row[:2])
    return best, score, _classifier(best, images, backbone)


def _classifier(record: Record, images: Benchmark, backbone: Backbone) -> Classifier:
    """A classifier with the final prompt of a run."""
    import torch

    from slimprompt.classifier import Classifier
    from slimprompt.prompts.prompt import Prompt

    basis, coefficients = (torch.from_numpy(record.factors()[name]) for name in "BA")
    prompt = Prompt(basis, coefficients, record.spec.row.trainable)
    return Classifier.of_prompt(backbone, prompt, record.spec.prompt, images.class_names)


def _predictions(classifier: Classifier, images: Benchmark) -> list[Prediction]:
    """Predictions for test images that are sampled at random."""
    items = random.Random(0).sample(images.test, min(_IMAGES, len(images.test)))
    probabilities = classifier.predict_proba([images.path(item) for item in items])
    found = []
    for item, row in zip(items, probabilities, strict=True):
        best = int(row.argmax())
        found.append(Prediction(images.path(item), item.class_name, images.class_names[best], float(row[best])))
    return found
