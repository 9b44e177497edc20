"""Train views: the random crop and flip of an image that prompt learning trains on."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from open_clip.transform import PreprocessCfg
from PIL import Image
from torch import Tensor

_RESAMPLING = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "random": Image.Resampling.BICUBIC,
}


def train_view(image: Image.Image, preprocess: PreprocessCfg, seed: int) -> Tensor:
    """A train view of an image: random resized crop, horizontal flip with probability ½, normalisation.

    Parameters
    ----------
    image
        RGB image.
    preprocess
        Size, interpolation, mean and standard deviation of the model.
    seed
        Seed of the crop and the flip.

    Returns
    -------
    Tensor
        Pixels (3, height, width).
    """
    rng = random.Random(seed)
    left, top, width, height = crop_box(image.width, image.height, rng)
    size = preprocess.size if isinstance(preprocess.size, tuple | list) else (preprocess.size, preprocess.size)
    crop = image.crop((left, top, left + width, top + height))
    view = crop.resize((size[1], size[0]), _RESAMPLING[preprocess.interpolation])
    pixels = torch.from_numpy(np.array(view, dtype=np.float32).transpose(2, 0, 1)).div_(255)
    if rng.random() < 0.5:
        pixels = pixels.flip(2)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (preprocess.mean, preprocess.std))
    return (pixels - mean) / std


def crop_box(
    width: int,
    height: int,
    rng: random.Random,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Sample a crop box, as torchvision's `RandomResizedCrop` does; after ten failed attempts use the centre.

    Parameters
    ----------
    width, height
        Size of the image.
    rng
        Source of randomness.
    scale
        Range of the area, as a fraction of the image area; uniform.
    ratio
        Range of the aspect ratio; log-uniform.

    Returns
    -------
    tuple of int
        (left, top, width, height).
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
