"""Accuracy in percent, and the sets it is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from slimprompt.errors import InputError
from slimprompt.images.bank import FeatureBank
from slimprompt.images.decode import Decode, ImageSource


class EvalSet(NamedTuple):
    """Labelled images to evaluate on: unit-length features (n, embed_dim), labels (n,), and the names of the classes."""

    features: Tensor
    labels: Tensor
    class_names: tuple[str, ...]


def make_eval_set(
    bank: FeatureBank,
    images: Sequence[ImageSource],
    labels: Sequence[int],
    class_names: Sequence[str],
    decode: Decode = "upright",
) -> EvalSet:
    """Encode the eval views of labelled images; features that the bank has are read from it."""
    # A copy in aligned memory: the order of summation, and so the rounding, depends on the alignment.
    return EvalSet(bank.features(images, decode=decode).clone(), torch.tensor(list(labels)), tuple(class_names))


def class_scores(image_features: Tensor, class_features: Tensor) -> Tensor:
    """Cosine similarities (n_images, n_classes); image features have unit length."""
    return image_features @ F.normalize(class_features, dim=-1).T.to(image_features.device)


def accuracy(image_features: Tensor, class_features: Tensor, labels: Tensor) -> float:
    """Percentage of images whose most similar class is their own."""
    if not len(labels):
        raise InputError("there are no images to measure accuracy on")
    predicted = class_scores(image_features, class_features).argmax(1).cpu()
    return 100.0 * float((predicted == labels.cpu()).double().mean())
