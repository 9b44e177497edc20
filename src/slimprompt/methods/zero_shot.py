"""Zero-shot classification: class features from hand-written templates, without training.

logits = scale · f Tᵀ, where T holds the unit-length class features, averaged over the templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, printable, shown
from slimprompt.methods.head import FittedHead, Head
from slimprompt.text.encoder import encode_texts

if TYPE_CHECKING:
    from slimprompt.methods.task import Task


def fit(task: Task) -> FittedHead:
    """The zero-shot classifier of the task's classes and templates; the images are not used."""
    head_for = partial(zero_shot_head, task.bank.backbone)
    return FittedHead(head_for(task.class_names, task.templates), n_trained=0, head_for=head_for)


def check_templates(templates: Sequence[str]) -> None:
    """Each template must hold exactly one `{}`, where the class name goes."""
    if isinstance(templates, str):
        raise InputError(f"templates must be a list of texts, such as [{shown(templates)}]")
    for template in templates:
        if printable(template) != template:
            raise InputError(f"the template {shown(template)} holds bytes that are not UTF-8; give it as text")
        if template.count("{}") != 1:
            raise InputError(
                f"the template {shown(template)} must hold exactly one {{}} for the class name, as in 'a photo of a {{}}.'"
            )


def zero_shot_head(backbone: Backbone, class_names: Sequence[str], templates: Sequence[str]) -> Head:
    """The zero-shot classifier of these classes."""
    features = zero_shot_features(backbone, class_names, templates)
    return Head(tuple(class_names), features, backbone.logit_scale, backbone.class_bias(len(class_names)))


@torch.inference_mode()
def zero_shot_features(backbone: Backbone, class_names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """Unit-length class features (n_classes, embed_dim); the features of several templates are averaged."""
    features = torch.stack([encode_texts(backbone, template_texts(class_names, [template])) for template in templates])
    return F.normalize(features.mean(0), dim=-1)


def template_texts(class_names: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Every class name in every template; all classes of the first template come first."""
    check_templates(templates)
    names = [name.replace("_", " ") for name in class_names]
    return [template.replace("{}", name) for template in templates for name in names]
