"""The feature banks on disk: their sizes, how to delete them, and files of earlier versions."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slimprompt.errors import InputError
from slimprompt.files import cache_dir, lock, remove_folder
from slimprompt.images.hashes import FileHashes
from slimprompt.images.store import (
    LOCK,
    FeatureStore,
    StorePrecision,
    damaged,
    default_store_precision,
    stored_features,
)
from slimprompt.progress import announce

#: File of the remembered hashes of image files, in the folder of the banks.
HASHES = "hashes.db"
_STORE = re.compile(r".+-[0-9a-f]{16}")
_STORE_FILE = re.compile(r"[0-9a-f]{16}\.(sqlite(-wal|-shm)?|lock|fp32|fp16)")
_ROWS = 16_384  # that are read from an old file at a time


def bytes_per_feature(embed_dim: int, precision: StorePrecision | None = None, n_features: int = 2000) -> float:
    """Bytes that one feature takes on disk, measured on a temporary store of random features."""
    vectors = np.random.default_rng(0).standard_normal((n_features, embed_dim), dtype=np.float32)
    names = [hashlib.sha256(vector).hexdigest() for vector in vectors]
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(Path(folder) / "store", {}, precision or default_store_precision())
        store.write(names, ["1/100"] * n_features, vectors)
        store.close()
        return _size(Path(folder) / "store") / n_features


class CacheFile(NamedTuple):
    """One bank on disk: its folder or old file, its number of features and its size in bytes."""

    path: Path
    features: int
    size: int


def cached_banks(folder: Path | None = None) -> list[CacheFile]:
    """The banks on disk."""
    root = folder or cache_dir() / "features"
    old = [CacheFile(path, _old_count(path), _size(path)) for path in root.glob("*.sqlite")]
    new = [CacheFile(path, stored_features(path), _size(path)) for path in root.glob("*") if _is_store(path)]
    return sorted(old + new)


def clear_cached_banks(folder: Path | None = None) -> int:
    """Delete all banks on disk, and the remembered hashes; returns the bytes freed."""
    root = folder or cache_dir() / "features"
    if not root.is_dir():
        return 0
    with lock(root / LOCK):
        banks = cached_banks(root)
        for bank in banks:
            if bank.path.is_dir():
                remove_folder(bank.path)
            else:
                _remove_old(bank.path)
    FileHashes(root / HASHES).clear()
    return sum(bank.size for bank in banks)


def import_old_file(path: Path, store: FeatureStore, key: dict[str, str]) -> None:
    """Move the features of a file of version 0.1, one row per feature, to a store of the same key, with a notice; once.

    Raises
    ------
    InputError
        If the file is damaged, or holds features of another key.
    """
    if not path.exists():
        return
    with lock(path.parent / LOCK):
        if not path.exists():
            return
        moved = 0
        try:
            with closing(sqlite3.connect(path, timeout=120)) as database:
                if dict(database.execute("SELECT name, value FROM key")) != key:
                    raise InputError(
                        f"{path} holds features of another model or transform than its name says; delete it"
                    )
                begun = len(store) > 0
                for images, views, features in _old_rows(database):
                    new = _missing_rows(store, images, views) if begun else range(len(images))
                    if new:
                        store.write([images[n] for n in new], [views[n] for n in new], features[list(new)])
                    moved += len(new)
        except InputError:
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise damaged(path, error) from None
        _remove_old(path)
    announce(f"moved {moved:,} image features from {path} to {store.folder}, which takes less than half of the space")


def _old_rows(database: sqlite3.Connection) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
    rows = database.execute("SELECT picture, view, feature FROM features")
    while some := rows.fetchmany(_ROWS):
        images, views, features = zip(*some, strict=True)
        if any(len(bytes.fromhex(image)) != 32 for image in images):
            raise ValueError("it holds names that are no hashes")
        yield list(images), list(views), np.stack([np.frombuffer(feature, dtype=np.float32) for feature in features])


def _missing_rows(store: FeatureStore, images: list[str], views: list[str]) -> list[int]:
    """Numbers of the rows that the store does not have, as after an import that was killed."""
    image, view = ({name: n for n, name in enumerate(dict.fromkeys(names))} for names in (images, views))
    missing = store.missing(list(image), list(view))
    return [n for n in range(len(images)) if missing[image[images[n]], view[views[n]]]]


def _old_count(path: Path) -> int:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM features").fetchone()[0])
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return 0


def _remove_old(path: Path) -> None:
    for part in path.parent.glob(path.name + "*"):
        part.unlink(missing_ok=True)


def _is_store(path: Path) -> bool:
    """Whether a folder holds a bank, and nothing else."""
    return bool(
        path.is_dir()
        and _STORE.fullmatch(path.name)
        and all(_STORE_FILE.fullmatch(part.name) for part in path.iterdir())
    )


def _size(path: Path) -> int:
    """Bytes of a store, or of an old file with its journal."""
    parts = path.iterdir() if path.is_dir() else path.parent.glob(path.name + "*")
    total = 0
    for part in parts:
        with suppress(FileNotFoundError):  # SQLite deletes its journal
            total += part.stat().st_size
    return total
