"""Batches of 8-bit views through the image tower."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.images.decode import open_image
from slimprompt.images.prefetch import prefetched
from slimprompt.images.sources import image_sources
from slimprompt.images.views import eval_pixels, normalise, view_size
from slimprompt.progress import progress

T = TypeVar("T")

#: Batches are padded to a multiple of this size, on a CPU to this size, so that a feature does not depend on the images
#: encoded with it.
BATCH = 32
_LARGEST_BATCH = 512
#: Memory that the image tower takes for a view, in multiples of its fp32 pixels; an upper estimate for ViTs and ResNets.
_MEMORY_PER_VIEW = 64


def device_batch(backbone: Backbone) -> int:
    """Views to encode together: 32 on a CPU; on a GPU as many as fit into half of its free memory, from 32 to 512."""
    device = backbone.device
    if device.type == "cuda":
        return batch_for_memory(torch.cuda.mem_get_info(device)[0], *view_size(backbone.preprocess))
    if device.type == "mps":
        free = torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
        return batch_for_memory(free, *view_size(backbone.preprocess))
    return BATCH


def batch_for_memory(free: int, height: int, width: int) -> int:
    """The largest power of two, from 32 to 512, whose views take at most half of `free` bytes.

    A power of two, so that a little more or less free memory seldom changes the batch, and with it the rounding of features.

    >>> [batch_for_memory(gigabytes << 30, 224, 224) for gigabytes in (1, 8, 24, 80)]
    [32, 64, 256, 512]
    """
    views = free // 2 // (_MEMORY_PER_VIEW * 3 * height * width * 4)
    return min(max(1 << max(views, 1).bit_length() - 1, BATCH), _LARGEST_BATCH)


def in_batches(items: Iterable[tuple[Sequence[T], np.ndarray]], size: int) -> Iterator[tuple[list[T], np.ndarray]]:
    """Names and rows of any number at a time → lists of `size` names with their rows; the last may be shorter."""
    names: list[T] = []
    parts: list[np.ndarray] = []
    for some, rows in items:
        while len(some):
            taken = size - len(names)
            names += some[:taken]
            parts.append(rows[:taken])
            some, rows = some[taken:], rows[taken:]
            if len(names) == size:
                yield names, _joined(parts)
                names, parts = [], []
    if names:
        yield names, _joined(parts)


def encode_pixels(backbone: Backbone, pixels: np.ndarray) -> Tensor:
    """Features (n, embed_dim) of 8-bit views (n, height, width, 3), which are normalised on the device of the model."""
    return backbone.encode_images(normalise(torch.from_numpy(pixels).to(backbone.device), backbone.preprocess))


def encode_padded(backbone: Backbone, pixels: np.ndarray, size: int = BATCH) -> Tensor:
    """Features of 8-bit views (n, height, width, 3) and of the first view again, up to a multiple of `size`."""
    missing = -len(pixels) % size
    filled = np.concatenate([pixels, np.repeat(pixels[:1], missing, axis=0)]) if missing else pixels
    return encode_pixels(backbone, filled)


def check_finite(backbone: Backbone, features: Tensor) -> None:
    """Raise an error if a feature is not a finite number, as fp16 can overflow."""
    if not torch.isfinite(features).all():
        advice = "are its weights damaged?" if backbone.precision == "fp32" else "use bf16 or fp32"
        raise InputError(
            f"the image tower of {backbone.name} gives features that are not finite in {backbone.precision}: {advice}"
        )


def encode_eval_views(backbone: Backbone, images: Any) -> Tensor:
    """Eval-view features (n, embed_dim) of images that will not be needed again: nothing is stored, no batch is padded."""
    images = image_sources(images)
    decoded = prefetched(
        lambda image: eval_pixels(open_image(image), backbone.preprocess, image)[None], images, os.cpu_count() or 1
    )
    features: list[Tensor] = []
    with progress("encoding images", len(images), "images") as advance:
        for batch, pixels in in_batches((([image], view) for image, view in decoded), BATCH):
            features.append(encode_pixels(backbone, pixels))
            advance(len(batch))
    found = torch.cat(features) if features else backbone.encode_texts(["a"])[:0]  # (n, embed_dim)
    check_finite(backbone, found)
    return found


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])
