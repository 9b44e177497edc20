"""HeadClassifier: any method on image features as a classifier, following scikit-learn's conventions; saved heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimprompt.calibration import Calibration
from slimprompt.classifiers.base import ImageClassifier, label_names, short_hashes
from slimprompt.classifiers.prompt import PromptClassifier
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, first_few, whole_number
from slimprompt.hub import model_folder
from slimprompt.methods.head import AnyHead
from slimprompt.methods.table import find_method
from slimprompt.methods.task import Task
from slimprompt.methods.zero_shot import check_templates, zero_shot_features, zero_shot_head
from slimprompt.names import check_class_names
from slimprompt.own_functions import is_own, own_function
from slimprompt.saved.files import describe_backbone
from slimprompt.saved.head import HEAD_FILES, HeadDescription, read_head, write_head
from slimprompt.saved.models import saved_files


class HeadClassifier(ImageClassifier):
    """Classify images by a head on their features, fitted by one of the methods of `slimprompt.methods.table`.

    Images are paths or PIL images; labels are class names.

    Parameters
    ----------
    method
        Name of the method: "zero-shot", "linear-probe", "zs-linear-probe", "clap", "tip-adapter", "tip-adapter-f", "gda",
        "task-residual" or "cross-modal"; or a function of your own, "module:function", whose module has been imported.
    backbone
        A loaded `Backbone`, or a name for `load_backbone`.
    pretrained
        Tag or file of the weights; default: OpenAI's, where OpenAI published weights of the model.
    templates
        Zero-shot prompts, each with one `{}` for the class name.
    views
        Train views of each image beside the eval view.
    class_names
        Names of the labels, if these are not the class names themselves: a list, where label i is `class_names[i]`, or a
        dictionary from labels to names. `classes_` and `predict` then give the labels. `save` stores the names alone.
    seed
        Seed of everything random.
    activation, device, precision
        Passed to `load_backbone`.
    cache
        Store image features on disk.
    calibrate
        Also fit a temperature in `fit`, by cross-validation inside the training images: up to three more trainings. The command
        `slimprompt fit` does.

    Attributes
    ----------
    fitted_params_ : dict
        The parameters that decide what the head is, as they were when it was fitted; `set_params` does not change them.
    class_names_ : tuple of str
        Class names.
    classes_ : ndarray
        The labels of the classes: their names, or the labels that were given with `class_names`.
    head_ : Head or CacheHead
        The fitted head.
    n_trained_ : int
        How many of its numbers come from the training images.
    settings_ : dict
        Settings of the method that were chosen inside the training images.
    calibration_ : Calibration
        Temperature of the probabilities, and confidences of training images when they were held out.
    training_images_ : frozenset
        Short hashes of the training images; empty if they are not known.
    """

    _files = HEAD_FILES
    _concepts: Tensor | None
    """`concept_features`, computed on first use."""
    _given_settings: Mapping[str, float] | None = None
    """Settings of the method to fit with, instead of choosing them."""

    def __init__(
        self,
        method: str,
        backbone: str | Backbone = "ViT-B-16",
        *,
        pretrained: str | Path | None = None,
        templates: Sequence[str] = ("a photo of a {}.",),
        views: int = 10,
        class_names: Sequence[str] | Mapping[Any, str] | None = None,
        seed: int = 1,
        activation: str | None = None,
        device: str | torch.device = "auto",
        precision: str = "fp32",
        cache: bool = True,
        calibrate: bool = False,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.pretrained = pretrained
        self.templates = templates
        self.views = views
        self.class_names = class_names
        self.seed = seed
        self.activation = activation
        self.device = device
        self.precision = precision
        self.cache = cache
        self.calibrate = calibrate

    def check_settings(self) -> None:
        """Raise an error if the method is unknown or not imported, or a template or the number of views cannot be used."""
        find_method(self.method)
        if is_own(self.method):
            own_function("method", self.method)
        check_templates(self.templates)
        if not self.templates:
            raise InputError("at least one template is needed, such as 'a photo of a {}.'")
        whole_number("views", self.views)
        whole_number("seed", self.seed)

    def task_settings(self) -> dict[str, Any]:
        """Templates and views."""
        return {"templates": tuple(self.templates), "views": self.views}

    def fit_task(self, task: Task) -> HeadClassifier:
        """Fit the head to a task, with the feature bank, backbone, templates and views of the task."""
        self.check_settings()
        fitted = find_method(self.method).fit(task, self._given_settings)
        self._set_head(task.bank.backbone, fitted.head, fitted.n_trained, fitted.settings)
        self.training_images_ = frozenset(short_hashes(task.hashes))
        return self

    def fold_classifier(self) -> HeadClassifier:
        """Not fitted, with the settings that were chosen on all images: others would give logits of another scale."""
        other = self.unfitted()
        other._given_settings = self.settings_
        return other

    @classmethod
    def zero_shot(
        cls, backbone: Backbone, class_names: Sequence[str], templates: Sequence[str] = ("a photo of a {}.",)
    ) -> HeadClassifier:
        """The zero-shot classifier of these class names, which needs no images.

        Parameters
        ----------
        backbone
            The model.
        class_names
            Class names.
        templates
            Prompts, each with one `{}` for the class name; their text features are averaged.
        """
        check_class_names(class_names)
        head = zero_shot_head(backbone, class_names, templates)
        classifier = cls("zero-shot", backbone, templates=tuple(templates))._set_head(backbone, head, 0, {})
        classifier._concepts = head.weights
        return classifier

    def with_classes(self, class_names: Iterable[str]) -> HeadClassifier:
        """The same head on some of its classes, in the given order; a zero-shot head also takes new class names.

        Raises
        ------
        InputError
            If a class is new and the method learned its classes from their images.
        """
        self.check_fitted()
        names = [name.strip() for name in label_names(class_names, "class names")]
        check_class_names(names)
        other = self.unfitted(class_names=None, **self.fitted_params_)
        known = set(self.head_.class_names)
        if known.issuperset(names):
            other._set_head(self.backbone_, self.head_.of_classes(names), self.n_trained_, self.settings_)
        elif find_method(other.method).takes_new_names:
            other._set_head(self.backbone_, zero_shot_head(self.backbone_, names, other.templates), 0, {})
        else:
            new = [name for name in names if name not in known]
            raise InputError(
                f"a head of {other.method} cannot take new class names ({first_few(new)}): it learned its {len(known)} classes "
                "from their images. Fit it on images of the new classes, or use a prompt or zero-shot, which need only names"
            )
        other.calibration_, other.training_images_ = self._calibration_of(names), self.training_images_
        return other

    def logits(self, features: Tensor) -> Tensor:
        """Logits of the head (n_images, n_classes) for image features (n_images, embed_dim)."""
        return self.head_.logits(features)

    def concept_features(self) -> Tensor:
        """Zero-shot text features of the classes (n_classes, embed_dim); the weights of a head need not be texts."""
        if self._concepts is None:
            self._concepts = zero_shot_features(self.backbone_, self.class_names_, self.fitted_params_["templates"])
        return self._concepts

    def save(self, folder: str | Path, *, overwrite: bool = False, **facts: Any) -> Path:
        """Write `head.safetensors` and `head.json`, completely or not at all.

        Parameters
        ----------
        folder
            Where to write.
        overwrite
            Replace a saved head in that folder.
        facts
            Further entries for `head.json`, under names that it does not have.
        """
        self.check_fitted()
        folder = Path(folder)
        HEAD_FILES.check_free(folder, overwrite=overwrite)
        fitted = self.fitted_params_
        entries = {
            "method": fitted["method"],
            "backbone": describe_backbone(self.backbone_),
            "n_trained": self.n_trained_,
            "settings": self.settings_,
            "templates": list(fitted["templates"]),
            "views": fitted["views"],
            "seed": fitted["seed"],
            **self.calibration_._asdict(),
            "training_images": " ".join(sorted(self.training_images_)),
        }
        write_head(folder, entries, self.head_, facts)
        return folder

    @classmethod
    def _read(cls, folder: Path) -> tuple[HeadDescription, AnyHead]:
        return read_head(folder)

    @classmethod
    def _of_saved(cls, folder: Path, saved: HeadDescription, head: AnyHead, backbone: Backbone) -> HeadClassifier:
        classifier = cls(saved.method, backbone, templates=tuple(saved.templates), views=saved.views, seed=saved.seed)
        return classifier._set_head(backbone, head, saved.n_trained, saved.settings)

    def _set_head(
        self,
        backbone: Backbone,
        head: AnyHead,
        n_trained: int,
        settings: dict[str, float],
    ) -> HeadClassifier:
        self.fitted_params_ = {name: getattr(self, name) for name in ("method", "templates", "views", "seed")}
        self.backbone_, self.head_, self.n_trained_, self.settings_ = backbone, head, n_trained, settings
        self.class_names_ = head.class_names
        self.classes_ = np.array(head.class_names)
        self.calibration_ = Calibration()
        self.training_images_ = frozenset()
        self._concepts = None
        return self


def load_classifier(folder: str | Path, **options: Any) -> PromptClassifier | HeadClassifier:
    """Read a saved prompt or a saved head, whichever the folder holds.

    Parameters
    ----------
    folder
        The folder that `save` wrote, or "hf:user/name" or "hf:user/name@revision" for a model on the Hugging Face hub.
    options
        Those of `PromptClassifier.load` and `HeadClassifier.load`.
    """
    folder = model_folder(folder)
    kind = HeadClassifier if saved_files(folder) is HEAD_FILES else PromptClassifier
    return kind.load(folder, **options)
