"""Served models: classifiers on shared backbones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from slimprompt.classifier import Classifier, load_classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.saved import FILE, read_model

#: Sets of class names whose text features a model keeps.
_KEPT = 32


class ModelFacts(BaseModel):
    """A served model."""

    name: str
    method: str = Field(description='"prompt", "zero-shot", "gda", …')
    backbone: str
    classes: list[str]
    takes_new_names: bool
    has_coverage: bool = Field(description="Whether `coverage` can be used with the model's own classes")


class ServedModel:
    """A classifier under a name. `on_classes` and `zero_shot` compute with torch: only the worker thread calls them."""

    def __init__(self, name: str, classifier: Classifier) -> None:
        self.name, self.classifier = name, classifier
        self.on_classes = lru_cache(_KEPT)(self._on_classes)
        self.zero_shot = lru_cache(_KEPT)(self._zero_shot)

    @property
    def backbone(self) -> Backbone:
        """The backbone, which models share."""
        return self.classifier.backbone_

    def describe(self) -> ModelFacts:
        """What clients should know."""
        used = self.classifier
        return ModelFacts(
            name=self.name,
            method=used.method_,
            backbone=self.backbone.title,
            classes=list(used.class_names_),
            takes_new_names=used.takes_new_names,
            has_coverage=bool(used.calibration_.confidences),
        )

    def _on_classes(self, names: tuple[str, ...] | None) -> Classifier:
        """The classifier on its own classes (None) or on others; an `InputError` if it cannot take them."""
        return self.classifier if names is None else self.classifier.with_classes(names)

    def _zero_shot(self, names: tuple[str, ...] | None) -> Classifier:
        """Zero-shot classification on the same classes, with the temperature of CLIP itself."""
        names = names or self.classifier.class_names_
        return Classifier.zero_shot(self.backbone.frozen, names, self.classifier.templates_)


def load_models(models: Sequence[Path], **options: Any) -> dict[str, ServedModel]:
    """Load saved models with the options of `load_classifier`; those with the same weights share one backbone.

    A model is named after its folder, or by the whole path if two folders have the same name.
    """
    for model, n_times in Counter(models).items():
        if n_times > 1:
            raise InputError(f"the model {model} was given twice")
    short = Counter(map(_last_part, models))
    backbones: dict[str, Backbone] = {}
    served: dict[str, ServedModel] = {}
    for model in models:
        fingerprint = read_model(model).description.backbone.fingerprint
        classifier = load_classifier(model, backbone=backbones.get(fingerprint), **options)
        backbones[fingerprint] = classifier.backbone_.frozen
        name = _last_part(model)
        name = name if short[name] == 1 else str(model)
        served[name] = ServedModel(name, classifier)
    return served


def _last_part(model: Path) -> str:
    """Name of a folder as it was given, also of a symbolic link; for ".." and the like, that of the folder they stand for."""
    folder = model.parent if model.name == FILE else model.with_suffix("") if model.suffix == ".safetensors" else model
    name = folder.absolute().name
    return folder.resolve().name if name in ("", "..") else name
