"""Methods of the user's own: functions of this module, by name."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from slimprompt.errors import InputError
from slimprompt.methods.head import CacheHead, FittedHead, Head
from slimprompt.methods.table import find_method
from slimprompt.methods.task import Task


def nearest_mean(task: Task, scale: float | None = None) -> FittedHead:
    """The unit-length mean feature of each class."""
    features, labels = task.eval_features, task.targets
    means = torch.stack([features[labels == label].mean(0) for label in range(len(task.class_names))])
    weights = F.normalize(means, dim=-1)
    chosen = 10.0 if scale is None else scale
    return FittedHead(Head(task.class_names, weights, chosen), weights.numel(), {"scale": chosen})


def with_gradient(task: Task) -> FittedHead:
    """As after a training loop: names in a list, a whole number, and weights that need a gradient, in float64."""
    weights = task.class_features.double().requires_grad_()
    return FittedHead(Head(list(task.class_names), weights, 10), n_trained=0)  # type: ignore[arg-type]


def cache(task: Task) -> FittedHead:
    return FittedHead(
        CacheHead(task.class_names, task.class_features, 10.0, task.eval_features, task.targets, 1.0, 2.0), 0
    )


def fails(task: Task) -> FittedHead:
    raise ZeroDivisionError("a mistake of the user")


def exits(task: Task) -> FittedHead:
    sys.exit("stopped")


def changes_in_place(task: Task) -> FittedHead:
    for features in (task.eval_features, task.class_features, task.targets):
        features.zero_()
    return nearest_mean(task)


def takes_no_settings(task: Task) -> FittedHead:
    return nearest_mean(task)


def returns_a_tensor(task: Task) -> Any:
    return task.class_features


@dataclass(frozen=True)
class MyHead(Head):
    """Its logits would be lost when it is saved."""


def _changed(task: Task, **fields: Any) -> FittedHead:
    """A result with other fields, its own or those of its head."""
    fitted = nearest_mean(task)
    if fields.keys() <= vars(fitted).keys():
        return replace(fitted, **fields)
    return replace(fitted, head=replace(fitted.head, **fields))


WRONG: dict[str, tuple[Any, str]] = {
    "another_head": (
        lambda task: _changed(task, head=MyHead(task.class_names, task.class_features, 1.0)),
        "its head must be a Head or a CacheHead, not a MyHead",
    ),
    "fewer_classes": (
        lambda task: _changed(task, head=nearest_mean(task).head.of_classes(task.class_names[:2])),
        r"class_names: expected the 3 names of the task, in their order \(given: \('thing 0', 'thing 1'\)\)",
    ),
    "fewer_rows": (
        lambda task: _changed(task, weights=task.class_features[:2]),
        r"weights: 3 class names, but the shape is \(2, 24\)",
    ),
    "not_finite": (
        lambda task: _changed(task, weights=task.class_features / 0),
        "weights: it holds numbers that are not finite",
    ),
    "no_tensor": (
        lambda task: _changed(task, weights=task.class_features.numpy()),
        "weights: expected a Tensor, not a ndarray",
    ),
    "wrong_count": (lambda task: _changed(task, n_trained=-1), "n_trained must be a whole number of at least 0"),
    "wrong_settings": (
        lambda task: _changed(task, settings={"alpha": float("nan")}),
        r"settings: expected finite numbers by name \(given: \{'alpha': nan\}\)",
    ),
}
globals().update({name: function for name, (function, _) in WRONG.items()})


def own(function: str) -> str:
    return f"{__name__}:{function}"


def test_it_is_fitted_as_its_function_says(make_task) -> None:
    task = make_task()
    fitted = find_method(own("nearest_mean")).fit(task)
    assert torch.equal(fitted.head.weights, nearest_mean(task).head.weights)
    assert (fitted.head.scale, fitted.n_trained, fitted.settings) == (10.0, 3 * 24, {"scale": 10.0})
    again = find_method(own("nearest_mean")).fit(task, {"scale": 5.0})
    assert again.head.scale == 5.0


def test_it_may_change_its_task_in_place(make_task) -> None:
    task = make_task()
    before = [one.clone() for one in (task.eval_features, task.class_features, task.targets)]
    with pytest.raises(InputError, match="not finite"):  # all images are in the first class
        find_method(own("changes_in_place")).fit(task)
    assert all(map(torch.equal, before, (task.eval_features, task.class_features, task.targets)))


def test_its_head_can_be_used_and_saved(make_task) -> None:
    task = make_task()
    head = find_method(own("with_gradient")).fit(task).head
    assert head.class_names == task.class_names and isinstance(head.scale, float)
    assert head.weights.dtype == torch.float32 and not head.weights.requires_grad
    logits = head.logits(task.eval_features).numpy()
    assert logits.shape == (12, 3)
    cached = find_method(own("cache")).fit(task).head
    assert torch.equal(cached.logits(task.eval_features), cache(task).head.logits(task.eval_features))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (own("exits"), {}),
        (own("fails"), {}),
        (own("returns_a_tensor"), {}),
        (own("takes_no_settings"), {"scale": 1.0}),
        (own("absent"), {}),
        ("antigravity:fly", {}),
    ],
)
def test_a_function_that_cannot_be_used(make_task, name: str, settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match=name):
        find_method(name).fit(make_task(), settings)
    assert "antigravity" not in sys.modules  # a name never imports code


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_cannot_be_used(make_task, name: str) -> None:
    message = f"^the method '.*:{name}' returned a FittedHead that cannot be used: {WRONG[name][1]}"
    with pytest.raises(InputError, match=message):
        find_method(own(name)).fit(make_task())
