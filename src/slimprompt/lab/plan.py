"""What a study will take, before it runs: runs, shared image features, text tokens, steps, time and disk.

Counting needs the benchmarks' annotation files only. Time is estimated from a few training steps and a few images on this
machine, with weights of the right shape; no pretrained weights are needed for that.
"""

from __future__ import annotations

import io
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimprompt.data import Benchmark, Item, base_new, few_shot
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import benchmark_folder, find_source, open_dataset
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment, torch_threads
from slimprompt.lab.records import find_run
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.study import with_sources
from slimprompt.paper.studies import STUDIES, Grid, study_specs
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

if TYPE_CHECKING:
    from slimprompt.clip.backbone import Backbone

_TOGETHER = 4  # runs that train side by side, about
_BLOCK = 4096
#: Bytes of one image in a manifest, one epoch in a curve, one record, and of a feature beside its numbers.
_MANIFEST_ITEM, _CURVE_LINE, _RECORD, _FEATURE_KEY = 140, 64, 2500, 110


@dataclass(frozen=True)
class Task:
    """The runs of one backbone on one dataset and split."""

    backbone: str
    dataset: str
    split: str
    runs: int
    classes: int
    steps: int
    """Of all runs together."""
    tokens_per_step: tuple[int, int] | None
    """Text tokens, fewest and most: they depend on the length of the context. None if the backbone cannot be had."""
    tokens: int | None
    """Of all steps together."""


@dataclass(frozen=True)
class Bank:
    """Image features that the runs of one backbone on one dataset share."""

    backbone: str
    dataset: str
    test: int
    train: int
    """Views of training images: every image of every draw, in every view."""


@dataclass(frozen=True)
class Speed:
    """Measured on this machine, on one run's threads: a step takes `step + token · tokens` seconds."""

    backbone: str
    step: float
    token: float
    image: float
    """Seconds per encoded view, decoding included."""
    embed_dim: int
    text_width: int


@dataclass
class Plan:
    """Counts are of all runs; time and disk are of those that are not complete yet."""

    studies: dict[str, int]
    """Runs of each study; some are shared."""
    runs: int
    """Different runs, with the sources that they need."""
    sources: int
    """Runs that no study asks for but another run needs."""
    complete: int
    workers: int
    threads: int
    tasks: list[Task] = field(default_factory=list)
    banks: list[Bank] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0
    seconds: float | None = None
    """Until the end, on `workers` processes; None if nothing could be measured."""
    training_seconds: float = 0.0
    encoding_seconds: float = 0.0
    disk_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    """What could not be estimated, and why."""

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


def count_runs(grid: Grid, environment: RunEnvironment, workers: int) -> Plan:
    """The plan's numbers of runs; needs neither data nor weights."""
    names = [name for name in STUDIES if name != "all"] if "all" in grid.study else grid.study
    asked = study_specs(grid)
    every = with_sources(asked)
    return Plan(
        studies={name: len(STUDIES[name](grid)) for name in names},
        runs=len(every),
        sources=len(every) - len(asked),
        complete=sum(_is_complete(environment.runs, spec) for spec in every),
        workers=workers,
        threads=environment.threads,
    )


def plan_study(grid: Grid, environment: RunEnvironment, workers: int) -> Plan:
    """The whole plan."""
    plan = count_runs(grid, environment, workers)
    specs = with_sources(study_specs(grid))
    benchmarks: dict[str, Benchmark] = {}
    for dataset in dict.fromkeys(spec.dataset for spec in specs):
        try:
            benchmarks[dataset] = _annotations(dataset, environment.data_root, environment.cache)
        except InputError as error:
            plan.missing.append(f"{dataset}: {error}")
    draws = _Draws(benchmarks)
    by_backbone: dict[tuple[str, str | None], list[RunSpec]] = defaultdict(list)
    for spec in specs:
        if spec.dataset in benchmarks:
            by_backbone[spec.backbone, spec.pretrained].append(spec)
    for (name, pretrained), mine in by_backbone.items():
        backbone = None
        try:
            backbone = _stand_in(name, pretrained, environment)
        except InputError as error:
            plan.missing.append(f"{name}: {error}")
        _plan_backbone(plan, backbone, mine, draws, environment)
    if plan.speeds and not plan.missing:
        plan.seconds = (plan.training_seconds + plan.encoding_seconds) / workers
    return plan


def _plan_backbone(
    plan: Plan, backbone: Backbone | None, specs: list[RunSpec], draws: _Draws, environment: RunEnvironment
) -> None:
    """Add what the runs of one backbone take."""
    todo = [spec for spec in specs if not _is_complete(environment.runs, spec)]
    tokens = _Tokens(backbone, draws) if backbone else None
    name = specs[0].backbone
    groups: dict[tuple[str, str], list[RunSpec]] = defaultdict(list)
    for spec in specs:
        groups[spec.dataset, spec.split].append(spec)
    for (dataset, split), mine in sorted(groups.items()):
        steps = sum(draws.steps(spec) for spec in mine)
        span = (min(map(tokens, mine)), max(map(tokens, mine))) if tokens else None
        total = sum(draws.steps(spec) * tokens(spec) for spec in mine) if tokens else None
        plan.tasks.append(Task(name, dataset, split, len(mine), len(draws(mine[0]).class_names), steps, span, total))
        plan.steps += steps
        plan.tokens += total or 0
    features = 0
    for dataset in sorted({spec.dataset for spec in specs}):
        test, train = draws.features([spec for spec in specs if spec.dataset == dataset])
        plan.banks.append(Bank(name, dataset, test, train))
        test, train = draws.features([spec for spec in todo if spec.dataset == dataset])
        features += test + train
    if backbone is None or tokens is None:
        return
    drawn = all(dataset in POCKET_BENCHMARKS for dataset, _ in groups)
    with torch_threads(environment.threads):
        speed = measure(backbone, name, picture_size=64 if drawn else 400)
    plan.speeds.append(speed)
    for spec in todo:
        step = speed.step + speed.token * tokens(spec)
        plan.training_seconds += (draws.steps(spec) + 1) * step  # one more for the evaluation
        plan.disk_bytes += _run_bytes(spec, len(draws(spec).train), speed.text_width)
    plan.encoding_seconds += features * speed.image
    plan.disk_bytes += features * (4 * speed.embed_dim + _FEATURE_KEY)


class _Draws:
    """The few-shot draws of some specs, each made once."""

    def __init__(self, benchmarks: dict[str, Benchmark]) -> None:
        self._tests = {name: len(benchmark.test) for name, benchmark in benchmarks.items()}
        self._benchmarks = {name: replace(benchmark, val=(), test=()) for name, benchmark in benchmarks.items()}
        self._made: dict[tuple[str, str, int, int], Benchmark] = {}

    def __call__(self, spec: RunSpec) -> Benchmark:
        """What the run trains on."""
        key = (spec.dataset, spec.split, spec.shots, spec.seed)
        if key not in self._made:
            drawn = few_shot(self._benchmarks[spec.dataset], spec.shots, spec.seed)
            self._made[key] = drawn if spec.split == "all" else base_new(drawn)[0]
        return self._made[key]

    def steps(self, spec: RunSpec) -> int:
        """Optimiser steps of the run."""
        return spec.recipe.epochs * spec.recipe.steps_per_epoch(len(self(spec).train))

    def features(self, specs: list[RunSpec]) -> tuple[int, int]:
        """(test images, different views of training images) that these runs of one dataset read."""
        if not specs:
            return 0, 0
        views: dict[tuple[int, str], int] = {}
        plain: set[str] = set()
        for spec in {(s.split, s.shots, s.seed, s.recipe): s for s in specs}.values():
            numbers = {view for epoch in range(spec.recipe.epochs) for view in spec.recipe.views_at(epoch)}
            for item in self(spec).train:
                if None in numbers:
                    plain.add(item.path)
                # random views are numbered from 0, so the longest recipe has all of them
                views[spec.seed, item.path] = max(len(numbers - {None}), views.get((spec.seed, item.path), 0))
        return self._tests[specs[0].dataset], sum(views.values()) + len(plain)


class _Tokens:
    """Text tokens per step of a backbone's runs, each class list tokenised once."""

    def __init__(self, backbone: Backbone, draws: _Draws) -> None:
        self._backbone, self._draws = backbone, draws
        self._known: dict[tuple[str, str, int, str], int] = {}

    def __call__(self, spec: RunSpec) -> int:
        from slimprompt.text.encoder import SharedPrefixTextEncoder

        key = (spec.dataset, spec.split, spec.n_ctx, spec.position)
        if key not in self._known:
            names = self._draws(spec).class_names
            self._known[key] = SharedPrefixTextEncoder(self._backbone, names, spec.n_ctx, spec.position).n_tokens
        return self._known[key]


def _annotations(dataset: str, data_root: Path | None, cache: Path | None) -> Benchmark:
    """The benchmark without its pictures; one that is drawn when used is not drawn for this."""
    info = BENCHMARKS.get(dataset)
    if info is None or not info.rendered or find_source(info, benchmark_folder(info, data_root, cache)) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return open_dataset(dataset, data_root, cache)
    pocket = POCKET_BENCHMARKS[dataset]

    def items(first: int, count: int) -> tuple[Item, ...]:
        return tuple(
            Item(f"{label}/{number}", label, name)
            for label, name in enumerate(pocket.class_names)
            for number in range(first, first + count)
        )

    return Benchmark(
        name=dataset,
        images=Path(),
        class_names=pocket.class_names,
        train=items(0, pocket.train),
        val=items(pocket.train, pocket.val),
        test=items(pocket.train + pocket.val, pocket.test),
    )


def _stand_in(name: str, pretrained: str | None, environment: RunEnvironment) -> Backbone:
    """A model of the same shape: random weights for an open_clip architecture, which has no other on an offline machine."""
    from slimprompt.clip.backbone import load_backbone

    weights = "random:0" if pretrained is not None else None
    return load_backbone(name, weights, device=environment.device)


def _run_bytes(spec: RunSpec, n_train: int, width: int) -> int:
    """Size of the run folder, in whole blocks."""
    rank = spec.rank or spec.n_ctx
    val = n_train * min(spec.shots, 4) // spec.shots
    files = (
        4 * 2 * rank * (spec.n_ctx + width) + 300,
        (n_train + val) * _MANIFEST_ITEM,
        spec.recipe.epochs * _CURVE_LINE,
        _RECORD,
    )
    return sum(_BLOCK * math.ceil(size / _BLOCK) for size in files) + _BLOCK


def _is_complete(runs: Path, spec: RunSpec) -> bool:
    record = find_run(runs, spec)
    return record is not None and record.complete


def measure(backbone: Backbone, name: str, *, picture_size: int, seconds: float = 0.5) -> Speed:
    """Seconds per step of one of several runs side by side, and per image, each from the fastest of a few tries within about `seconds`."""
    import numpy as np
    import torch
    from PIL import Image
    from torch.nn import functional as F

    from slimprompt.images.views import train_view
    from slimprompt.prompts.start import start_prompt
    from slimprompt.text.encoder import SharedPrefixTextEncoder

    embed_dim = int(backbone.encode_texts(["a"]).shape[1])
    prompt = start_prompt("joint", width=backbone.text_width, seed=0, n_ctx=16, rank=4).to(backbone.device)
    optimizer = torch.optim.SGD(prompt.parameters(), lr=1e-6, momentum=0.9)

    def step(n_classes: int) -> tuple[int, float]:
        encode = SharedPrefixTextEncoder(backbone, ["large red square"] * n_classes, prompt.n_ctx)
        images, labels = torch.randn(32, embed_dim), torch.arange(32) % n_classes

        def once() -> None:
            text = F.normalize(encode(prompt().expand(_TOGETHER, -1, -1)), dim=-1).flatten(0, 1)
            loss = F.cross_entropy(images.to(text.device) @ text.T, labels.to(text.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()

        return encode.n_tokens, _fastest(once, seconds) / _TOGETHER

    (few, short), (many, long) = step(4), step(24)
    token = max((long - short) / (many - few), 0.0)

    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (picture_size // 8, picture_size // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((picture_size, picture_size)).save(file, "JPEG")
    view = train_view(Image.open(file).convert("RGB"), backbone.preprocess, 0)
    encode = _fastest(lambda: backbone.encode_images(view[None]), seconds)
    if 16 * encode < seconds:  # small models are faster by the batch
        batch = view[None].expand(32, -1, -1, -1)
        encode = _fastest(lambda: backbone.encode_images(batch), seconds) / 32
    decode = _fastest(lambda: train_view(Image.open(file).convert("RGB"), backbone.preprocess, 0), 0.05)
    return Speed(name, max(short - token * few, 0.0), token, encode + decode, embed_dim, backbone.text_width)


def _fastest(function: Callable[[], Any], seconds: float) -> float:
    """The first call is a warm-up, unless one call takes all the time there is."""
    best, end = math.inf, time.perf_counter() + seconds
    with _timer() as clock:
        function()
    first = clock()
    while time.perf_counter() < end:
        with _timer() as clock:
            function()
        best = min(best, clock())
    return min(best, first)


@contextmanager
def _timer() -> Iterator[Callable[[], float]]:
    begin = time.perf_counter()
    taken = [0.0]
    yield lambda: taken[0]
    taken[0] = time.perf_counter() - begin
