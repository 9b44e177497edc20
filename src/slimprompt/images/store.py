"""Image features on disk: one SQLite table of rows (image, view, feature) in a file that carries its key.

Every call is one transaction on a connection of its own: a batch is stored completely or not at all, and threads, forked
children and other processes may use the same file. SQLite's rollback journal, unlike its write-ahead log, needs no shared
memory, so this also holds on network file systems that lock files. A row is fp32 numbers of any length. Reading a view
takes about 30 ms for 1,600 images (benchmarks/store.py), less than a thousandth of an epoch of training on them.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slimprompt.errors import InputError
from slimprompt.files import cache_dir

#: File of the remembered hashes of image files, in the folder of the stores.
HASHES = "hashes.sqlite"
_NAME = re.compile(r".+-[0-9a-f]{16}\.sqlite")
_NUMBERS = np.dtype("<f4")
_PAGE = 16_384  # bytes, of which seven rows of 512 numbers fill a page; half of one of 4,096 bytes would be empty
_WAIT = 120.0  # seconds for other transactions
_TABLES = ("key (value TEXT)", "features (image TEXT, view TEXT, feature BLOB, PRIMARY KEY (image, view))")


class FeatureStore:
    """Rows of numbers by the hash of an image and the name of a view; the first one written is kept.

    `key` is what decides the rows besides image and view. It is stored, and a file with another key is refused.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.path, self._key = path, json.dumps(key, sort_keys=True)
        len(self)  # raises the errors of a file that cannot be used

    def __len__(self) -> int:
        """Number of rows stored."""
        with self._transaction() as database:
            return _count(database)

    def missing(self, images: Sequence[str], views: Sequence[str]) -> list[list[str]]:
        """The views of each image that are not stored."""
        query = "SELECT view FROM features WHERE image = ?"
        with self._transaction() as database:
            stored = [{view for (view,) in database.execute(query, (image,))} for image in images]
        return [[view for view in views if view not in known] for known in stored]

    def read(self, images: Sequence[str], view: str) -> np.ndarray | None:
        """Rows (n_images, length) of one view, fp32; None if one of them is not stored."""
        rows = []
        with self._transaction() as database:
            for image in images:
                found = database.execute("SELECT feature FROM features WHERE image = ? AND view = ?", (image, view))
                if (row := found.fetchone()) is None:
                    return None
                rows.append(np.frombuffer(row[0], dtype=_NUMBERS))
            return np.stack(rows)

    def write(self, names: Sequence[tuple[str, str]], rows: np.ndarray) -> None:
        """Store the rows of these images and views, completely or not at all."""
        values = [(*name, row.tobytes()) for name, row in zip(names, rows.astype(_NUMBERS, copy=False), strict=True)]
        with self._transaction(writes=True) as database:
            database.executemany("INSERT OR IGNORE INTO features VALUES (?, ?, ?)", values)

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)  # the cache may have been deleted
            with closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as database:
                database.execute(f"PRAGMA page_size = {_PAGE}")
                database.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                if database.execute("SELECT * FROM sqlite_master").fetchone() is None:  # new, or cleared
                    for table in _TABLES:  # a reader sees empty tables of its own, and waits for no writer
                        database.execute(f"CREATE {'' if writes else 'TEMP'} TABLE {table}")
                    database.execute("INSERT INTO key VALUES (?)", (self._key,))
                if database.execute("SELECT value FROM key").fetchall() != [(self._key,)]:
                    raise InputError(
                        f"{self.path} holds features of another model or preprocessing than its name says; delete it"
                    )
                yield database
                database.execute("COMMIT")
        except InputError:
            raise
        except (OSError, sqlite3.OperationalError) as error:
            raise InputError(
                f"the feature cache {self.path} cannot be {'written' if writes else 'read'} "
                f"({getattr(error, 'strerror', None) or error}). Free some space there, point SLIMPROMPT_CACHE to another disk, or "
                "work without the cache (--no-cache); what was written before is intact"
            ) from None
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise InputError(
                f"the feature cache {self.path} is damaged ({error}); delete it, or run `slimprompt cache clear`"
            ) from None


class MemoryStore:
    """`FeatureStore` in memory."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], np.ndarray] = {}

    def __len__(self) -> int:
        """Number of rows stored."""
        return len(self._rows)

    def missing(self, images: Sequence[str], views: Sequence[str]) -> list[list[str]]:
        """The views of each image that are not stored."""
        return [[view for view in views if (image, view) not in self._rows] for image in images]

    def read(self, images: Sequence[str], view: str) -> np.ndarray | None:
        """Rows (n_images, length) of one view; None if one of them is not stored."""
        rows = [self._rows.get((image, view)) for image in images]
        return None if any(row is None for row in rows) else np.stack(rows)  # type: ignore[arg-type]

    def write(self, names: Sequence[tuple[str, str]], rows: np.ndarray) -> None:
        """Store the rows of these images and views."""
        for name, row in zip(names, rows.copy(), strict=True):
            self._rows.setdefault(name, row)


class CachedBank(NamedTuple):
    """A file of features on disk."""

    path: Path
    features: int
    size: int
    """Bytes."""


def cached_banks(folder: Path | None = None) -> list[CachedBank]:
    """The files of features in a folder, by default in the cache; a damaged one counts as 0 features."""
    found = []
    for path in sorted((folder or cache_dir() / "features").glob("*.sqlite")):
        if _NAME.fullmatch(path.name) and (size := path.stat().st_size):
            features = 0
            with suppress(sqlite3.DatabaseError, UnicodeDecodeError), closing(sqlite3.connect(path)) as database:
                features = _count(database)
            found.append(CachedBank(path, features, size))
    return found


def clear_cached_banks(folder: Path | None = None) -> int:
    """Empty all files of features, and the remembered hashes; returns the bytes freed. Other commands may go on using them."""
    root, banks = folder or cache_dir() / "features", cached_banks(folder)
    for path in (*(bank.path for bank in banks), root / HASHES):
        if path.exists():
            _empty(path)
    return sum(bank.size for bank in banks)


def _empty(path: Path) -> None:
    """Make an SQLite file one without tables, while nobody reads or writes it."""
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT)) as database:
            database.execute("BEGIN EXCLUSIVE")
            os.truncate(
                path, 0
            )  # a file that is deleted while others have it open could get mixed up with its successor
    except sqlite3.OperationalError as error:
        raise InputError(f"{path} cannot be cleared ({error})") from None
    except sqlite3.DatabaseError:  # damaged
        for part in (path, path.with_name(f"{path.name}-journal")):
            part.unlink(missing_ok=True)


def _count(database: sqlite3.Connection) -> int:
    """Number of rows, which are never deleted one by one."""
    return int(database.execute("SELECT coalesce(max(rowid), 0) FROM features").fetchone()[0])
