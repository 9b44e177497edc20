"""Specs → run folders: sample, start, train, evaluate, record."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError
from slimprompt.lab import provenance
from slimprompt.lab.environment import RunEnvironment, torch_threads
from slimprompt.lab.records import COMPLETE, FAILED, Record, find_complete_run, find_run, store_run
from slimprompt.lab.run_cache import RunCache, SetupError
from slimprompt.lab.spec import RunSpec
from slimprompt.training.metrics import harmonic_mean

if TYPE_CHECKING:
    from torch import Tensor

    from slimprompt.clip.backbone import Backbone
    from slimprompt.methods.prompt_learning import LearnedPrompt
    from slimprompt.methods.task import Task
    from slimprompt.prompts.prompt import Prompt
    from slimprompt.text.encoder import SharedPrefixTextEncoder


def prompt_batch_key(spec: RunSpec) -> tuple[Any, ...]:
    """Runs with the same key use the same images and classes in the same order, so they can form a prompt batch."""
    own = {"variant", "rank", "basis", "source"}
    return tuple(getattr(spec, name) for name in RunSpec.model_fields if name not in own)


def make_run(spec: RunSpec, run_cache: RunCache) -> Record:
    """`make_runs` for a single spec."""
    return make_runs([spec], run_cache)[0]


def make_runs(specs: Sequence[RunSpec], run_cache: RunCache) -> list[Record]:
    """The records of runs with one `prompt_batch_key`, trained as a prompt batch unless all of them are complete.

    If some are complete, they are trained again with the others, because float rounding depends on the prompts that are
    trained together; their records stay. A run that fails is recorded with its error.

    Raises
    ------
    SetupError
        If the backbone or the dataset cannot be loaded.
    InputError
        If a run folder cannot be written.
    """
    environment = run_cache.environment
    found = {spec: find_complete_run(environment.runs, spec) for spec in specs}
    records = {spec: record for spec, record in found.items() if record is not None}
    missing = [spec for spec in specs if spec not in records]
    if missing:
        with torch_threads(environment.threads):
            records |= PromptBatch(specs, run_cache).run(missing)
    return [records[spec] for spec in specs]


class PromptBatch:
    """Runs on the same images and classes, trained together. Each has its own start, loss, optimizer and record.

    Their results equal those of separate runs up to float rounding; the record says how many were trained together.
    """

    def __init__(self, specs: Sequence[RunSpec], run_cache: RunCache) -> None:
        self._specs, self._cache = specs, run_cache
        self._started = datetime.now(timezone.utc)
        self._memory = provenance.PeakMemory(run_cache.environment.device)
        self._seconds = {"setup": 0.0, "features": 0.0}

    def run(self, missing: Sequence[RunSpec]) -> dict[RunSpec, Record]:
        """Train and evaluate the batch and store its missing runs."""
        begin = time.perf_counter()
        results: dict[RunSpec, LearnedPrompt | Exception] = {}
        prompts: dict[RunSpec, Prompt] = {}
        try:
            task = self._task()
            for spec in self._specs:
                try:
                    prompts[spec] = self._start(spec)
                except Exception as error:  # only this run's start failed
                    results[spec] = error
            size = _batch_size(self._cache.encoder(self._specs[0], task.class_names), len(prompts))
            ready = time.perf_counter()
            self._cache.evaluation(self._specs[0])
            self._cache.manifest(self._specs[0])
            self._seconds = {"setup": ready - begin, "features": time.perf_counter() - ready}
            waiting = list(prompts)
            for first in range(0, len(waiting), size):
                together = waiting[first : first + size]
                if not set(together).isdisjoint(missing):
                    results |= self._learn(task, {spec: prompts[spec] for spec in together})
        except SetupError:
            raise
        except Exception as error:
            results |= {spec: error for spec in self._specs if spec not in results}
        return {spec: self._store(spec, results[spec]) for spec in missing}

    def _task(self) -> Task:
        from slimprompt.methods.task import Task

        spec = self._specs[0]
        part = self._cache.sample(spec).train
        images, labels = [part.path(item) for item in part.train], [item.label for item in part.train]
        bank, templates = self._cache.bank(spec), part.templates[:1]  # the zero-shot prompt of the evaluation
        return Task(bank, images, labels, part.class_names, spec.seed, part.decode, templates)

    def _start(self, spec: RunSpec) -> Prompt:
        from slimprompt.methods.prompt_learning import initial_prompt

        backbone = self._cache.bank(spec).backbone
        return initial_prompt(
            backbone,
            spec.variant,
            seed=spec.seed,
            n_ctx=spec.n_ctx,
            rank=spec.rank,
            basis=spec.basis,
            words=spec.words,
            anchored=spec.anchored,
            depth=spec.depth,
            trained=_source_factors(spec, self._cache.environment, backbone),
        )

    def _learn(self, task: Task, prompts: dict[RunSpec, Prompt]) -> dict[RunSpec, LearnedPrompt | Exception]:
        """Train some of the prompts together; if that fails, one by one, so that one failure does not spoil the others."""
        from slimprompt.methods.prompt_learning import learn_prompts

        spec = next(iter(prompts))
        try:
            learned = learn_prompts(
                task,
                list(prompts.values()),
                spec.recipe,
                position=spec.position,
                eval_sets=self._cache.evaluation(spec).sets,
                make_encoder=lambda names, *_: self._cache.encoder(spec, names),
                show_progress=False,
            )
            return dict(zip(prompts, learned, strict=True))
        except Exception as error:
            if len(prompts) == 1:
                return {spec: error}
            results: dict[RunSpec, LearnedPrompt | Exception] = {}
            for one in prompts:
                results |= self._learn(task, {one: self._start(one)})
            return results

    def _store(self, spec: RunSpec, result: LearnedPrompt | Exception) -> Record:
        environment = self._cache.environment
        finished = datetime.now(timezone.utc)
        common = {
            "started": self._started.isoformat(timespec="seconds"),
            "finished": finished.isoformat(timespec="seconds"),
            **self._memory.facts(),
            **provenance.origin(environment),
        }
        if isinstance(result, Exception):
            reason = str(result) if isinstance(result, InputError) else f"{type(result).__name__}: {result}"
            failure = {"status": FAILED, "error": reason, "traceback": "".join(traceback.format_exception(result))}
            return store_run(environment.runs, spec, {**failure, **common})
        seconds = {phase: taken / len(self._specs) for phase, taken in self._seconds.items()}
        for phase, taken in result.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + taken
        times = {phase: round(taken, 4) for phase, taken in (*seconds.items(), ("total", sum(seconds.values())))}
        return store_run(
            environment.runs,
            spec,
            {
                "status": COMPLETE,
                "metrics": _metrics(result.metrics, self._cache.evaluation(spec).zero_shot),
                **self._facts(spec, result),
                "times": times,
                **common,
            },
            factors={name: factor.cpu().numpy() for name, factor in (result.start | result.prompt.tensors()).items()},
            manifest=self._cache.manifest(spec),
            curve=result.curve,
        )

    def _facts(self, spec: RunSpec, result: LearnedPrompt) -> dict[str, Any]:
        """What should be known about a run beside its metrics."""
        train, sets = self._cache.sample(spec).train, self._cache.evaluation(spec).sets
        backbone, source = self._cache.bank(spec).backbone, spec.source_spec()
        by_part = {"test" if metric == "accuracy" else metric: one for metric, one in sets.items()}
        return {
            "trainable_parameters": result.prompt.trainable_parameters,
            "text_width": backbone.text_width,
            "n_classes": {
                "train": len(train.class_names),
                **{part: len(one.class_names) for part, one in by_part.items()},
            },
            "n_images": {"train": len(train.train), **{part: len(one.labels) for part, one in by_part.items()}},
            "chance": {metric: 100 / len(one.class_names) for metric, one in sets.items()},
            "steps": len(result.curve) * spec.recipe.steps_per_epoch(len(train.train)),
            "trained_together": result.batch_size,
            "prompt_batch": [one.fingerprint for one in self._specs],
            "tokens_per_step": self._cache.encoder(spec, train.class_names).n_tokens,
            "source_run": source.fingerprint if source else None,
            "backbone_fingerprint": backbone.fingerprint,
            "logit_scale": backbone.logit_scale,
            "device": backbone.device.type,
            "notes": self._cache.notes(spec),
        }


def _batch_size(encoder: SharedPrefixTextEncoder, n_prompts: int) -> int:
    """Prompts to train at once. A large text pass uses the whole machine by itself; batching it only costs memory."""
    most_numbers = 2**20  # in the activations of one layer; beyond that, benchmarks/stacking.py shows no gain
    return max(1, min(n_prompts, most_numbers // (encoder.n_tokens * encoder.backbone.text_width)))


def _metrics(learned: dict[str, float], zero_shot: dict[str, float]) -> dict[str, float]:
    """Accuracies of the prompt and of the zero-shot template, with the harmonic mean of base and new classes."""
    metrics = {**learned, **{f"zero_shot_{name}": value for name, value in zero_shot.items()}}
    if "unseen" in learned:
        metrics["harmonic"] = harmonic_mean(learned["seen"], learned["unseen"])
        metrics["zero_shot_harmonic"] = harmonic_mean(zero_shot["seen"], zero_shot["unseen"])
    return metrics


def _source_factors(spec: RunSpec, environment: RunEnvironment, backbone: Backbone) -> tuple[Tensor, Tensor] | None:
    """Final (B, A) of the run whose factor this one uses; None if it uses none."""
    import torch

    source = spec.source_spec()
    if source is None:
        return None
    record = find_run(environment.runs, source)
    if record is None or not record.complete:
        why = f": {record.error}" if record and record.error else ", which does not exist"
        raise InputError(f"this run uses a factor of {source.title} ({source.fingerprint}){why}")
    if record.facts.get("backbone_fingerprint") != backbone.fingerprint:
        raise InputError(
            f"the source run {source.title} ({source.fingerprint}) was made with other weights of {spec.backbone} than the "
            "present ones; remove it (`slimprompt runs rm`) and run the study again"
        )
    factors = record.factors()
    return torch.from_numpy(factors["B"]).float(), torch.from_numpy(factors["A"]).float()
