"""The first command of a new user: a small comparison of prompts on the embedded model, offline, in about a minute.

Zero-shot, dense CoOp, joint rank 4 and a fixed orthogonal basis, at 1, 4 and 16 shots over three seeds, on all classes and
on base and new classes. It consists of ordinary runs, like every study.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.data import Benchmark, load_benchmark
from slimprompt.errors import InputError, unknown
from slimprompt.files import remove_folder, write_file
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors import Executor, default_workers
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.executors.processes import ProcessExecutor
from slimprompt.lab.observer import StudyObserver
from slimprompt.lab.records import Record
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.study import run_study
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.progress import progress
from slimprompt.training.recipe import RECIPES, Recipe

if TYPE_CHECKING:
    from slimprompt.classifiers.prompt import PromptClassifier

BACKBONE = "pocket"
SHOTS, SEEDS, RANK, N_CTX = (1, 4, 16), (1, 2, 3), 4, 16
RECIPE = RECIPES["fast"]
#: The compared prompts, by their name in the table.
ARMS: dict[str, dict[str, Any]] = {
    "dense CoOp": {"variant": "dense"},
    f"joint rank {RANK}": {"variant": "joint", "rank": RANK},
    "fixed orthogonal B": {"variant": "fixed-B", "basis": "orthogonal", "rank": RANK},
}
METRICS = ("accuracy", "seen", "unseen", "harmonic")
_WEIGHTS_NOTE = ".weights"


class Line(NamedTuple):
    """One row of the results table."""

    method: str
    shots: int | None
    scores: dict[str, tuple[float, float | None]]
    """Metric → mean and standard deviation over the seeds in percent; the deviation is None for zero-shot."""
    parameters: int
    seconds: float | None
    """Mean training time of a prompt on all classes."""
    runs: tuple[str, ...] = ()


class Prediction(NamedTuple):
    """The prediction of the saved prompt for one test image: most likely classes with percentages, and zero-shot's class."""

    image: Path
    true: str
    best: tuple[tuple[str, float], ...]
    zero_shot: str

    @property
    def right(self) -> bool:
        """Whether the most likely class is the true one."""
        return self.best[0][0] == self.true


@dataclass(frozen=True)
class Quickstart:
    """The results of the quickstart."""

    benchmark: Benchmark
    title: str
    recipe: Recipe
    records: tuple[Record, ...]
    lines: tuple[Line, ...]
    chance: dict[str, float]
    best: Record
    best_method: str
    best_validation: float
    """Validation accuracy by which the saved prompt was selected."""
    prompt: Path
    predictions: tuple[Prediction, ...]
    seconds: float


def quickstart_specs(benchmark: str, recipe: Recipe | None = None) -> list[RunSpec]:
    """3 prompts × 3 numbers of shots × 3 seeds, on all classes and on the base classes: 54 runs."""
    return [
        RunSpec(
            backbone=BACKBONE,
            dataset=benchmark,
            class_subset=subset,
            shots=shots,
            seed=seed,
            n_ctx=N_CTX,
            recipe=recipe or RECIPE,
            **arm,
        )
        for seed in SEEDS
        for shots in SHOTS
        for subset in ("all", "base")
        for arm in ARMS.values()
    ]


def run_quickstart(
    out: Path,
    benchmark: str = "pocket-sketch",
    *,
    recipe: Recipe | None = None,
    workers: int | None = None,
    n_images: int = 12,
) -> Quickstart:
    """Execute the runs in `out/runs`, save the best prompt to `out/prompt`, and predict some test images.

    The best prompt is selected on validation images; nothing is selected on test images. Complete runs with the same weights
    are not repeated.
    """
    started = time.perf_counter()
    if benchmark not in POCKET_BENCHMARKS:
        raise unknown(
            "pocket benchmark", benchmark, POCKET_BENCHMARKS, next_step="On real benchmarks use `slimprompt study`."
        )
    _check_prompt_folder(out / "prompt")
    runs = _runs_folder(out)
    images = load_benchmark(benchmark)
    environment = RunEnvironment(runs=runs, device="cpu", invocation=("slimprompt", "quickstart"))
    workers = workers or min(default_workers(environment), 4)
    executor: Executor = ProcessExecutor(environment, workers) if workers > 1 else InlineExecutor(environment)
    outcome = run_study(quickstart_specs(benchmark, recipe), runs, executor, _Bar(), prompt_batch=len(ARMS))
    if outcome.failed:
        raise InputError(f"{len(outcome.failed)} runs failed, the first with: {outcome.failed[0].error}")
    records = tuple(sorted((*outcome.present, *outcome.complete), key=lambda one: one.spec.fingerprint))
    best, validation, classifier = best_on_validation(records, images)
    prompt = classifier.save(out / "prompt", overwrite=True, validation_accuracy=validation, run=best.spec.fingerprint)
    return Quickstart(
        benchmark=images,
        title=POCKET_BENCHMARKS[benchmark].title,
        recipe=recipe or RECIPE,
        records=records,
        lines=tuple(table_lines(records)),
        chance=_chance(records),
        best=best,
        best_method=f"{_method(best)}, {best.spec.shots}-shot",
        best_validation=validation,
        prompt=prompt,
        predictions=tuple(predict_some(classifier, images, n_images)),
        seconds=time.perf_counter() - started,
    )


class _Bar(StudyObserver):
    """A progress bar over the runs, if there is a terminal."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def begin(self, specs: list[RunSpec], present: list[Record]) -> None:
        self._advance = self._open.enter_context(progress("training prompts", len(specs)))
        self._advance(len(present))

    def ended(self, record: Record) -> None:
        self._advance(1, note=record.spec.label)

    def end(self) -> None:
        self._open.close()


def _check_prompt_folder(folder: Path) -> None:
    """Raise an error unless the folder is free, or holds the prompt of a quickstart, which is replaced."""
    from slimprompt.saved.prompt import PROMPT_FILES, read_prompt

    PROMPT_FILES.check_free(folder, overwrite=True)
    if PROMPT_FILES.is_saved(folder) and "run" not in (read_prompt(folder).description.model_extra or {}):
        raise InputError(f"{folder} exists and was not written by quickstart; choose another --out")


def _runs_folder(out: Path) -> Path:
    """`out/runs`, emptied if its runs were made with other weights."""
    runs, facts = out / "runs", files("slimprompt").joinpath(f"clip/models/{BACKBONE}.facts.json")
    weights = json.loads(facts.read_text(encoding="utf-8"))["sha256"]
    note = runs / _WEIGHTS_NOTE
    if runs.exists():
        if not note.is_file() and any(not path.name.startswith(".") for path in runs.iterdir()):
            raise InputError(f"{runs} exists and was not written by quickstart; choose another --out")
        if note.is_file() and note.read_text(encoding="utf-8").strip() != weights:
            remove_folder(runs)
    write_file(note, weights + "\n")
    return runs


def table_lines(records: Sequence[Record]) -> list[Line]:
    """The rows of the results table: zero-shot first, then every method at every number of shots."""
    plain = {metric: (_over_seeds(records, f"zero_shot_{metric}")[0], None) for metric in METRICS}
    lines = [Line("zero-shot", None, {**plain}, parameters=0, seconds=None)]
    for method in ARMS:
        for shots in SHOTS:
            mine = [record for record in records if _method(record) == method and record.spec.shots == shots]
            whole = [record for record in mine if record.spec.class_subset == "all"]
            scores = {metric: _over_seeds(mine, metric) for metric in METRICS}
            parameters = int(whole[0].facts["trainable_parameters"])
            seconds = sum(record.facts["times"]["training"] for record in whole) / len(whole)
            lines.append(Line(method, shots, scores, parameters, seconds, tuple(str(record.folder) for record in mine)))
    return lines


def _method(record: Record) -> str:
    spec = record.spec
    return next(name for name, arm in ARMS.items() if (spec.variant, spec.basis) == (arm["variant"], arm.get("basis")))


def _over_seeds(records: Sequence[Record], metric: str) -> tuple[float, float | None]:
    from slimprompt.analysis.statistics import summarise

    summary = summarise([record.metrics[metric] for record in records if metric in record.metrics])
    if summary is None:
        raise InputError(f"no run has measured {metric}")
    return summary.mean, summary.sd


def _chance(records: Sequence[Record]) -> dict[str, float]:
    from slimprompt.training.metrics import harmonic_mean

    levels: dict[str, float] = {}
    for record in records:
        levels |= record.facts["chance"]
    return {**levels, "harmonic": harmonic_mean(levels["seen"], levels["unseen"])}


def best_on_validation(records: Sequence[Record], images: Benchmark) -> tuple[Record, float, PromptClassifier]:
    """The best run, its accuracy on the validation images, and its classifier.

    There are few validation images, so the method and number of shots with the best mean over the seeds are selected first,
    then the best of their seeds. Ties go to the smaller prompt.
    """
    import torch

    from slimprompt.clip.backbone import load_backbone
    from slimprompt.images.bank import FeatureBank
    from slimprompt.training.evaluation import accuracy

    backbone = load_backbone(BACKBONE, device="cpu")
    features = FeatureBank(backbone).features([images.path(item) for item in images.val])
    labels = torch.tensor([item.label for item in images.val])
    scores: dict[tuple[str, int], list[tuple[float, int, Record]]] = defaultdict(list)
    for record in records:
        if record.spec.class_subset == "all":
            score = accuracy(features, classifier_of(record, images.class_names, backbone).class_features_, labels)
            scores[_method(record), record.spec.shots].append((score, -record.spec.seed, record))

    def standing(group: list[tuple[float, int, Record]]) -> tuple[float, int]:
        return sum(score for score, _, _ in group) / len(group), -int(group[0][2].facts["trainable_parameters"])

    seeds: list[tuple[float, int, Record]] = max(scores.values(), key=standing)
    score, _, best = max(seeds, key=lambda one: one[:2])
    return best, score, classifier_of(best, images.class_names, backbone)


def classifier_of(record: Record, class_names: Sequence[str], backbone: Any) -> PromptClassifier:
    """A classifier with the final prompt of a run."""
    import torch

    from slimprompt.classifiers.prompt import PromptClassifier
    from slimprompt.prompts.prompt import Prompt
    from slimprompt.prompts.spec import VARIANTS

    spec, factors = record.spec, record.factors()
    assert spec.variant is not None  # the runs of a quickstart train prompts
    trainable = VARIANTS[spec.variant].trainable
    words = torch.from_numpy(factors["W"]) if spec.anchored else None
    prompt = Prompt(torch.from_numpy(factors["B"]), torch.from_numpy(factors["A"]), trainable, words)
    classifier = PromptClassifier(
        backbone,
        variant=spec.variant,
        rank=spec.rank,
        basis=spec.basis,
        n_ctx=spec.n_ctx,
        words=spec.words,
        anchored=spec.anchored,
        depth=spec.depth,
        position=spec.position,
        recipe=spec.recipe,
        seed=spec.seed,
    )
    return classifier.set_prompt(backbone, prompt, class_names)


def predict_some(classifier: PromptClassifier, images: Benchmark, count: int, seed: int = 0) -> list[Prediction]:
    """Predictions for `count` test images, sampled at random."""
    from slimprompt.methods.zero_shot import zero_shot_features
    from slimprompt.training.evaluation import class_scores

    items = random.Random(seed).sample(images.test, min(count, len(images.test)))
    features = classifier.encode([images.path(item) for item in items])
    zero_shot = zero_shot_features(classifier.backbone_, images.class_names, images.templates)
    before = class_scores(features, zero_shot).argmax(1).tolist()
    found = []
    for item, row, label in zip(items, classifier.probabilities(features), before, strict=True):
        best = tuple((str(classifier.classes_[index]), 100 * float(row[index])) for index in row.argsort()[::-1][:3])
        found.append(Prediction(images.path(item), item.class_name, best, images.class_names[label]))
    return found
