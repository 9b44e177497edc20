"""Specs → run folders: sample → task → method → evaluation → record."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.data import Benchmark, base_new, check_images, few_shot, held_out, make_manifest, short_classes
from slimprompt.data.catalogue import open_dataset
from slimprompt.data.manifest import Manifest
from slimprompt.errors import InputError, first_few, one_line
from slimprompt.files import cache_dir
from slimprompt.lab import provenance
from slimprompt.lab.environment import RunEnvironment, torch_threads
from slimprompt.lab.inputs import KnownInputs, inputs
from slimprompt.lab.records import COMPLETE, FAILED, Record, find_run, store_run
from slimprompt.lab.spec import Model, RunSpec, SampleKey, import_user_functions
from slimprompt.methods.table import find_method
from slimprompt.training.metrics import harmonic_mean

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from slimprompt.images.bank import FeatureBank
    from slimprompt.images.decode import Decode
    from slimprompt.methods.head import FittedHead
    from slimprompt.methods.task import Task
    from slimprompt.training.evaluation import EvalSet


class SetupError(InputError):
    """A backbone or dataset cannot be loaded, or is not what complete runs were made with: none of its runs can succeed."""


class Batch(NamedTuple):
    """Runs on the same images and classes, and the inputs that complete runs of the folder were made with."""

    specs: Sequence[RunSpec]
    known: KnownInputs = KnownInputs()


def batch_key(spec: RunSpec) -> tuple[Any, ...]:
    """Runs with the same key use the same images and classes in the same order, so they can be trained together.

    The run of a method other than a prompt shares its key with no other run.
    """
    own = {"variant", "rank", "basis", "source", "source_depth"}
    return tuple(getattr(spec, name) for name in RunSpec.model_fields if name not in own)


def make_run(spec: RunSpec, loaded: LoadedInputs) -> Record:
    """`make_runs` for a single spec."""
    return make_runs(Batch([spec]), loaded)[0]


def make_runs(batch: Batch, loaded: LoadedInputs) -> list[Record]:
    """The records of runs with one `batch_key`, made together unless all of them are complete.

    If some are complete, they are trained again with the others, because float rounding depends on the prompts that are
    trained together; their records stay. A run that fails is recorded with its error; a `SetupError` stops the study.
    """
    environment = loaded.environment
    import_user_functions(batch.specs)
    found = ((spec, find_run(environment.runs, spec)) for spec in batch.specs)
    records = {spec: record for spec, record in found if record is not None and record.complete}
    if missing := [spec for spec in batch.specs if spec not in records]:
        try:
            with torch_threads(environment.threads):
                records |= _make(batch, missing, loaded)
        except InputError:
            raise
        except Exception as error:  # a mistake in this program: the study goes on
            records |= {spec: store_run(environment.runs, spec, failure(error)) for spec in missing}
    return [records[spec] for spec in batch.specs]


# --- what runs read --------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """The images of a run."""

    train: Benchmark
    """Its `train` items are the training images."""
    evaluated: dict[str, Benchmark]
    """By metric, what of its dataset it is evaluated on: "accuracy", or "seen" and "unseen" for a run on the base classes."""


class Evaluation(NamedTuple):
    """The images of one metric, and how well the zero-shot template classifies them."""

    eval_set: EvalSet
    images: Sequence[Path]
    decode: Decode
    templates: tuple[str, ...]
    zero_shot: float
    """Accuracy in percent."""


class LoadedInputs:
    """Loaded backbones, datasets, samples and eval sets, for the runs of one process."""

    def __init__(self, environment: RunEnvironment) -> None:
        self.environment = environment
        self._cache = environment.cache or cache_dir()
        # Runs come sorted by backbone; a second one is kept for the runs that had to wait for a source.
        self.bank = lru_cache(maxsize=2)(self._open_bank)
        self._dataset = lru_cache(maxsize=None)(self._open_dataset)
        self.sample = lru_cache(maxsize=64)(self._draw)
        self.task = lru_cache(maxsize=1)(self._make_task)
        self.manifest = lru_cache(maxsize=64)(self._hash_sample)
        self._evaluation = lru_cache(maxsize=32)(self._evaluate)

    def evaluations(self, spec: RunSpec) -> dict[str, Evaluation]:
        """What the run is evaluated on, by metric; the metric of another dataset is `accuracy@<dataset>`."""
        images = spec.sample
        if self._dataset(spec.dataset)[0].test:  # the same for every sample
            images = images._replace(shots=None, seed=None)
        others = [SampleKey(name, "all", None, None) for name in spec.evaluate_on]
        found = self._evaluation(spec.model, images)
        return found | {
            f"accuracy@{other.dataset}": self._evaluation(spec.model, other)["accuracy"] for other in others
        }

    def notes(self, spec: RunSpec) -> list[str]:
        """Warnings of the datasets' readers, such as a split that differs from the published one, and classes with too few images."""
        found = [note for name in (spec.dataset, *spec.evaluate_on) for note in self._dataset(name)[1]]
        short = [f"{name} ({count})" for name, count in short_classes(self.sample(spec.sample).train, spec.shots)]
        return found + (
            [f"{spec.dataset}: fewer than {spec.shots} images, all used: {first_few(short)}"] if short else []
        )

    def fingerprints(self, spec: RunSpec) -> dict[str, Any]:
        """The entries of the run's record that tell what it is made with."""
        return {
            "backbone_fingerprint": self.bank(spec.model).backbone.fingerprint,
            "dataset_fingerprints": {
                name: self._dataset(name)[0].fingerprint for name in (spec.dataset, *spec.evaluate_on)
            },
        }

    def source_factors(self, spec: RunSpec) -> tuple[Tensor, Tensor] | None:
        """Final (B, A) of the run whose factor this one uses; None if it uses none."""
        import torch

        source = spec.source_spec()
        if source is None:
            return None
        record = find_run(self.environment.runs, source)
        if record is None or not record.complete:
            why = f": {record.error}" if record and record.error else ", which does not exist"
            raise InputError(f"this run uses a factor of {source.title} ({source.fingerprint}){why}")
        factors = record.factors()
        return torch.from_numpy(factors["B"]).float(), torch.from_numpy(factors["A"]).float()

    def _open_bank(self, model: Model) -> FeatureBank:
        """The feature bank of a backbone."""
        from slimprompt.clip.backbone import load_backbone
        from slimprompt.images.bank import FeatureBank

        with _required():
            backbone = load_backbone(
                model.backbone,
                model.pretrained,
                device=self.environment.device,
                precision=model.precision,
            )
        # Images are decoded on all cores, whatever the threads of a run: this does not change a feature.
        return FeatureBank(backbone, self._cache / "features", show_progress=False)

    def _open_dataset(self, dataset: str) -> tuple[Benchmark, list[str]]:
        with _required(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            benchmark = open_dataset(dataset, self.environment.data_root, self._cache)
            check_images(benchmark)
        return benchmark, [str(warning.message) for warning in caught]

    def _draw(self, key: SampleKey) -> Sample:
        """A few-shot sample. It is taken from all classes; the restriction to base classes comes after."""
        whole, _ = self._dataset(key.dataset)
        if key.shots is None or key.seed is None:
            sample = replace(whole, test=whole.test or (*whole.train, *whole.val))
        else:
            sample = few_shot(whole, key.shots, key.seed)
            sample = replace(sample, test=held_out(whole, sample))
        if key.class_subset == "all":
            return Sample(sample, {"accuracy": sample})
        base, new = base_new(sample)
        return Sample(base, {"seen": base, "unseen": new})

    def _make_task(self, model: Model, key: SampleKey) -> Task:
        """The training images of a sample as every method sees them."""
        from slimprompt.fit import labelled_images
        from slimprompt.methods.task import make_task

        images = self.sample(key).train
        return make_task(self.bank(model), labelled_images(images, images.train), key.seed or 0)

    def _hash_sample(self, key: SampleKey) -> Manifest:
        """The training and validation images of a sample with their hashes."""
        return make_manifest(self.sample(key).train, shots=key.shots, seed=key.seed)

    def _evaluate(self, model: Model, key: SampleKey) -> dict[str, Evaluation]:
        from slimprompt.methods.zero_shot import zero_shot_features
        from slimprompt.training.evaluation import accuracy, make_eval_set

        bank, found = self.bank(model), {}
        for metric, part in self.sample(key).evaluated.items():
            paths, labels = [part.path(item) for item in part.test], [item.label for item in part.test]
            eval_set = make_eval_set(bank, paths, labels, part.class_names, part.decode)
            templates = part.templates[:1]
            class_features = zero_shot_features(bank.backbone, part.class_names, templates)
            zero_shot = accuracy(eval_set.features, class_features, eval_set.labels)
            found[metric] = Evaluation(eval_set, paths, part.decode, templates, zero_shot)
        return found


@contextmanager
def _required() -> Iterator[None]:
    """An `InputError` inside stops the study."""
    try:
        yield
    except InputError as error:
        raise SetupError(str(error)) from None


# --- how runs are made -----------------------------------------------------------------------------------------------


class _Result(NamedTuple):
    """What one run found out."""

    facts: dict[str, Any]
    """Entries of the record, with the metrics."""
    tensors: dict[str, Tensor]
    """What was trained; content of factors.safetensors."""
    curve: Sequence[Sequence[float]] = ()


def _make(batch: Batch, missing: Sequence[RunSpec], loaded: LoadedInputs) -> dict[RunSpec, Record]:
    """Fit, evaluate and store the missing runs of a batch."""
    started, memory, lap = datetime.now(timezone.utc), provenance.PeakMemory(loaded.environment.device), _stopwatch()
    specs, spec = batch.specs, batch.specs[0]
    results: dict[RunSpec, _Result | Exception] = {}
    try:
        with _required():
            batch.known.check(inputs(spec, loaded.fingerprints(spec)))
        task = loaded.task(spec.model, spec.sample)
        setup = lap() / len(specs)
        evaluations, _ = loaded.evaluations(spec), loaded.manifest(spec.sample)
        _encode(task, spec)
        features = lap() / len(specs)
        for together in _trained_together(specs, task):
            if set(together).isdisjoint(missing):
                continue
            fitted = _fit(task, together, loaded)
            training = lap() / len(together)
            for one, result in zip(together, fitted, strict=True):
                if isinstance(result, Exception):
                    results[one] = result
                    continue
                facts = {"metrics": _metrics(result, evaluations, task.bank)}
                times = {"setup": setup, "features": features, "training": training, "evaluation": lap()}
                times["total"] = sum(times.values())
                facts["times"] = {phase: round(taken, 4) for phase, taken in times.items()}
                results[one] = _describe(one, result, specs, task, facts)
    except SetupError:
        raise
    except Exception as error:
        results |= {one: error for one in missing if one not in results}
    origin = {
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **memory.facts(),
        **provenance.origin(loaded.environment),
    }
    return {one: _store(one, results[one], origin, loaded) for one in missing}


def _encode(task: Task, spec: RunSpec) -> None:
    """Encode the images that the run trains on."""
    if spec.is_prompt:
        from slimprompt.methods.prompt import encode_images

        encode_images(task, spec, spec.recipe)
    else:
        find_method(spec.method).encode(task)


def _stopwatch() -> Callable[[], float]:
    """A function that tells the seconds since its last call."""
    last = time.perf_counter()

    def lap() -> float:
        nonlocal last
        before, last = last, time.perf_counter()
        return last - before

    return lap


def _trained_together(specs: Sequence[RunSpec], task: Task) -> Iterator[Sequence[RunSpec]]:
    """The specs in parts that are trained at once."""
    spec, size = specs[0], len(specs)
    if spec.is_prompt:
        from slimprompt.methods.prompt import context_start, most_together

        n_ctx = context_start(task.bank.backbone, spec)[1]
        size = most_together(task.text_encoder(task.class_names, n_ctx, spec.position, spec.depth))
        size = size if spec.tower == "text" else 1  # each has its own pass of the image tower
    for first in range(0, len(specs), size):
        yield specs[first : first + size]


def _fit(task: Task, specs: Sequence[RunSpec], loaded: LoadedInputs) -> Sequence[FittedHead | Exception]:
    """The fitted head of each run, or its error."""
    if not specs[0].is_prompt:
        return [find_method(spec.method).fit(task) for spec in specs]
    from slimprompt.methods.prompt import fit_many

    return fit_many(task, specs, specs[0].recipe, loaded.source_factors)


def _metrics(fitted: FittedHead, evaluations: dict[str, Evaluation], bank: FeatureBank) -> dict[str, float]:
    """Accuracies of the run and of the zero-shot template, with the harmonic mean of base and new classes.

    A method that takes no new names has no accuracy on new classes, and so no harmonic mean.
    """
    metrics = {}
    image = getattr(getattr(fitted, "prompt", None), "image", None)  # rows of the image tower change the features
    for metric, (eval_set, images, decode, templates, _) in evaluations.items():
        head = fitted.head
        if metric not in ("accuracy", "seen"):
            if fitted.head_for is None:
                continue
            head = fitted.head_for(eval_set.class_names, templates)
        if image is not None:
            features = bank.features_with_rows(images, image.first, image().detach(), decode=decode)
            eval_set = eval_set._replace(features=features)
        metrics[metric] = 100.0 * float(head.correct(eval_set).double().mean())
    zero_shot = {metric: one.zero_shot for metric, one in evaluations.items()}
    for found in (metrics, zero_shot):
        if "unseen" in found:
            found["harmonic"] = harmonic_mean(found["seen"], found["unseen"])
    return metrics | {f"zero_shot_{metric}": value for metric, value in zero_shot.items()}


def _describe(
    spec: RunSpec, fitted: FittedHead, batch: Sequence[RunSpec], task: Task, facts: dict[str, Any]
) -> _Result:
    """What is stored of a fitted run; the facts are completed."""
    from slimprompt.methods.prompt import LearnedPrompt
    from slimprompt.saved import model_parts

    facts |= {"trainable_parameters": fitted.n_trained}
    if not isinstance(fitted, LearnedPrompt):
        kind, numbers, tensors = model_parts(fitted.head)
        facts |= {"settings": fitted.settings, "head": {"kind": kind, **numbers}}
        facts["views"] = task.views if find_method(spec.method).reads == "all views" else 0
        return _Result(facts, tensors)
    prompt, source = fitted.prompt, spec.source_spec()
    facts |= {
        "text_width": task.bank.backbone.text_width,
        "steps": len(fitted.curve) * spec.recipe.steps_per_epoch(len(task.labels)),
        "trained_together": fitted.batch_size,
        "prompt_batch": [one.fingerprint for one in batch],
        "tokens_per_step": task.text_encoder(task.class_names, prompt.n_ctx, spec.position, spec.depth).n_tokens,
        "source_run": source.fingerprint if source else None,
        "notes": [fitted.note] if fitted.note else [],
    }
    return _Result(facts, fitted.start | prompt.tensors(), fitted.curve)


def _store(spec: RunSpec, result: _Result | Exception, origin: dict[str, Any], loaded: LoadedInputs) -> Record:
    runs = loaded.environment.runs
    if isinstance(result, _Result):
        facts = _facts(spec, loaded)
        notes = facts["notes"] + result.facts.get("notes", [])
        return store_run(
            runs,
            spec,
            {"status": COMPLETE, **result.facts, **facts, "notes": notes, **origin},
            factors={name: tensor.cpu().contiguous().numpy() for name, tensor in result.tensors.items()},
            manifest=loaded.manifest(spec.sample),
            curve=result.curve,
        )
    return store_run(runs, spec, failure(result) | origin)


def failure(error: BaseException) -> dict[str, Any]:
    """The entries of the record of a run that failed with this error."""
    reason = str(error) if isinstance(error, InputError) else one_line(f"{type(error).__name__}: {error}")
    return {"status": FAILED, "error": reason, "traceback": "".join(traceback.format_exception(error))}


def _facts(spec: RunSpec, loaded: LoadedInputs) -> dict[str, Any]:
    """What should be known about every run beside its metrics."""
    train, backbone = loaded.sample(spec.sample).train, loaded.bank(spec.model).backbone
    sets = {metric: one.eval_set for metric, one in loaded.evaluations(spec).items()}
    by_part = {"test" if metric == "accuracy" else metric: one for metric, one in sets.items()}
    classes = {part: len(one.class_names) for part, one in by_part.items()}
    return {
        "n_classes": {"train": len(train.class_names), **classes},
        "n_images": {"train": len(train.train), **{part: len(one.labels) for part, one in by_part.items()}},
        "chance": {metric: 100 / len(one.class_names) for metric, one in sets.items()},
        **loaded.fingerprints(spec),
        "logit_scale": backbone.logit_scale,
        "device": backbone.device.type,
        "notes": loaded.notes(spec),
    }
