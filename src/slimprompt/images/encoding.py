"""The one way from images to features: threads decode ahead, batches of 8-bit views go through the image tower."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
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
                yield names, np.concatenate(parts)
                names, parts = [], []
    if names:
        yield names, np.concatenate(parts)


def encode_pixels(backbone: Backbone, pixels: np.ndarray) -> Tensor:
    """Features (n, embed_dim) of 8-bit views (n, height, width, 3), which are normalised on the device of the model."""
    return backbone.encode_images(normalise(torch.from_numpy(pixels).to(backbone.device), backbone.preprocess))


def encode_padded(backbone: Backbone, pixels: np.ndarray, size: int = BATCH) -> Tensor:
    """Features of 8-bit views (n, height, width, 3) and of the first view again, up to a multiple of `size`."""
    missing = -len(pixels) % size
    filled = np.concatenate([pixels, np.repeat(pixels[:1], missing, axis=0)]) if missing else pixels
    return encode_pixels(backbone, filled)


def refuse(image: object, error: InputError) -> None:
    """What `encoded` does with an image that cannot be read, unless it is told otherwise."""
    raise error


def encoded(
    backbone: Backbone,
    images: Iterable[T],
    views: Callable[[T], np.ndarray],
    *,
    batch: int = BATCH,
    padded: bool = True,
    workers: int | None = None,
    ahead: int | None = None,
    unreadable: Callable[[T, InputError], None] = refuse,
) -> Iterator[tuple[list[tuple[T, int]], Tensor]]:
    """Yield (image, number of its view) of the views of a batch, with their features (n, embed_dim).

    `views` gives the 8-bit views (n_views, height, width, 3) of an image, and is called on threads, for at most `ahead` images that
    wait to be encoded. An image for which it raises an `InputError` goes to `unreadable`. A batch is launched before the one before it
    is yielded, so that a GPU is not idle meanwhile. Unless batches are padded, features differ in rounding with the size of the batch.
    """

    def made(image: T) -> np.ndarray | InputError:
        try:
            return views(image)
        except InputError as error:
            return error

    def readable() -> Iterator[tuple[list[tuple[T, int]], np.ndarray]]:
        threads = workers or os.cpu_count() or 1
        for image, found in prefetched(made, images, threads, (batch if ahead is None else ahead) + 2 * threads):
            if isinstance(found, InputError):
                unreadable(image, found)
            else:
                yield [(image, number) for number in range(len(found))], found

    before: tuple[list[tuple[T, int]], Tensor] | None = None
    for names, pixels in in_batches(readable(), batch):
        features = (
            encode_padded(backbone, pixels, min(batch, BATCH))[: len(pixels)]
            if padded
            else encode_pixels(backbone, pixels)
        )
        if before is not None:
            yield before[0], check_finite(backbone, before[1])
        before = names, features
    if before is not None:
        yield before[0], check_finite(backbone, before[1])


def encode_eval_views(backbone: Backbone, images: Any) -> Tensor:
    """Eval-view features (n, embed_dim) of images that will not be needed again: nothing is stored, no batch is padded."""
    images = image_sources(images)
    features = []
    with progress("encoding images", len(images), "images") as advance:
        for names, some in encoded(
            backbone,
            images,
            lambda image: eval_pixels(open_image(image), backbone.preprocess, image)[None],
            padded=False,
        ):
            features.append(some)
            advance(len(names))
    return torch.cat(features) if features else torch.empty(0, backbone.embed_dim, device=backbone.device)


def check_finite(backbone: Backbone, features: Tensor) -> Tensor:
    """The features; an error if one is not a finite number, as fp16 can overflow."""
    if not torch.isfinite(features).all():
        advice = "are its weights damaged?" if backbone.precision == "fp32" else "use bf16 or fp32"
        raise InputError(
            f"the image tower of {backbone.name} gives features that are not finite in {backbone.precision}: {advice}"
        )
    return features
