"""Image features on disk: raw rows in files that are mapped into memory, and an SQLite index of them.

The folder of a store holds an index `<token>.sqlite` and shards `<token>.fp32`, files of rows (embed_dim,) with nothing between
them. A writer owns a shard: it appends the rows of a batch, flushes them to disk, and then adds one block to the index, in a
transaction: the shard, the first row, and the images and views of the rows as arrays of small integers. If two writers store the
same feature, the block that was added first counts. All names are random, so that no file of a new store is taken for one of a
deleted store that a process still has open.

A reader keeps the index in memory, 16 bytes per feature, and reads new blocks only when a feature is missing. Finding the features
of a view is then a binary search, and reading them one copy out of the page cache. LMDB would store one value per feature too, on
pages that do not fit 2,048 bytes well, and is another compiled dependency; Arrow and Parquet files cannot be appended to.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slimprompt.errors import InputError, unknown
from slimprompt.files import lock
from slimprompt.images.shards import FileShard, MemoryShard, Shard

#: Precision in which features are stored.
StorePrecision = Literal["fp32", "fp16"]
STORE_PRECISIONS: dict[StorePrecision, np.dtype[Any]] = {"fp32": np.dtype("<f4"), "fp16": np.dtype("<f2")}

_UNIT_TOLERANCE = 0.01
_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError, ValueError, TypeError, AttributeError, KeyError, OverflowError)
_ROW_BITS = 40  # a place is `shard << 40 | row`
#: In the folder of the stores: held while a store is created, deleted, or read from an old file.
LOCK = ".lock"
_IDS = np.dtype("<u4")
_NAMES = {"images": "hash", "views": "name", "shards": "name"}  # tables of ids and names
_TABLES = (
    "CREATE TABLE IF NOT EXISTS key (name TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE IF NOT EXISTS images (id INTEGER PRIMARY KEY, hash BLOB)",
    "CREATE TABLE IF NOT EXISTS views (id INTEGER PRIMARY KEY, name TEXT)",
    "CREATE TABLE IF NOT EXISTS shards (id INTEGER PRIMARY KEY, name TEXT)",
    "CREATE TABLE IF NOT EXISTS blocks "
    "(id INTEGER PRIMARY KEY, shard INTEGER, start INTEGER, image BLOB, view BLOB, checksum INTEGER)",
)


class FeatureStore:
    """Unit-length features by the hash of an image and the name of a view.

    Safe under several processes and threads: a batch is stored completely or not at all, and the first feature written is kept.

    Parameters
    ----------
    folder
        Folder of the store; it is created. None keeps everything in memory.
    key
        What decides the features. It is stored, and a folder with another key is refused.
    precision
        Precision of the stored rows. "fp16" halves the disk space and rounds each number to 11 bits.
    """

    def __init__(self, folder: Path | None, key: Mapping[str, str], precision: StorePrecision = "fp32") -> None:
        self.folder = folder
        self._suffix, self._dtype = f".{precision}", STORE_PRECISIONS[precision]
        self._lock = threading.RLock()  # SQLite's connection is used by one thread at a time
        self._database = _open(folder, key)
        weakref.finalize(self, self._database.close).atexit = False  # a store may be dropped without `close`
        self._embed_dim: int | None = None
        self._forget_names()
        self._last_block = 0
        self._keys = np.empty(0, dtype=np.int64)  # view << 32 | image, sorted
        self._places = np.empty(0, dtype=np.int64)  # shard << 40 | row
        self._shards: dict[str, Shard] = {}
        self._own: Shard | None = None

    def __len__(self) -> int:
        """Number of features stored."""
        with self._reading():
            self._refresh()
            return len(self._keys)

    @property
    def view_names(self) -> set[str]:
        """Names of the views that are stored."""
        with self._reading():
            self._read_names()
            return set(self._ids["views"])

    def missing(self, images: Sequence[str], views: Sequence[str]) -> np.ndarray:
        """Which features are not stored, (n_images, n_views).

        Parameters
        ----------
        images
            Hexadecimal sha256 of each image.
        views
            Names of the views.
        """
        with self._reading():
            self._refresh()
            return self._find(images, views) < 0

    def read(self, images: Sequence[str], view: str) -> np.ndarray | None:
        """Features (n_images, embed_dim) of one view, fp32; None if one of them is not stored.

        Raises
        ------
        InputError
            If a feature is not of unit length.
        """
        with self._reading():
            places = self._find(images, [view])[:, 0]
            if (places < 0).any():
                self._refresh()
                places = self._find(images, [view])[:, 0]
            if (places < 0).any():
                return None
            features = self._gather(places)
            lengths = np.sqrt(np.einsum("ij,ij->i", features, features))
            if not np.all(np.abs(lengths - 1) < _UNIT_TOLERANCE):
                raise ValueError("it holds features that are not of unit length")
            return features

    def write(self, images: Sequence[str], views: Sequence[str], features: np.ndarray) -> None:
        """Store a batch of features (n, embed_dim), completely or not at all.

        Parameters
        ----------
        images, views
            Hash of the image and name of the view of each row.
        features
            The rows.
        """
        with self._lock:
            try:
                if self._own is None or self._own.process != os.getpid():
                    self._own = self._take_shard(features.shape[1])
                start = self._own.append(features.astype(self._dtype))
                with self._transaction():
                    self._add_block(self._own.name, start, images, views, features.shape[1])
            except (OSError, sqlite3.OperationalError) as error:
                raise InputError(
                    f"image features cannot be written to {self.folder} ({getattr(error, 'strerror', None) or error}). Free some "
                    "space there, point SLIMPROMPT_CACHE to another disk, or work without the cache (--no-cache); what was "
                    "written so far is intact"
                ) from None
            except _DAMAGE as error:
                raise damaged(self.folder, error) from None

    def close(self) -> None:
        """Close the files; the store cannot be used afterwards."""
        with self._lock:
            for shard in self._shards.values():
                shard.close()
            self._database.close()

    # --- the index -------------------------------------------------------------------------------------------------------

    def _find(self, images: Sequence[str], views: Sequence[str]) -> np.ndarray:
        """Places (n_images, n_views) by the index in memory; -1 where there is none."""
        image = np.array([self._ids["images"].get(name, -1) for name in images], dtype=np.int64)[:, None]
        view = np.array([self._ids["views"].get(name, -1) for name in views], dtype=np.int64)[None, :]
        keys = view << 32 | image
        if not len(self._keys):
            return np.full(keys.shape, -1)
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = (self._keys[found] == keys) & (image >= 0) & (view >= 0)
        return np.where(known, self._places[found], -1)

    def _refresh(self) -> None:
        """Read the blocks that were added since the last time; of equal features, the first counts."""
        blocks = self._rows_after("blocks", "shard, start, image, view, checksum", self._last_block)
        if not blocks:
            return
        self._read_names()
        for _, shard, start, image, view, checksum in blocks:
            if checksum != _checksum(shard, start, image, view):
                raise ValueError("a part of its index was changed")
        shards, starts = (np.array([block[column] for block in blocks], dtype=np.int64) for column in (1, 2))
        keys = _block_keys([block[3:5] for block in blocks])
        sizes = np.array([len(block[3]) // _IDS.itemsize for block in blocks])
        rows = np.arange(len(keys)) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        shard = np.repeat(shards, sizes)
        names = {number: name for name, number in self._ids["shards"].items()}
        open_shards = [number for number in np.unique(shards).tolist() if self._open_shard(names[number])]
        there = np.isin(shard, open_shards)
        keys = np.concatenate([self._keys, keys[there]])
        places = np.concatenate([self._places, (shard << _ROW_BITS | rows)[there]])
        self._keys, kept = np.unique(keys, return_index=True)
        self._places = places[kept]
        self._last_block = blocks[-1][0]

    def _read_names(self) -> None:
        """Read the ids that were given since the last time."""
        for table, column in _NAMES.items():
            for number, name in self._rows_after(table, column, self._last_ids[table]):
                self._ids[table][name.hex() if table == "images" else name] = self._last_ids[table] = number
        if self._embed_dim is None:
            stored = self._database.execute("SELECT value FROM key WHERE name = 'embed_dim'").fetchone()
            self._embed_dim = int(stored[0]) if stored else None

    def _forget_names(self) -> None:
        self._ids: dict[str, dict[str, int]] = {table: {} for table in _NAMES}
        self._last_ids = dict.fromkeys(_NAMES, 0)

    def _rows_after(self, table: str, columns: str, number: int) -> list[tuple[Any, ...]]:
        sql = f"SELECT id, {columns} FROM {table} WHERE id > ? ORDER BY id"
        return self._database.execute(sql, (number,)).fetchall()

    def _add_block(self, shard: str, start: int, images: Sequence[str], views: Sequence[str], embed_dim: int) -> None:
        self._database.execute("INSERT OR IGNORE INTO key VALUES ('embed_dim', ?)", (str(embed_dim),))
        self._read_names()
        if embed_dim != self._embed_dim:
            raise ValueError(f"it holds features of {self._embed_dim} numbers, and {embed_dim} were encoded")
        for table, names in (("images", images), ("views", views), ("shards", [shard])):
            new = [name for name in dict.fromkeys(names) if name not in self._ids[table]]
            rows = [(bytes.fromhex(name) if table == "images" else name,) for name in new]
            self._database.executemany(f"INSERT INTO {table} ({_NAMES[table]}) VALUES (?)", rows)
        self._read_names()
        image = np.array([self._ids["images"][name] for name in images], dtype=_IDS).tobytes()
        view = np.array([self._ids["views"][name] for name in views], dtype=_IDS).tobytes()
        number = self._ids["shards"][shard]
        values = (number, start, image, view, _checksum(number, start, image, view))
        self._database.execute(
            "INSERT INTO blocks (shard, start, image, view, checksum) VALUES (?, ?, ?, ?, ?)", values
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction that waits for other writers before it reads."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            self._forget_names()  # some of them may have been undone
            raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except (OSError, sqlite3.OperationalError) as error:
            raise InputError(
                f"the feature cache {self.folder} cannot be read ({error}); check its disk, or use --no-cache"
            ) from None
        except _DAMAGE as error:
            raise damaged(self.folder, error) from None

    # --- the shards ------------------------------------------------------------------------------------------------------

    def _gather(self, places: np.ndarray) -> np.ndarray:
        """Rows (n, embed_dim) by their places, fp32."""
        shards, rows = places >> _ROW_BITS, places & ((1 << _ROW_BITS) - 1)
        names = {number: name for name, number in self._ids["shards"].items()}
        found = [(shards == number, self._shards[names[number]]) for number in np.unique(shards).tolist()]
        if len(found) == 1:
            return found[0][1].take(rows).astype(np.float32, copy=False)
        features = np.empty((len(places), self._embed_dim or 0), dtype=np.float32)
        for mine, shard in found:
            features[mine] = shard.take(rows[mine])
        return features

    def _open_shard(self, name: str) -> bool:
        """Open a shard to read it; False if its file was deleted: its features are then missing and are encoded again."""
        if name not in self._shards and self.folder is not None:
            with suppress(FileNotFoundError):
                path = self.folder / (name + self._suffix)
                self._shards[name] = FileShard(path, self._embed_dim or 0, self._dtype)
        return name in self._shards

    def _take_shard(self, embed_dim: int) -> Shard:
        """A shard that no other writer owns: one whose file has all of its rows, or a new one."""
        shard = MemoryShard(embed_dim, self._dtype) if self.folder is None else self._take_file(self.folder, embed_dim)
        self._shards[shard.name] = shard
        return shard

    def _take_file(self, folder: Path, embed_dim: int) -> FileShard:
        self._refresh()
        self._read_names()
        folder.mkdir(parents=True, exist_ok=True)  # the cache may have been cleared
        shards, rows = self._places >> _ROW_BITS, self._places & ((1 << _ROW_BITS) - 1)
        for name, number in self._ids["shards"].items():
            path = folder / (name + self._suffix)
            if path.exists() and (shard := FileShard.owned(path, embed_dim, self._dtype)) is not None:
                if len(shard) > rows[shards == number].max(initial=-1):
                    return shard
                shard.close()
        new = FileShard.owned(folder / (secrets.token_hex(8) + self._suffix), embed_dim, self._dtype)
        assert new is not None, "nobody knows the name"
        return new


def default_store_precision() -> StorePrecision:
    """Precision of stored features: the environment variable SLIMPROMPT_FEATURES, else "fp32"."""
    given = os.environ.get("SLIMPROMPT_FEATURES") or "fp32"
    for precision in STORE_PRECISIONS:
        if given == precision:
            return precision
    raise unknown("value of SLIMPROMPT_FEATURES", given, STORE_PRECISIONS)


def stored_features(folder: Path) -> int:
    """Number of features in the store of a folder; 0 if it has no readable index."""
    try:
        (index,) = folder.glob("*.sqlite")
        with closing(sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return len(np.unique(_block_keys(database.execute("SELECT image, view FROM blocks").fetchall())))
    except (OSError, *_DAMAGE):
        return 0


def _block_keys(blocks: Sequence[tuple[bytes, bytes]]) -> np.ndarray:
    """`view << 32 | image` of each row of some blocks."""
    image, view = (np.frombuffer(b"".join(block[n] for block in blocks), dtype=_IDS).astype(np.int64) for n in (0, 1))
    return view << 32 | image


def _checksum(shard: int, start: int, image: bytes, view: bytes) -> int:
    if len(image) != len(view):
        raise ValueError("a part of its index was changed")
    return zlib.crc32(b"%d %d" % (shard, start) + image + view)


def damaged(path: Path | None, error: object) -> InputError:
    """The error for a damaged store."""
    return InputError(f"the feature cache {path} is damaged ({error}); delete it, or run `slimprompt cache clear`")


def _open(folder: Path | None, key: Mapping[str, str]) -> sqlite3.Connection:
    try:
        if folder is None:
            return _connect(":memory:", key)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(folder.parent / LOCK):  # `clear_cached_banks` waits
            folder.mkdir(exist_ok=True)
            found = sorted(folder.glob("*.sqlite"))
            return _connect(found[0] if found else folder / f"{secrets.token_hex(8)}.sqlite", key)
    except sqlite3.OperationalError as error:
        raise InputError(
            f"the feature cache {folder} cannot be opened ({error}). Check the folder, point SLIMPROMPT_CACHE elsewhere, or use --no-cache"
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise damaged(folder, error) from None
    except OSError as error:
        raise InputError(
            f"the feature cache cannot be created at {folder}: {error}. Point SLIMPROMPT_CACHE elsewhere, or use --no-cache"
        ) from None


def _connect(path: Path | str, key: Mapping[str, str]) -> sqlite3.Connection:
    """Open an index, and create its tables if it is new; it must hold the key."""
    database = sqlite3.connect(path, timeout=120, check_same_thread=False, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            database.execute(table)
        database.executemany("INSERT OR IGNORE INTO key VALUES (?, ?)", key.items())
        database.execute("COMMIT")
        stored = dict(database.execute("SELECT name, value FROM key WHERE name != 'embed_dim'"))
        if stored != dict(key):
            raise InputError(
                f"{path} holds features of another model or transform than its name says; delete it (`slimprompt cache clear`)"
            )
    except BaseException:
        database.close()  # an open connection to a damaged file could keep it locked
        raise
    return database
