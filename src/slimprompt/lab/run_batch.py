"""What the runs of prompts and of other methods share: the task, and the record."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError
from slimprompt.lab import provenance
from slimprompt.lab.records import COMPLETE, FAILED, Record, store_run
from slimprompt.lab.run_cache import RunCache
from slimprompt.lab.spec import RunSpec
from slimprompt.training.metrics import harmonic_mean

if TYPE_CHECKING:
    from torch import Tensor

    from slimprompt.methods.task import Task


@dataclass(frozen=True)
class RunResult:
    """What one run found out."""

    metrics: dict[str, float]
    """Accuracy in percent on the eval sets that the method can classify."""
    facts: dict[str, Any]
    """Further entries of the record."""
    tensors: dict[str, Tensor]
    """What was trained; content of factors.safetensors."""
    seconds: dict[str, float]
    """Wall time of each phase, beside what is shared by the batch."""
    curve: Sequence[Sequence[float]] = field(default=())


class RunBatch:
    """Runs on the same images and classes that are made together."""

    def __init__(self, specs: Sequence[RunSpec], run_cache: RunCache) -> None:
        self._specs, self._cache = specs, run_cache
        self._started = datetime.now(timezone.utc)
        self._memory = provenance.PeakMemory(run_cache.environment.device)
        self._seconds = {"setup": 0.0, "features": 0.0}
        """Wall time that the runs of the batch share."""

    def _task(self) -> Task:
        """The task of the runs, if they can be compared with the other runs in their folder."""
        from slimprompt.methods.task import Task

        spec = self._specs[0]
        self._cache.check_inputs(spec)
        part = self._cache.sample(spec).train
        images, labels = [part.path(item) for item in part.train], [item.label for item in part.train]
        bank, templates = self._cache.bank(spec), part.templates[:1]  # the zero-shot prompt of the evaluation
        return Task(bank, images, labels, part.class_names, spec.seed, part.decode, templates)

    def _store(self, spec: RunSpec, result: RunResult | Exception) -> Record:
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
                **self._facts(spec),
                **result.facts,
                "times": times,
                **common,
            },
            factors={name: tensor.cpu().contiguous().numpy() for name, tensor in result.tensors.items()},
            manifest=self._cache.manifest(spec),
            curve=result.curve,
        )

    def _facts(self, spec: RunSpec) -> dict[str, Any]:
        """What should be known about every run beside its metrics."""
        train, sets = self._cache.sample(spec).train, self._cache.evaluation(spec).sets
        backbone = self._cache.bank(spec).backbone
        by_part = {"test" if metric == "accuracy" else metric: one for metric, one in sets.items()}
        return {
            "n_classes": {
                "train": len(train.class_names),
                **{part: len(one.class_names) for part, one in by_part.items()},
            },
            "n_images": {"train": len(train.train), **{part: len(one.labels) for part, one in by_part.items()}},
            "chance": {metric: 100 / len(one.class_names) for metric, one in sets.items()},
            **self._cache.input_facts(spec),
            "logit_scale": backbone.logit_scale,
            "device": backbone.device.type,
            "notes": self._cache.notes(spec),
        }


def _metrics(found: dict[str, float], zero_shot: dict[str, float]) -> dict[str, float]:
    """Accuracies of the run and of the zero-shot template, with the harmonic mean of base and new classes.

    A method that takes no new names has no accuracy on new classes, and so no harmonic mean.
    """
    metrics = {**found, **{f"zero_shot_{name}": value for name, value in zero_shot.items()}}
    if "unseen" in found:
        metrics["harmonic"] = harmonic_mean(found["seen"], found["unseen"])
    if "unseen" in zero_shot:
        metrics["zero_shot_harmonic"] = harmonic_mean(zero_shot["seen"], zero_shot["unseen"])
    return metrics
