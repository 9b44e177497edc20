"""The methods on image features by name.

The laboratory and the command line call `METHODS[name].fit(task)`. Prompt learning is not a row: it has settings of its own
(variant, rank, recipe), and what it saves is a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from slimprompt.clip.backbone import Backbone
from slimprompt.methods import (
    clap,
    cross_modal,
    gda,
    linear_probe,
    task_residual,
    tip_adapter,
    zero_shot,
    zs_linear_probe,
)
from slimprompt.methods.head import FittedHead, Head
from slimprompt.methods.task import Task


class Method(NamedTuple):
    """One way to adapt."""

    fit: Callable[[Task], FittedHead]
    summary: str
    head_of_names: Callable[[Backbone, Sequence[str], Sequence[str]], Head] | None = None
    """(backbone, new class names, templates) → head, for methods whose heads take new class names."""

    @property
    def takes_new_names(self) -> bool:
        """Whether its head can be used on classes that it was not fitted on, by their names."""
        return self.head_of_names is not None


METHODS: dict[str, Method] = {
    "zero-shot": Method(zero_shot.fit, "the class names in hand-written templates", zero_shot.zero_shot_head),
    "linear-probe": Method(linear_probe.fit, "logistic regression on image features"),
    "zs-linear-probe": Method(zs_linear_probe.fit, "class weights trained from the zero-shot ones"),
    "clap": Method(clap.fit, "the same, held close to the zero-shot ones"),
    "tip-adapter": Method(tip_adapter.fit, "similarity to the training images, added to zero-shot"),
    "tip-adapter-f": Method(tip_adapter.fit_keys, "the same, with trained keys"),
    "gda": Method(gda.fit, "Gaussian class models in closed form, added to zero-shot"),
    "task-residual": Method(task_residual.fit, "a trained addition to the text features"),
    "cross-modal": Method(cross_modal.fit, "class weights trained on images and texts"),
}
