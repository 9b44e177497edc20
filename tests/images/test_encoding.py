"""Batches of views: sizes, padding, and the same bits as one view at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from slimprompt import FeatureBank, InputError
from slimprompt.clip.backbone import Backbone
from slimprompt.images.encoding import (
    BATCH,
    batch_for_memory,
    device_batch,
    encode_eval_views,
    encode_padded,
    in_batches,
)


def test_batches_are_full_but_the_last() -> None:
    sizes = [3, 1, 7, 0, 2, 5]
    rows = np.arange(sum(sizes) * 2).reshape(-1, 2)
    ends = np.cumsum(sizes)
    items = [(list(range(end - size, end)), rows[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    batches = list(in_batches(items, 4))
    assert [len(names) for names, _ in batches] == [4, 4, 4, 4, 2]
    assert [name for names, _ in batches for name in names] == list(range(18))
    assert np.array_equal(np.concatenate([some for _, some in batches]), rows)


def test_batch_size_by_device_and_memory(tiny: Backbone) -> None:
    assert device_batch(tiny) == BATCH == 32
    sizes = [batch_for_memory(free, 224, 224) for free in range(0, 100 << 30, 1 << 28)]
    assert sizes == sorted(sizes) and sizes[0] == 32 and sizes[-1] == 512
    assert set(sizes) == {32, 64, 128, 256, 512}
    assert batch_for_memory(24 << 30, 448, 448) < batch_for_memory(24 << 30, 224, 224)


def test_a_batch_is_padded(tiny: Backbone) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    padded = encode_padded(tiny, pixels, 8)
    assert len(padded) == 8 and torch.equal(padded[5:], padded[:1].expand(3, -1))
    assert len(encode_padded(tiny, np.concatenate([pixels, pixels]), 8)) == 16


@pytest.mark.parametrize(("precision", "advice"), [("fp32", "are its weights damaged"), ("fp16", "use bf16 or fp32")])
def test_features_that_are_not_finite_are_refused_and_not_stored(
    precision: str, advice: str, tiny: Backbone, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = sorted(photos.glob("*/*.png"))[:2]
    backbone = tiny
    monkeypatch.setattr(Backbone, "precision", precision)
    monkeypatch.setattr(Backbone, "encode_images", lambda self, pixels: torch.full((len(pixels), 24), torch.nan))
    bank = FeatureBank(backbone, tmp_path)
    for encode in (bank.features, lambda some: encode_eval_views(backbone, some)):
        with pytest.raises(InputError, match=f"not finite in {precision}: {advice}"):
            encode(images)
    assert len(bank) == 0
