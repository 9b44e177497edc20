"""Banks on disk: their sizes, clearing them, and files of earlier versions, which are read once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from slimprompt import FeatureBank, InputError
from slimprompt.clip.backbone import Backbone
from slimprompt.images.cached import bytes_per_feature, cached_banks, clear_cached_banks

VIEWS = ["", "1/0", "plain:1/0"]


@pytest.fixture
def images(photos: Path) -> list[Path]:
    return sorted(photos.glob("*/*.png"))


def old_file(backbone: Backbone, folder: Path, images: list[Path]) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file as version 0.1 wrote it, with features that cannot be taken for newly encoded ones."""
    path = FeatureBank(backbone, folder / "unused").path
    path = folder / f"{path.name}.sqlite"
    key = {
        "weights": backbone.fingerprint,
        "precision": backbone.precision,
        "device": backbone.device.type,
        "preprocess": json.dumps(asdict(backbone.preprocess), sort_keys=True),
        "views": "random-resized-crop 0.08-1 3/4-4/3 flip 0.5",
    }
    rng = np.random.default_rng(0)
    rows = {view: rng.standard_normal((len(images), 24), dtype=np.float32) for view in VIEWS}
    features = {view: values / np.linalg.norm(values, axis=1, keepdims=True) for view, values in rows.items()}
    hashes = FeatureBank(backbone, None).hashes(images)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE key (name TEXT PRIMARY KEY, value TEXT)")
        database.execute(
            "CREATE TABLE features (picture TEXT, view TEXT, feature BLOB, PRIMARY KEY (picture, view)) WITHOUT ROWID"
        )
        database.executemany("INSERT INTO key VALUES (?, ?)", key.items())
        stored = [(one, view, row.tobytes()) for view in VIEWS for one, row in zip(hashes, features[view], strict=True)]
        database.executemany("INSERT INTO features VALUES (?, ?, ?)", stored)
    return path, {view: torch.from_numpy(values) for view, values in features.items()}


def check_imported(bank: FeatureBank, images: list[Path], features: dict[str, torch.Tensor]) -> None:
    assert torch.equal(bank.features(images), features[""])
    assert torch.equal(bank.features(images, "1/0"), features["1/0"])
    assert torch.equal(bank.features(images, "1/0", decode="plain"), features["plain:1/0"])


def test_a_file_of_version_0_1_is_read_once(
    tiny: Backbone, images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, features = old_file(tiny, tmp_path, images)
    assert [bank.features for bank in cached_banks(tmp_path)] == [54]
    bank = FeatureBank(tiny, tmp_path)
    notice = capsys.readouterr().err
    assert notice.startswith(f"moved 54 image features from {path} to {bank.path}") and notice.count("\n") == 1
    assert not list(tmp_path.glob("*.sqlite*"))
    check_imported(bank, images, features)
    check_imported(FeatureBank(tiny, tmp_path), images, features)
    assert capsys.readouterr().err == ""
    assert len(bank) == 54
    assert [(one.path, one.features) for one in cached_banks(tmp_path)] == [(bank.path, 54)]


def test_an_import_that_was_killed_is_completed(
    tiny: Backbone, images: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, features = old_file(tiny, tmp_path, images)
    content = path.read_bytes()
    bank = FeatureBank(tiny, tmp_path / "other")
    some = [(view, number) for view in VIEWS for number in range(0, len(images), 2)]
    hashes = bank.hashes(images)
    rows = torch.stack([features[view][number] for view, number in some])
    bank.store.write([hashes[number] for _, number in some], [view for view, _ in some], rows.numpy())
    path.unlink()
    path = tmp_path / "other" / path.name
    path.write_bytes(content)
    bank = FeatureBank(tiny, tmp_path / "other")
    assert capsys.readouterr().err.startswith("moved 27 image features")
    check_imported(bank, images, features)
    assert not path.exists()
    assert sum(shard.stat().st_size for shard in bank.path.glob("*.fp32")) == 54 * 24 * 4  # nothing is stored twice


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE features SET feature = x'00'", "damaged"),
        ("UPDATE features SET feature = 'text' WHERE view = '1/0'", "damaged"),
        ("UPDATE features SET picture = 'x' || picture WHERE view = '1/0'", r"\.sqlite is damaged"),
        ("DROP TABLE features", "damaged"),
        ("UPDATE key SET value = 'other' WHERE name = 'weights'", "another model or transform"),
    ],
)
def test_a_damaged_old_file_is_refused(
    tiny: Backbone, images: list[Path], tmp_path: Path, damage: str, message: str
) -> None:
    path, _ = old_file(tiny, tmp_path, images)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(damage)
    with pytest.raises(InputError, match=message):
        FeatureBank(tiny, tmp_path)
    assert path.exists()


def test_clearing_deletes_banks_and_remembered_hashes_only(tiny: Backbone, images: list[Path], tmp_path: Path) -> None:
    old_file(tiny, tmp_path, images)
    (tmp_path / "half").mkdir()
    bank = FeatureBank(tiny, tmp_path, store_precision="fp16")
    bank.build(images)
    (tmp_path / "my-0123456789abcdef").mkdir()
    (tmp_path / "my-0123456789abcdef" / "notes.txt").write_text("mine")
    sizes = [one.size for one in cached_banks(tmp_path)]
    assert len(sizes) == 2 and min(sizes) > 1000
    assert clear_cached_banks(tmp_path) == sum(sizes)
    left = {path.name for path in tmp_path.iterdir()} - {".lock", "hashes.db", "unused"}
    assert left == {"half", "my-0123456789abcdef"}
    with closing(sqlite3.connect(tmp_path / "hashes.db")) as database:
        assert database.execute("SELECT count(*) FROM files").fetchone() == (0,)
    assert cached_banks(tmp_path) == [] and clear_cached_banks(tmp_path / "none") == 0
    assert bank.features(images).shape == (len(images), 24)  # a process that has it open goes on


def test_bytes_per_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2048 < bytes_per_feature(512) <= 1.1 * 2048
    monkeypatch.setenv("SLIMPROMPT_FEATURES", "fp16")
    assert 1024 < bytes_per_feature(512) <= 1.1 * 1024
