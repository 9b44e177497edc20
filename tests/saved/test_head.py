"""Saved heads: every damage is one line that names the file and the field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from slimprompt.saved.head import read_head, write_head
from torch import Tensor

from slimprompt.errors import InputError
from slimprompt.files import sha256
from slimprompt.methods.head import AnyHead, CacheHead, Head

ENTRIES = {
    "method": "tip-adapter",
    "backbone": {"name": "pocket", "pretrained": None, "activation": "gelu", "fingerprint": "0" * 64},
    "n_trained": 12,
    "settings": {"alpha": 1.0},
    "templates": ["a photo of a {}."],
    "views": 0,
    "seed": 1,
}
NAMES = ("otter", "red panda")
LINEAR = Head(NAMES, torch.eye(2, 4), 10.0, torch.zeros(2))
CACHE = CacheHead(NAMES, torch.eye(2, 4), 10.0, torch.eye(3, 4), torch.tensor([0, 1, 1]), 1.0, 5.0)


@pytest.mark.parametrize("head", [LINEAR, CACHE], ids=["linear", "cache"])
def test_a_head_comes_back_as_it_was_written(head: AnyHead, tmp_path: Path) -> None:
    write_head(tmp_path / "head", ENTRIES, head)
    description, back = read_head(tmp_path / "head")
    assert description.method == "tip-adapter"
    assert torch.equal(back.logits(torch.eye(2, 4)), head.logits(torch.eye(2, 4)))


@pytest.mark.parametrize(
    ("head", "changed", "reason"),
    [
        (LINEAR, {"weights": torch.ones(3, 4)}, "weights: 2 class names, but the shape is (3, 4)"),
        (LINEAR, {"weights": torch.ones(2, 4, dtype=torch.int32)}, "weights: its numbers are torch.int32"),
        (LINEAR, {"weights": torch.full((2, 4), torch.nan)}, "weights: it holds numbers that are not finite"),
        (LINEAR, {"weights": torch.full((2, 4), 1e20)}, "weights: its largest number is 1.0e+20"),
        (LINEAR, {"bias": torch.ones(3)}, "bias: 2 class names, but the shape is (3,)"),
        (LINEAR, {"scale": torch.ones(1)}, "scale: it is both a tensor and a number"),
        (LINEAR, {"more": torch.ones(1)}, "unexpected keyword argument 'more'"),
        (CACHE, {"keys": torch.ones(3, 5)}, "keys: the shape is (3, 5), but 3 labels and width 4 are given"),
        (CACHE, {"labels": torch.tensor([0, 1])}, "keys: the shape is (3, 4), but 2 labels and width 4 are given"),
        (CACHE, {"labels": torch.tensor([0, 1, 2])}, "labels: they are not whole numbers from 0 to 1"),
        (CACHE, {"labels": torch.tensor([0.0, 1.0, 1.0])}, "labels: they are not whole numbers from 0 to 1"),
    ],
)
def test_damaged_tensors_are_refused(head: AnyHead, changed: dict[str, Tensor], reason: str, tmp_path: Path) -> None:
    """Also where hash and checksum agree with them."""
    write_head(tmp_path, ENTRIES, head)
    data = save(load_file(tmp_path / "head.safetensors") | changed)
    (tmp_path / "head.safetensors").write_bytes(data)
    entries = json.loads((tmp_path / "head.json").read_text()) | {"checksum": None, "tensors_sha256": sha256(data)}
    (tmp_path / "head.json").write_text(json.dumps(entries))
    with pytest.raises(InputError) as caught:
        read_head(tmp_path)
    assert f"{tmp_path / 'head.safetensors'} is damaged: " in str(caught.value) and reason in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"scale": 1.0, "alpha": 1.0, "beta": -3.0}, "head.json is damaged: beta: -3.0 is negative"),
        ({"scale": 1e308, "alpha": 1.0, "beta": 1.0}, "head.json is damaged: scale: its largest number is 1.0e+308"),
        ({"scale": 1.0, "alpha": 1.0}, "missing 1 required positional argument: 'beta'"),
    ],
)
def test_damaged_numbers_are_refused(numbers: dict[str, float], reason: str, tmp_path: Path) -> None:
    write_head(tmp_path, ENTRIES, CACHE)
    entries = json.loads((tmp_path / "head.json").read_text()) | {"checksum": None, "numbers": numbers}
    (tmp_path / "head.json").write_text(json.dumps(entries))
    with pytest.raises(InputError, match=re.escape(reason)):
        read_head(tmp_path)
