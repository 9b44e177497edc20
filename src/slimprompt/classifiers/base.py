"""What all image classifiers on a frozen CLIP share, following scikit-learn's conventions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from slimprompt.calibration import Calibration, calibration_folds, calibration_of, softmax
from slimprompt.classifiers.estimator import Estimator
from slimprompt.clip.architectures import default_pretrained
from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.errors import InputError, shown
from slimprompt.hub import model_folder
from slimprompt.images.bank import FeatureBank
from slimprompt.images.decode import Decode
from slimprompt.images.encoding import encode_eval_views
from slimprompt.images.sources import image_sources
from slimprompt.methods.head import CacheHead, Head
from slimprompt.methods.task import Task
from slimprompt.names import check_class_names
from slimprompt.saved.files import SavedFiles
from slimprompt.training.evaluation import class_scores

if TYPE_CHECKING:
    from typing_extensions import Self


class ImageClassifier(Estimator):
    """Base of the classifiers: `fit` makes a task of labelled images, `predict` encodes images.

    A subclass has the parameters named below and defines `fit_task`, `logits`, `concept_features`, `with_classes`, `save`,
    `_files`, `_read` and `_of_saved`; its `fit_task` sets `fitted_params_`, `backbone_`, `class_names_`, `classes_`,
    `calibration_` and `training_images_`.
    """

    _files: ClassVar[SavedFiles]
    backbone: str | Backbone
    pretrained: str | Path | None
    class_names: Sequence[str] | Mapping[Any, str] | None
    seed: int
    activation: str | None
    device: str | torch.device
    precision: str
    cache: bool
    calibrate: bool
    fitted_params_: dict[str, Any]
    backbone_: Backbone
    class_names_: tuple[str, ...]
    classes_: np.ndarray
    calibration_: Calibration
    training_images_: frozenset[str]

    def fit(self, images: Any, labels: Iterable[Any]) -> Self:
        """Learn from labelled images.

        Parameters
        ----------
        images
            A list of paths or PIL images, or another form that `image_sources` accepts.
        labels
            The class name of each image, or its label in `class_names`.
        """
        images, labels = image_sources(images), self._checked_labels(labels)
        if len(images) != len(labels):
            raise InputError(f"{len(images)} images but {len(labels)} labels were given: one label per image is needed")
        if not labels:
            raise InputError("no images were given to learn from")
        classes = sorted(set(labels))
        names = tuple(self._names_of(classes))
        if len(classes) < 2:
            raise InputError(f"only one class was given ({names[0]!r}): a classifier needs at least two")
        check_class_names(names)
        self.check_settings()  # before the backbone is loaded
        bank = self._bank(self._load_backbone())
        index_of = {label: index for index, label in enumerate(classes)}
        indices = [index_of[label] for label in labels]
        task = Task(bank, images, indices, names, self.seed, **self.task_settings())
        self.fit_task(task)
        self.classes_ = np.array(classes)
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

        The classifier is fitted again on the images outside of each of up to three folds and applied to those inside, until enough
        images were held out. An image without another of its class is not held out. With one image per class, nothing can be
        held out: the temperature stays 1, and no confidences are known.
        """
        self.check_fitted()
        logits, labels = [], []
        for kept, held_out in calibration_folds(task.labels, task.seed):
            other = self.fold_classifier().fit_task(task.of_images(kept.tolist()))
            logits.append(other.logits(task.eval_features[held_out.to(task.eval_features.device)]).cpu().numpy())
            labels += [task.labels[index] for index in held_out.tolist()]
        if labels:
            self.calibration_ = calibration_of(np.concatenate(logits), np.array(labels))
        return self

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        backbone: Backbone | None = None,
        pretrained: str | Path | None = None,
        activation: str | None = None,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        cache: bool = True,
    ) -> Self:
        """Read what `save` wrote and load its backbone; weights other than those it was fitted on are refused.

        Parameters
        ----------
        folder
            The folder that `save` wrote, or "hf:user/name" for a model on the Hugging Face hub.
        backbone
            A loaded backbone to use.
        pretrained
            Tag or file of the weights, if it differs from when the model was saved; the folder of a `local-dir:` model.
        activation
            Activation of the backbone; default: the one that the model was fitted with.
        device, precision
            Passed to `load_backbone`.
        cache
            Store image features on disk.
        """
        folder = model_folder(folder)
        saved, model = cls._read(folder)
        backbone = cls._files.load_backbone(
            folder, saved.backbone, backbone, pretrained, activation, device=device, precision=precision
        )
        classifier = cls._of_saved(folder, saved, model, backbone)
        classifier.cache = cache
        classifier.calibration_ = Calibration(saved.temperature, tuple(saved.confidences))
        classifier.training_images_ = frozenset(saved.training_images.split())
        return classifier

    @classmethod
    def _read(cls, folder: Path) -> tuple[Any, Any]:
        """The description of a saved classifier, and its prompt or head."""
        raise NotImplementedError

    @classmethod
    def _of_saved(cls, folder: Path, saved: Any, model: Any, backbone: Backbone) -> Self:
        """The classifier that was saved in `folder`, from what `_read` gives; not calibrated."""
        raise NotImplementedError

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
        hashes = short_hashes(bank.hashes(images, decode=decode))
        return np.array([short in self.training_images_ for short in hashes], dtype=bool)

    def unfitted(self, **changes: Any) -> Self:
        """A classifier with the same parameters but for `changes`, the backbone shared."""
        return type(self)(**self.get_params(deep=False) | changes)

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
        """The most likely class of each image: one of `classes_`."""
        probabilities = self.predict_proba(images)
        return self.classes_[probabilities.argmax(1)]

    def score(self, images: Any, labels: Iterable[Any], sample_weight: Any = None) -> float:
        """Accuracy on labelled images, between 0 and 1.

        With `cache`, their features are stored like those of training images: a search over settings scores the same images
        again and again.
        """
        self.check_fitted()
        images, labels = image_sources(images), self._checked_labels(labels)
        if not labels or len(images) != len(labels):
            raise InputError(
                f"{len(images)} images and {len(labels)} labels were given: expected one label per image, at least one"
            )
        probabilities = self.probabilities(self._bank(self.backbone_).features(images))
        predicted = self.classes_[probabilities.argmax(1)].tolist()
        correct = [one == other for one, other in zip(predicted, labels, strict=True)]
        return float(np.average(correct, weights=sample_weight))

    def encode(self, images: Any) -> Tensor:
        """Unit-length image features (n_images, embed_dim) of the eval view."""
        self.check_fitted()
        return encode_eval_views(self.backbone_, image_sources(images))

    def _bank(self, backbone: Backbone) -> FeatureBank:
        return FeatureBank(backbone, "default" if self.cache else None)

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
        same = set(class_names) == set(self.class_names_)
        return self.calibration_ if same else self.calibration_._replace(confidences=())

    def _checked_labels(self, labels: Iterable[Any]) -> list[Any]:
        """The labels as a list: class names, or labels that `class_names` has a name for."""
        if labels is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if self.class_names is None:
            return label_names(labels)
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import column_or_1d

        plain = column_or_1d(list(labels) if isinstance(labels, Iterator) else labels, warn=True)
        check_classification_targets(plain)
        self._names_of(set(plain.tolist()))
        return plain.tolist()

    def _names_of(self, labels: Iterable[Any]) -> list[str]:
        """The class name of each label; an `InputError` if `class_names` has none."""
        if self.class_names is None:
            return [str(label) for label in labels]
        if isinstance(self.class_names, str):
            raise InputError(f"class_names must be a list of names or a dictionary (given: {shown(self.class_names)})")
        if isinstance(self.class_names, Mapping):
            names: Mapping[Any, str] = self.class_names
        else:
            names = dict(enumerate(self.class_names))
        for label in labels:
            if label not in names:
                raise InputError(f"label {shown(label)} has no name in class_names, which names {len(names)} classes")
        return label_names([names[label] for label in labels], "class_names")

    def __getstate__(self) -> dict[str, Any]:
        return {name: _on_device(value, "cpu") for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device = state["backbone_"].device if "backbone_" in state else "cpu"
        self.__dict__.update({name: _on_device(value, device) for name, value in state.items()})

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


def _on_device(value: Any, device: torch.device | str) -> Any:
    """A fitted attribute with its tensors on a device; the original is not changed."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device)
    return value.to(device) if isinstance(value, Head | CacheHead) else value


def short_hashes(hashes: Iterable[str]) -> list[str]:
    """The first 8 bytes of each hexadecimal sha256, as 16 digits."""
    return [digest[:16] for digest in hashes]


def label_names(labels: Iterable[str], what: str = "labels") -> list[str]:
    """Class names as a list of text; anything else is an `InputError`, because a class name becomes part of the prompt."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InputError(f"{what} must be a list of class names, such as ['cat', 'dog'] (given: {shown(labels)})")
    names = list(labels)
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"{what} must be class names, which become part of the prompt, such as 'cat' (given: {shown(name)}, "
                f"a {type(name).__name__}); name numbers by class_names=['cat', 'dog'] of the classifier, also where scikit-learn "
                "replaces names by numbers, as VotingClassifier does"
            )
    return [str(name) for name in names]
