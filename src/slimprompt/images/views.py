"""Views of images: 8-bit pixels by the model's own preprocessing, or by the random crop and flip that prompts are trained on.

Views stay 8-bit until a whole batch is normalised, on the device of the model. Normalising is elementwise, so that a batch of views
has the same bits as its views one by one.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
from functools import lru_cache

import numpy as np
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor
from torchvision.transforms import Compose, Normalize, ToTensor

from slimprompt.images.decode import ImageSource, UnreadableImageError

_RESAMPLING = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "random": Image.Resampling.BICUBIC,
}


def eval_pixels(image: Image.Image, preprocess: PreprocessCfg, source: ImageSource) -> np.ndarray:
    """The eval view of an RGB image before it is normalised, uint8 (height, width, 3), by the model's preprocessing.

    An image so narrow that it would exceed Pillow's pixel limit when its shorter side is resized to that of the view is unreadable;
    `source` is its name in the message.
    """
    pixels = max(view_size(preprocess)) ** 2 * max(image.size) / min(image.size)
    if preprocess.resize_mode == "shortest" and Image.MAX_IMAGE_PIXELS and pixels > Image.MAX_IMAGE_PIXELS:
        raise UnreadableImageError(
            f"cannot read {source}: {image.width} × {image.height} pixels are too narrow to be resized"
        )
    return np.array(_eval_transform(json.dumps(asdict(preprocess)))(image))  # a copy: torch wants writable memory


def train_pixels(image: Image.Image, preprocess: PreprocessCfg, seed: int) -> np.ndarray:
    """A train view of an RGB image before it is normalised, uint8 (height, width, 3): random resized crop, flip with probability ½."""
    rng = random.Random(seed)
    left, top, width, height = crop_box(image.width, image.height, rng)
    rows, columns = view_size(preprocess)
    crop = image.crop((left, top, left + width, top + height))
    view = crop.resize((columns, rows), _RESAMPLING[preprocess.interpolation])
    # Pillow flips whole pixels; NumPy would copy three bytes at a time
    return np.asarray(view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else view)


def train_view(image: Image.Image, preprocess: PreprocessCfg, seed: int) -> Tensor:
    """A normalised train view (3, height, width); see `train_pixels`."""
    return normalise(torch.from_numpy(train_pixels(image, preprocess, seed).copy())[None], preprocess)[0]


def normalise(pixels: Tensor, preprocess: PreprocessCfg) -> Tensor:
    """(pixels / 255 − mean) / std: uint8 (n, height, width, 3) → float (n, 3, height, width), on the device of the pixels."""
    mean, std = (torch.tensor(value, device=pixels.device).view(3, 1, 1) for value in (preprocess.mean, preprocess.std))
    return pixels.permute(0, 3, 1, 2).contiguous().float().div_(255).sub_(mean).div_(std)


def view_size(preprocess: PreprocessCfg) -> tuple[int, int]:
    """Height and width of a view."""
    size = preprocess.size
    return (size, size) if isinstance(size, int) else (size[0], size[1])


@lru_cache(maxsize=8)
def _eval_transform(preprocess: str) -> Compose:
    """open_clip's transform up to an 8-bit RGB image; its last two steps are those of `normalise`."""
    steps = image_transform_v2(PreprocessCfg(**json.loads(preprocess)), is_train=False).transforms
    if not (isinstance(steps[-2], ToTensor) and isinstance(steps[-1], Normalize)):
        raise TypeError("open_clip's preprocessing does not end in ToTensor and Normalize")
    return Compose(steps[:-2])


def crop_box(
    width: int,
    height: int,
    rng: random.Random,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Sample (left, top, width, height) as torchvision's `RandomResizedCrop` does; after ten failed attempts, use the centre.

    The area, as a fraction of that of the image, is uniform in `scale`, and the aspect ratio log-uniform in `ratio`.
    """
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    return (width - w) // 2, (height - h) // 2, w, h
