"""The methods on image features by name.

The laboratory and the command line call `METHODS[name].fit(task)`. Prompt learning is not a row: it has settings of its own
(variant, rank, recipe), and what it saves is a prompt. Reading the table does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from slimprompt.methods.head import FittedHead
    from slimprompt.methods.task import Task


class Method(NamedTuple):
    """One way to adapt."""

    summary: str
    module: str
    """Module of this package that fits it."""
    function: str = "fit"
    takes_new_names: bool = False
    """Whether its head can be used on classes that it was not fitted on, by their names."""
    reads: Literal["nothing", "eval view", "all views"] = "all views"
    """Which features of the training images it uses; all views are the eval view and the train views."""

    def encode(self, task: Task) -> None:
        """Encode the features of the training images that the method reads, so that this is not counted as fitting."""
        if self.reads == "all views":
            _ = task.view_features
        elif self.reads == "eval view":
            _ = task.eval_features

    def fit(self, task: Task, settings: Mapping[str, float] | None = None) -> FittedHead:
        """Fit the method to a task; with `settings` of another fit, instead of choosing them on the images of the task."""
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
