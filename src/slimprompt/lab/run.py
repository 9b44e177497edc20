"""A spec → its run folder: draw, start, train, evaluate, record. Runs on the same images can train side by side."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from slimprompt.lab import provenance
from slimprompt.lab.records import COMPLETE, FAILED, Record, find_run, store_run
from slimprompt.lab.spec import RunSpec
from slimprompt.progress import no_progress

if TYPE_CHECKING:
    from torch import Tensor

    from slimprompt.clip.backbone import Backbone
    from slimprompt.data.manifest import Manifest
    from slimprompt.images.bank import FeatureBank
    from slimprompt.prompts.prompt import Prompt
    from slimprompt.text.encoder import SharedPrefixTextEncoder
    from slimprompt.training.loop import EpochResult


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
        self._encoder = lru_cache(maxsize=16)(self._make_encoder)
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

    def encoder(self, spec: RunSpec, class_names: tuple[str, ...]) -> SharedPrefixTextEncoder:
        """The text encoder of these classes for contexts of the run's shape."""
        return self._encoder(spec.backbone, spec.pretrained, spec.precision, class_names, spec.n_ctx, spec.position)

    def manifest(self, spec: RunSpec) -> Manifest:
        """The run's images with their hashes."""
        return self._manifest(spec.dataset, spec.split, spec.shots, spec.seed)

    def _backbone(self, name: str, pretrained: str | None, precision: str) -> Backbone:
        from slimprompt.clip.backbone import load_backbone

        try:
            return load_backbone(name, pretrained, device=self.execution.device, precision=precision)
        except InputError as error:
            raise SetupError(str(error)) from None

    def _make_bank(self, name: str, pretrained: str | None, precision: str) -> FeatureBank:
        from slimprompt.images.bank import FeatureBank

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

    def _make_encoder(
        self, name: str, pretrained: str | None, precision: str, class_names: tuple[str, ...], n_ctx: int, position: Any
    ) -> SharedPrefixTextEncoder:
        from slimprompt.text.encoder import SharedPrefixTextEncoder

        return SharedPrefixTextEncoder(self.backbone(name, pretrained, precision), class_names, n_ctx, position)

    def _make_manifest(self, dataset: str, split: str, shots: int, seed: int) -> Manifest:
        drawn = few_shot(self.benchmark(dataset), shots, seed)
        return make_manifest(drawn if split == "all" else base_new(drawn)[0], shots=shots, seed=seed)

    def _test_set(self, spec: RunSpec, part: Benchmark) -> TestSet:
        import torch

        from slimprompt.training.evaluation import accuracy, zero_shot_features

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


def stack_key(spec: RunSpec) -> tuple[Any, ...]:
    """Runs with the same key see the same images and classes in the same order, so that they can train side by side."""
    own = {"variant", "rank", "basis", "source"}
    return tuple(getattr(spec, name) for name in RunSpec.model_fields if name not in own)


def make_run(spec: RunSpec, workbench: Workbench) -> Record:
    """`make_runs` for a single one."""
    return make_runs([spec], workbench)[0]


def make_runs(specs: Sequence[RunSpec], workbench: Workbench) -> list[Record]:
    """The records of runs with one `stack_key`: as they are on disk where complete, else made; a failure is a record too.

    They train side by side as far as that helps; the record says how many trained together. Each gets the numbers it would
    get alone, byte for byte if the processor's matrix product sums a row in the same order however many rows there are.
    Raises `SetupError` if backbone or data cannot be had, and `InputError` if a folder cannot be written.
    """
    execution = workbench.execution
    found = {spec: find_run(execution.runs, spec) for spec in specs}
    done = {spec: record for spec, record in found.items() if record is not None and record.complete}
    runs = [_Run(spec, workbench) for spec in specs if spec not in done]
    with no_progress(), torch_threads(execution.threads):
        for run in runs:
            run.attempt(run.prepare)
        ready = [run for run in runs if not run.failure]
        size = _stack_size(ready[0].encoder, len(ready)) if ready else 1
        for start in range(0, len(ready), size):
            _train(ready[start : start + size])
        for run in ready:
            if not run.failure:
                run.attempt(run.evaluate)
    return [done.get(spec) or next(run for run in runs if run.spec == spec).store() for spec in specs]


def _stack_size(encoder: SharedPrefixTextEncoder, most: int) -> int:
    """How many prompts to train at once. A large step fills the machine by itself, and a stack only costs memory."""
    return max(1, min(most, 2**20 // (encoder.n_tokens * encoder.backbone.text_width)))


def _train(runs: Sequence[_Run]) -> None:
    """Side by side; if that fails, each by itself, so that one run's failure is not the others'."""
    first = runs[0]
    begin = time.perf_counter()
    try:
        curves = first.fit([run.prompt for run in runs])
    except Exception as error:
        if len(runs) == 1:
            first.fail(error)
            return
        for run in runs:
            run.start()
            _train([run])
        return
    for run, curve in zip(runs, curves, strict=True):
        run.curve, run.stack = curve, len(runs)
        run.clock.add("training", (time.perf_counter() - begin) / len(runs))


class _Run:
    """One run in the making."""

    prompt: Prompt
    encoder: SharedPrefixTextEncoder

    def __init__(self, spec: RunSpec, workbench: Workbench) -> None:
        self.spec, self.workbench = spec, workbench
        self.clock = _Clock()
        self.failure: dict[str, Any] = {}
        self.curve: list[EpochResult] = []
        self.stack = 1
        self._memory = provenance.PeakMemory(workbench.execution.device)
        self._factors: dict[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._metrics: dict[str, float] = {}
        self._manifest: Manifest | None = None

    def attempt(self, phase: Callable[[], None]) -> None:
        """A phase of the run; what goes wrong in it is kept for the record."""
        try:
            phase()
        except SetupError:
            raise
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Keep why there is no result."""
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        where = "".join(traceback.format_exception(error))
        self.failure = {"status": FAILED, "error": reason, "traceback": where}

    def prepare(self) -> None:
        """Draw the images, start the prompt, encode what is not in the bank."""
        from slimprompt.training.loop import view_names

        spec, workbench = self.spec, self.workbench
        with self.clock("setup"):
            self._bank = workbench.bank(spec)
            self._drawn = workbench.draw(spec)
            self._base = next(iter(self._drawn.values()))
            self._pictures = [self._base.path(item) for item in self._base.train]
            self.encoder = workbench.encoder(spec, self._base.class_names)
            self.start()
        with self.clock("features"):
            views = (name for epoch in view_names(spec.recipe, spec.seed) for name in epoch)
            self._bank.build(self._pictures, list(dict.fromkeys(views)))
            self._tests = workbench.test_sets(spec, self._drawn)
            self._manifest = workbench.manifest(spec)

    def start(self) -> None:
        """The prompt as training finds it."""
        from slimprompt.prompts.start import start_prompt

        spec, backbone = self.spec, self._bank.backbone
        self.prompt = start_prompt(
            spec.variant,
            width=backbone.text_width,
            seed=spec.seed,
            n_ctx=spec.n_ctx,
            rank=spec.rank,
            basis=spec.basis,
            trained=_trained(spec, self.workbench, backbone),
        )
        self._factors = {"B0": self.prompt.B.detach().numpy().copy(), "A0": self.prompt.A.detach().numpy().copy()}

    def fit(self, prompts: Sequence[Prompt]) -> list[list[EpochResult]]:
        """Train these prompts, this run's and others', on this run's images."""
        from slimprompt.training.loop import fit_prompts

        spec, labels = self.spec, [item.label for item in self._base.train]
        return fit_prompts(prompts, self._bank, self._pictures, labels, self.encoder, spec.recipe, seed=spec.seed)

    def evaluate(self) -> None:
        """Accuracies, and what else should be known about the run."""
        import torch

        from slimprompt.training.evaluation import accuracy, harmonic_mean

        spec, prompt, backbone, tests = self.spec, self.prompt, self._bank.backbone, self._tests
        metrics = self._metrics
        with self.clock("evaluation"), torch.inference_mode():
            for name, test in tests.items():
                encode = self.workbench.encoder(spec, test.class_names)
                metrics[name] = accuracy(test.features, encode(prompt()), test.labels)
            for name, test in tests.items():
                metrics[f"zero_shot_{name}"] = test.zero_shot
            if spec.split == "base":
                metrics["harmonic"] = harmonic_mean(metrics["seen"], metrics["unseen"])
                metrics["zero_shot_harmonic"] = harmonic_mean(metrics["zero_shot_seen"], metrics["zero_shot_unseen"])
        self._factors |= {"B": prompt.B.detach().cpu().numpy(), "A": prompt.A.detach().cpu().numpy()}
        source = spec.needs()

        def part(metric: str) -> str:
            return "test" if metric == "accuracy" else metric

        n_train = len(self._pictures)
        self._facts = {
            "trainable_parameters": prompt.trainable_parameters,
            "text_width": backbone.text_width,
            "n_classes": {
                "train": len(self._base.class_names),
                **{part(name): len(test.class_names) for name, test in tests.items()},
            },
            "n_images": {"train": n_train, **{part(name): len(test.labels) for name, test in tests.items()}},
            "chance": {name: 100 / len(test.class_names) for name, test in tests.items()},
            "steps": len(self.curve) * spec.recipe.steps_per_epoch(n_train),
            "trained_together": self.stack,
            "tokens_per_step": self.encoder.n_tokens,
            "source_run": source.fingerprint if source else None,
            "backbone_fingerprint": backbone.fingerprint,
            "logit_scale": backbone.logit_scale,
            "device": backbone.device.type,
            "notes": self.workbench.notes(spec),
        }

    def store(self) -> Record:
        """The run folder."""
        outcome = self.failure or {"status": COMPLETE, "metrics": self._metrics, **self._facts}
        execution = self.workbench.execution
        return store_run(
            execution.runs,
            self.spec,
            {**outcome, **self.clock.facts(), **self._memory.facts(), **_origin(execution)},
            factors=None if self.failure else self._factors,
            manifest=None if self.failure else self._manifest,
            curve=() if self.failure else self.curve,
        )


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
        self._started = datetime.now(timezone.utc)
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - begin)

    def add(self, phase: str, seconds: float) -> None:
        """Seconds of a phase that was measured elsewhere."""
        self._seconds[phase] = round(seconds, 4)

    def facts(self) -> dict[str, Any]:
        return {
            "times": {**self._seconds, "total": round(sum(self._seconds.values()), 4)},
            "started": self._started.isoformat(timespec="seconds"),
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
