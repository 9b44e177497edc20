"""Few-shot sampling, and the division into base and new classes.

Sample first, then divide: `base, new = base_new(few_shot(benchmark, shots=16, seed=1))`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from slimprompt.data.benchmark import SPLITS, Benchmark, Item
from slimprompt.errors import InputError, first_few, whole_number
from slimprompt.seeds import stream_seed

#: Maximum number of validation items per class.
MAX_VAL_SHOTS = 4


def few_shot(benchmark: Benchmark, shots: int, seed: int, *, keep: Collection[Item] = ()) -> Benchmark:
    """Sample `shots` train items and min(`shots`, 4) val items per class; test is unchanged.

    The sampling order is the one of the published samples: a single stream `random.Random(seed)` samples train, then
    val, class by class in the order in which the labels first appear. A class with too few items contributes all of
    them (see `short_classes`).

    Parameters
    ----------
    benchmark
        Benchmark to sample from.
    shots
        Train items per class, at least 1.
    seed
        Seed of the sample, at least 0.
    keep
        Train items that are in the sample in any case; a class is filled up to `shots` with others.

    Returns
    -------
    Benchmark
        The same benchmark with the sampled train and val items.
    """
    shots, seed = whole_number("shots", shots, least=1), whole_number("seed", seed)
    if not benchmark.train:
        raise InputError(
            f"{benchmark.name} has no train split, it is for evaluation only: train on other images and run "
            f"`slimprompt evaluate PROMPT --benchmark {benchmark.name}`"
        )
    check_every_class(benchmark, benchmark.name)
    stream = random.Random(seed)
    train = _sample(benchmark.train, shots, stream, keep)
    val = _sample(benchmark.val, min(shots, MAX_VAL_SHOTS), stream)
    return replace(benchmark, train=train, val=val)


def check_every_class(benchmark: Benchmark, where: str) -> None:
    """Raise an `InputError` that names the classes without training images, if there are any."""
    missing = sorted(repr(name) for name, _ in short_classes(benchmark, 1))
    if missing:
        raise InputError(
            f"{where} has no training images of {first_few(missing)} ({len(missing)} of "
            f"{len(benchmark.class_names)} classes); every class needs at least one. Add images, or remove the class"
        )


def _sample(items: Iterable[Item], shots: int, stream: random.Random, keep: Collection[Item] = ()) -> tuple[Item, ...]:
    sampled: list[Item] = []
    for group in _by_class(items):
        kept, others = [item for item in group if item in keep], [item for item in group if item not in keep]
        missing = max(0, shots - len(kept))
        sampled += kept + (stream.sample(others, missing) if len(others) >= missing else others)
    return tuple(sampled)


def _by_class(items: Iterable[Item]) -> list[list[Item]]:
    """The items of each class, classes in order of first appearance."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    return list(groups.values())


def short_classes(benchmark: Benchmark, shots: int) -> list[tuple[str, int]]:
    """(class name, number of train items) of each class with fewer than `shots`."""
    counts = Counter(item.label for item in benchmark.train)
    return [(name, counts[label]) for label, name in enumerate(benchmark.class_names) if counts[label] < shots]


def held_out(benchmark: Benchmark, sample: Benchmark, *, at_most: int | None = None, seed: int = 0) -> tuple[Item, ...]:
    """The items to evaluate on: the test items or, if there are none, the items that were not sampled.

    If there are more than `at_most`, these many of them at random, in their order: one of each class, as far as that is possible,
    and of the classes in proportion to their sizes.
    """
    items = benchmark.test
    if not items:
        sampled = {item.path for item in (*sample.train, *sample.val)}
        items = tuple(item for item in (*benchmark.train, *benchmark.val) if item.path not in sampled)
    if at_most is None or len(items) <= at_most:
        return items
    stream = random.Random(stream_seed(seed, "held-out"))
    ranked: list[tuple[float, float, Item]] = []  # by the share of its class that comes before an item, then at random
    for group in _by_class(items):
        stream.shuffle(group)
        ranked += [(rank / len(group), stream.random(), item) for rank, item in enumerate(group)]
    chosen = {item for *_, item in sorted(ranked)[:at_most]}
    return tuple(item for item in items if item in chosen)


def base_new(benchmark: Benchmark) -> tuple[Benchmark, Benchmark]:
    """Divide into the first ⌈C/2⌉ classes (base) and the others (new); labels start at 0 in both."""
    n_classes = len(benchmark.class_names)
    if n_classes < 2:
        raise InputError(f"{benchmark.name} has {n_classes} class; base and new classes need at least 2")
    middle = (n_classes + 1) // 2
    return _classes(benchmark, 0, middle), _classes(benchmark, middle, n_classes)


def _classes(benchmark: Benchmark, first: int, end: int) -> Benchmark:
    def kept(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(item._replace(label=item.label - first) for item in items if first <= item.label < end)

    train, val, test = (kept(getattr(benchmark, split)) for split in SPLITS)
    return replace(benchmark, class_names=benchmark.class_names[first:end], train=train, val=val, test=test)
