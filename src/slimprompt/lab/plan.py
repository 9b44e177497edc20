"""The cost of a study before it runs: runs, shared image features, text tokens, steps, time and disk.

Counting only needs the annotation files of the benchmarks. Time is estimated from a few training steps and images on this
machine with random weights of the right shapes, so no pretrained weights are needed.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.data import Benchmark, Item, base_new, few_shot, held_out
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import benchmark_folder, find_source, open_dataset
from slimprompt.errors import InputError
from slimprompt.files import cache_dir
from slimprompt.lab.environment import RunEnvironment, torch_threads
from slimprompt.lab.records import find_complete_run
from slimprompt.lab.spec import RunSpec, distinct
from slimprompt.lab.speed import Speed, measure_speed
from slimprompt.lab.study import with_sources
from slimprompt.methods.table import find_method
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

if TYPE_CHECKING:
    from slimprompt.clip.backbone import Backbone

_BLOCK = 4096
_TIGHT = 0.8  # share of the free disk above which a study is announced as tight
#: Bytes of one image in a manifest, one epoch in a curve, and one record.
_MANIFEST_ITEM, _CURVE_LINE, _RECORD = 140, 64, 2500


@dataclass(frozen=True)
class Task:
    """The runs of one backbone on one dataset and class subset."""

    backbone: str
    dataset: str
    split: str
    runs: int
    classes: int
    steps: int
    """Total over all runs."""
    tokens_per_step: tuple[int, int] | None
    """Fewest and most text tokens, which depend on the context length; None if the backbone cannot be loaded."""
    tokens: int | None
    """Total over all steps."""


@dataclass(frozen=True)
class Bank:
    """Image features that the runs of one backbone on one dataset share."""

    backbone: str
    dataset: str
    test: int
    train: int
    """Views of training images, over all samples."""


@dataclass
class Plan:
    """Counts cover all runs; time and disk cover those that are not complete yet."""

    studies: dict[str, int]
    """Number of runs of each study, some of them shared."""
    runs: int
    """Number of distinct runs, including the sources that they need."""
    sources: int
    """Runs that no study contains but another run needs as a source."""
    complete: int
    workers: int
    threads: int
    tasks: list[Task] = field(default_factory=list)
    banks: list[Bank] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0
    seconds: float | None = None
    """Estimated wall time on `workers` processes; None if something could not be measured."""
    training_seconds: float = 0.0
    fitted: int = 0
    """Runs of other methods than prompts that are not complete; their fitting is not part of the time."""
    encoding_seconds: float = 0.0
    disk_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    """What could not be estimated, with the reason."""

    def as_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return asdict(self)


def count_runs(studies: Mapping[str, Sequence[RunSpec]], environment: RunEnvironment, workers: int) -> Plan:
    """The numbers of runs of a plan; this needs neither data nor weights."""
    asked = distinct(chain.from_iterable(studies.values()))
    every = with_sources(asked)
    return Plan(
        studies={name: len(specs) for name, specs in studies.items()},
        runs=len(every),
        sources=len(every) - len(asked),
        complete=sum(_is_complete(environment.runs, spec) for spec in every),
        workers=workers,
        threads=environment.threads,
    )


def plan_runs(studies: Mapping[str, Sequence[RunSpec]], environment: RunEnvironment, workers: int) -> Plan:
    """The whole plan.

    Parameters
    ----------
    studies
        Name of each study and its runs; studies may share runs.
    environment
        Where the runs would be executed.
    workers
        Number of processes that share the work.
    """
    plan = count_runs(studies, environment, workers)
    specs = with_sources(chain.from_iterable(studies.values()))
    benchmarks: dict[str, Benchmark] = {}
    for dataset in dict.fromkeys(name for spec in specs for name in (spec.dataset, *spec.evaluate_on)):
        try:
            benchmarks[dataset] = _annotations(dataset, environment.data_root, environment.cache)
        except InputError as error:
            plan.missing.append(f"{dataset}: {error}")
    samples = _Samples(benchmarks)
    by_backbone: dict[tuple[str, str | None], list[RunSpec]] = defaultdict(list)
    for spec in specs:
        if benchmarks.keys() >= {spec.dataset, *spec.evaluate_on}:
            by_backbone[spec.backbone, spec.pretrained].append(spec)
    for (name, pretrained), mine in by_backbone.items():
        backbone = None
        try:
            backbone = _random_backbone(name, pretrained, environment)
        except InputError as error:
            plan.missing.append(f"{name}: {error}")
        _plan_backbone(plan, backbone, mine, samples, environment)
    if plan.speeds and not plan.missing:
        plan.seconds = (plan.training_seconds + plan.encoding_seconds) / workers
    return plan


def _plan_backbone(
    plan: Plan, backbone: Backbone | None, specs: list[RunSpec], samples: _Samples, environment: RunEnvironment
) -> None:
    """Add the cost of the runs of one backbone."""
    todo = [spec for spec in specs if not _is_complete(environment.runs, spec)]
    tokens = _Tokens(backbone, samples) if backbone else None
    name = specs[0].backbone
    groups: dict[tuple[str, str], list[RunSpec]] = defaultdict(list)
    for spec in specs:
        groups[spec.dataset, spec.class_subset].append(spec)
    for (dataset, split), mine in sorted(groups.items()):
        steps = sum(samples.steps(spec) for spec in mine)
        counts = [tokens(spec) for spec in mine if spec.is_prompt] if tokens else []
        span = (min(counts), max(counts)) if counts else None
        total = sum(samples.steps(spec) * tokens(spec) for spec in mine) if tokens else None
        plan.tasks.append(Task(name, dataset, split, len(mine), len(samples(mine[0]).class_names), steps, span, total))
        plan.steps += steps
        plan.tokens += total or 0
    features = 0
    for dataset in sorted({dataset for spec in specs for dataset in (spec.dataset, *spec.evaluate_on)}):
        plan.banks.append(Bank(name, dataset, *samples.features(dataset, specs)))
        features += sum(samples.features(dataset, todo))
    if backbone is None or tokens is None:
        return
    rendered = all(dataset in POCKET_BENCHMARKS for dataset, _ in groups)
    with torch_threads(environment.threads):
        speed = measure_speed(backbone, name, image_size=64 if rendered else 400)
    plan.speeds.append(speed)
    for spec in todo:
        if spec.is_prompt:
            step = speed.step + speed.token * tokens(spec)
            plan.training_seconds += (samples.steps(spec) + 1) * step  # one more for the evaluation
        else:
            plan.fitted += 1
        plan.disk_bytes += _run_bytes(spec, samples(spec), _ModelSizes(speed.embed_dim, speed.text_width))
    plan.encoding_seconds += features * speed.image
    if features:
        plan.disk_bytes += round(features * bytes_per_feature(speed.embed_dim))


class _Samples:
    """The few-shot samples of some specs, each computed once."""

    def __init__(self, benchmarks: dict[str, Benchmark]) -> None:
        self._whole = benchmarks
        self._benchmarks = {name: replace(benchmark, val=(), test=()) for name, benchmark in benchmarks.items()}
        self._made: dict[tuple[str, str, int, int], Benchmark] = {}

    def __call__(self, spec: RunSpec) -> Benchmark:
        """The sample that the run trains on."""
        key = (spec.dataset, spec.class_subset, spec.shots, spec.seed)
        if key not in self._made:
            sample = few_shot(self._benchmarks[spec.dataset], spec.shots, spec.seed)
            self._made[key] = sample if spec.class_subset == "all" else base_new(sample)[0]
        return self._made[key]

    def steps(self, spec: RunSpec) -> int:
        """Optimizer steps of the run of a prompt; 0 for other methods."""
        if not spec.is_prompt:
            return 0
        return spec.recipe.steps(len(self(spec).train))

    def features(self, dataset: str, specs: Sequence[RunSpec]) -> tuple[int, int]:
        """(test images, distinct views of training images) of the dataset that these runs read."""
        mine = [spec for spec in specs if spec.dataset == dataset]
        tests = self._tests(dataset, specs)
        views: dict[tuple[int, str], int] = {}
        plain: set[str] = set()
        for spec in {(s.class_subset, s.shots, s.seed, s.recipe, s.method): s for s in mine}.values():
            numbers = set(_view_numbers(spec))
            for item in self(spec).train:
                if None in numbers:
                    plain.add(item.path)
                # train views are numbered from 0, so the longest recipe includes those of the others
                key = (spec.seed, item.path)
                views[key] = max(len(numbers - {None}), views.get(key, 0))
        return len(tests), sum(views.values()) + len(plain - tests)

    def _tests(self, dataset: str, specs: Sequence[RunSpec]) -> set[str]:
        """The images of the dataset that these runs are evaluated on; without a test split, those that a run does not train on."""
        whole = self._whole[dataset]
        if any(dataset in spec.evaluate_on or (whole.test and dataset == spec.dataset) for spec in specs):
            return {item.path for item in whole.test or (*whole.train, *whole.val)}
        samples = {(spec.shots, spec.seed) for spec in specs if spec.dataset == dataset}
        held = (held_out(whole, few_shot(whole, shots, seed)) for shots, seed in samples)
        return {item.path for items in held for item in items}


def _view_numbers(spec: RunSpec) -> Iterable[int | None]:
    """Numbers of the train views that a run reads; None is the eval view."""
    from slimprompt.methods.task import Task as FewShotTask

    if spec.is_prompt:
        return spec.recipe.all_view_numbers()
    reads = find_method(spec.method).reads
    numbers = range(FewShotTask.views) if reads == "all views" else ()
    return () if reads == "nothing" else (None, *numbers)


class _Tokens:
    """Text tokens per step of a backbone's runs; each class list is tokenised once."""

    def __init__(self, backbone: Backbone, samples: _Samples) -> None:
        self._backbone, self._samples = backbone, samples
        self._known: dict[tuple[str, str, int, str], int] = {}

    def __call__(self, spec: RunSpec) -> int:
        from slimprompt.text.encoder import SharedPrefixTextEncoder

        if not spec.is_prompt:
            return 0
        key = (spec.dataset, spec.class_subset, spec.n_ctx, spec.position)
        if key not in self._known:
            names = self._samples(spec).class_names
            self._known[key] = SharedPrefixTextEncoder(self._backbone, names, spec.n_ctx, spec.position).n_tokens
        return self._known[key]


def check_disk(specs: Sequence[RunSpec], environment: RunEnvironment) -> str:
    """Compare the disk that missing runs need with what is free, before they start.

    Only what can be counted is compared: runs whose annotation files or backbone sizes are not known are left out, and
    features that are on disk already are assumed to be of use.

    Parameters
    ----------
    specs
        The runs of a study.
    environment
        Where they would be executed.

    Returns
    -------
    str
        A warning if little would be left; otherwise empty.

    Raises
    ------
    InputError
        If the runs certainly do not fit.
    """
    warning = ""
    for folder, needed in _bytes_by_disk(with_sources(specs), environment).items():
        free = shutil.disk_usage(folder).free
        sizes = f"the missing runs need about {needed / 1e9:,.1f} GB at {folder}, where {free / 1e9:,.1f} GB are free"
        if needed > free:
            raise InputError(
                f"{sizes}; free some space, or choose another disk with SLIMPROMPT_CACHE (features) or --runs. "
                "--plan shows details"
            )
        if needed > _TIGHT * free:
            warning = f"{sizes}; --plan shows details"
    return warning


def _bytes_by_disk(specs: Sequence[RunSpec], environment: RunEnvironment) -> dict[Path, int]:
    """Bytes that the incomplete runs need, by the existing folder whose disk they are written to."""
    from slimprompt.images.store import cached_banks

    todo: dict[tuple[str, str], list[RunSpec]] = defaultdict(list)
    for spec in specs:
        if not _is_complete(environment.runs, spec):
            for dataset in (spec.dataset, *spec.evaluate_on):
                todo[spec.backbone, dataset].append(spec)
    features: dict[int, int] = defaultdict(int)  # embed_dim → number
    run_bytes = 0
    for (backbone, dataset), mine in todo.items():
        sizes = _model_sizes(backbone)
        try:
            benchmark = _annotations(dataset, environment.data_root, environment.cache)
        except InputError:
            continue
        if sizes is None:
            continue
        samples = _Samples({dataset: benchmark})
        features[sizes.embed_dim] += sum(samples.features(dataset, mine))
        run_bytes += sum(_run_bytes(spec, samples(spec), sizes) for spec in mine if spec.dataset == dataset)
    stored = environment.cache or cache_dir()
    on_disk = sum(bank.size for bank in cached_banks(stored / "features"))
    feature_bytes = sum(round(number * bytes_per_feature(width)) for width, number in features.items())
    by_device: dict[int, tuple[Path, int]] = {}
    for folder, size in ((stored, max(0, feature_bytes - on_disk)), (environment.runs, run_bytes)):
        place = _existing_parent(folder)
        first, before = by_device.get(place.stat().st_dev, (place, 0))
        by_device[place.stat().st_dev] = first, before + size
    return dict(by_device.values())


def bytes_per_feature(embed_dim: int) -> float:
    """About the bytes that a feature takes in the feature bank, with its names."""
    return 1.1 * 4 * embed_dim + 200


class _ModelSizes(NamedTuple):
    embed_dim: int
    text_width: int


def _model_sizes(name: str) -> _ModelSizes | None:
    """Sizes of a backbone from its configuration, without building it; None if they are not known."""
    if ":" in name:  # a folder or a model of the hub; other names need open_clip, whose import takes seconds
        return None
    from slimprompt.clip.architectures import model_config

    config = model_config(name)
    return _ModelSizes(config["embed_dim"], config["text_cfg"]["width"]) if config else None


def _existing_parent(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _annotations(dataset: str, data_root: Path | None, cache: Path | None) -> Benchmark:
    """The annotations of a benchmark; a benchmark that is rendered on first use is not rendered for this."""
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


def _random_backbone(name: str, pretrained: str | None, environment: RunEnvironment) -> Backbone:
    """A model of the same shape; open_clip architectures get random weights, so that nothing is downloaded."""
    from slimprompt.clip.backbone import load_backbone

    weights = "random:0" if pretrained is not None else None
    return load_backbone(name, weights, device=environment.device)


def _run_bytes(spec: RunSpec, sample: Benchmark, sizes: _ModelSizes) -> int:
    """Size of a run folder, in whole disk blocks."""
    n_train = len(sample.train)
    val = n_train * min(spec.shots, 4) // spec.shots
    files = [(n_train + val) * _MANIFEST_ITEM, _RECORD]
    if spec.is_prompt:
        rank = spec.rank or spec.n_ctx
        numbers = 2 * rank * (spec.n_ctx + spec.depth * sizes.text_width)
        numbers += spec.anchored * spec.n_ctx * sizes.text_width
        files.append(spec.recipe.epochs * _CURVE_LINE)
    else:  # at most: class weights, and one key per training image
        numbers = (len(sample.class_names) + n_train) * sizes.embed_dim
    files.append(4 * numbers + 300)
    return sum(_BLOCK * math.ceil(size / _BLOCK) for size in files) + _BLOCK


def _is_complete(runs: Path, spec: RunSpec) -> bool:
    return find_complete_run(runs, spec) is not None
