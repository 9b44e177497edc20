"""What exported files say about a classifier: class names, temperature, backbone and preprocessing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from open_clip.pretrained import get_pretrained_cfg

from slimprompt import __version__
from slimprompt.classifier import Classifier
from slimprompt.clip.architectures import LOCAL_FOLDER
from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.files import check_files
from slimprompt.images.views import view_size
from slimprompt.saved import describe_backbone


def metadata(classifier: Classifier) -> dict[str, str]:
    """Facts about a classifier as texts, which is what ONNX and safetensors files store.

    `class_names`, `backbone` and `preprocessing` are JSON; `temperature` is a number.
    """
    return {
        "slimprompt": __version__,
        "class_names": json.dumps(classifier.class_names_, ensure_ascii=False),
        "temperature": repr(float(classifier.calibration_.temperature)),
        "backbone": json.dumps(public_backbone(describe_backbone(classifier.backbone_))),
        "preprocessing": json.dumps(preprocessing(classifier.backbone_)),
    }


def preprocessing(backbone: Backbone) -> dict[str, Any]:
    """How an RGB image becomes pixels, as plain data.

    `size` [height, width]; `resize_mode` "shortest" (resize the shorter edge, then crop the centre), "longest" (resize the
    longer edge, then pad with `fill_color`) or "squash"; `interpolation` "bicubic" or "bilinear"; pixels between 0 and 1 are
    normalised by `mean` and `std` of the channels.
    """
    config = backbone.preprocess
    return {
        "size": list(view_size(config)),
        "resize_mode": config.resize_mode,
        "interpolation": "bilinear" if config.interpolation == "bilinear" else "bicubic",
        "fill_color": config.fill_color,
        "mean": list(config.mean),
        "std": list(config.std),
    }


def public_backbone(saved: dict[str, Any]) -> dict[str, Any]:
    """The entries of a `SavedBackbone` without the folders of this machine: of a path, only its last part."""
    name, pretrained = saved["name"], saved["pretrained"]
    if name.startswith(LOCAL_FOLDER):
        name = LOCAL_FOLDER + Path(name.removeprefix(LOCAL_FOLDER)).name
    if pretrained is not None and len(Path(pretrained).parts) > 1:
        pretrained = Path(pretrained).name
    return saved | {"name": name, "pretrained": pretrained}


def is_local_backbone(saved: dict[str, Any]) -> bool:
    """Whether the entries of a `SavedBackbone` name a folder or a weight file instead of published weights."""
    name, weights = saved["name"], saved["pretrained"] or "random:"
    return name.startswith(LOCAL_FOLDER) or not (weights.startswith("random:") or get_pretrained_cfg(name, weights))


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise an error unless a file may and can be written at `target`."""
    check_files(target)
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists; choose another name, or add --overwrite")
