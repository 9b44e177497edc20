"""Random views of a picture: the crop and flip that prompt learning trains on, drawn from a seed of their own."""

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
    """RGB picture → (3, size, size): random resized crop (area 8–100 %, ratio 3/4–4/3), flip with probability ½, normalised."""
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
    """(left, top, width, height) of a crop with area in `scale` and aspect log-uniform in `ratio`; ten tries, then the centre."""
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    return (width - w) // 2, (height - h) // 2, w, h
