"""What holds for every method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slimprompt.errors import InputError
from slimprompt.methods.head import FittedHead
from slimprompt.methods.table import METHODS, find_method
from slimprompt.methods.task import Task

NEEDS_EVERY_CLASS = ("linear-probe", "clap", "gda")


def fit(method: str, task: Task) -> FittedHead:
    return METHODS[method].fit(task)


@pytest.mark.parametrize("method", METHODS)
def test_permuted_labels_permute_the_logits(make_task, method: str) -> None:
    task = make_task(4, 3)
    order = [2, 0, 3, 1]  # new label → old label
    renamed = replace(
        task,
        labels=[order.index(label) for label in task.labels],
        class_names=tuple(task.class_names[old] for old in order),
    )
    before, after = fit(method, task), fit(method, renamed)
    assert after.settings == before.settings
    logits = before.head.logits(task.eval_features)[:, order]
    torch.testing.assert_close(after.head.logits(task.eval_features), logits, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_its_settings_give_the_same_head(make_task, method: str) -> None:
    task = make_task(3, 3)
    chosen = fit(method, task)
    again = METHODS[method].fit(task, chosen.settings)
    assert again.settings == chosen.settings
    assert torch.equal(again.head.logits(task.eval_features), chosen.head.logits(task.eval_features))


@pytest.mark.parametrize("method", METHODS)
def test_a_class_without_images(make_task, method: str) -> None:
    task = make_task(labels=[0, 0, 0, 2, 2])
    if method in NEEDS_EVERY_CLASS:
        with pytest.raises(InputError, match=f"{method} needs at least one training image of every class.*thing 1"):
            fit(method, task)
    else:
        logits = fit(method, task).head.logits(task.eval_features)
        assert logits.shape == (5, 3) and logits.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_one_image_per_class_and_classes_of_different_size(make_task, method: str) -> None:
    for labels in ([0, 1, 2], [0] * 7 + [1] + [2] * 2):
        task = make_task(labels=labels)
        logits = fit(method, task).head.logits(task.eval_features)
        assert logits.shape == (len(labels), 3) and logits.isfinite().all()


@pytest.fixture(scope="module")
def many_classes(make_task) -> Task:
    """More classes, texts and images than two batches of 256 hold."""
    task = make_task(520, 1, views=1)
    assert task.view_features.shape == (2, 520, 24)
    return task


@pytest.mark.parametrize("method", METHODS)
def test_hundreds_of_classes(many_classes: Task, method: str) -> None:
    fitted = fit(method, many_classes)
    logits = fitted.head.logits(many_classes.eval_features)
    assert logits.shape == (520, 520) and logits.isfinite().all()
    if method != "zero-shot":
        zero_shot = fit("zero-shot", many_classes).head.logits(many_classes.eval_features)
        own, before = (float((one.argmax(1) == many_classes.targets).double().mean()) for one in (logits, zero_shot))
        assert own >= before


@pytest.mark.parametrize("name", ["tip-adaptor", "promtp", "my methods:fit", "my_methods:", 3])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        find_method(name, also=["prompt"])


def test_only_zero_shot_takes_new_names() -> None:
    assert [name for name, method in METHODS.items() if method.takes_new_names] == ["zero-shot"]


@pytest.mark.parametrize("method", METHODS)
def test_the_table_says_which_features_a_method_reads(make_task, method: str) -> None:
    task = make_task()
    METHODS[method].fit(task)
    read = "all views" if "view_features" in vars(task) else "eval view" if "eval_features" in vars(task) else "nothing"
    assert METHODS[method].reads == read


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_head(make_task, method: str) -> None:
    one, two = (fit(method, make_task(3, 3)).head.logits(make_task(3, 3).eval_features) for _ in range(2))
    assert torch.equal(one, two)
