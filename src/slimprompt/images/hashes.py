"""Hashes of images, by which features are found; those of files are remembered across processes.

A hash is remembered with the size, the times of modification and change, and the inode of the file, and is computed again if
one of them differs. A file that was modified within the last two seconds is not remembered across processes: it could be modified
again without a change of these times, which are coarse on some disks.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from PIL import Image

from slimprompt.errors import InputError
from slimprompt.images.decode import Decode, file_sha256, open_image

_SETTLED = 2 * 10**9  # nanoseconds
_TABLE = (
    "CREATE TABLE IF NOT EXISTS files "
    "(path BLOB PRIMARY KEY, size INTEGER, modified INTEGER, changed INTEGER, inode INTEGER, hash BLOB, checksum INTEGER) "
    "WITHOUT ROWID"
)

#: Size, times of modification and change in nanoseconds, and inode; empty if the file cannot be looked at.
_Stamp = tuple[int, ...]


def image_hash(image: Image.Image, decode: Decode) -> str:
    """Hexadecimal sha256 of the RGB pixels of an image, which depend on its palette, EXIF data and so on."""
    pixels = open_image(image, decode)
    return hashlib.sha256(f"{pixels.mode}{pixels.size}".encode() + pixels.tobytes()).hexdigest()


class FileHashes:
    """Hexadecimal sha256 of files, computed once for each file and content.

    Parameters
    ----------
    path
        The SQLite file of the remembered hashes. If it is damaged or cannot be written, hashes are computed again. None
        remembers them in this object only.
    workers
        Threads that compute hashes.
    clock
        Nanoseconds since the epoch.
    """

    def __init__(self, path: Path | None, workers: int = 1, clock: Callable[[], int] = time.time_ns) -> None:
        self._path, self._workers, self._clock = path, workers, clock
        self._known: dict[str | Path, tuple[_Stamp, str]] = {}

    def find(self, files: Sequence[str | Path]) -> list[str | InputError]:
        """The hash of each file, or the error of one that cannot be read."""
        now = self._clock()
        stamps = {file: _stamp(file) for file in files}
        if new := {file: stamp for file, stamp in stamps.items() if not self._is_known(file, stamp)}:
            self._use_database(lambda database: self._recall(database, new))
        computed = [file for file, stamp in new.items() if not self._is_known(file, stamp)]
        errors: dict[str | Path, InputError] = {}
        if computed:
            with ThreadPoolExecutor(min(self._workers, len(computed))) as pool:
                for file, found in zip(computed, pool.map(_sha256_or_error, computed), strict=True):
                    if isinstance(found, InputError):
                        errors[file] = found
                    else:
                        self._known[file] = stamps[file], found
        settled = [file for file in computed if file not in errors and now - max(stamps[file][1:3]) > _SETTLED]
        if settled:
            self._use_database(lambda database: self._store(database, settled))
        return [errors[file] if file in errors else self._known[file][1] for file in files]

    def clear(self) -> None:
        """Forget all hashes that are remembered on disk."""
        if self._path is not None and self._path.exists():
            self._use_database(lambda database: database.execute("DELETE FROM files"))
            self._use_database(lambda database: database.execute("VACUUM"))

    def _is_known(self, file: str | Path, stamp: _Stamp) -> bool:
        return file in self._known and self._known[file][0] == stamp

    def _recall(self, database: sqlite3.Connection, stamps: dict[str | Path, _Stamp]) -> None:
        for file, stamp in stamps.items():
            row = database.execute("SELECT * FROM files WHERE path = ?", (_name(file),)).fetchone()
            if row is not None and row[1:5] == stamp and row[6] == _checksum(row[:6]):
                self._known[file] = stamp, row[5].hex()

    def _store(self, database: sqlite3.Connection, files: Sequence[str | Path]) -> None:
        rows = [(_name(file), *self._known[file][0], bytes.fromhex(self._known[file][1])) for file in files]
        values = [(*row, _checksum(row)) for row in rows]
        database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def _use_database(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """Do something with the remembered hashes; if they are damaged or locked, nothing."""
        if self._path is None:
            return
        with suppress(sqlite3.OperationalError, OSError, UnicodeDecodeError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=1)) as database:
                try:
                    database.execute(_TABLE)
                    action(database)
                    database.commit()
                except sqlite3.OperationalError:  # locked, read-only, a full disk
                    raise
                except sqlite3.DatabaseError:  # damaged
                    self._path.unlink(missing_ok=True)


def _stamp(file: str | Path) -> _Stamp:
    try:
        facts = os.stat(file)
    except (OSError, ValueError):
        return ()  # hashing the file gives the message
    # SQLite stores numbers below 2⁶³; inodes of network disks and of ReFS may be larger.
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino % 2**63


def _checksum(row: tuple[object, ...]) -> int:
    return zlib.crc32(repr(row).encode())


def _name(file: str | Path) -> bytes:
    return os.fsencode(os.path.abspath(file))


def _sha256_or_error(file: str | Path) -> str | InputError:
    try:
        return file_sha256(Path(file))
    except InputError as error:
        return error
