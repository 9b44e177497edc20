"""The cost of a study: seconds = steps · (a + b · tokens) + images · c, and bytes on the disk.

Counting only needs the annotation files of the benchmarks. a, b and c are measured on this machine with random weights of the
right shapes, so no pretrained weights are needed.
"""

from __future__ import annotations

import io
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.data import Benchmark, Item, base_new, few_shot, held_out
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import benchmark_folder, open_dataset
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment, torch_threads
from slimprompt.lab.spec import Model, RunSpec, SampleKey
from slimprompt.lab.study import Study
from slimprompt.methods.table import find_method
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

if TYPE_CHECKING:
    from slimprompt.clip.backbone import Backbone

_BLOCK = 4096
#: Bytes of one image in a manifest, of one epoch in a curve, of one record, and of one image feature beside its numbers.
_MANIFEST_ITEM, _CURVE_LINE, _RECORD, _FEATURE = 140, 64, 2500, 300
_PROMPT_BATCH = 4  # a typical number of prompts trained together


class Speed(NamedTuple):
    """What one worker takes on this machine, in seconds."""

    step: float
    """a: each training step of a prompt."""
    token: float
    """b: each text token of a step."""
    image: float
    """c: each encoded view, decoding included."""

    def seconds(self, steps: float, tokens_per_step: float, images: float = 0.0) -> float:
        """steps · (a + b · tokens) + images · c."""
        return steps * (self.step + self.token * tokens_per_step) + images * self.image


@dataclass
class Plan:
    """What the runs of a study need that are not complete."""

    workers: int
    steps: int = 0
    """Optimizer steps."""
    tokens: int = 0
    """Text tokens of all steps."""
    images: int = 0
    """Image views that they read; each is encoded once, unless it is stored already."""
    fitted: int = 0
    """Runs of other methods than prompts; their fitting, of seconds, is not part of the time."""
    seconds: float | None = None
    """Wall time on `workers` processes; None if something could not be counted or measured."""
    disk_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    """What could not be counted or measured, with the reason."""


def plan_study(study: Study, environment: RunEnvironment, workers: int) -> Plan:
    """Count and measure what the missing runs of a study need."""
    plan, benchmarks = Plan(workers), {}
    todo = [spec for spec in study.specs if spec.fingerprint not in study.complete]
    for dataset in dict.fromkeys(name for spec in todo for name in (spec.dataset, *spec.evaluate_on)):
        try:
            benchmarks[dataset] = _annotations(dataset, environment)
        except InputError as error:
            plan.missing.append(f"{dataset}: {error}")
    images, seconds = _Images(benchmarks), 0.0
    by_model: dict[Model, list[RunSpec]] = defaultdict(list)
    for spec in todo:
        if benchmarks.keys() >= {spec.dataset, *spec.evaluate_on}:
            by_model[spec.model].append(spec)
    for model, specs in by_model.items():
        try:
            seconds += _add_model(plan, model, specs, images, environment)
        except InputError as error:
            plan.missing.append(f"{model.backbone}: {error}")
    plan.seconds = None if plan.missing else seconds / workers
    return plan


def weight(spec: RunSpec) -> float:
    """Relative cost of a run for the time left of a study: steps · tokens, as if every dataset had 100 classes."""
    n_classes = 50 if spec.class_subset == "base" else 100
    return (_steps(spec, n_classes * spec.shots) + 1) * n_classes


def _steps(spec: RunSpec, n_images: int) -> int:
    return spec.recipe.steps(n_images) if spec.is_prompt else 0


def _add_model(
    plan: Plan, model: Model, specs: Sequence[RunSpec], images: _Images, environment: RunEnvironment
) -> float:
    """Add the runs of one model to the plan; the seconds that they take on one worker."""
    from slimprompt.clip.backbone import load_backbone
    from slimprompt.methods.prompt import context_start, image_blocks
    from slimprompt.text.encoder import SharedPrefixTextEncoder

    weights = "random:0" if model.pretrained is not None else None  # nothing is downloaded
    backbone = load_backbone(model.backbone, weights, device=environment.device)
    rendered = all(spec.dataset in POCKET_BENCHMARKS for spec in specs)
    with torch_threads(environment.threads):
        speed = measure_speed(backbone, image_size=64 if rendered else 400)
    embed_dim, seconds = backbone.embed_dim, 0.0
    known: dict[Any, int] = {}
    for spec in specs:
        sample = images.sample(spec.sample)
        numbers = (len(sample.class_names) + len(sample.train)) * embed_dim  # at most: class weights and keys
        if spec.is_prompt:
            n_ctx, steps = context_start(backbone, spec)[1], _steps(spec, len(sample.train))
            key = (spec.dataset, spec.class_subset, n_ctx, spec.position)
            if key not in known:
                known[key] = SharedPrefixTextEncoder(backbone, sample.class_names, n_ctx, spec.position).n_tokens
            plan.steps += steps
            plan.tokens += steps * known[key]
            seconds += speed.seconds(steps + 1, known[key])  # one more for the evaluation
            factors = 2 * (spec.rank or n_ctx) * (n_ctx + spec.depth * backbone.text_width)
            numbers = factors + spec.anchored * n_ctx * backbone.text_width
            if spec.tower != "text":
                n_views = spec.recipe.epochs * len(spec.recipe.views_at(0)) * len(sample.train)
                # a pass with gradients takes about three times as long as one without
                passed = image_blocks(backbone, spec)[0] / len(backbone.image_tower.transformer.resblocks)
                seconds += speed.image * (1 - passed) * (3 * n_views + len(sample.test))
        else:
            plan.fitted += 1
        plan.disk_bytes += _run_bytes(spec, len(sample.train), numbers)
    datasets = dict.fromkeys(name for spec in specs for name in (spec.dataset, *spec.evaluate_on))
    # which inputs of the image tower are stored; None: features
    by_block: dict[int | None, list[RunSpec]] = defaultdict(list)
    for spec in specs:
        by_block[None if spec.tower == "text" else image_blocks(backbone, spec)[0]].append(spec)
    for block, some in by_block.items():
        n_images = sum(images.read(dataset, some) for dataset in datasets)
        length = embed_dim
        if block is not None:
            length = len(backbone.image_tower.positional_embedding) * backbone.image_width
        plan.images += n_images
        plan.disk_bytes += n_images * (4 * length + _FEATURE)
        seconds += speed.seconds(0, 0, n_images)
    return seconds


def _run_bytes(spec: RunSpec, n_train: int, numbers: int) -> int:
    """Size of a run folder with this many stored numbers, in whole disk blocks."""
    n_val = n_train * min(spec.shots, 4) // spec.shots
    curve = spec.recipe.epochs * _CURVE_LINE if spec.is_prompt else 0
    files = [_RECORD, 4 * numbers + 300, (n_train + n_val) * _MANIFEST_ITEM, curve]
    return sum(_BLOCK * math.ceil(size / _BLOCK) for size in files) + _BLOCK


class _Images:
    """The images that runs read; each few-shot sample is drawn once."""

    def __init__(self, benchmarks: dict[str, Benchmark]) -> None:
        self._benchmarks = benchmarks
        self._samples: dict[SampleKey, Benchmark] = {}

    def sample(self, key: SampleKey) -> Benchmark:
        """The few-shot sample; its test items are those that the run is evaluated on."""
        if key not in self._samples:
            whole = self._benchmarks[key.dataset]
            sample = few_shot(whole, key.shots or 1, key.seed or 0)
            sample = replace(sample, test=held_out(whole, sample))
            self._samples[key] = sample if key.class_subset == "all" else base_new(sample)[0]
        return self._samples[key]

    def read(self, dataset: str, specs: Sequence[RunSpec]) -> int:
        """Distinct views of images of the dataset that these runs read."""
        whole, plain = self._benchmarks[dataset], set()
        if any(dataset in spec.evaluate_on or (whole.test and dataset == spec.dataset) for spec in specs):
            plain |= {item.path for item in whole.test or whole.items}
        views: dict[tuple[int, str], int] = {}
        mine = [spec for spec in specs if spec.dataset == dataset]
        for spec in {(one.sample, one.recipe, one.method): one for one in mine}.values():
            numbers, sample = set(_view_numbers(spec)), self.sample(spec.sample)
            if not whole.test:
                plain |= {item.path for item in self.sample(spec.sample._replace(class_subset="all")).test}
            for item in sample.train:
                if None in numbers:
                    plain.add(item.path)
                # train views are numbered from 0, so the longest recipe includes those of the others
                key = (spec.seed, item.path)
                views[key] = max(len(numbers - {None}), views.get(key, 0))
        return len(plain) + sum(views.values())


def _view_numbers(spec: RunSpec) -> Iterable[int | None]:
    """Numbers of the train views that a run reads; None is the eval view."""
    from slimprompt.methods.task import DEFAULT_VIEWS

    if spec.is_prompt:
        return spec.recipe.all_view_numbers()
    reads = find_method(spec.method).reads
    return () if reads == "nothing" else (None, *range(DEFAULT_VIEWS if reads == "all views" else 0))


def _annotations(dataset: str, environment: RunEnvironment) -> Benchmark:
    """The annotations of a benchmark; a benchmark that is rendered on first use is not rendered for this."""
    root, cache, info = environment.data_root, environment.cache, BENCHMARKS.get(dataset)
    if info is None or not info.rendered or not info.source.missing(benchmark_folder(info, root, cache)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return open_dataset(dataset, root, cache)
    pocket = POCKET_BENCHMARKS[dataset]

    def items(split: str, count: int) -> tuple[Item, ...]:
        names = enumerate(pocket.class_names)
        return tuple(Item(f"{split}/{label}/{n}", label, name) for label, name in names for n in range(count))

    train, val, test = items("train", pocket.train), items("val", pocket.val), items("test", pocket.test)
    return Benchmark(dataset, Path(), pocket.class_names, train, val, test)


# --- speed -----------------------------------------------------------------------------------------------------------


def measure_speed(backbone: Backbone, *, image_size: int, seconds: float = 0.5) -> Speed:
    """The speed of one prompt in a prompt batch, and of one image: the fastest of the calls within `seconds`."""
    import numpy as np
    import torch
    from PIL import Image
    from torch.nn import functional as F

    from slimprompt.images.views import train_view
    from slimprompt.prompts.start import start_prompt
    from slimprompt.text.encoder import SharedPrefixTextEncoder
    from slimprompt.training.optimizers import SGD

    embed_dim = backbone.embed_dim
    prompt = start_prompt("joint", width=backbone.text_width, seed=0, n_ctx=16, rank=4).to(backbone.device)
    optimizer = SGD(prompt.parameters(), lr=1e-6, momentum=0.9)

    def step(n_classes: int) -> tuple[int, float]:
        encode = SharedPrefixTextEncoder(backbone, ["large red square"] * n_classes, prompt.n_ctx)
        images, labels = torch.randn(32, embed_dim), torch.arange(32) % n_classes

        def once() -> None:
            text = F.normalize(encode(prompt().expand(_PROMPT_BATCH, -1, -1)), dim=-1).flatten(0, 1)
            loss = F.cross_entropy(images.to(text.device) @ text.T, labels.to(text.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device

        return encode.n_tokens, _fastest(once, seconds) / _PROMPT_BATCH

    (few, short), (many, long) = step(4), step(24)
    token = max((long - short) / (many - few), 0.0)

    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (image_size // 8, image_size // 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((image_size, image_size)).save(file, "JPEG")
    view = train_view(Image.open(file).convert("RGB"), backbone.preprocess, 0)
    # .cpu() waits for the device before the clock is read
    encode = _fastest(lambda: backbone.encode_images(view[None]).cpu(), seconds)
    if 16 * encode < seconds:  # small models are faster on batches
        batch = view[None].expand(32, -1, -1, -1)
        encode = _fastest(lambda: backbone.encode_images(batch).cpu(), seconds) / 32
    decode = _fastest(lambda: train_view(Image.open(file).convert("RGB"), backbone.preprocess, 0), 0.05)
    return Speed(max(short - token * few, 0.0), token, encode + decode)


def _fastest(function: Callable[[], Any], seconds: float) -> float:
    """Seconds of the fastest call within about `seconds`, of at least two: the first one may load code."""
    best, calls, end = math.inf, 0, time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        function()
        now = time.perf_counter()
        best, calls = min(best, now - begin), calls + 1
        if calls > 1 and now >= end:
            return best
