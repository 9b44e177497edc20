"""Accuracy, in percent: on all classes, on base and new ones, and of the zero-shot classifier to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError


def class_scores(image_features: Tensor, text_features: Tensor) -> Tensor:
    """Cosine similarities (n_images, n_classes); image features have unit length."""
    return image_features @ F.normalize(text_features, dim=-1).T.to(image_features.device)


def accuracy(image_features: Tensor, text_features: Tensor, labels: Tensor) -> float:
    """Percentage of images whose nearest class is theirs."""
    if not len(labels):
        raise InputError("there are no images to measure accuracy on")
    predicted = class_scores(image_features, text_features).argmax(1).cpu()
    return 100.0 * float((predicted == labels.cpu()).double().mean())


def per_class_accuracy(image_features: Tensor, text_features: Tensor, labels: Tensor) -> list[tuple[float, int]]:
    """(percentage right, number of images) of each class; the percentage of a class without images is nan."""
    predicted = class_scores(image_features, text_features).argmax(1).cpu()
    result = []
    for label in range(len(text_features)):
        mine = labels.cpu() == label
        count = int(mine.sum())
        result.append((100.0 * float((predicted[mine] == label).double().mean()) if count else float("nan"), count))
    return result


def harmonic_mean(seen: float, unseen: float) -> float:
    """H = 2 S U / (S + U), and 0 where both are 0."""
    return 2 * seen * unseen / (seen + unseen) if seen + unseen else 0.0


def check_templates(templates: Sequence[str]) -> None:
    """Each must have one place for the class name."""
    for template in templates:
        if template.count("{}") != 1:
            raise InputError(
                f"the template {template!r} must hold exactly one {{}} for the class name, as in 'a photo of a {{}}.'"
            )


def zero_shot_features(backbone: Backbone, class_names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """Class features (n_classes, embed_dim) of hand-written templates with one `{}`; several are averaged, as unit vectors."""
    check_templates(templates)
    names = [name.replace("_", " ") for name in class_names]
    features = torch.stack(
        [backbone.encode_texts([template.replace("{}", name) for name in names]) for template in templates]
    )
    return F.normalize(features.mean(0), dim=-1)
