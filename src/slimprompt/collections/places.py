"""Where the content of one image is. Places are small values that can be sent to another machine, and read there.

Every place has `open(name)`, the decoded image, and `stamp()`, a text that differs if the content has changed since.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from slimprompt.errors import InputError
from slimprompt.files import cannot_read
from slimprompt.images.decode import decode_image, open_image

if TYPE_CHECKING:
    from PIL import Image


class Place(Protocol):
    """Where the content of one image is."""

    def open(self, name: str) -> Image.Image:
        """The image, upright and in RGB; an `InputError` if it cannot be read. The name is for messages."""

    def stamp(self) -> str:
        """A text that differs if the content has changed."""


class File(NamedTuple):
    """An image file."""

    path: str

    def open(self, name: str) -> Image.Image:
        """Decode the file."""
        return open_image(self.path)

    def stamp(self) -> str:
        """Size and time of change."""
        return file_stamp(self.path)


class TarMember(NamedTuple):
    """A member of an uncompressed tar file."""

    path: str
    offset: int
    size: int
    file: str
    """Stamp of the tar file."""

    def open(self, name: str) -> Image.Image:
        """Decode the bytes of the member."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                content = file.read(self.size)
        except OSError as error:
            raise cannot_read(Path(self.path), error) from None
        if len(content) < self.size:
            raise InputError(f"cannot read the image {name}: the tar file ends within it")
        return decode_image(content, name)

    def stamp(self) -> str:
        """Of the tar file, and the position in it."""
        return f"{self.file} {self.offset}"


class TableCell(NamedTuple):
    """A cell of a Parquet file with the content of an image, or a dictionary of `bytes` and `path` as `datasets` writes it."""

    path: str
    column: str
    group: int
    """Row group."""
    row: int
    """Row within the group."""
    file: str
    """Stamp of the Parquet file."""

    def open(self, name: str) -> Image.Image:
        """Read the row group, which is kept for the next images, and decode the cell."""
        try:
            with _TABLE_LOCK:
                values = _row_group(self.path, self.file, self.column, self.group)
            value = values[self.row].as_py()
        except (OSError, ValueError, IndexError) as error:  # damaged pages
            raise InputError(f"cannot read the image {name}: {error}") from None
        return _decode_value(value, name, os.path.dirname(self.path))

    def stamp(self) -> str:
        """Of the Parquet file."""
        return self.file


class Unreadable(NamedTuple):
    """An image whose place is not known, because what should hold it is damaged."""

    reason: str

    def open(self, name: str) -> Image.Image:
        """Raise the reason."""
        raise InputError(self.reason)

    def stamp(self) -> str:
        """The reason."""
        return self.reason


def file_stamp(path: str | Path) -> str:
    """Size and time of change of a file; empty if there is none."""
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{facts.st_size} {facts.st_mtime_ns}"


def _decode_value(value: Any, name: str, folder: str) -> Image.Image:
    """The image of a cell: its content, a path, or a dictionary of both."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return decode_image(value, name)
    if isinstance(value, str) and value:
        return open_image(os.path.join(folder, value))
    raise InputError(f"cannot read the image {name}: the cell is empty")


_TABLE_LOCK = threading.Lock()  # so that several threads do not read the same row group at once


@lru_cache(maxsize=2)
def _row_group(path: str, _stamp: str, column: str, group: int) -> Any:
    with parquet_file(path) as file:
        return file.read_row_group(group, columns=[column]).column(column)


def parquet_file(path: str | Path) -> Any:
    """An open Parquet file, for use in a `with`; an `InputError` if pyarrow is missing or the file cannot be read."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet files need the package pyarrow: pip install 'slimprompt[parquet]'") from None
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the Parquet file {path}: {error}") from None
