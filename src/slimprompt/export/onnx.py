"""A classifier as one ONNX file: image tower, head, temperature and softmax, compared with torch before it is kept."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from slimprompt.classifier import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.clip.image_tower import features_from_block, image_features, input_of_block
from slimprompt.errors import InputError
from slimprompt.export.contents import check_target, metadata
from slimprompt.extras import require_extra
from slimprompt.files import new_file
from slimprompt.images.decode import open_image
from slimprompt.images.views import view_size
from slimprompt.methods.head import AnyHead, CacheHead

#: Largest difference of a probability that is accepted; float rounding gives about 1e-6.
TOLERANCE = 1e-3
#: Sizes of the batches that are compared: one below and one above the size with which the network is traced, so a batch size that
#: was fixed by the export is noticed.
_BATCHES = (1, 3)
_TRACED_BATCH = 2
#: An ONNX file is one protobuf message, which is smaller than 2 GiB; the graph needs a few MB beside the weights.
_LARGEST_FILE = 2**31 - 64 * 2**20


class OnnxComparison(NamedTuple):
    """An exported file beside torch on the same pixels."""

    n_images: int
    largest_difference: float
    """Of a probability."""
    n_agree: int
    """Images with the same most likely class."""
    file: Path
    n_bytes: int


def export_onnx(
    classifier: Classifier,
    target: str | Path,
    *,
    images: Sequence[str | Path | Image.Image] = (),
    tolerance: float = TOLERANCE,
    overwrite: bool = False,
    report: Callable[[str], None] = lambda step: None,
) -> OnnxComparison:
    """Write pixels (n, 3, height, width) → probabilities (n, n_classes) as one ONNX file, for any n.

    The file holds the image tower, the head, the temperature and the softmax, in fp32. Its input is `pixels`, its output
    `probabilities`; its metadata hold class names, preprocessing, temperature and backbone as texts. It is run by onnxruntime
    and compared with torch on random images and the given ones, in batches of different sizes. It is kept only if no probability differs
    by more than `tolerance`; otherwise there is an `InputError` and no new file. `report` is called with a line about each step that takes
    long.
    """
    target = Path(target)
    require_extra("onnx", "ONNX export")
    classifier.check_fitted()
    head, backbone = classifier.head_, classifier.backbone_
    if backbone.precision != "fp32":
        raise InputError(f"the backbone was loaded in {backbone.precision}: load it with precision fp32 to export it")
    check_target(target, overwrite=overwrite)
    network = _Network(backbone, head, classifier.calibration_.temperature).eval()
    _check_file_size(backbone.name, network)
    pixels = torch.stack([backbone.eval_view(image) for image in [*_random_images(), *map(open_image, images)]])
    report(f"exporting the image tower of {backbone.name} …")
    program = _exported(network, view_size(backbone.preprocess), backbone.name)
    program.model.metadata_props.update(metadata(classifier))
    with new_file(target) as draft:
        program.save(str(draft), external_data=False)
        del program
        report("comparing it with torch …")
        difference, n_agree = _compare(classifier, pixels, draft)
        if not difference <= tolerance:
            raise InputError(
                f"the exported file does not compute the same as torch: the largest difference of a probability is "
                f"{difference:.1e}, allowed is {tolerance:.1e}, and {n_agree} of {len(pixels)} images have the same class. "
                f"{target} was not written"
            )
        n_bytes = draft.stat().st_size
    return OnnxComparison(len(pixels), difference, n_agree, target, n_bytes)


class _Network(nn.Module):
    """pixels (n, 3, height, width) → probabilities (n, n_classes)."""

    weights: Tensor
    bias: Tensor | None
    keys: Tensor
    values: Tensor
    image_rows: Tensor | None

    def __init__(self, backbone: Backbone, head: AnyHead, temperature: float) -> None:
        super().__init__()
        self.image_tower, self.first_block = _on_cpu(backbone.model.visual), backbone.image_pass.first
        self.temperature, self.scale = temperature, head.scale
        self.cache = (head.alpha, head.beta) if isinstance(head, CacheHead) else None
        tensors: dict[str, Tensor | None] = {"weights": head.weights, "image_rows": backbone.image_pass.rows}
        if isinstance(head, CacheHead):
            values = F.one_hot(head.labels, len(head.class_names)).float()  # (n_keys, n_classes)
            tensors |= {"bias": None, "keys": head.keys, "values": values}
        else:
            tensors |= {"bias": head.bias}
        for name, tensor in tensors.items():  # copies: the class features of a prompt are inference tensors
            self.register_buffer(name, None if tensor is None else tensor.detach().cpu().clone())

    def forward(self, pixels: Tensor) -> Tensor:
        if self.image_rows is None:
            features = image_features(self.image_tower, pixels, F.linear)
        else:
            x = input_of_block(self.image_tower, pixels, self.first_block, F.linear)
            features = features_from_block(self.image_tower, x, self.first_block, self.image_rows, F.linear)
        features = F.normalize(features, dim=-1)  # (n, embed_dim)
        logits = self.scale * features @ self.weights.T
        if self.bias is not None:
            logits = logits + self.bias
        if self.cache is not None:
            alpha, beta = self.cache
            logits = logits + alpha * torch.exp(-beta * (1 - features @ self.keys.T)) @ self.values
        return torch.softmax(logits / self.temperature, dim=1)


def _on_cpu(tower: nn.Module) -> nn.Module:
    """The image tower on the CPU; a copy if it is elsewhere, because the classifier keeps its own."""
    if all(weight.device.type == "cpu" for weight in tower.parameters()):
        return tower
    return copy.deepcopy(tower).cpu()


def _check_file_size(name: str, network: nn.Module) -> None:
    n_bytes = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    if n_bytes > _LARGEST_FILE:
        raise InputError(
            f"{name} with this head has {n_bytes / 1e9:.1f} GB of weights, and one ONNX file holds at most 2 GB: use a smaller "
            "backbone, or export the class matrix alone (--matrix)"
        )


def _exported(network: nn.Module, size: tuple[int, int], name: str) -> Any:
    """The ONNX program of a network, with a batch of any size."""
    pixels = torch.zeros(_TRACED_BATCH, 3, *size)
    try:
        with _quiet():
            return torch.onnx.export(
                network,
                (pixels,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                input_names=["pixels"],
                output_names=["probabilities"],
                verbose=False,
            )
    except Exception as error:  # the exporter has many error types of its own
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(
            f"torch {torch.__version__} cannot export the image tower of {name} to ONNX: {reason}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of the exporter, which concern its own steps."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _random_images(n: int = sum(_BATCHES)) -> list[Image.Image]:
    """Images of random coloured patches in landscape and portrait format, the same ones every time."""
    rng = np.random.default_rng(0)
    patches = [Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)) for _ in range(n)]
    sizes = ((320, 240), (240, 320))
    return [patch.resize(sizes[index % 2], Image.Resampling.BICUBIC) for index, patch in enumerate(patches)]


def _compare(classifier: Classifier, pixels: Tensor, file: Path) -> tuple[float, int]:
    """Largest difference of a probability, and the number of images with the same most likely class."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        found = [session.run(None, {"pixels": batch.numpy()})[0] for batch in _batches(pixels)]
    except Exception as error:  # onnxruntime has error types of its own
        raise InputError(f"onnxruntime {onnxruntime.__version__} cannot run the exported file: {error}") from None
    exported = np.concatenate(found)
    encode = classifier.backbone_.encode_images
    features = torch.cat([encode(batch) for batch in _batches(pixels)])
    expected = classifier.probabilities(features)
    if exported.shape != expected.shape:
        raise InputError(
            f"the exported file gives {exported.shape} probabilities instead of {expected.shape}: it was not written"
        )
    n_agree = int((exported.argmax(1) == expected.argmax(1)).sum())
    return float(np.abs(exported - expected).max()), n_agree


def _batches(pixels: Tensor) -> Sequence[Tensor]:
    """Batches of different sizes; of the last size until the pixels end."""
    first, size = _BATCHES
    return pixels[:first], *pixels[first:].split(size)
