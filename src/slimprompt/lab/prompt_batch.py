"""Runs of prompts on the same images, trained together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import Record, find_run
from slimprompt.lab.run_batch import RunBatch, RunResult
from slimprompt.lab.run_cache import SetupError
from slimprompt.lab.spec import RunSpec

if TYPE_CHECKING:
    from torch import Tensor

    from slimprompt.methods.prompt import LearnedPrompt
    from slimprompt.methods.task import Task
    from slimprompt.prompts.prompt import Prompt
    from slimprompt.text.encoder import SharedPrefixTextEncoder


class PromptBatch(RunBatch):
    """Runs on the same images and classes, trained together. Each has its own start, loss, optimizer and record.

    Their results equal those of separate runs up to float rounding; the record says how many were trained together.
    """

    def run(self, missing: Sequence[RunSpec]) -> dict[RunSpec, Record]:
        """Train and evaluate the batch and store its missing runs."""
        begin = time.perf_counter()
        results: dict[RunSpec, RunResult | Exception] = {}
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

    def _start(self, spec: RunSpec) -> Prompt:
        from slimprompt.methods.prompt import initial_prompt

        assert spec.variant is not None  # the spec of every prompt has one
        return initial_prompt(
            self._cache.bank(spec).backbone,
            spec.variant,
            seed=spec.seed,
            n_ctx=spec.n_ctx,
            rank=spec.rank,
            basis=spec.basis,
            words=spec.words,
            anchored=spec.anchored,
            depth=spec.depth,
            trained=_source_factors(spec, self._cache.environment),
        )

    def _learn(self, task: Task, prompts: dict[RunSpec, Prompt]) -> dict[RunSpec, RunResult | Exception]:
        """Train some of the prompts together; if that fails, one by one, so that one failure does not spoil the others."""
        from slimprompt.methods.prompt import learn_prompts

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
            return {one: self._result(one, found) for one, found in zip(prompts, learned, strict=True)}
        except Exception as error:
            if len(prompts) == 1:
                return {spec: error}
            results: dict[RunSpec, RunResult | Exception] = {}
            for one in prompts:
                results |= self._learn(task, {one: self._start(one)})
            return results

    def _result(self, spec: RunSpec, learned: LearnedPrompt) -> RunResult:
        train, source = self._cache.sample(spec).train, spec.source_spec()
        facts: dict[str, Any] = {
            "trainable_parameters": learned.prompt.trainable_parameters,
            "text_width": self._cache.bank(spec).backbone.text_width,
            "steps": len(learned.curve) * spec.recipe.steps_per_epoch(len(train.train)),
            "trained_together": learned.batch_size,
            "prompt_batch": [one.fingerprint for one in self._specs],
            "tokens_per_step": self._cache.encoder(spec, train.class_names).n_tokens,
            "source_run": source.fingerprint if source else None,
        }
        tensors = learned.start | learned.prompt.tensors()
        return RunResult(learned.metrics, facts, tensors, learned.seconds, learned.curve)


def _batch_size(encoder: SharedPrefixTextEncoder, n_prompts: int) -> int:
    """Prompts to train at once. A large text pass uses the whole machine by itself; batching it only costs memory."""
    most_numbers = 2**20  # in the activations of one layer; beyond that, benchmarks/stacking.py shows no gain
    return max(1, min(n_prompts, most_numbers // (encoder.n_tokens * encoder.backbone.text_width)))


def _source_factors(spec: RunSpec, environment: RunEnvironment) -> tuple[Tensor, Tensor] | None:
    """Final (B, A) of the run whose factor this one uses; None if it uses none."""
    import torch

    source = spec.source_spec()
    if source is None:
        return None
    record = find_run(environment.runs, source)
    if record is None or not record.complete:
        why = f": {record.error}" if record and record.error else ", which does not exist"
        raise InputError(f"this run uses a factor of {source.title} ({source.fingerprint}){why}")
    factors = record.factors()
    return torch.from_numpy(factors["B"]).float(), torch.from_numpy(factors["A"]).float()
