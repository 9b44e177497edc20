"""Damaged files of every format that commands read: each is read, or refused with one line, within a bound.

The cases are seeded. `SLIMPROMPT_FUZZ=20 pytest tests/robustness/test_fuzz.py` runs 20 times as many.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from slimprompt import Classifier, FeatureBank, Prompt
from slimprompt.clip.backbone import Backbone
from slimprompt.clip.load import _read_weights
from slimprompt.coop import read_coop_checkpoint
from slimprompt.data import apply_manifest, few_shot, load_folder, make_manifest, read_manifest, write_manifest
from slimprompt.data.readers import read_split_file
from slimprompt.errors import InputError
from slimprompt.images.decode import open_image
from slimprompt.images.hashes import FileHashes
from slimprompt.lab.records import read_record
from slimprompt.lab.run import LoadedInputs, make_run
from slimprompt.methods.head import CacheHead, Head
from slimprompt.paper.studies import read_grid
from slimprompt.saved import describe_backbone, write_model
from tests.conftest import TINY_CONFIG
from tests.robustness.mutate import mutations
from tests.test_saved import ENTRIES, OF_A_HEAD, rewrite

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

_TIMES = int(os.environ.get("SLIMPROMPT_FUZZ", "1"))
_SECONDS = 20  # of one case; a hang becomes an error


@contextmanager
def bounded() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError("the case does not end")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(path: Path, read: Callable[[], Any], cases: int, seal: Callable[[], None] | None = None) -> None:
    """Damage the file `cases` times and read it; `seal` makes checksums agree with the damage."""
    content = path.read_bytes()
    rng = random.Random(int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:4], "little"))
    read()
    messages: list[str] = []
    for damaged in mutations(content, cases * _TIMES, rng):
        path.write_bytes(damaged)
        if seal is not None:
            seal()
        try:
            with bounded(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read()
        except InputError as error:
            messages.append(str(error))
        except Exception as error:
            kept = path.with_name(f"failing-{path.name}")
            kept.write_bytes(path.read_bytes())
            raise AssertionError(f"{type(error).__name__} on {kept}") from error
    assert messages, "no damage was noticed"
    assert all(message.isprintable() and len(message) <= 1000 for message in messages)


def test_manifest(photos: Path, tmp_path: Path) -> None:
    images = load_folder(photos)
    path = tmp_path / "manifest.json"
    write_manifest(make_manifest(few_shot(images, 2, 1), shots=2, seed=1), path)
    fuzz(path, lambda: apply_manifest(read_manifest(path), images), 300)


def test_split_file(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    entries = [
        [f"{name}/{number}.jpg", label, name] for label, name in enumerate(("cat", "dog")) for number in range(3)
    ]
    path.write_text(json.dumps({"train": entries, "val": entries[:2], "test": entries[2:]}))
    fuzz(path, lambda: read_split_file(path), 300)


def test_grid_file(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    fields = {"study": ["headline"], "datasets": ["dtd"], "shots": [1, 4], "seeds": [1], "recipe": {"epochs": 3}}
    path.write_text(json.dumps(fields))
    fuzz(path, lambda: read_grid(path), 200)
    path.write_text(yaml.safe_dump({**fields, "pairs": [["dtd", "food101"]], "pocket": False}))
    fuzz(path, lambda: read_grid(path), 200)


def test_csv_of_images(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "images.csv"
    rows = [f"{os.path.relpath(image, tmp_path)},{image.parent.name}" for image in sorted(photos.glob("*/*.png"))]
    path.write_text("\n".join(["path,label", *rows]))
    fuzz(path, lambda: load_folder(path), 300)


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "tif", "webp", "bmp", "ppm"])
def test_image(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"image.{suffix}"
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)

    def read() -> None:
        for decode in ("upright", "plain"):
            assert open_image(path, decode).mode == "RGB"

    fuzz(path, read, 60)


def test_coop_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.pth.tar-2"
    state = {"ctx": torch.randn(4, 8), "token_suffix": torch.randn(2, 5, 8)}
    torch.save({"state_dict": state, "epoch": 2}, path)
    fuzz(path, lambda: read_coop_checkpoint(path), 150)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_weight_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    state = {"a.weight": torch.randn(4, 8), "b": torch.randn(3)}
    save_file(state, path) if suffix == "safetensors" else torch.save({"state_dict": state}, path)
    fuzz(path, lambda: _read_weights(path), 150)


def test_feature_bank(tiny, photos: Path, tmp_path: Path) -> None:
    images = sorted(photos.glob("*/*.png"))[:4]
    bank = FeatureBank(tiny, tmp_path)
    bank.build(images)

    def read() -> None:
        """A damaged number is not noticed."""
        assert len(FeatureBank(tiny, tmp_path, show_progress=False).features(images)) == len(images)
        for part in tmp_path.glob("*-journal"):
            part.unlink()

    fuzz(bank.path, read, 260)


def test_remembered_hashes(tmp_path: Path) -> None:
    """Damage of the file only costs time; a damaged hash is not noticed."""
    files = [tmp_path / f"{number}.png" for number in range(20)]
    for file in files:
        file.write_bytes(file.name.encode())
    expected = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]

    def later() -> int:
        return time.time_ns() + 10**10

    path = tmp_path / "hashes.db"
    assert FileHashes(path, clock=later).find(files) == expected
    content, rng = path.read_bytes(), random.Random(0)
    for damaged in mutations(content, 200 * _TIMES, rng):
        path.write_bytes(damaged)
        with bounded():
            found = FileHashes(path, clock=later).find(files)
        assert len(found) == len(expected)


def test_run_folder(run_spec, environment) -> None:
    record = make_run(run_spec(), LoadedInputs(environment))
    path = record.folder / "record.json"
    content = path.read_bytes()
    fuzz(path, lambda: read_record(record.folder), 300)
    path.write_bytes(content)
    read = read_record(record.folder)
    path = record.folder / "factors.safetensors"
    fuzz(path, read.factors, 200)
    fuzz(record.folder / "curve.csv", read.curve, 200)


# --- saved models ----------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """A saved model, and how to read and use it."""

    file: Path
    use: Callable[[], None]

    def seal(self) -> None:
        """As whoever changes the file on purpose would do: a checksum that fits, where the file can still be read."""
        with suppress(Exception):
            rewrite(self.file)


@pytest.fixture(params=["prompt", "linear", "cache"])
def saved(request: pytest.FixtureRequest, tiny: Backbone, tmp_path: Path) -> Saved:
    """A saved prompt, a saved head, and a saved head with keys."""
    generator = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(4, TINY_CONFIG["embed_dim"], generator=generator), dim=1)
    file, entries = tmp_path / "model.safetensors", ENTRIES | {"backbone": describe_backbone(tiny)}
    if request.param == "prompt":
        factors = [torch.randn(shape, generator=generator) for shape in ((4, 2), (2, tiny.text_width))]
        write_model(file, entries, Prompt(*factors, trainable="A"))
    else:
        known = {"class_names": ("otter", "red panda"), "weights": features[:2], "scale": 10.0}
        head = (
            Head(**known, bias=torch.zeros(2))
            if request.param == "linear"
            else CacheHead(**known, keys=features.clone(), labels=torch.tensor([0, 0, 1, 1]), alpha=1.0, beta=5.0)
        )
        write_model(file, entries | OF_A_HEAD, head)

    def use() -> None:
        probabilities = Classifier.load(file, backbone=tiny).probabilities(features)
        assert np.isfinite(probabilities).all() and np.allclose(probabilities.sum(1), 1)

    return Saved(file, use)


@pytest.mark.parametrize("sealed", [False, True], ids=["", "sealed"])
def test_saved_model(saved: Saved, sealed: bool) -> None:
    fuzz(saved.file, saved.use, 250, saved.seal if sealed else None)
