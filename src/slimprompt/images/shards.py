"""Rows of image features in a file or in memory, which one writer appends to."""

from __future__ import annotations

import os
import secrets
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


class FileShard:
    """Rows (n, embed_dim) in a file, mapped into memory.

    Parameters
    ----------
    path
        The file; without its suffix it is the name of the shard.
    embed_dim, dtype
        Length and type of a row.
    held
        The lock of the writer that owns the shard; None for readers.
    """

    def __init__(self, path: Path, embed_dim: int, dtype: np.dtype[Any], held: Any = None) -> None:
        if embed_dim < 1:
            raise ValueError(f"it holds features of {embed_dim} numbers")
        self.name, self.process = path.stem, os.getpid()
        self._held, self._file = held, path.open("rb" if held is None else "r+b", buffering=0)
        self._close_file = weakref.finalize(self, self._file.close)  # a shard may be dropped without `close`
        self._dtype, self._row_bytes = dtype, embed_dim * dtype.itemsize
        self._rows = np.empty((0, embed_dim), dtype=dtype)

    @classmethod
    def owned(cls, path: Path, embed_dim: int, dtype: np.dtype[Any]) -> FileShard | None:
        """Open a shard to append to it; None if another writer owns it. The end of a process frees its shards."""
        from filelock import FileLock, Timeout

        held = FileLock(path.with_suffix(".lock"), thread_local=False)
        try:
            held.acquire(timeout=0)
        except Timeout:
            return None
        path.touch()
        return cls(path, embed_dim, dtype, held)

    def __len__(self) -> int:
        """Number of whole rows in the file."""
        return os.fstat(self._file.fileno()).st_size // self._row_bytes

    def append(self, rows: np.ndarray) -> int:
        """Append rows and flush them to disk; returns the number of the first. A part of a row that is there is skipped."""
        start = -(-os.fstat(self._file.fileno()).st_size // self._row_bytes)
        left = memoryview(rows.tobytes())
        try:
            self._file.seek(start * self._row_bytes)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                self._file.truncate(start * self._row_bytes)
            raise
        return start

    def take(self, rows: np.ndarray) -> np.ndarray:
        """A copy of these rows."""
        if rows.max() >= len(self._rows):
            n_rows = len(self)
            if rows.max() >= n_rows:
                raise ValueError(f"{self.name} has only {n_rows} rows")
            self._rows = np.asarray(np.memmap(self._file, self._dtype, "r", shape=(n_rows, self._rows.shape[1])))
        return self._rows.take(rows, axis=0)

    def close(self) -> None:
        """Close the file, and free the shard for other writers."""
        self._close_file()
        if self._held is not None:
            self._held.release()


class MemoryShard:
    """Rows (n, embed_dim) in memory."""

    def __init__(self, embed_dim: int, dtype: np.dtype[Any]) -> None:
        self.name, self.process = secrets.token_hex(8), os.getpid()
        self._rows, self._used = np.empty((1024, embed_dim), dtype=dtype), 0

    def append(self, rows: np.ndarray) -> int:
        """Append rows; returns the number of the first."""
        start, self._used = self._used, self._used + len(rows)
        if self._used > len(self._rows):
            more = np.empty((self._used, self._rows.shape[1]), dtype=self._rows.dtype)
            self._rows = np.concatenate([self._rows, more])
        self._rows[start : self._used] = rows
        return start

    def take(self, rows: np.ndarray) -> np.ndarray:
        """A copy of these rows."""
        return self._rows.take(rows, axis=0)

    def close(self) -> None:
        """There is no file."""


Shard = FileShard | MemoryShard
