"""What all image classifiers on a frozen CLIP share, following scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from slimprompt.class_names import check_class_names
from slimprompt.clip.backbone import Backbone, default_pretrained, load_backbone
from slimprompt.errors import InputError, shown
from slimprompt.images.bank import FeatureBank, encode_eval_views
from slimprompt.images.sources import image_sources
from slimprompt.methods.task import Task

if TYPE_CHECKING:
    from typing_extensions import Self


class ImageClassifier(ClassifierMixin, BaseEstimator):
    """Base of the classifiers: `fit` makes a task of labelled images, `predict` encodes images.

    A subclass has the parameters named below and defines `fit_task`, `probabilities` and `with_classes`; its `fit_task` sets
    `backbone_` and `classes_`.
    """

    backbone: str | Backbone
    pretrained: str | None
    seed: int
    activation: str | None
    device: str
    precision: str
    cache: bool
    backbone_: Backbone
    classes_: np.ndarray

    def fit(self, images: Any, labels: Iterable[str]) -> Self:
        """Learn from labelled images.

        Parameters
        ----------
        images
            A list of paths or PIL images, or another form that `image_sources` accepts.
        labels
            The class name of each image.
        """
        images, names = image_sources(images), label_names(labels)
        if len(images) != len(names):
            raise InputError(f"{len(images)} images but {len(names)} labels were given: one label per image is needed")
        if not names:
            raise InputError("no images were given to learn from")
        classes = sorted(set(names))
        if len(classes) < 2:
            raise InputError(f"only one class was given ({classes[0]!r}): a classifier needs at least two")
        check_class_names(classes)
        self.check_settings()  # before the backbone is loaded
        bank = FeatureBank(self._load_backbone(), "default" if self.cache else None)
        indices = [classes.index(name) for name in names]
        return self.fit_task(Task(bank, images, indices, tuple(classes), self.seed, **self.task_settings()))

    def check_settings(self) -> None:
        """Raise an error if a parameter cannot be used, as far as that is known without a backbone."""

    def task_settings(self) -> dict[str, Any]:
        """Fields of the `Task` that depend on the parameters."""
        return {}

    def fit_task(self, task: Task) -> Self:
        """Learn from a task, with the feature bank and backbone of the task."""
        raise NotImplementedError

    def with_classes(self, class_names: Iterable[str]) -> ImageClassifier:
        """The same classifier on other class names; nothing is trained."""
        raise NotImplementedError

    def predict_proba(self, images: Any) -> np.ndarray:
        """Class probabilities (n_images, n_classes), columns as in `classes_`."""
        return self.probabilities(self.encode(images))

    def predict(self, images: Any) -> np.ndarray:
        """The most likely class name of each image."""
        probabilities = self.predict_proba(images)
        return self.classes_[probabilities.argmax(1)]

    def score(self, images: Any, labels: Iterable[str], sample_weight: Any = None) -> float:
        """Accuracy on labelled images, between 0 and 1."""
        check_is_fitted(self)
        images, names = image_sources(images), label_names(labels)
        if not names or len(images) != len(names):
            raise InputError(
                f"{len(images)} images and {len(names)} labels were given: expected one label per image, at least one"
            )
        return float(super().score(images, names, sample_weight))

    def encode(self, images: Any) -> Tensor:
        """Unit-length image features (n_images, embed_dim) of the eval view."""
        check_is_fitted(self)
        return encode_eval_views(self.backbone_, image_sources(images))

    def probabilities(self, features: Tensor) -> np.ndarray:
        """Class probabilities (n_images, n_classes) for image features (n_images, embed_dim)."""
        raise NotImplementedError

    def _load_backbone(self) -> Backbone:
        if isinstance(self.backbone, Backbone):
            return self.backbone
        return load_backbone(
            self.backbone,
            self.pretrained or default_pretrained(self.backbone),
            activation=self.activation,
            device=self.device,
            precision=self.precision,
        )


def label_names(labels: Iterable[str], what: str = "labels") -> list[str]:
    """Class names as a list of text; anything else is an `InputError`, because a class name becomes part of the prompt."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InputError(f"{what} must be a list of class names, such as ['cat', 'dog'] (given: {shown(labels)})")
    names = list(labels)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"{what} must be class names, which become part of the prompt, such as 'cat' (given: {shown(name)}, "
                f"a {type(name).__name__}); replace numbers by names"
            )
    return [str(name) for name in names]
