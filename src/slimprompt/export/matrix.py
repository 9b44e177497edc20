"""The linear head of a classifier as a safetensors file, for any code that computes image features of the same backbone."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from slimprompt.classifier import Classifier
from slimprompt.errors import InputError
from slimprompt.export.contents import check_target, metadata
from slimprompt.files import write_file
from slimprompt.methods.head import CacheHead


def export_matrix(classifier: Classifier, target: str | Path, *, overwrite: bool = False) -> Path:
    """Write W and b of probabilities = softmax((scale · f Wᵀ + b) / temperature), for unit-length image features f.

    The head must be linear, as that of all methods but Tip-Adapter is. The file holds `weights` W (n_classes, embed_dim), which are
    unit-length class features for prompts and zero-shot, and `bias` b (n_classes,), zeros if there is none. Its metadata are texts:
    `scale` and `temperature` are numbers; `class_names`, `backbone` and `preprocessing` are JSON.
    """
    from safetensors.torch import save

    classifier.check_fitted()
    target, head = Path(target), classifier.head_
    if isinstance(head, CacheHead):
        raise InputError(
            f"a head of {classifier.method_} compares an image with its training images and is not a "
            "matrix: export it as ONNX (--onnx), or fit another method"
        )
    if classifier.backbone_.image_pass.rows is not None:
        raise InputError(
            "this model changes the image tower, so a matrix on the features of the frozen one is not enough: export it as ONNX (--onnx)"
        )
    check_target(target, overwrite=overwrite)
    n_classes = len(head.class_names)
    bias = torch.zeros(n_classes) if head.bias is None else head.bias
    tensors = {"weights": _plain(head.weights), "bias": _plain(bias)}
    return write_file(target, save(tensors, metadata={**metadata(classifier), "scale": repr(float(head.scale))}))


def _plain(values: Tensor) -> Tensor:
    return values.detach().float().cpu().contiguous()
