"""Image features, encoded once per view and stored on disk.

The key of a feature holds the backbone's fingerprint, precision and preprocessing (one file per combination, which stores
them inside), the hash of the image's content, how the image is decoded, and the view: the eval view or a numbered train
view. All variants, ranks, shot counts and seeds share the features they have in common.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError
from slimprompt.images.files import Decode, ImageSource, file_sha256, open_image
from slimprompt.images.prefetch import prefetched
from slimprompt.images.sources import image_sources
from slimprompt.images.views import train_view
from slimprompt.progress import progress
from slimprompt.seeds import stream_seed
from slimprompt.storage import cache_dir

#: A view's name: "" is the eval view, "seed/number" a train view.
EVAL_VIEW = ""

#: The bank pads every batch to this size, so that a feature does not depend on the images encoded with it.
BATCH = 32
_VIEWS_PER_TASK = 16
_UNIT_TOLERANCE = 0.01
_MANY_FEATURES = 100_000  # before so many are encoded, the space on the disk is compared


def train_view_name(seed: int, number: int) -> str:
    """The name of train view `number` in the stream of `seed`."""
    return f"{seed}/{number}"


class FeatureBank:
    """Unit-length image features (n, embed_dim) by image and view.

    Safe under several processes and threads: each batch is written in a transaction, and the first feature written is kept.
    A file that changes while the bank is open is hashed again.

    Parameters
    ----------
    backbone
        The model whose image tower computes the features.
    folder
        Where the files are stored; "default" is `<cache>/features`. None keeps everything in memory.
    workers
        Threads that decode images and make views; default: one per core.
    show_progress
        Show a progress bar on a terminal while encoding.
    """

    def __init__(
        self,
        backbone: Backbone,
        folder: Path | str | None = "default",
        *,
        workers: int | None = None,
        show_progress: bool = True,
    ) -> None:
        self.backbone = backbone
        self._workers, self._show_progress = workers or os.cpu_count() or 1, show_progress
        self._hashes: dict[str, tuple[_Stamp, str]] = {}
        self._lock = threading.RLock()  # SQLite's connection is used by one thread at a time
        key = {
            "weights": backbone.fingerprint,
            "precision": backbone.precision,
            "device": backbone.device.type,
            "preprocess": json.dumps(asdict(backbone.preprocess), sort_keys=True),
            "views": "random-resized-crop 0.08-1 3/4-4/3 flip 0.5",
        }
        if folder is None:
            self.path = None
        else:
            root = cache_dir() / "features" if folder == "default" else Path(folder)
            name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
            self.path = root / f"{backbone.name.split(':')[-1].replace('/', '-')}-{name}.sqlite"
        self._database = _open(self.path, key)

    def features(self, images: Any, view: str = EVAL_VIEW, *, decode: Decode = "upright") -> Tensor:
        """Features (n, embed_dim) in the order of the images; missing ones are encoded first.

        Parameters
        ----------
        images
            Images in any form that `image_sources` accepts.
        view
            Name of the view.
        decode
            How the images are read; see `open_image`.
        """
        images = image_sources(images)
        if not images:
            return torch.empty(0)
        keys = [self._hash(image, decode) for image in images]
        stored = _stored_name(view, decode)
        if any(self._read(key, stored) is None for key in keys):
            self.build(images, [view], decode=decode)
        found = [feature for key in keys if (feature := self._read(key, stored)) is not None]
        if len(found) < len(keys):
            raise InputError("an image file was changed while its features were computed; run the command again")
        lengths = {len(feature) for feature in found}
        features = np.stack(found) if len(lengths) == 1 else np.empty((0, 0))
        if not (len(features) and np.all(np.abs(np.linalg.norm(features, axis=1) - 1) < _UNIT_TOLERANCE)):
            raise _damaged(self.path, "it holds features that are not of unit length")
        return torch.from_numpy(features)

    def build(
        self,
        images: Any,
        views: Sequence[str] = (EVAL_VIEW,),
        *,
        decode: Decode = "upright",
        skip_bad: bool = False,
    ) -> dict[int, InputError]:
        """Encode every missing (image, view). If interrupted, finished batches stay stored.

        Parameters
        ----------
        images
            Images in any form that `image_sources` accepts.
        views
            Names of the views to encode.
        decode
            How the images are read; see `open_image`.
        skip_bad
            Skip unreadable images and return their errors by index, instead of raising the first one.
        """
        bad: dict[int, InputError] = {}
        tasks: list[_Task] = []
        first: dict[str, int] = {}  # images with the same content are encoded once
        same: dict[int, int] = {}
        for index, image in enumerate(image_sources(images)):
            try:
                key = self._hash(image, decode)
            except InputError as error:
                if not skip_bad:
                    raise
                bad[index] = error
                continue
            if key in first:
                same[index] = first[key]
                continue
            first[key] = index
            present = {row[0] for row in self._query("SELECT view FROM features WHERE picture = ?", (key,))}
            missing = [view for view in views if _stored_name(view, decode) not in present]
            for start in range(0, len(missing), _VIEWS_PER_TASK):
                tasks.append(_Task(index, image, decode, key, tuple(missing[start : start + _VIEWS_PER_TASK])))
        total = sum(len(task.views) for task in tasks)
        self._check_space(total)
        lower = "the number of views (--epochs or --views) or of images"
        with progress("encoding images", total, "views", show=self._show_progress, lower=lower) as advance:
            batch: list[tuple[str, str, Tensor]] = []
            for task, result in prefetched(self._views, tasks, self._workers):
                if isinstance(result, InputError):
                    if not skip_bad:
                        raise result
                    bad[task.position] = result
                    continue
                for view, pixels in zip(task.views, result, strict=True):
                    batch.append((task.key, _stored_name(view, decode), pixels))
                    if len(batch) == BATCH:
                        self._encode(batch)
                        advance(len(batch))
                        batch = []
            if batch:
                self._encode(batch)
                advance(len(batch))
        return bad | {index: bad[other] for index, other in same.items() if other in bad}

    def _check_space(self, n_features: int) -> None:
        """Refuse features that certainly do not fit on the disk; a few are not worth measuring."""
        if self.path is None or n_features < _MANY_FEATURES:
            return
        embed_dim = self.backbone.encode_texts(["a"]).shape[1]
        needed, free = n_features * bytes_per_feature(embed_dim), shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise InputError(
                f"{n_features:,} image features need about {needed / 1e9:,.1f} GB at {self.path.parent}, where {free / 1e9:,.1f} GB "
                "are free; lower the number of views (--epochs or --views) or of images, free some space, or point "
                "SLIMPROMPT_CACHE to another disk"
            )

    def hashes(self, images: Any, *, decode: Decode = "upright") -> list[str]:
        """Hexadecimal sha256 of each image's content: of the file, or of the pixels of a PIL image."""
        return [self._hash(image, decode) for image in image_sources(images)]

    def _views(self, task: _Task) -> list[Tensor] | InputError:
        try:
            image = open_image(task.image, task.decode)
            if self._hash(task.image, task.decode) != task.key:
                raise InputError(f"{task.image} was changed while it was read; run the command again")
        except InputError as error:
            return error
        return [
            self.backbone.eval_view(image)
            if view == EVAL_VIEW
            else train_view(image, self.backbone.preprocess, stream_seed(0, "view", view, task.key))
            for view in task.views
        ]

    def _encode(self, batch: list[tuple[str, str, Tensor]]) -> None:
        features = encode_padded(self.backbone, [pixels for _, _, pixels in batch]).cpu().numpy()
        rows = [(key, view, feature.tobytes()) for (key, view, _), feature in zip(batch, features, strict=False)]
        try:
            with self._lock, self._database:
                self._database.executemany("INSERT OR IGNORE INTO features VALUES (?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            raise InputError(
                f"image features cannot be written to {self.path} ({error}). Free some space there, point SLIMPROMPT_CACHE to "
                "another disk, or work without the cache (--no-cache); what was written so far is intact"
            ) from None
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, error) from None

    def _query(self, sql: str, values: tuple[str, ...]) -> list[tuple]:
        try:
            with self._lock:
                return self._database.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            raise InputError(
                f"the feature cache {self.path} cannot be read ({error}); check its disk, or use --no-cache"
            ) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # damaged text is not UTF-8
            raise _damaged(self.path, error) from None

    def _read(self, key: str, view: str) -> np.ndarray | None:
        rows = self._query("SELECT feature FROM features WHERE picture = ? AND view = ?", (key, view))
        try:
            return np.frombuffer(rows[0][0], dtype=np.float32) if rows else None
        except (TypeError, ValueError) as error:
            raise _damaged(self.path, error) from None

    def _hash(self, image: ImageSource, decode: Decode = "upright") -> str:
        """Hash of a file's content, or of the RGB pixels of a PIL image, which depend on its palette, EXIF data and so on."""
        if isinstance(image, Image.Image):
            pixels = open_image(image, decode)
            return hashlib.sha256(f"{pixels.mode}{pixels.size}".encode() + pixels.tobytes()).hexdigest()
        name, stamp = os.path.abspath(image), _stamp(image)
        if name not in self._hashes or self._hashes[name][0] != stamp:
            self._hashes[name] = stamp, file_sha256(Path(image))
        return self._hashes[name][1]

    def __len__(self) -> int:
        """Number of features stored."""
        return int(self._query("SELECT count(*) FROM features", ())[0][0])


#: Size, time of change and inode of a file: if they are the same, so is its content.
_Stamp = tuple[int, ...]


def _stamp(path: str | Path) -> _Stamp:
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return ()  # hashing the file gives the message
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def encode_padded(backbone: Backbone, views: Sequence[Tensor], size: int = BATCH) -> Tensor:
    """Features (size, embed_dim) of at most `size` views (3, height, width); those of repeated views fill the batch."""
    pixels = torch.stack([*views, *[views[0]] * (size - len(views))])
    return backbone.encode_images(pixels)


def encode_eval_views(backbone: Backbone, images: Any) -> Tensor:
    """Eval-view features (n, embed_dim) of images that will not be needed again: nothing is stored, no batch is padded."""
    images = image_sources(images)
    features: list[Tensor] = []
    batch: list[Tensor] = []
    with progress("encoding images", len(images), "images") as advance:
        for _, pixels in prefetched(lambda image: backbone.eval_view(open_image(image)), images, os.cpu_count() or 1):
            batch.append(pixels)
            if len(batch) == BATCH or len(features) * BATCH + len(batch) == len(images):
                features.append(backbone.encode_images(torch.stack(batch)))
                advance(len(batch))
                batch = []
    return torch.cat(features) if features else backbone.encode_texts(["a"])[:0]  # (0, embed_dim)


class _Task(NamedTuple):
    position: int
    image: ImageSource
    decode: Decode
    key: str
    views: tuple[str, ...]


def _stored_name(view: str, decode: Decode) -> str:
    """The view's name in the database; without a prefix for upright images, as in banks of version 0.1."""
    return view if decode == "upright" else f"{decode}:{view}"


def _open(path: Path | None, key: dict[str, str]) -> sqlite3.Connection:
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path or ":memory:", timeout=120, check_same_thread=False)
        try:
            stored = _prepare(database, path, key)
        except BaseException:
            database.close()  # an open connection to a damaged file could keep it locked
            raise
    except sqlite3.OperationalError as error:
        raise InputError(
            f"the feature cache {path} cannot be opened ({error}). Check the folder, point SLIMPROMPT_CACHE elsewhere, or use --no-cache"
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise InputError(
            f"the feature cache cannot be created at {path}: {error}. Point SLIMPROMPT_CACHE elsewhere, or use --no-cache"
        ) from None
    if stored != key:
        database.close()
        raise InputError(
            f"{path} holds features of another model or transform than its name says; delete it (`slimprompt cache clear`)"
        )
    return database


def _prepare(database: sqlite3.Connection, path: Path | None, key: dict[str, str]) -> dict[str, str]:
    """Create the tables of a new file; returns the key that the file holds."""
    if path is not None:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
    with database:
        database.execute("CREATE TABLE IF NOT EXISTS key (name TEXT PRIMARY KEY, value TEXT)")
        database.execute(
            "CREATE TABLE IF NOT EXISTS features (picture TEXT, view TEXT, feature BLOB, PRIMARY KEY (picture, view)) WITHOUT ROWID"
        )
        database.executemany("INSERT OR IGNORE INTO key VALUES (?, ?)", key.items())
    return dict(database.execute("SELECT name, value FROM key"))


def _damaged(path: Path | None, error: object) -> InputError:
    return InputError(
        f"the feature cache {path} is damaged ({error}); delete that file, or run `slimprompt cache clear`"
    )


def bytes_per_feature(embed_dim: int, n_features: int = 2000) -> float:
    """Bytes that one feature takes on disk, measured on a temporary bank of random features."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bank.sqlite"
        database = _open(path, {})
        vectors = np.random.default_rng(0).standard_normal((n_features, embed_dim), dtype=np.float32)
        rows = [(hashlib.sha256(vector).hexdigest(), "1/100", vector.tobytes()) for vector in vectors]
        with database:
            database.executemany("INSERT INTO features VALUES (?, ?, ?)", rows)
        database.close()
        return path.stat().st_size / n_features


class CacheFile(NamedTuple):
    """One bank on disk: its file, its number of features and its size in bytes."""

    path: Path
    features: int
    size: int


def cached_banks(folder: Path | None = None) -> list[CacheFile]:
    """The banks on disk."""
    found = []
    for path in sorted((folder or cache_dir() / "features").glob("*.sqlite")):
        size = sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))
        try:
            database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            count = database.execute("SELECT count(*) FROM features").fetchone()[0]
            database.close()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            count = 0
        found.append(CacheFile(path, count, size))
    return found


def clear_cached_banks(folder: Path | None = None) -> int:
    """Delete all banks on disk; returns the bytes freed."""
    banks = cached_banks(folder)
    for bank in banks:
        for part in bank.path.parent.glob(bank.path.name + "*"):
            part.unlink(missing_ok=True)
    return sum(bank.size for bank in banks)
