"""The methods on image features by name.

A method of the user is named `module:function` and needs no row.
Reading the table does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from slimprompt.errors import choose
from slimprompt.user_functions import is_user_function

if TYPE_CHECKING:
    from slimprompt.methods.head import FittedHead
    from slimprompt.methods.task import Task


#: The method that learns prompts. It is no row of the table: it has settings of its own, a `PromptSpec` and a `Recipe`.
PROMPT = "prompt"

_OWN = "A method of your own is named module:function."


class Method(NamedTuple):
    """One way to adapt."""

    summary: str
    module: str
    """Module of this package that fits it; of a method of the user, any module."""
    function: str = "fit"
    takes_new_names: bool = False
    """Whether its head can be used on classes that it was not fitted on, by their names."""
    reads: Literal["nothing", "eval view", "all views"] = "all views"
    """Which features of the training images it uses; all views are the eval view and the train views."""
    of_user: bool = False
    """Whether it is a function of the user, `module:function`."""

    def encode(self, task: Task) -> None:
        """Encode the features of the training images that the method reads, so that this is not counted as fitting."""
        if self.reads == "all views":
            _ = task.view_features
        elif self.reads == "eval view":
            _ = task.eval_features

    def fit(self, task: Task, settings: Mapping[str, float] | None = None) -> FittedHead:
        """Fit the method to a task; with `settings` of another fit, instead of choosing them on the images of the task."""
        if self.of_user:
            from slimprompt.methods.user import fit_user_method

            return fit_user_method(f"{self.module}:{self.function}", task, settings or {})
        function = getattr(import_module(f"slimprompt.methods.{self.module}"), self.function)
        fitted: FittedHead = function(task, **(settings or {}))
        return fitted


METHODS: dict[str, Method] = {
    "zero-shot": Method(
        "the class names in hand-written templates", "zero_shot", takes_new_names=True, reads="nothing"
    ),
    "linear-probe": Method("logistic regression on image features", "linear_probe", reads="eval view"),
    "zs-linear-probe": Method("class weights trained from the zero-shot ones", "zs_linear_probe"),
    "clap": Method("the same, held close to the zero-shot ones", "clap"),
    "tip-adapter": Method("similarity to the training images, added to zero-shot", "tip_adapter"),
    "tip-adapter-f": Method("the same, with trained keys", "tip_adapter", "fit_keys"),
    "gda": Method("Gaussian class models in closed form, added to zero-shot", "gda"),
    "task-residual": Method("a trained addition to the text features", "task_residual"),
    "cross-modal": Method("class weights trained on images and texts", "cross_modal"),
}


def find_method(name: str, *, also: Iterable[str] = ()) -> Method:
    """The row of a method by its name, or a row for a method of the user, `module:function`; `also` are names that are allowed beside.

    Nothing is imported, so that names in records and saved models can be read without the module. Nothing is known about the
    function either: a method of the user is given all views, and its head takes no new class names.

    >>> find_method("linear-probe").reads, find_method("my_methods:nearest_mean").reads
    ('eval view', 'all views')
    """
    if is_user_function(name):
        module, _, function = name.partition(":")
        return Method("a function of your own", module, function, of_user=True)
    row: Method = choose("method", name, {**dict.fromkeys(also), **METHODS}, next_step=_OWN)
    return row
