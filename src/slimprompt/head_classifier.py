"""HeadClassifier: any method on image features as a classifier, following scikit-learn's conventions; saved heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat
from safetensors.torch import load, save
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from slimprompt import __version__
from slimprompt.classifier import PromptClassifier
from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.errors import InputError, choose, first_few
from slimprompt.image_classifier import ImageClassifier
from slimprompt.methods.head import AnyHead, CacheHead, Head
from slimprompt.methods.table import METHODS
from slimprompt.methods.task import Task
from slimprompt.methods.zero_shot import check_templates, zero_shot_head
from slimprompt.storage import draft_folder, publish, sha256

TENSORS_FILE, DESCRIPTION_FILE = "head.safetensors", "head.json"
_FORMAT = 1
_KINDS: dict[str, type[Head] | type[CacheHead]] = {"linear": Head, "cache": CacheHead}


class HeadClassifier(ImageClassifier):
    """Classify images by a head on their features, fitted by one of the methods of `slimprompt.methods.table`.

    Images are paths or PIL images; labels are class names.

    Parameters
    ----------
    method
        Name of the method: "zero-shot", "linear-probe", "zs-linear-probe", "clap", "tip-adapter", "tip-adapter-f", "gda",
        "task-residual" or "cross-modal".
    backbone
        A loaded `Backbone`, or a name for `load_backbone`.
    pretrained
        Tag or file of the weights; default: OpenAI's, where OpenAI published weights of the model.
    templates
        Zero-shot prompts, each with one `{}` for the class name.
    views
        Train views of each image beside the eval view.
    seed
        Seed of everything random.
    activation, device, precision
        Passed to `load_backbone`.
    cache
        Store image features on disk.

    Attributes
    ----------
    classes_ : ndarray
        Class names.
    head_ : Head or CacheHead
        The fitted head.
    n_trained_ : int
        How many of its numbers come from the training images.
    settings_ : dict
        Settings of the method that were chosen inside the training images.
    """

    def __init__(
        self,
        method: str,
        backbone: str | Backbone = "ViT-B-16",
        *,
        pretrained: str | None = None,
        templates: Sequence[str] = ("a photo of a {}.",),
        views: int = 10,
        seed: int = 1,
        activation: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        cache: bool = True,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.pretrained = pretrained
        self.templates = templates
        self.views = views
        self.seed = seed
        self.activation = activation
        self.device = device
        self.precision = precision
        self.cache = cache

    def check_settings(self) -> None:
        """Raise an error if the method is unknown or a template or the number of views cannot be used."""
        choose("method", self.method, METHODS)
        check_templates(self.templates)
        if not self.templates or self.views < 0:
            raise InputError(
                f"at least one template and 0 or more views are needed (given: {len(self.templates)} templates, views={self.views})"
            )

    def task_settings(self) -> dict[str, Any]:
        """Templates and views."""
        return {"templates": tuple(self.templates), "views": self.views}

    def fit_task(self, task: Task) -> HeadClassifier:
        """Fit the head to a task, with the feature bank, backbone, templates and views of the task."""
        self.check_settings()
        fitted = METHODS[self.method].fit(task)
        return self._set_head(task.bank.backbone, fitted.head, fitted.n_trained, fitted.settings)

    def with_classes(self, class_names: Sequence[str]) -> HeadClassifier:
        """The same head on some of its classes, in the given order; a zero-shot head also takes new class names.

        Raises
        ------
        InputError
            If a class is new and the method learned its classes from their images.
        """
        check_is_fitted(self)
        names = [str(name).strip() for name in class_names]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"the class name {repeated[0]!r} was given twice")
        other = HeadClassifier(**self.get_params(deep=False))
        known = set(self.head_.class_names)
        if known.issuperset(names):
            return other._set_head(self.backbone_, self.head_.of_classes(names), self.n_trained_, self.settings_)
        if not METHODS[self.method].takes_new_names:
            new = [name for name in names if name not in known]
            raise InputError(
                f"a head of {self.method} cannot take new class names ({first_few(new)}): it learned its {len(known)} classes "
                "from their images. Fit it on images of the new classes, or use a prompt or zero-shot, which need only names"
            )
        return other._set_head(self.backbone_, zero_shot_head(self.backbone_, names, self.templates), 0, {})

    def probabilities(self, features: Tensor) -> np.ndarray:
        """softmax of the head's logits for image features."""
        return self.head_.logits(features).double().softmax(1).cpu().numpy()

    def save(self, folder: str | Path, *, overwrite: bool = False, **facts: Any) -> Path:
        """Write `head.safetensors` and `head.json`, completely or not at all.

        Parameters
        ----------
        folder
            Where to write.
        overwrite
            Replace a saved head in that folder.
        facts
            Further entries for `head.json`.
        """
        check_is_fitted(self)
        folder = Path(folder)
        check_free(folder, overwrite=overwrite)
        values = {field.name: getattr(self.head_, field.name) for field in fields(self.head_)}
        tensors = save({name: value.cpu().contiguous() for name, value in values.items() if isinstance(value, Tensor)})
        backbone = self.backbone_
        description = {
            "format": _FORMAT,
            "slimprompt": __version__,
            "method": self.method,
            "class_names": self.classes_.tolist(),
            "backbone": {
                "name": backbone.name,
                "pretrained": backbone.pretrained,
                "activation": backbone.activation,
                "fingerprint": backbone.fingerprint,
            },
            "kind": next(kind for kind, head in _KINDS.items() if isinstance(self.head_, head)),
            "numbers": {name: value for name, value in values.items() if isinstance(value, float)},
            "n_trained": self.n_trained_,
            "settings": self.settings_,
            "templates": list(self.templates),
            "views": self.views,
            "seed": self.seed,
            "tensors_sha256": sha256(tensors),
            **facts,
        }
        with draft_folder(folder) as draft:
            (draft / TENSORS_FILE).write_bytes(tensors)
            text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
            (draft / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
            publish(draft, folder)
        return folder

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        backbone: Backbone | None = None,
        pretrained: str | None = None,
        activation: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        cache: bool = True,
    ) -> HeadClassifier:
        """Read a saved head and load its backbone; weights other than those it was fitted on are refused.

        Parameters
        ----------
        folder
            The folder that `save` wrote.
        backbone
            A loaded backbone to use.
        pretrained
            Tag or file of the weights, if it differs from when the head was saved.
        activation
            Activation of the backbone; default: the one that the head was fitted with.
        device, precision
            Passed to `load_backbone`.
        cache
            Store image features on disk.
        """
        folder = Path(folder)
        saved, head = _read(folder)
        of = saved.backbone
        if backbone is None:
            backbone = load_backbone(
                of.name,
                pretrained or of.pretrained,
                activation=of.activation if activation in (None, "auto") else activation,
                device=device,
                precision=precision,
            )
        if backbone.fingerprint != of.fingerprint:
            raise InputError(
                f"{folder} was fitted on {of.name} ({of.pretrained or 'own weights'}, fingerprint {of.fingerprint[:12]}), but "
                f"{backbone.name} ({backbone.pretrained or 'own weights'}) has fingerprint {backbone.fingerprint[:12]}: "
                "a head only works with the weights it was fitted on"
            )
        classifier = cls(
            saved.method, backbone, templates=saved.templates, views=saved.views, seed=saved.seed, cache=cache
        )
        return classifier._set_head(backbone, head, saved.n_trained, saved.settings)

    def _set_head(
        self, backbone: Backbone, head: AnyHead, n_trained: int, settings: dict[str, float]
    ) -> HeadClassifier:
        self.backbone_, self.head_, self.n_trained_, self.settings_ = backbone, head, n_trained, settings
        self.classes_ = np.array(head.class_names)
        return self


def load_classifier(folder: str | Path, **options: Any) -> PromptClassifier | HeadClassifier:
    """Read a saved prompt or a saved head, whichever the folder holds.

    Parameters
    ----------
    folder
        The folder that `save` wrote.
    options
        Those of `PromptClassifier.load` and `HeadClassifier.load`.
    """
    if (Path(folder) / DESCRIPTION_FILE).is_file():
        return HeadClassifier.load(folder, **options)
    return PromptClassifier.load(folder, **options)


def check_free(folder: Path, *, overwrite: bool) -> None:
    """Raise an error unless a head may be written to `folder`: an old head is only replaced on request, other files never."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / DESCRIPTION_FILE).is_file():
        raise InputError(f"{folder} exists and is not a saved head, so it is left alone; choose another name")
    if not overwrite:
        raise InputError(
            f"{folder} already holds a saved head; choose another name, or ask to overwrite it (--overwrite)"
        )


class _SavedBackbone(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    pretrained: str | None
    activation: str
    fingerprint: str


class _SavedHead(BaseModel):
    """The content of `head.json`; further entries are allowed."""

    format: int
    method: str
    class_names: tuple[str, ...]
    backbone: _SavedBackbone
    kind: Literal["linear", "cache"]
    numbers: dict[str, FiniteFloat]
    n_trained: int
    settings: dict[str, FiniteFloat]
    templates: tuple[str, ...]
    views: int
    seed: int
    tensors_sha256: str


def _read(folder: Path) -> tuple[_SavedHead, AnyHead]:
    if not (folder / DESCRIPTION_FILE).is_file():
        raise InputError(
            f"no saved head at {folder}: expected {DESCRIPTION_FILE} and {TENSORS_FILE}, as `slimprompt fit --method` writes them"
        )
    try:
        content = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise InputError(
                f"{folder} has head format {content['format']}; this slimprompt reads format {_FORMAT}: update it"
            )
        saved = _SavedHead(**content)
        choose("method", saved.method, METHODS)
        data = (folder / TENSORS_FILE).read_bytes()
        if sha256(data) != saved.tensors_sha256:
            raise InputError(
                f"{folder / TENSORS_FILE} is damaged: its content is not what {DESCRIPTION_FILE} describes. Fit the head again "
                "or restore the file"
            )
        parts: dict[str, Any] = {**load(data), **saved.numbers}
        head = _KINDS[saved.kind](class_names=saved.class_names, **parts)
        if len(head.weights) != len(saved.class_names):
            raise ValueError(f"{len(saved.class_names)} class names, but {len(head.weights)} rows of weights")
        return saved, head
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the saved head at {folder} is damaged ({type(error).__name__}: {str(error).splitlines()[0]}). Fit it again or "
            "restore the files"
        ) from None
