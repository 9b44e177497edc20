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


class DatasetRow(NamedTuple):
    """A row of a Hugging Face dataset."""

    name: str
    """Folder of `save_to_disk`, or name of a dataset."""
    by_name: bool
    split: str | None
    column: str
    row: int
    files: str
    """Stamp of the files of the dataset."""

    def open(self, name: str) -> Image.Image:
        """Read and decode the row."""
        try:
            value = undecoded(self.name, self.by_name, self.split, self.column)[self.row][self.column]
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise InputError(f"cannot read the image {name}: {error}") from None
        return _decode_value(value, name, self.name)

    def stamp(self) -> str:
        """Of the files of the dataset."""
        return self.files


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


# --- Parquet ---------------------------------------------------------------------------------------------------------

_TABLE_LOCK = threading.Lock()  # so that several threads do not read the same row group at once


@lru_cache(maxsize=2)
def _row_group(path: str, _stamp: str, column: str, group: int) -> Any:
    with parquet_file(path) as file:
        return file.read_row_group(group, columns=[column]).column(column)


def parquet_file(path: str | Path) -> Any:
    """An open Parquet file; use it in a `with`.

    Raises
    ------
    InputError
        If pyarrow is missing, or the file cannot be read.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet files need the package pyarrow: pip install 'slimprompt[parquet]'") from None
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the Parquet file {path}: {error}") from None


# --- Hugging Face datasets -------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def dataset(name: str, by_name: bool) -> Any:
    """A `Dataset`, or a dictionary of them by split.

    Raises
    ------
    InputError
        If the package is missing, or the dataset cannot be loaded.
    """
    try:
        import datasets
    except ImportError:
        raise InputError(
            "Hugging Face datasets need the package datasets: pip install 'slimprompt[datasets]'"
        ) from None
    try:
        return datasets.load_dataset(name) if by_name else datasets.load_from_disk(name)
    except Exception as error:  # of the network, the hub, the file system, Arrow
        raise InputError(f"cannot load the dataset {name}: {error}") from None


@lru_cache(maxsize=8)
def undecoded(name: str, by_name: bool, split: str | None, column: str) -> Any:
    """A split of a dataset whose image column is left as bytes and path."""
    from datasets import Image

    found = dataset(name, by_name)
    found = (found if split is None else found[split]).select_columns([column])
    return found.cast_column(column, Image(decode=False)) if isinstance(found.features[column], Image) else found
