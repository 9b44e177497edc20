from __future__ import annotations

from collections import Counter

import pytest
import torch

from slimprompt.methods.cross_validation import FOLDS, folds, select


@pytest.mark.parametrize("shots", [2, 3, 4, 16])
def test_folds_hold_out_each_image_once_and_are_stratified(shots: int) -> None:
    labels = [label for label in range(5) for _ in range(shots)]
    parts = folds(labels, seed=3)
    assert len(parts) == min(FOLDS, shots)
    assert sorted(torch.cat([held_out for _, held_out in parts]).tolist()) == list(range(len(labels)))
    for kept, held_out in parts:
        assert sorted([*kept.tolist(), *held_out.tolist()]) == list(range(len(labels)))
        sizes = Counter(labels[index] for index in held_out.tolist())
        assert set(sizes) == set(range(5)) and max(sizes.values()) - min(sizes.values()) <= 1


def test_the_only_image_of_a_class_is_never_held_out() -> None:
    labels = [0, 0, 0, 0, 1, 2, 2]
    for kept, held_out in folds(labels, seed=1):
        assert 4 in kept.tolist() and 4 not in held_out.tolist()
        assert {labels[index] for index in kept.tolist()} == {0, 1, 2}


def test_folds_depend_on_the_seed_and_not_on_the_order_of_classes() -> None:
    labels = [label for label in range(4) for _ in range(4)]
    held_out = [[part.tolist() for _, part in folds(labels, seed)] for seed in (1, 1, 2)]
    assert held_out[0] == held_out[1] != held_out[2]
    renamed = [3 - label for label in labels]
    assert [part.tolist() for _, part in folds(renamed, 1)] == held_out[0]


def test_select_takes_the_most_accurate_and_then_the_most_likely(make_task) -> None:
    task = make_task(2, 4)

    def logits_of(kept, held_out):
        right = torch.eye(2)[task.targets[held_out]]
        yield -right  # all wrong
        yield 1.0 * right
        yield 2.0 * right  # as accurate, and more likely
        yield 1.5 * right

    assert select(task, ("wrong", "flat", "sharp", "middle"), logits_of, "default") == "sharp"


def test_select_falls_back_to_the_default_at_one_shot(make_task) -> None:
    def logits_of(kept, held_out):
        raise AssertionError("nothing can be held out")

    assert select(make_task(3, 1), (1, 2), logits_of, 7) == 7
