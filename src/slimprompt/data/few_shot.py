"""The few-shot draw, and the cut into base and new classes.

The draw comes first, then the cut: `base, new = base_new(few_shot(benchmark, shots=16, seed=1))`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from slimprompt.data.benchmark import Benchmark, Item
from slimprompt.errors import InputError

#: Validation items per class are at most this many, however many shots there are.
MAX_VAL_SHOTS = 4


def few_shot(benchmark: Benchmark, shots: int, seed: int) -> Benchmark:
    """The benchmark with `shots` train items and min(`shots`, 4) val items per class; test stays whole.

    One stream `random.Random(seed)`: train first, then val, class by class in the order in which the labels first
    appear, `sample(items of the class, shots)`. A class that has fewer items gives all of them (see `short_classes`).
    """
    if shots < 1:
        raise InputError(f"shots must be at least 1, got {shots}")
    if seed < 0:
        raise InputError(f"seed must be 0 or above, got {seed}")
    stream = random.Random(seed)
    train = _sample(benchmark.train, shots, stream)
    val = _sample(benchmark.val, min(shots, MAX_VAL_SHOTS), stream)
    return replace(benchmark, train=train, val=val)


def _sample(items: Iterable[Item], shots: int, stream: random.Random) -> tuple[Item, ...]:
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    drawn: list[Item] = []
    for group in groups.values():
        drawn += stream.sample(group, shots) if len(group) >= shots else group
    return tuple(drawn)


def short_classes(benchmark: Benchmark, shots: int) -> dict[str, int]:
    """Class name → number of train items, for the classes that have fewer than `shots`."""
    counts = Counter(item.label for item in benchmark.train)
    return {name: counts[label] for label, name in enumerate(benchmark.class_names) if counts[label] < shots}


def held_out(benchmark: Benchmark, draw: Benchmark) -> tuple[Item, ...]:
    """What a prompt trained on `draw` is judged on: the test items, or without any what the draw left over.

    `draw` is the few-shot draw of `benchmark`. The answer is empty if there is no test part and every image was drawn.
    """
    if benchmark.test:
        return benchmark.test
    drawn = {item.path for item in (*draw.train, *draw.val)}
    return tuple(item for item in (*benchmark.train, *benchmark.val) if item.path not in drawn)


def base_new(benchmark: Benchmark) -> tuple[Benchmark, Benchmark]:
    """The first ⌈C/2⌉ classes and the rest, each relabelled from 0, for train, val and test alike."""
    n_classes = len(benchmark.class_names)
    if n_classes < 2:
        raise InputError(f"{benchmark.name} has {n_classes} class; base and new classes need at least 2")
    middle = (n_classes + 1) // 2
    return _classes(benchmark, 0, middle), _classes(benchmark, middle, n_classes)


def _classes(benchmark: Benchmark, first: int, end: int) -> Benchmark:
    def kept(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(item._replace(label=item.label - first) for item in items if first <= item.label < end)

    return replace(
        benchmark,
        class_names=benchmark.class_names[first:end],
        train=kept(benchmark.train),
        val=kept(benchmark.val),
        test=kept(benchmark.test),
    )
