"""sha256 of image files, by which features are found, remembered across processes.

A hash is remembered with the size, the times of modification and change, and the inode of the file, and is computed again if
one of them differs. A file that was changed within the last two seconds is not remembered across processes: it could be changed
again without a difference in these times, which are coarse on some disks.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from slimprompt.errors import InputError
from slimprompt.images.decode import file_sha256

_SETTLED = 2 * 10**9  # nanoseconds
_TABLE = "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, stamp TEXT, hash TEXT)"


class _Stamp(NamedTuple):
    size: int
    modified: int
    changed: int
    inode: int


class FileHashes:
    """Hexadecimal sha256 of files, computed once for each file and content.

    They are remembered in the SQLite file `path`, or in this object only if it is None. If that file is damaged or cannot be
    written, hashes are computed again. `clock` gives nanoseconds since the epoch.
    """

    def __init__(self, path: Path | None, workers: int = 1, clock: Callable[[], int] = time.time_ns) -> None:
        self._path, self._workers, self._clock = path, workers, clock
        self._known: dict[str | Path, tuple[_Stamp | None, str]] = {}

    def find(self, files: Sequence[str | Path]) -> list[str | InputError]:
        """The hash of each file, or the error of one that cannot be read."""
        now, stamps = self._clock(), {file: _stamp(file) for file in files}

        def unknown() -> list[str | Path]:
            return [file for file, stamp in stamps.items() if self._known.get(file, ("",))[0] != stamp]

        if new := unknown():
            self._use_database(lambda database: self._recall(database, {file: stamps[file] for file in new}))
        errors: dict[str | Path, InputError] = {}
        settled = []
        if new := unknown():
            with ThreadPoolExecutor(min(self._workers, len(new))) as pool:
                for file, found in zip(new, pool.map(_sha256_or_error, new), strict=True):
                    stamp = stamps[file]
                    if isinstance(found, InputError):
                        errors[file] = found
                        continue
                    self._known[file] = stamp, found
                    if stamp is not None and now - max(stamp.modified, stamp.changed) > _SETTLED:
                        settled.append((_name(file), str(tuple(stamp)), found))
        if settled:
            insert = "INSERT OR REPLACE INTO files VALUES (?, ?, ?)"
            self._use_database(lambda database: database.executemany(insert, settled))
        return [errors[file] if file in errors else self._known[file][1] for file in files]

    def _recall(self, database: sqlite3.Connection, stamps: dict[str | Path, _Stamp | None]) -> None:
        for file, stamp in stamps.items():
            row = database.execute("SELECT stamp, hash FROM files WHERE path = ?", (_name(file),)).fetchone()
            if row is not None and stamp is not None and row[0] == str(tuple(stamp)):
                self._known[file] = stamp, row[1]

    def _use_database(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """Do something with the remembered hashes; if they are damaged or locked, nothing."""
        if self._path is None:
            return
        with suppress(sqlite3.OperationalError, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=1)) as database:
                try:
                    database.execute(_TABLE)
                    action(database)
                    database.commit()
                except sqlite3.OperationalError:  # locked, read-only, a full disk
                    raise
                except (sqlite3.DatabaseError, UnicodeDecodeError):  # damaged; a message may quote it
                    self._path.unlink(missing_ok=True)


def _stamp(file: str | Path) -> _Stamp | None:
    try:
        facts = os.stat(file)
    except (OSError, ValueError):
        return None  # hashing the file gives the message
    return _Stamp(facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


def _name(file: str | Path) -> bytes:
    return os.fsencode(os.path.abspath(file))


def _sha256_or_error(file: str | Path) -> str | InputError:
    try:
        return file_sha256(Path(file))
    except InputError as error:
        return error
