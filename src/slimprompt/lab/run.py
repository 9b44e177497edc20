"""Specs → run folders: sample, train or fit, evaluate, record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slimprompt.lab.environment import torch_threads
from slimprompt.lab.method_run import MethodRun
from slimprompt.lab.prompt_batch import PromptBatch
from slimprompt.lab.records import Record, find_complete_run
from slimprompt.lab.run_cache import RunCache
from slimprompt.lab.spec import RunSpec, import_user_functions


def prompt_batch_key(spec: RunSpec) -> tuple[Any, ...]:
    """Runs with the same key use the same images and classes in the same order, so they can form a prompt batch.

    The run of a method other than a prompt shares its key with no other run.
    """
    own = {"variant", "rank", "basis", "source", "source_depth"}
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
        If a module of the user's own cannot be imported, or a run folder cannot be written.
    """
    environment = run_cache.environment
    import_user_functions(specs)
    found = {spec: find_complete_run(environment.runs, spec) for spec in specs}
    records = {spec: record for spec, record in found.items() if record is not None}
    missing = [spec for spec in specs if spec not in records]
    if missing:
        batch = PromptBatch if missing[0].is_prompt else MethodRun
        with torch_threads(environment.threads):
            records |= batch(specs, run_cache).run(missing)
    return [records[spec] for spec in specs]
