"""What all image classifiers on a frozen CLIP share, following scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from slimprompt.class_names import check_class_names
from slimprompt.classifiers.calibration import FOLDS, Calibration, calibration_of, softmax
from slimprompt.clip.backbone import Backbone, default_pretrained, load_backbone
from slimprompt.errors import InputError, shown
from slimprompt.images.bank import FeatureBank, encode_eval_views
from slimprompt.images.files import Decode
from slimprompt.images.sources import image_sources
from slimprompt.methods.cross_validation import folds
from slimprompt.methods.task import Task
from slimprompt.training.evaluation import class_scores

if TYPE_CHECKING:
    from typing_extensions import Self


class ImageClassifier(ClassifierMixin, BaseEstimator):
    """Base of the classifiers: `fit` makes a task of labelled images, `predict` encodes images.

    A subclass has the parameters named below and defines `fit_task`, `logits`, `concept_features` and `with_classes`; its
    `fit_task` sets `backbone_`, `classes_`, `calibration_` and `training_images_`.
    """

    backbone: str | Backbone
    pretrained: str | None
    seed: int
    activation: str | None
    device: str
    precision: str
    cache: bool
    calibrate: bool
    backbone_: Backbone
    classes_: np.ndarray
    calibration_: Calibration
    training_images_: frozenset[str]

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
        task = Task(bank, images, indices, tuple(classes), self.seed, **self.task_settings())
        self.fit_task(task)
        return self.fit_calibration(task) if self.calibrate else self

    def check_settings(self) -> None:
        """Raise an error if a parameter cannot be used, as far as that is known without a backbone."""

    def task_settings(self) -> dict[str, Any]:
        """Fields of the `Task` that depend on the parameters."""
        return {}

    def fit_task(self, task: Task) -> Self:
        """Learn from a task, with the feature bank and backbone of the task; not calibrated."""
        raise NotImplementedError

    def fit_calibration(self, task: Task) -> Self:
        """Set the temperature and the confidences of a fitted classifier by cross-validation inside the task's images.

        The classifier is fitted again on the images outside of each of three folds and applied to those inside, as often as the
        classes have images for. An image without another of its class is not held out. With one image per class, nothing can be
        held out: the temperature stays 1, and no confidences are known.
        """
        check_is_fitted(self)
        logits, labels = [], []
        for kept, held_out in folds(task.labels, task.seed, FOLDS):
            other = self.fold_classifier().fit_task(task.of_images(kept.tolist()))
            logits.append(other.logits(task.eval_features[held_out.to(task.eval_features.device)]).cpu().numpy())
            labels += [task.labels[index] for index in held_out.tolist()]
        if labels:
            self.calibration_ = calibration_of(np.concatenate(logits), np.array(labels))
        return self

    def trained_on(self, bank: FeatureBank, images: Any, *, decode: Decode = "upright") -> np.ndarray:
        """Whether each image was a training image, by its content, (n_images,).

        Parameters
        ----------
        bank
            Knows the hashes of the images.
        images
            Images in any form that `image_sources` accepts.
        decode
            How the images are read; see `open_image`.
        """
        return np.array([short in self.training_images_ for short in short_hashes(bank, images, decode)], dtype=bool)

    def unfitted(self) -> Self:
        """A classifier with the same parameters, the backbone shared."""
        return type(self)(**self.get_params(deep=False))

    def fold_classifier(self) -> Self:
        """The classifier to fit outside of a fold: not fitted, with the same parameters."""
        return self.unfitted()

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
        """softmax(logits / temperature), (n_images, n_classes), for image features (n_images, embed_dim)."""
        return softmax(self.logits(features).cpu().numpy(), self.calibration_.temperature)

    def concept_match(self, features: Tensor) -> np.ndarray:
        """Maximum concept matching max_k softmax_k(cos(f, t_k)), (n_images,): low for images that are none of the classes.

        f are image features (n_images, embed_dim) and t_k the text features of the classes. The softmax is over the cosine
        similarities themselves, without logit scale and temperature, so the values lie close to 1 / n_classes.
        """
        return softmax(class_scores(features, self.concept_features()).cpu().numpy()).max(1)

    def logits(self, features: Tensor) -> Tensor:
        """Logits (n_images, n_classes) for image features (n_images, embed_dim), before the temperature."""
        raise NotImplementedError

    def concept_features(self) -> Tensor:
        """Text features of the classes (n_classes, embed_dim)."""
        raise NotImplementedError

    def _calibration_of(self, class_names: Iterable[str]) -> Calibration:
        """The calibration for other class names: the temperature stays; confidences depend on the set of classes."""
        same = set(class_names) == {str(name) for name in self.classes_}
        return self.calibration_ if same else self.calibration_._replace(confidences=())

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


def short_hashes(bank: FeatureBank, images: Any, decode: Decode = "upright") -> list[str]:
    """The first 8 bytes of the sha256 of each image's content, as 16 hexadecimal digits."""
    return [digest[:16] for digest in bank.hashes(images, decode=decode)]


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
