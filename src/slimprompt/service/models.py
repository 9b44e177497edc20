"""Served models: saved prompts and heads on shared backbones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from slimprompt.classifiers.base import ImageClassifier
from slimprompt.classifiers.head import HeadClassifier, load_classifier
from slimprompt.classifiers.prompt import PromptClassifier
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.hub import model_folder
from slimprompt.methods.table import find_method
from slimprompt.saved.models import read_description

#: Sets of class names whose text features a model keeps.
_KEPT = 32
#: Template of zero-shot classification for prompts that were saved without one.
_TEMPLATE = "a photo of a {}."


class ServedModel:
    """A classifier under a name. `on_classes` and `zero_shot` compute with torch: only the worker thread calls them.

    Parameters
    ----------
    name
        Name in requests.
    classifier
        The loaded classifier.
    templates
        Templates of the zero-shot comparison.
    """

    def __init__(self, name: str, classifier: PromptClassifier | HeadClassifier, templates: Sequence[str]) -> None:
        self.name, self.classifier, self.templates = name, classifier, tuple(templates)
        self.on_classes = lru_cache(_KEPT)(self._on_classes)
        self.zero_shot = lru_cache(_KEPT)(self._zero_shot)

    @property
    def backbone(self) -> Backbone:
        """The backbone, which models share."""
        return self.classifier.backbone_

    @property
    def kind(self) -> str:
        """ "prompt", or the method of a head."""
        return self.classifier.method if isinstance(self.classifier, HeadClassifier) else "prompt"

    def describe(self) -> dict[str, Any]:
        """What clients should know."""
        return {
            "name": self.name,
            "kind": self.kind,
            "backbone": self.backbone.title,
            "classes": list(self.classifier.class_names_),
            "takes_new_names": self.kind == "prompt" or find_method(self.kind).takes_new_names,
            "has_coverage": bool(self.classifier.calibration_.confidences),
        }

    def _on_classes(self, names: tuple[str, ...] | None) -> ImageClassifier:
        """The classifier on its own classes (None) or on others; an `InputError` if it cannot take them."""
        return self.classifier if names is None else self.classifier.with_classes(names)

    def _zero_shot(self, names: tuple[str, ...] | None) -> HeadClassifier:
        """Zero-shot classification on the same classes, with the temperature of CLIP itself."""
        return HeadClassifier.zero_shot(self.backbone, names or self.classifier.class_names_, self.templates)


def load_models(folders: Sequence[Path], **options: Any) -> dict[str, ServedModel]:
    """Load saved prompts and heads; those with the same weights share one backbone.

    A model is named after its folder, or by the whole path if two folders have the same name.

    Parameters
    ----------
    folders
        Folders of saved prompts and heads, or their names on the Hugging Face hub, hf:user/name.
    options
        `pretrained`, `activation`, `device` and `precision`, for all models.
    """
    for folder, n_times in Counter(folders).items():
        if n_times > 1:
            raise InputError(f"the model {folder} was given twice")
    short = Counter(_last_part(folder) for folder in folders)
    backbones: dict[str, Backbone] = {}
    models: dict[str, ServedModel] = {}
    for folder in folders:
        local = model_folder(folder)
        saved = read_description(local)
        shared = backbones.get(saved.backbone.fingerprint)
        classifier = load_classifier(local, backbone=shared, **options)
        backbones[saved.backbone.fingerprint] = classifier.backbone_
        name = _last_part(folder)
        name = name if short[name] == 1 else str(folder)
        models[name] = ServedModel(name, classifier, saved.templates or [_TEMPLATE])
    return models


def _last_part(folder: Path) -> str:
    """Name of a folder as it was given, also of a symbolic link; for ".." and the like, that of the folder they stand for."""
    name = folder.absolute().name
    return folder.resolve().name if name in ("", "..") else name
