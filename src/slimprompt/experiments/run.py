"""One spec → one run folder: draw, start, train, evaluate, record."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.data import Benchmark, base_new, few_shot, held_out, load_benchmark, load_folder, make_manifest
from slimprompt.data.catalogue import find_row
from slimprompt.data.check import check_images
from slimprompt.errors import InputError
from slimprompt.experiments import provenance
from slimprompt.experiments.records import COMPLETE, FAILED, Record, find_run, store_run
from slimprompt.experiments.spec import RunSpec
from slimprompt.progress import no_progress

if TYPE_CHECKING:
    from torch import Tensor

    from slimprompt.backbone import Backbone
    from slimprompt.bank import FeatureBank
    from slimprompt.data.manifest import Manifest


@dataclass(frozen=True)
class Execution:
    """Where and with what runs are made. It is recorded with every run, but it does not name a run.

    threads: of one run's arithmetic. Sums are rounded in another order with another number of threads, so it is fixed
    here, the same for every executor: runs of one machine then agree byte for byte. Many runs side by side on one thread
    each are also faster than one run on many threads.
    """

    runs: Path
    """The folder of run folders; on a cluster one that all machines share."""
    data_root: Path | None = None
    """Folder of the benchmarks; None: the environment variable SLIMPROMPT_DATA."""
    cache: Path | None = None
    """Folder of feature banks and drawn benchmarks; None: SLIMPROMPT_CACHE, else the user's cache."""
    threads: int = 1
    device: str = "auto"
    invocation: tuple[str, ...] = ()
    """The command that started it."""
    executor: str = "inline"


class SetupError(InputError):
    """A backbone or benchmark cannot be had at all, so that no run of it can succeed: the study stops."""


class TestSet(NamedTuple):
    """Test images of some classes: unit-length features (n, embed_dim), labels (n,), and the names they count for."""

    features: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    zero_shot: float
    """Accuracy of the hand-written template."""


class Workbench:
    """What the runs of one process share: loaded backbones, feature banks, benchmarks, test features, zero-shot accuracy."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        if execution.cache is not None:
            os.environ["SLIMPROMPT_CACHE"] = str(execution.cache)
        # Runs come sorted by backbone; a second one is kept for the runs that had to wait for a source.
        self.backbone = lru_cache(maxsize=2)(self._backbone)
        self._bank = lru_cache(maxsize=2)(self._make_bank)
        self.benchmark = lru_cache(maxsize=None)(self._benchmark)
        self._manifest = lru_cache(maxsize=64)(self._make_manifest)
        self._test_sets: dict[Any, dict[str, TestSet]] = {}
        self._notes: dict[str, list[str]] = {}

    def bank(self, spec: RunSpec) -> FeatureBank:
        """The feature bank of the run's backbone."""
        return self._bank(spec.backbone, spec.pretrained, spec.precision)

    def draw(self, spec: RunSpec) -> dict[str, Benchmark]:
        """What the run trains and is tested on, by the metric that counts its test images.

        split all: {"accuracy": the few-shot draw}. split base: the draw comes first, then the cut into base classes,
        {"seen": base, "unseen": new}. The first entry is what it trains on.
        """
        whole = self.benchmark(spec.dataset)
        drawn = few_shot(whole, spec.shots, spec.seed)
        drawn = replace(drawn, test=held_out(whole, drawn))
        if spec.split == "all":
            return {"accuracy": drawn}
        base, new = base_new(drawn)
        return {"seen": base, "unseen": new}

    def test_sets(self, spec: RunSpec, drawn: dict[str, Benchmark]) -> dict[str, TestSet]:
        """Test features and zero-shot accuracy, once per backbone, dataset and split."""
        key: tuple[Any, ...] = (spec.backbone, spec.pretrained, spec.precision, spec.dataset, spec.split)
        if not self.benchmark(spec.dataset).test:  # then the draw decides what is left to test on
            key += (spec.shots, spec.seed)
        if key not in self._test_sets:
            while len(self._test_sets) >= 8:  # runs come sorted by dataset: older ones are hardly needed again
                self._test_sets.pop(next(iter(self._test_sets)))
            self._test_sets[key] = {name: self._test_set(spec, part) for name, part in drawn.items()}
        return self._test_sets[key]

    def notes(self, spec: RunSpec) -> list[str]:
        """What the reader of the benchmark warned of, such as a split that is not the published one."""
        self.benchmark(spec.dataset)
        return self._notes[spec.dataset]

    def manifest(self, spec: RunSpec) -> Manifest:
        """The run's images with their hashes."""
        return self._manifest(spec.dataset, spec.split, spec.shots, spec.seed)

    def _backbone(self, name: str, pretrained: str | None, precision: str) -> Backbone:
        from slimprompt.backbone import load_backbone

        try:
            return load_backbone(name, pretrained, device=self.execution.device, precision=precision)
        except InputError as error:
            raise SetupError(str(error)) from None

    def _make_bank(self, name: str, pretrained: str | None, precision: str) -> FeatureBank:
        from slimprompt.bank import FeatureBank

        return FeatureBank(self.backbone(name, pretrained, precision), workers=self.execution.threads)

    def _benchmark(self, dataset: str) -> Benchmark:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                benchmark = open_benchmark(dataset, self.execution.data_root)
            check_images(benchmark)
        except InputError as error:
            raise SetupError(str(error)) from None
        self._notes[dataset] = [str(warning.message) for warning in caught]
        return benchmark

    def _make_manifest(self, dataset: str, split: str, shots: int, seed: int) -> Manifest:
        drawn = few_shot(self.benchmark(dataset), shots, seed)
        return make_manifest(drawn if split == "all" else base_new(drawn)[0], shots=shots, seed=seed)

    def _test_set(self, spec: RunSpec, part: Benchmark) -> TestSet:
        import torch

        from slimprompt.evaluation import accuracy, zero_shot_features

        bank = self.bank(spec)
        # clone: memory of torch's own alignment, so that the same product is summed in the same order everywhere
        features = bank.features([part.path(item) for item in part.test]).clone()
        labels = torch.tensor([item.label for item in part.test])
        with torch.inference_mode():
            text = zero_shot_features(bank.backbone, part.class_names, part.templates[:1])
        return TestSet(features, labels, part.class_names, accuracy(features, text, labels))


def open_benchmark(dataset: str, data_root: Path | None) -> Benchmark:
    """A benchmark by its name, else a folder or CSV file of one's own images."""
    try:
        name = find_row(dataset).name
    except InputError:
        if Path(dataset).exists():
            return load_folder(dataset)
        raise
    return load_benchmark(name, data_root)


def make_run(spec: RunSpec, workbench: Workbench) -> Record:
    """The record of `spec`: as it is on disk if it is complete, else the run is made, and its failure is a record too.

    Raises `SetupError` if backbone or data cannot be had, and `InputError` if the folder cannot be written.
    """
    runs = workbench.execution.runs
    present = find_run(runs, spec)
    if present is not None and present.complete:
        return present
    clock = _Clock()
    memory = provenance.PeakMemory(workbench.execution.device)
    made: _Made | None = None
    outcome: dict[str, Any]
    try:
        with no_progress(), torch_threads(workbench.execution.threads):
            made = _make(spec, workbench, clock)
    except SetupError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        outcome = {"status": FAILED, "error": reason, "traceback": traceback.format_exc()}
    else:
        outcome = {"status": COMPLETE, "metrics": made.metrics, **made.facts}
    return store_run(
        runs,
        spec,
        {**outcome, **clock.facts(), **memory.facts(), **_origin(workbench.execution)},
        factors=made.factors if made else None,
        manifest=made.manifest if made else None,
        curve=made.curve if made else (),
    )


class _Made(NamedTuple):
    metrics: dict[str, float]
    facts: dict[str, Any]
    factors: dict[str, Any]
    manifest: Manifest
    curve: list[Any]


def _make(spec: RunSpec, workbench: Workbench, clock: _Clock) -> _Made:
    import torch

    from slimprompt.evaluation import accuracy, harmonic_mean
    from slimprompt.start import start_prompt
    from slimprompt.text import SharedPrefixTextEncoder
    from slimprompt.training import fit_prompt, view_names

    with clock("setup"):
        bank = workbench.bank(spec)
        backbone = bank.backbone
        drawn = workbench.draw(spec)
        base = next(iter(drawn.values()))
        pictures = [base.path(item) for item in base.train]
        prompt = start_prompt(
            spec.variant,
            width=backbone.text_width,
            seed=spec.seed,
            n_ctx=spec.n_ctx,
            rank=spec.rank,
            basis=spec.basis,
            trained=_trained(spec, workbench, backbone),
        )
        factors = {"B0": prompt.B.detach().numpy().copy(), "A0": prompt.A.detach().numpy().copy()}
    with clock("features"):
        views = (name for epoch in view_names(spec.recipe, spec.seed) for name in epoch)
        bank.build(pictures, list(dict.fromkeys(views)))
        tests = workbench.test_sets(spec, drawn)
        manifest = workbench.manifest(spec)
    with clock("training"):
        curve = fit_prompt(
            prompt,
            bank,
            pictures,
            [item.label for item in base.train],
            base.class_names,
            spec.recipe,
            seed=spec.seed,
            position=spec.position,
        )
    with clock("evaluation"), torch.inference_mode():
        metrics: dict[str, float] = {}
        for name, test in tests.items():
            encode = SharedPrefixTextEncoder(backbone, test.class_names, spec.n_ctx, spec.position)
            metrics[name] = accuracy(test.features, encode(prompt()), test.labels)
            if name == next(iter(tests)):
                tokens = encode.n_tokens
        for name, test in tests.items():
            metrics[f"zero_shot_{name}"] = test.zero_shot
        if spec.split == "base":
            metrics["harmonic"] = harmonic_mean(metrics["seen"], metrics["unseen"])
            metrics["zero_shot_harmonic"] = harmonic_mean(metrics["zero_shot_seen"], metrics["zero_shot_unseen"])
    factors |= {"B": prompt.B.detach().cpu().numpy(), "A": prompt.A.detach().cpu().numpy()}
    source = spec.needs()

    def part(metric: str) -> str:
        return "test" if metric == "accuracy" else metric

    facts = {
        "trainable_parameters": prompt.trainable_parameters,
        "text_width": backbone.text_width,
        "n_classes": {"train": len(base.class_names), **{part(name): len(t.class_names) for name, t in tests.items()}},
        "n_images": {"train": len(pictures), **{part(name): len(t.labels) for name, t in tests.items()}},
        "chance": {name: 100 / len(test.class_names) for name, test in tests.items()},
        "steps": len(curve) * spec.recipe.steps_per_epoch(len(pictures)),
        "tokens_per_step": tokens,
        "source_run": source.fingerprint if source else None,
        "backbone_fingerprint": backbone.fingerprint,
        "logit_scale": backbone.logit_scale,
        "device": backbone.device.type,
        "notes": workbench.notes(spec),
    }
    return _Made(metrics, facts, factors, manifest, curve)


def _trained(spec: RunSpec, workbench: Workbench, backbone: Backbone) -> tuple[Tensor, Tensor] | None:
    """Final (B, A) of the run that this one takes a factor from."""
    import torch

    source = spec.needs()
    if source is None:
        return None
    record = find_run(workbench.execution.runs, source)
    if record is None or not record.complete:
        why = f": {record.error}" if record and record.error else ", which is not there"
        raise InputError(f"this run takes a factor from {source.title} ({source.fingerprint}){why}")
    made_with = record.facts.get("backbone_fingerprint")
    if made_with != backbone.fingerprint:
        raise InputError(
            f"the source run {source.title} ({source.fingerprint}) was made with other weights of {spec.backbone} than the "
            "present ones; remove it (`slimprompt runs rm`) and run the study again"
        )
    factors = record.factors()
    return torch.from_numpy(factors["B"]).float(), torch.from_numpy(factors["A"]).float()


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Inside, torch computes with this many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _origin(execution: Execution) -> dict[str, Any]:
    return {
        "threads": execution.threads,
        "executor": execution.executor,
        "invocation": list(execution.invocation),
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "git": provenance.git_state(),
    }


class _Clock:
    """Seconds per phase: `with clock("training"): …`."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._started = datetime.now(timezone.utc)
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = round(time.perf_counter() - begin, 4)

    def facts(self) -> dict[str, Any]:
        return {
            "times": {**self._seconds, "total": round(time.perf_counter() - self._begin, 4)},
            "started": self._started.isoformat(timespec="seconds"),
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
