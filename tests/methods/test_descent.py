from __future__ import annotations

import pytest
import torch

from slimprompt.errors import InputError
from slimprompt.methods.descent import Step, minimise, one_view_each, pooled_views


def test_minimise_takes_the_steps_it_is_given() -> None:
    """Gradient of ½ (w − target)² is w − target: two plain steps by hand."""
    weight = torch.zeros(1, requires_grad=True)
    steps = [Step(0.5, torch.tensor([4.0]), torch.tensor([0])), Step(0.25, torch.tensor([6.0]), torch.tensor([0]))]
    minimise(lambda target, _: (weight - target).square().sum() / 2, torch.optim.SGD([weight]), steps)
    assert weight.item() == pytest.approx(2.0 + 0.25 * (6.0 - 2.0))


def test_diverged_weights_are_an_error() -> None:
    weight = torch.ones(1, requires_grad=True)
    step = Step(1.0, torch.tensor([float("inf")]), torch.tensor([0]))
    with pytest.raises(InputError, match="diverged"):
        minimise(lambda target, _: (weight * target).sum(), torch.optim.SGD([weight]), [step])


def test_pooled_views_mix_all_views(make_task) -> None:
    task = make_task(3, 4, views=2)  # 12 images, 36 views
    steps = list(pooled_views(task, 2, 5, lambda epoch: epoch + 1.0))
    assert [(step.lr, len(step.labels)) for step in steps] == [(1.0, 5)] * 2 + [(2.0, 5)] * 2  # 12 // 5 batches each
    (whole,) = pooled_views(task, 1, 256, lambda _: 1.0)
    flat = task.view_features.reshape(-1, 24)
    rows = [int((flat == feature).all(1).nonzero()[0]) for feature in whole.features]
    assert sorted(rows) == list(range(36))
    assert whole.labels.tolist() == [task.labels[row % 12] for row in rows]


def test_one_view_of_each_image_per_epoch(make_task) -> None:
    task = make_task(3, 4, views=2)
    batches = list(one_view_each(task, 3, 5))
    assert [(epoch, len(labels)) for epoch, _, labels in batches] == [(e, n) for e in range(3) for n in (5, 5, 2)]
    flat, used = task.view_features.reshape(-1, 24), []
    for epoch in range(3):
        mine = [(features, labels) for number, features, labels in batches if number == epoch]
        features, labels = (torch.cat(part) for part in zip(*mine, strict=True))
        rows = [int((flat == feature).all(1).nonzero()[0]) for feature in features]
        assert sorted(row % 12 for row in rows) == list(range(12))
        assert labels.tolist() == [task.labels[row % 12] for row in rows]
        used += [row // 12 for row in rows]
    assert set(used) == {0, 1, 2}
