"""The store of features: order, length of rows, its key, several users at once, and what clearing and damage do."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.images.store import HASHES, FeatureStore, MemoryStore, cached_banks, clear_cached_banks

KEY = {"weights": "some"}
NAME = "model-0123456789abcdef.sqlite"


def digest(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def write(store: FeatureStore | MemoryStore, numbers: range, view: str = "1/0", length: int = 8, seed: int = 0):
    rows = np.random.default_rng(seed).standard_normal((len(numbers), length), dtype=np.float32)
    store.write([(digest(n), view) for n in numbers], rows)
    return rows


def read(store: FeatureStore | MemoryStore, numbers, view: str = "1/0") -> np.ndarray:
    found = store.read([digest(n) for n in numbers], view)
    assert found is not None
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features" / NAME


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, path: Path) -> FeatureStore | MemoryStore:
    return FeatureStore(path, KEY) if request.param == "file" else MemoryStore()


def test_rows_come_back_in_the_order_asked_for(store) -> None:
    assert len(store) == 0 and store.read([digest(0)], "1/0") is None
    rows = np.concatenate([write(store, range(first, first + 700), seed=first) for first in (0, 700, 1400)])
    order = np.random.default_rng(1).permutation(2100)
    found = read(store, order)
    assert found.dtype == np.float32 and np.array_equal(found, rows[order])
    assert store.read([digest(0)], "1/1") is None and store.read([digest(2100)], "1/0") is None
    assert len(store) == 2100


def test_missing_by_image_and_view(store) -> None:
    write(store, range(4), "1/0")
    write(store, range(2, 6), "1/1")
    missing = store.missing([digest(n) for n in range(7)], ["1/0", "1/1", "2/0"])
    assert missing == [["1/1", "2/0"]] * 2 + [["2/0"]] * 2 + [["1/0", "2/0"]] * 2 + [["1/0", "1/1", "2/0"]]


def test_the_first_row_written_is_kept(store) -> None:
    first = write(store, range(3), seed=1)
    write(store, range(2, 5), seed=2)
    assert np.array_equal(read(store, range(3)), first)
    assert len(store) == 5


def test_a_forked_child_uses_the_store_of_its_parent(path: Path) -> None:
    store = FeatureStore(path, KEY)
    write(store, range(3))
    child = os.fork()
    if child == 0:
        write(store, range(3, 6))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(store) == 6


def test_a_feature_takes_little_more_than_its_numbers(path: Path) -> None:
    store = FeatureStore(path, KEY)
    for start in range(0, 3200, 32):
        write(store, range(start, start + 32), length=512)
    assert 2048 < path.stat().st_size / 3200 < 1.25 * 2048


def test_another_key_is_refused(path: Path) -> None:
    write(FeatureStore(path, KEY), range(3))
    with pytest.raises(InputError, match="another model or preprocessing"):
        FeatureStore(path, {**KEY, "precision": "fp16"})


def test_a_cleared_store_is_empty_and_filled_again(path: Path) -> None:
    """Also by those that have used it before."""
    before = FeatureStore(path, KEY)
    write(before, range(3), seed=1)
    write(FeatureStore(path.with_name("other-0123456789abcdef.sqlite"), KEY), range(2))
    (path.parent / HASHES).write_bytes(b"not a database")
    (path.parent / "notes.sqlite").write_text("mine")
    banks = cached_banks(path.parent)
    assert [(bank.path, bank.features) for bank in banks] == [(path, 3), (path.with_name(banks[1].path.name), 2)]
    assert clear_cached_banks(path.parent) == sum(bank.size for bank in banks) > 0
    assert cached_banks(path.parent) == [] and clear_cached_banks(path.parent) == 0
    assert (path.parent / "notes.sqlite").read_text() == "mine" and not (path.parent / HASHES).exists()
    assert len(before) == 0 and before.missing([digest(0)], ["1/0"]) == [["1/0"]]
    assert before.read([digest(0)], "1/0") is None
    rows = write(before, range(3), seed=2)
    assert np.array_equal(read(FeatureStore(path, KEY), range(3)), rows)
    assert clear_cached_banks(path.parent / "none") == 0


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE features SET feature = x'000000' WHERE rowid = 1",
        "UPDATE features SET feature = 'text' WHERE rowid = 1",
        "UPDATE key SET value = 'other'",
        "DROP TABLE features",
        "PRAGMA user_version = 1; PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'nonsense'",
    ],
)
def test_a_damaged_store_is_refused(path: Path, damage: str) -> None:
    write(FeatureStore(path, KEY), range(3))
    with closing(sqlite3.connect(path)) as database:
        database.executescript(damage)
    for _ in range(2):  # the first attempt leaves nothing locked
        with pytest.raises(InputError, match="damaged.*cache clear|cannot be read|another model"):
            FeatureStore(path, KEY).read([digest(n) for n in range(3)], "1/0")
    clear_cached_banks(path.parent)
    write(FeatureStore(path, KEY), range(3))
