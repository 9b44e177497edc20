"""The images of a collection, one by one, without opening them: what users give, as a lazy sequence of items.

An input is an image file, a folder, a CSV or Parquet file, a WebDataset shard, or a pattern of such files. One function per kind
yields its items in a fixed order.
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from slimprompt.collections.places import File, Place, TableCell, TarMember, Unreadable, file_stamp, parquet_file
from slimprompt.errors import InputError, did_you_mean, first_few, shown
from slimprompt.files import check_regular
from slimprompt.images.decode import is_hidden, is_image_name, no_images, walk_images
from slimprompt.spreadsheet import csv_rows

#: Columns that are looked for if none is named.
_COLUMNS = ("path", "image")


class Item(NamedTuple):
    """One image of a collection."""

    image: str
    """Its name in the output."""
    place: Place


class Input(NamedTuple):
    """One input with its kind."""

    name: str
    items: Callable[[str, str | None], Iterator[Item]]
    """From the name and the column, a new iterator."""


@dataclass(frozen=True)
class Collection:
    """Images from several inputs, one after the other.

    Each iteration lists them anew; nothing is held but the names of one folder, or a few rows of one table.
    """

    inputs: tuple[Input, ...]
    column: str | None

    def __iter__(self) -> Iterator[Item]:
        for one in self.inputs:
            yield from one.items(one.name, self.column)


def open_collection(given: Sequence[str | PurePath], column: str | None = None) -> Collection:
    """The images of image files, folders, `.csv`, `.parquet` and `.tar` files, and patterns such as `shards/{000..009}.tar`.

    Only the first image of each input is looked for. `column` of the tables has the paths or contents of the images; default: `path` or
    `image`. An input that does not exist, cannot be read or has no images is an `InputError`.
    """
    inputs = [_input(name) for one in given for name in _expanded(str(one))]
    for one in inputs:
        first = next(one.items(one.name, column), None)
        if first is None:
            raise no_images(Path(one.name)) if one.items is _folder_items else InputError(f"{one.name} has no images")
        if isinstance(first.place, Unreadable) and first.image == one.name:
            raise InputError(first.place.reason)
    if column is not None and not any(one.items in (_csv_items, _parquet_items) for one in inputs):
        raise InputError(f"--column {column} is for CSV and Parquet files; none of them was given")
    return Collection(tuple(inputs), column)


def is_list(given: str) -> bool:
    """Whether an input is a table, a shard or a pattern, not an image file or a folder of images."""
    if os.path.exists(given):
        return Path(given).suffix.lower() in _BY_SUFFIX
    return glob.has_magic(given) or re.search(_BRACES, given) is not None


def _input(name: str) -> Input:
    path = Path(name)
    if path.is_dir():
        return Input(name, _folder_items)
    if not path.exists():
        raise InputError(f"no such image, folder or table: {name}")
    if re.search(r"\.(tar\.\w+|tgz)$", name.lower()):
        raise InputError(f"{name} is a compressed tar file, whose members cannot be read one by one: decompress it")
    items = _BY_SUFFIX.get(path.suffix.lower())
    if items is not None:
        check_regular(path)
    return Input(name, items or _file_items)


def _expanded(given: str) -> list[str]:
    """The names that a pattern stands for; a name that exists is not a pattern.

    >>> _expanded("shards/{08..11}.tar")
    ['shards/08.tar', 'shards/09.tar', 'shards/10.tar', 'shards/11.tar']
    """
    if os.path.exists(given):
        return [given]
    names = [given]
    while any(re.search(_BRACES, name) for name in names):
        names = [one for name in names for one in _expand_first(name)]
    found = []
    for name in names:
        matching = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]
        if not matching:
            raise InputError(f"no file matches {name}")
        found += matching
    return found


_BRACES = r"\{(\d+)\.\.(\d+)\}|\{([^{},]*(?:,[^{},]*)+)\}"
#: Most names that one pair of braces may stand for.
_MOST_NAMES = 1_000_000


def _expand_first(name: str) -> list[str]:
    found = re.search(_BRACES, name)
    if found is None:
        return [name]
    first, last, listed = found.groups()
    if listed is not None:
        values = listed.split(",")
    else:
        if not 0 <= int(last) - int(first) < _MOST_NAMES:
            raise InputError(f"{name}: expected {{FIRST..LAST}} with a larger second number, such as {{000..009}}")
        values = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return [name[: found.start()] + value + name[found.end() :] for value in values]


# --- files and shards ------------------------------------------------------------------------------------------------


def _file_items(name: str, _column: str | None) -> Iterator[Item]:
    yield Item(str(Path(name)), File(os.path.abspath(name)))


def _folder_items(name: str, _column: str | None) -> Iterator[Item]:
    for path in walk_images(Path(name)):
        yield Item(str(path), File(os.path.abspath(path)))


def _tar_items(name: str, _column: str | None) -> Iterator[Item]:
    """The images among the members of a tar file, by their headers; a file that breaks off ends with an unreadable item."""
    path, stamp = os.path.abspath(name), file_stamp(name)
    try:
        with open(path, "rb") as file, tarfile.open(path, "r:", file) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # otherwise it keeps all headers
                parts = PurePosixPath(member.name).parts
                if not is_image_name(member.name) or any(map(is_hidden, parts)):
                    continue
                image = f"{name}/{member.name}"
                if member.isfile():
                    yield Item(image, TarMember(path, member.offset_data, member.size, stamp))
                elif member.islnk() or member.issym():
                    how = "pack the files themselves, with --dereference --hard-dereference of GNU tar"
                    yield Item(image, Unreadable(f"{image} is a link to {member.linkname}: {how}"))
            file.seek(tar.offset)  # tarfile takes a damaged header for the end, which is a block of zeros
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise tarfile.ReadError(f"the header at byte {tar.offset:,} is damaged")
    except (tarfile.TarError, OSError, ValueError) as error:
        yield Item(name, Unreadable(f"cannot read the tar file {name}: {error}"))


# --- tables ----------------------------------------------------------------------------------------------------------


def _csv_items(name: str, column: str | None) -> Iterator[Item]:
    """The paths in a column of a CSV file, relative to the file."""
    folder = os.path.dirname(os.path.abspath(name))
    rows = csv_rows(Path(name))
    _, columns = next(rows)
    at = columns.index(_column_of(name, columns, column))
    for _, cells in rows:
        yield _path_item(cells[at] if at < len(cells) else "", name, folder)


def _parquet_items(name: str, column: str | None) -> Iterator[Item]:
    """The paths in a column of a Parquet file, relative to the file; or images, named `file.parquet[row]`."""
    path, stamp = os.path.abspath(name), file_stamp(name)
    with parquet_file(path) as file:
        import pyarrow.types as types

        schema = file.schema_arrow
        column = _column_of(name, schema.names, column)
        kind = schema.field(column).type
        kind = kind.value_type if types.is_dictionary(kind) else kind  # a categorical column of pandas
        if types.is_string(kind) or types.is_large_string(kind):
            for batch in file.iter_batches(batch_size=4096, columns=[column]):
                for value in batch.column(0).to_pylist():
                    yield _path_item(value or "", name, os.path.dirname(path))
            return
        if not (types.is_binary(kind) or types.is_large_binary(kind) or types.is_struct(kind)):
            raise InputError(
                f"the column {column} of {name} holds values of type {kind}; expected paths or contents of images"
            )
        number = 0
        for group in range(file.num_row_groups):
            for row in range(file.metadata.row_group(group).num_rows):
                yield Item(f"{name}[{number}]", TableCell(path, column, group, row, stamp))
                number += 1


def _path_item(value: str, table: str, folder: str) -> Item:
    if not value:
        return Item("", Unreadable(f"a row of {table} has no path"))
    return Item(value, File(os.path.normpath(os.path.join(folder, value))))


def _column_of(name: str, columns: Sequence[str], given: str | None) -> str:
    """The column with the images: the given one, or the first of those that are looked for, if need be in another case."""
    if given is not None and given in columns:
        return given
    if given is not None:
        question = did_you_mean(given, columns)
        raise InputError(f"{name} has no column {shown(given)}; {question or f'its columns are {first_few(columns)}'}")
    for names in (columns, [column.lower() for column in columns]):
        for candidate in _COLUMNS:
            if candidate in names:
                return columns[names.index(candidate)]
    raise InputError(
        f"{name} has no column {' or '.join(_COLUMNS)} (its columns are {first_few(columns)}): name the one with the paths or "
        "images with --column"
    )


_BY_SUFFIX = {".csv": _csv_items, ".parquet": _parquet_items, ".tar": _tar_items}
