"""The run of a method other than a prompt: fitted to the same sample, evaluated on the same images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slimprompt.lab.records import Record
from slimprompt.lab.run_batch import RunBatch, RunResult
from slimprompt.lab.run_cache import SetupError
from slimprompt.lab.spec import RunSpec
from slimprompt.methods.table import find_method

if TYPE_CHECKING:
    from slimprompt.methods.head import AnyHead, FittedHead


class MethodRun(RunBatch):
    """One run of a method on image features."""

    def run(self, missing: Sequence[RunSpec]) -> dict[RunSpec, Record]:
        """Fit and evaluate the method and store the run."""
        (spec,) = missing
        result: RunResult | Exception
        try:
            result = self._fit(spec)
        except SetupError:
            raise
        except Exception as error:
            result = error
        return {spec: self._store(spec, result)}

    def _fit(self, spec: RunSpec) -> RunResult:
        method, begin = find_method(spec.method), time.perf_counter()
        task = self._task()
        ready = time.perf_counter()
        self._cache.evaluation(spec)
        self._cache.manifest(spec)
        method.encode(task)
        self._seconds = {"setup": ready - begin, "features": time.perf_counter() - ready}
        begin = time.perf_counter()
        fitted = method.fit(task)
        fitting = time.perf_counter()
        metrics = self._evaluate(spec, fitted.head)
        seconds = {"training": fitting - begin, "evaluation": time.perf_counter() - fitting}
        return _result(fitted, metrics, seconds, task.views if method.reads == "all views" else 0)

    def _evaluate(self, spec: RunSpec, head: AnyHead) -> dict[str, float]:
        """Accuracy on the classes that the head was fitted to and, if the method takes new names, on the other eval sets."""
        from slimprompt.methods.zero_shot import zero_shot_head

        backbone, parts = self._cache.bank(spec).backbone, self._cache.evaluated(spec)
        metrics = {}
        for metric, eval_set in self._cache.evaluation(spec).sets.items():
            if metric in ("accuracy", "seen"):
                chosen = head
            elif find_method(spec.method).takes_new_names:
                chosen = zero_shot_head(backbone, eval_set.class_names, parts[metric].templates[:1])
            else:
                continue
            metrics[metric] = 100.0 * float(chosen.correct(eval_set).double().mean())
        return metrics


def _result(fitted: FittedHead, metrics: dict[str, float], seconds: dict[str, float], views: int) -> RunResult:
    from slimprompt.saved import model_parts  # imports open_clip, which a worker does later

    kind, numbers, tensors = model_parts(fitted.head)
    facts = {
        "trainable_parameters": fitted.n_trained,
        "settings": fitted.settings,
        "head": {"kind": kind, **numbers},
        "views": views,
    }
    return RunResult(metrics, facts, tensors, seconds)
