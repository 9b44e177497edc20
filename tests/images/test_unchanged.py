"""Views and features on a CPU have the bits of the plain computation of version 0.1: one float view at a time."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor

from slimprompt import FeatureBank
from slimprompt.clip.backbone import Backbone
from slimprompt.files import sha256
from slimprompt.images.decode import open_image
from slimprompt.images.views import crop_box, train_view
from slimprompt.seeds import stream_seed


def reference_train_view(image: Image.Image, preprocess: PreprocessCfg, seed: int) -> Tensor:
    rng = random.Random(seed)
    left, top, width, height = crop_box(image.width, image.height, rng)
    size = preprocess.size if isinstance(preprocess.size, tuple | list) else (preprocess.size, preprocess.size)
    crop = image.crop((left, top, left + width, top + height))
    view = crop.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(view, dtype=np.float32).transpose(2, 0, 1)).div_(255)
    if rng.random() < 0.5:
        pixels = pixels.flip(2)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (preprocess.mean, preprocess.std))
    return (pixels - mean) / std


def reference_features(backbone: Backbone, views: list[Tensor]) -> Tensor:
    """Batches of 32, of which the last is filled with its first view."""
    batches = [views[start : start + 32] for start in range(0, len(views), 32)]
    encoded = [backbone.encode_images(torch.stack([*batch, *[batch[0]] * (32 - len(batch))])) for batch in batches]
    return torch.cat([features[: len(batch)] for features, batch in zip(encoded, batches, strict=True)])


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("name", ["tiny", "pocket"])
def test_features(name: str, tiny: Backbone, photos: Path, tmp_path: Path) -> None:
    from slimprompt import load_backbone

    backbone = tiny if name == "tiny" else load_backbone("pocket", device="cpu")
    images = [*sorted(photos.glob("*/*.png"))[:5], tmp_path / "wide.jpg", tmp_path / "tall.png"]
    noise(60, 200).save(images[-2])
    noise(301, 64).save(images[-1])
    names = ["", *(f"1/{number}" for number in range(20))]
    views = {name: [] for name in names}
    for path in images:
        image = open_image(path)
        for name in names:
            seed = stream_seed(0, "view", name, sha256(path))
            transform = image_transform_v2(backbone.preprocess, is_train=False)
            views[name].append(
                transform(image) if name == "" else reference_train_view(image, backbone.preprocess, seed)
            )
    bank = FeatureBank(backbone, tmp_path / "bank")
    bank.build(images, names)
    for name in names:
        assert torch.equal(bank.features(images, name), reference_features(backbone, views[name]))


@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_eval_views_of_every_resize_mode(tiny: Backbone, resize_mode: str, tmp_path: Path) -> None:
    backbone = replace(tiny, preprocess=replace(tiny.preprocess, resize_mode=resize_mode))
    images = [noise(60, 200), noise(64, 64), noise(301, 64)]
    transform = image_transform_v2(backbone.preprocess, is_train=False)
    expected = reference_features(backbone, [transform(image) for image in images])
    assert torch.equal(FeatureBank(backbone, None).features(images), expected)


@pytest.mark.parametrize("size", [32, (24, 40), 224])
def test_pixels_of_train_views(size: int | tuple[int, int]) -> None:
    for seed in range(8):
        image, cfg = noise(50 + 31 * seed, 260 - 17 * seed, seed), PreprocessCfg(size=size)
        assert torch.equal(train_view(image, cfg, seed), reference_train_view(image, cfg, seed))
