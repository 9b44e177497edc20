import random

import numpy as np
import torch
from open_clip.transform import PreprocessCfg
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as vision

from slimprompt.images.views import crop_box, train_view


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


def test_extreme_aspect_ratios_use_the_centre():
    for size in ((1000, 3), (3, 1000), (1, 1)):
        left, top, width, height = crop_box(*size, random.Random(1))
        assert 0 <= left <= size[0] - width
        assert 0 <= top <= size[1] - height
        assert width >= 1
        assert height >= 1
