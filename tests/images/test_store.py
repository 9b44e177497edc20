"""The store itself: sizes, bulk reading, shards of writers, and what deleted or damaged files do."""

from __future__ import annotations

import gc
import hashlib
import sqlite3
import warnings
from pathlib import Path

import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.images.store import FeatureStore, default_store_precision, stored_features

KEY = {"weights": "some"}


def digest(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def unit_rows(n: int, embed_dim: int = 8, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, embed_dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write(store: FeatureStore, numbers: range, view: str = "1/0", embed_dim: int = 8, seed: int = 0) -> np.ndarray:
    rows = unit_rows(len(numbers), embed_dim, seed)
    store.write([digest(n) for n in numbers], [view] * len(numbers), rows)
    return rows


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.fp32"))


@pytest.mark.parametrize("in_memory", [False, True])
def test_rows_come_back_in_the_order_asked_for(tmp_path: Path, in_memory: bool) -> None:
    store = FeatureStore(None if in_memory else tmp_path / "s", KEY)
    assert len(store) == 0 and store.read([digest(0)], "1/0") is None
    rows = np.concatenate([write(store, range(first, first + 700), seed=first) for first in (0, 700, 1400)])
    order = np.random.default_rng(1).permutation(2100)
    found = store.read([digest(n) for n in order], "1/0")
    assert found is not None and np.array_equal(found, rows[order])
    assert store.read([digest(0)], "1/1") is None and store.read([digest(2100)], "1/0") is None
    assert len(store) == 2100 and store.view_names == {"1/0"}


def test_missing_by_image_and_view(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "s", KEY)
    write(store, range(4), "1/0")
    write(store, range(2, 6), "1/1")
    missing = store.missing([digest(n) for n in range(7)], ["1/0", "1/1", "2/0"])
    assert missing[:, 0].tolist() == [False] * 4 + [True] * 3
    assert missing[:, 1].tolist() == [True] * 2 + [False] * 4 + [True]
    assert missing[:, 2].all()


@pytest.mark.parametrize(("precision", "raw"), [("fp32", 2048), ("fp16", 1024)])
@pytest.mark.parametrize("n_views", [1, 50])
def test_a_feature_takes_little_more_than_its_numbers(tmp_path: Path, precision: str, raw: int, n_views: int) -> None:
    store = FeatureStore(tmp_path / "s", KEY, precision)
    names = [(digest(n), f"1/{view}") for n in range(3200 // n_views) for view in range(n_views)]
    for start in range(0, len(names), 32):
        images, views = zip(*names[start : start + 32], strict=True)
        store.write(images, views, unit_rows(32, 512))
    store.close()
    size = sum(path.stat().st_size for path in (tmp_path / "s").iterdir())
    assert raw < size / len(names) <= 1.1 * raw


def test_half_precision_is_rounded_and_separate(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "s", {**KEY, "stored": "fp16"}, "fp16")
    rows = write(store, range(100), embed_dim=512)
    found = store.read([digest(n) for n in range(100)], "1/0")
    assert found is not None and found.dtype == np.float32
    assert np.array_equal(found, rows.astype(np.float16).astype(np.float32))
    assert 0 < np.abs((found * rows).sum(1) - 1).max() < 2**-10
    with pytest.raises(InputError, match="another model or transform"):
        FeatureStore(tmp_path / "s", KEY)


def test_the_precision_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_store_precision() == "fp32"
    monkeypatch.setenv("SLIMPROMPT_FEATURES", "fp16")
    assert default_store_precision() == "fp16"
    monkeypatch.setenv("SLIMPROMPT_FEATURES", "fp8")
    with pytest.raises(InputError, match="SLIMPROMPT_FEATURES.*fp8.*fp32"):
        default_store_precision()


def test_the_first_feature_written_is_kept(tmp_path: Path) -> None:
    one, other = (FeatureStore(tmp_path / "s", KEY) for _ in range(2))
    first = write(one, range(3), seed=1)
    write(other, range(2, 5), seed=2)
    for store in (one, other, FeatureStore(tmp_path / "s", KEY)):
        found = store.read([digest(n) for n in range(3)], "1/0")
        assert found is not None and np.array_equal(found, first)
        assert len(store) == 5
    assert stored_features(tmp_path / "s") == 5


def test_writers_own_shards_and_leave_them_to_later_ones(tmp_path: Path) -> None:
    one, other = (FeatureStore(tmp_path / "s", KEY) for _ in range(2))
    rows = [write(one, range(3), seed=1), write(other, range(3, 6), seed=2)]
    assert len(shards(tmp_path / "s")) == 2
    one.close()
    third = FeatureStore(tmp_path / "s", KEY)
    rows.append(write(third, range(6, 9), seed=3))
    assert len(shards(tmp_path / "s")) == 2
    found = third.read([digest(n) for n in range(9)], "1/0")  # from two shards
    assert found is not None and np.array_equal(found, np.concatenate(rows))


def test_a_store_that_is_dropped_closes_its_files(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for first in (0, 3):  # a writer, and one that also reads
            store = FeatureStore(tmp_path / "s", KEY)
            write(store, range(first, first + 3))
            assert store.read([digest(0)], "1/0") is not None
            del store
            gc.collect()
        reader = FeatureStore(tmp_path / "s", KEY)
        assert len(reader) == 6 and len(shards(tmp_path / "s")) == 1  # the shard was free for the second writer
        del reader
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_part_of_a_row_that_a_killed_writer_left_is_skipped(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "s", KEY)
    rows = [write(store, range(3), seed=1)]
    store.close()
    (shard,) = shards(tmp_path / "s")
    with shard.open("ab") as file:
        file.write(b"\x01" * 41)
    store = FeatureStore(tmp_path / "s", KEY)
    rows.append(write(store, range(3, 6), seed=2))
    assert shards(tmp_path / "s") == [shard]
    found = store.read([digest(n) for n in range(6)], "1/0")
    assert found is not None and np.array_equal(found, np.concatenate(rows))


def test_nothing_is_appended_to_a_shard_that_has_lost_rows(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "s", KEY)
    write(store, range(3))
    store.close()
    (shard,) = shards(tmp_path / "s")
    shard.write_bytes(shard.read_bytes()[:-32])
    store = FeatureStore(tmp_path / "s", KEY)
    new = write(store, range(10, 12), seed=2)
    assert len(shards(tmp_path / "s")) == 2
    found = store.read([digest(10), digest(11)], "1/0")
    assert found is not None and np.array_equal(found, new)
    with pytest.raises(InputError, match=r"damaged.*2 rows.*cache clear"):
        store.read([digest(2)], "1/0")


def test_features_of_a_deleted_shard_are_missing(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "s", KEY)
    write(store, range(3))
    store.close()
    shards(tmp_path / "s")[0].unlink()
    store = FeatureStore(tmp_path / "s", KEY)
    assert store.missing([digest(0)], ["1/0"]).all() and len(store) == 0
    rows = write(store, range(3), seed=2)
    found = store.read([digest(n) for n in range(3)], "1/0")
    assert found is not None and np.array_equal(found, rows)


def test_a_store_that_is_deleted_and_made_again_does_not_mix_with_the_old_one(tmp_path: Path) -> None:
    old = FeatureStore(tmp_path / "s", KEY)
    first = write(old, range(3), seed=1)
    (tmp_path / "s").rename(tmp_path / "deleted")
    new = FeatureStore(tmp_path / "s", KEY)
    assert len(new) == 0
    second = write(new, range(3), seed=2)
    more = write(old, range(3, 6), seed=3)
    for store, rows in ((old, np.concatenate([first, more])), (new, second)):
        found = store.read([digest(n) for n in range(len(rows))], "1/0")
        assert found is not None and np.array_equal(found, rows)
    old.close()  # SQLite deletes its own journal, not that of the new store
    again = FeatureStore(tmp_path / "s", KEY)
    assert len(again) == 3 and len(new) == 3


def test_a_failed_transaction_leaves_no_names(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "s", KEY)
    write(store, range(3))
    store._database.execute("CREATE TEMP TRIGGER refuse BEFORE INSERT ON blocks BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(InputError):
        write(store, range(3, 6), "1/1")
    store._database.execute("DROP TRIGGER refuse")
    assert len(store) == 3 and store.view_names == {"1/0"}
    rows = write(store, range(5, 8), "1/2", seed=4)
    for one in (store, FeatureStore(tmp_path / "s", KEY)):
        found = one.read([digest(n) for n in range(5, 8)], "1/2")
        assert found is not None and np.array_equal(found, rows)


def test_features_of_another_length_are_refused(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "s", KEY)
    write(store, range(3))
    with pytest.raises(InputError, match="features of 8 numbers, and 9 were encoded"):
        write(FeatureStore(tmp_path / "s", KEY), range(3, 4), embed_dim=9)


def test_a_run_is_found_by_a_few_queries(tmp_path: Path) -> None:
    """320,000 features, as of 1,600 images in 200 views, here of two numbers."""
    store = FeatureStore(tmp_path / "s", KEY)
    images, views = [digest(n) for n in range(1600)], [f"1/{n}" for n in range(200)]
    for image in range(0, 1600, 100):
        names = [(one, view) for one in images[image : image + 100] for view in views]
        store.write(*zip(*names, strict=True), unit_rows(len(names), 2, seed=image))
    store.close()
    store = FeatureStore(tmp_path / "s", KEY)
    queries: list[str] = []
    store._database.set_trace_callback(queries.append)
    assert not store.missing(images, views).any()
    for view in views:
        assert store.read(images, view) is not None
    assert len(queries) < 10


def test_counting_does_not_need_a_readable_index(tmp_path: Path) -> None:
    assert stored_features(tmp_path / "none") == 0
    store = FeatureStore(tmp_path / "s", KEY)
    write(store, range(3))
    store.close()
    (index,) = (tmp_path / "s").glob("*.sqlite")
    with sqlite3.connect(index) as database:
        database.execute("UPDATE blocks SET image = 'text'")
    assert stored_features(tmp_path / "s") == 0
