from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from slimprompt.data import Benchmark, Item, base_new, few_shot, held_out, load_benchmark, short_classes
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.errors import InputError


@pytest.mark.parametrize("shots", [1, 4, 16])
@pytest.mark.parametrize("name", ["caltech101", "oxford_flowers", "oxford_pets"])
def test_sample_equals_the_published_one(name: str, shots: int, data_root: Path) -> None:
    published = json.loads((data_root / "expected_few_shot" / name / f"shot_{shots}-seed_1.json").read_text())
    info = BENCHMARKS[name]
    prefix = f"./data/{info.folder}/{info.images}/"
    sample = few_shot(load_benchmark(name, data_root), shots, seed=1)
    for split in ("train", "val"):
        entries = published[split]["data"]
        expected = [Item(e["impath"].removeprefix(prefix), e["label"], e["classname"]) for e in entries]
        assert list(getattr(sample, split)) == expected


def test_classes_in_order_of_appearance_and_one_stream_for_train_and_val(small: Benchmark) -> None:
    shuffled = replace(small, train=tuple(reversed(small.train)))
    sample = few_shot(shuffled, 2, seed=7)
    stream = random.Random(7)
    train = [item for label in (2, 1, 0) for item in stream.sample([i for i in shuffled.train if i.label == label], 2)]
    val = [item for label in (0, 1, 2) for item in stream.sample([i for i in small.val if i.label == label], 2)]
    assert list(sample.train) == train
    assert list(sample.val) == val
    assert sample.test == small.test


def test_val_has_at_most_four_items_per_class() -> None:
    items = tuple(Item(f"{n}.jpg", n % 2, "ab"[n % 2]) for n in range(40))
    sample = few_shot(Benchmark("b", Path(), ("a", "b"), train=items, val=items), 16, seed=0)
    assert Counter(item.label for item in sample.train) == {0: 16, 1: 16}
    assert Counter(item.label for item in sample.val) == {0: 4, 1: 4}


def test_seed_zero(small: Benchmark) -> None:
    assert few_shot(small, 2, seed=0) == few_shot(small, 2, seed=0)
    assert few_shot(small, 2, seed=0) != few_shot(small, 2, seed=1)


def test_small_class_contributes_all_items_in_order(small: Benchmark) -> None:
    few = replace(small, train=tuple(item for item in small.train if item.label != 1 or item.path < "dog/3"))
    assert short_classes(few, 4) == [("dog", 3)]
    assert short_classes(few, 3) == []
    sample = few_shot(few, 4, seed=1)
    assert [item.path for item in sample.train if item.label == 1] == ["dog/0.png", "dog/1.png", "dog/2.png"]


def test_kept_items_are_in_the_sample_and_others_fill_it_up(small: Benchmark) -> None:
    cats, dogs = ([item for item in small.train if item.label == label] for label in (0, 1))
    keep = {cats[-1], *dogs[:3]}
    sample = few_shot(small, 2, seed=1, keep=keep)
    counts = Counter(item.label for item in sample.train)
    assert keep <= set(sample.train) and (counts[0], counts[1], counts[2]) == (2, 3, 2)
    assert few_shot(small, 2, seed=1, keep=set()) == few_shot(small, 2, seed=1)
    assert not keep & set(held_out(replace(small, test=()), sample))


@pytest.mark.parametrize(("shots", "seed"), [(0, 1), (-1, 1), (1, -1)])
def test_invalid_arguments(shots: int, seed: int, small: Benchmark) -> None:
    with pytest.raises(InputError):
        few_shot(small, shots, seed)


def test_held_out_items_are_the_test_split_or_the_rest(small: Benchmark) -> None:
    sample = few_shot(small, 2, seed=1)
    assert held_out(small, sample) == small.test
    untested = replace(small, val=(), test=())
    sample = few_shot(untested, 2, seed=1)
    left = held_out(untested, sample)
    assert set(left) | set(sample.train) == set(small.train)
    assert not set(left) & set(sample.train)
    assert held_out(untested, few_shot(untested, 5, seed=1)) == ()


def test_some_of_the_held_out_items(small: Benchmark) -> None:
    sample = few_shot(small, 2, seed=1)
    everything = held_out(replace(small, test=()), sample)
    assert held_out(replace(small, test=()), sample, at_most=len(everything)) == everything
    for benchmark, items in ((small, small.test), (replace(small, test=()), everything)):
        some = held_out(benchmark, sample, at_most=len(items) - 1, seed=1)
        assert len(some) == len(items) - 1 and some == tuple(item for item in items if item in some)  # in their order
        assert some == held_out(benchmark, sample, at_most=len(items) - 1, seed=1)
    assert len({held_out(small, sample, at_most=1, seed=seed) for seed in range(20)}) > 1


def test_base_new_divides_a_sample_and_relabels(small: Benchmark) -> None:
    sample = few_shot(small, 2, seed=1)
    base, new = base_new(sample)
    assert (base.class_names, new.class_names) == (("cat", "dog"), ("eel",))
    assert [item for item in sample.train if item.label < 2] == list(base.train)
    assert {(item.label, item.class_name) for item in (*new.train, *new.val, *new.test)} == {(0, "eel")}
    assert len(base.test) + len(new.test) == len(small.test)
    assert base.images == small.images


def test_base_new_needs_two_classes(small: Benchmark) -> None:
    with pytest.raises(InputError, match="at least 2"):
        base_new(replace(small, class_names=("cat",)))


def test_a_class_without_training_images_is_an_error(small: Benchmark) -> None:
    without = replace(small, train=tuple(item for item in small.train if item.label))
    with pytest.raises(InputError, match=f"no training images of '{small.class_names[0]}'"):
        few_shot(without, 2, seed=1)


@pytest.mark.parametrize(("shots", "seed"), [(0, 1), ("4", 1), (2.5, 1), (1, -1), (1, None)])
def test_shots_and_seed_are_whole_numbers(small: Benchmark, shots: object, seed: object) -> None:
    with pytest.raises(InputError, match="must be a whole number"):
        few_shot(small, shots, seed)  # type: ignore[arg-type]


def test_held_out_items_are_sampled_by_class() -> None:
    """Each class has the same share as among all, and at least one item."""
    sizes = {"a": 2, "b": 40, "c": 58}
    items = [
        Item(f"{name}/{number}.jpg", label, name) for label, name in enumerate(sizes) for number in range(sizes[name])
    ]
    benchmark = Benchmark("b", Path(), tuple(sizes), (), (), tuple(items))
    chosen = held_out(benchmark, benchmark, at_most=20, seed=3)
    assert Counter(item.class_name for item in chosen) == {"a": 1, "b": 8, "c": 11}
    assert list(chosen) == [item for item in items if item in set(chosen)]  # in their order
    assert chosen == held_out(benchmark, benchmark, at_most=20, seed=3) != held_out(benchmark, benchmark, at_most=20)
    assert len(held_out(benchmark, benchmark, at_most=2)) == 2
    first = {held_out(benchmark, benchmark, at_most=1, seed=seed)[0].class_name for seed in range(20)}
    assert first == set(sizes), "no class comes first"
