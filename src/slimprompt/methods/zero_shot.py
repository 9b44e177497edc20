"""Zero-shot classification: class features from hand-written templates, without training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.methods.head import Head


def check_templates(templates: Sequence[str]) -> None:
    """Each template must hold exactly one `{}`, where the class name goes."""
    for template in templates:
        if template.count("{}") != 1:
            raise InputError(
                f"the template {template!r} must hold exactly one {{}} for the class name, as in 'a photo of a {{}}.'"
            )


def zero_shot_head(backbone: Backbone, class_names: Sequence[str], templates: Sequence[str]) -> Head:
    """The zero-shot classifier of these classes."""
    features = zero_shot_features(backbone, class_names, templates)
    return Head(tuple(class_names), features, backbone.logit_scale, backbone.class_bias(len(class_names)))


@torch.inference_mode()
def zero_shot_features(backbone: Backbone, class_names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """Unit-length class features (n_classes, embed_dim); the features of several templates are averaged."""
    check_templates(templates)
    names = [name.replace("_", " ") for name in class_names]
    features = torch.stack(
        [backbone.encode_texts([template.replace("{}", name) for name in names]) for template in templates]
    )
    return F.normalize(features.mean(0), dim=-1)
