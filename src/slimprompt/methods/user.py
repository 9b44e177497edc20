"""Methods of the user: the function `module:function` is called, and what it returns is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from slimprompt.errors import InputError, shown, whole_number
from slimprompt.methods.head import AnyHead, CacheHead, FittedHead, Head, head_problem
from slimprompt.methods.task import Task
from slimprompt.user_functions import user_function


def fit_user_method(name: str, task: Task, settings: Mapping[str, float]) -> FittedHead:
    """Fit a method `module:function` to a copy of the task; a result that cannot be used is an `InputError`.

    `settings` of another fit are passed to the function as keyword arguments.
    """
    function = user_function("method", name)
    try:
        fitted = function(task.copy(), **settings)
    except InputError:  # written for users, such as that of an unreadable image
        raise
    except (Exception, SystemExit) as error:
        given = " with the settings that it returned before" if settings else ""
        raise InputError(
            f"the method {name!r} failed{given}: {type(error).__name__}: {error} (--debug shows where)"
        ) from error
    if not isinstance(fitted, FittedHead):
        raise InputError(f"the method {name!r} must return a FittedHead; it returned a {type(fitted).__name__}")
    try:
        n_trained = whole_number("n_trained", fitted.n_trained)
        return FittedHead(_checked_head(fitted.head, task), n_trained, _checked_settings(fitted.settings))
    except InputError as error:
        raise InputError(f"the method {name!r} returned a FittedHead that cannot be used: {error}") from None


def _checked_head(head: Any, task: Task) -> AnyHead:
    """The head as it would be after saving and loading."""
    if type(head) not in (Head, CacheHead):  # a subclass would be saved as its base
        raise InputError(f"its head must be a Head or a CacheHead, not a {type(head).__name__}")
    given = {field.name: getattr(head, field.name) for field in fields(head)}
    names, n_classes = given["class_names"], len(task.class_names)
    if not isinstance(names, list | tuple) or tuple(names) != task.class_names:
        raise InputError(
            f"class_names: expected the {n_classes} names of the task, in their order (given: {shown(names)})"
        )
    plain = {name: _plain(name, value) for name, value in given.items()} | {"class_names": task.class_names}
    checked: AnyHead = replace(head, **plain)
    if problem := head_problem(checked):
        raise InputError(problem)
    if checked.weights.shape[1] != (width := task.eval_features.shape[1]):
        raise InputError(f"weights: the shape is {tuple(checked.weights.shape)}, but image features have width {width}")
    return checked


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach() if name == "labels" else value.detach().float()
    return float(value) if isinstance(value, int) else value


def _checked_settings(settings: Any) -> dict[str, float]:
    numbers = isinstance(settings, Mapping) and all(
        isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
        for name, value in settings.items()
    )
    if not numbers:
        raise InputError(f"settings: expected finite numbers by name (given: {shown(settings)})")
    return {name: float(value) for name, value in settings.items()}
