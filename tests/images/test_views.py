import random

import numpy as np
import pytest
import torch
from open_clip.transform import PreprocessCfg
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as vision

from slimprompt.images.views import crop_box, train_pixels, train_pixels_by_torch, train_view, view_size


def test_crop_boxes_are_distributed_as_in_torchvision():
    torch.manual_seed(0)
    image = torch.zeros(3, 90, 140)
    rng = random.Random(0)
    ours = np.array([crop_box(140, 90, rng) for _ in range(4000)])
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)])
    theirs = theirs[:, [1, 0, 3, 2]]  # top, left, height, width → left, top, width, height
    for column in range(4):
        assert ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert (ours[:, 0] + ours[:, 2] <= 140).all()
    assert (ours[:, 1] + ours[:, 3] <= 90).all()


def test_pixels_equal_torchvision():
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    image, cfg = Image.fromarray(noise), PreprocessCfg(size=32)
    for seed in range(6):
        rng = random.Random(seed)
        left, top, width, height = crop_box(80, 60, rng)
        expected = vision.resized_crop(image, top, left, height, width, [32, 32], InterpolationMode.BICUBIC)
        if rng.random() < 0.5:
            expected = vision.hflip(expected)
        expected = vision.normalize(vision.to_tensor(expected), cfg.mean, cfg.std)
        torch.testing.assert_close(train_view(image, cfg, seed), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "random"])
@pytest.mark.parametrize("size", [32, (24, 40), 224])
def test_pixels_resized_by_torch_are_those_of_pillow_within_rounding(size, interpolation):
    preprocess = PreprocessCfg(size=size, interpolation=interpolation)
    rows, columns = view_size(preprocess)
    resampling = Image.Resampling.BILINEAR if interpolation == "bilinear" else Image.Resampling.BICUBIC
    for seed in range(12):
        coarse = np.random.default_rng(seed).integers(0, 256, (6 + 4 * seed, 50 - 3 * seed, 3), dtype=np.uint8)
        noise = coarse.repeat(10, axis=0).repeat(10, axis=1)
        rng = random.Random(seed)
        left, top, width, height = crop_box(noise.shape[1], noise.shape[0], rng)
        crop = Image.fromarray(noise).crop((left, top, left + width, top + height))
        # horizontally first, as torch does; from version 13, Pillow resizes some crops vertically first
        view = crop.resize((columns, height), resampling).resize((columns, rows), resampling)
        expected = np.asarray(vision.hflip(view) if rng.random() < 0.5 else view).astype(int)
        found = train_pixels_by_torch(torch.from_numpy(noise), preprocess, seed)
        assert found.dtype == np.uint8 and found.shape == expected.shape
        assert np.abs(found - expected).max() <= 2 and np.abs(found - expected).mean() < 0.1
        default = train_pixels(Image.fromarray(noise), preprocess, seed).astype(int)
        assert np.abs(found - default).mean() < 1  # on noise; 10 or more for another crop or flip
        assert np.abs(found[:, ::-1] - default).mean() > 10


def test_extreme_aspect_ratios_use_the_centre():
    for size in ((1000, 3), (3, 1000), (1, 1)):
        left, top, width, height = crop_box(*size, random.Random(1))
        assert 0 <= left <= size[0] - width
        assert 0 <= top <= size[1] - height
        assert width >= 1
        assert height >= 1
