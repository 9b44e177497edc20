"""Readers of annotation files: from the files of a benchmark to its train, val and test items. No image is opened.

Each row of the table in `slimprompt.data.benchmarks` has one `Source`, made by a function of the first section.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.data.benchmark import SPLITS, Item
from slimprompt.errors import InputError
from slimprompt.files import read_json, read_text
from slimprompt.images.decode import is_hidden, is_image_name
from slimprompt.progress import progress

#: CLIP's names of ImageNet's classes: file name, and its id on Google Drive.
_IMAGENET_NAMES = ("classnames.txt", "1-61f_ol79pViBFDG_IDlUQSwoLcn2XXF")


class Annotations(NamedTuple):
    """`class_names[label]`, and the items of each split in the order of the annotation files."""

    class_names: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]


@dataclass(frozen=True)
class Source:
    """Where the published split of a benchmark is, and how it is read."""

    needs: tuple[str, ...]
    """Required files and folders, relative to the benchmark's folder."""
    reader: Callable[[Path], Annotations]
    """Reads the annotations from the benchmark's folder."""
    drive: tuple[str, str] | None = None
    """Name and Google Drive id of a file that CoOp's authors have published."""

    def missing(self, folder: Path) -> list[str]:
        """Required files and folders that are not in `folder`."""
        return [name for name in self.needs if not (folder / name).exists()]

    def read(self, folder: Path) -> Annotations:
        """Read the annotations; damaged files raise an `InputError`."""
        try:
            return self.reader(folder)
        except InputError:
            raise
        except Exception as error:  # whatever a damaged file leads to
            needs = ", ".join(self.needs)
            raise InputError(f"cannot read {needs} in {folder}: {error!r}; if damaged, download them again") from None


# --- sources ---------------------------------------------------------------------------------------------------------


def split_file(name: str, drive_id: str | None = None) -> Source:
    """CoOp's format: {"train": [[relative path, label, class name], …], "val": …, "test": …}."""
    return Source((name,), lambda folder: read_split_file(folder / name), (name, drive_id) if drive_id else None)


def variant_lists() -> Source:
    """FGVC Aircraft: `images_variant_{train,val,test}.txt` with lines `id variant`; labels follow `variants.txt`."""

    def read(folder: Path) -> Annotations:
        names = tuple(_lines(folder / "variants.txt"))
        label_of = {name: label for label, name in enumerate(names)}

        def items(split: str) -> Iterator[Item]:
            for line in _lines(folder / f"images_variant_{split}.txt"):
                image, _, name = line.partition(" ")
                if name not in label_of:
                    raise InputError(f"{folder}/images_variant_{split}.txt has {name!r}, which is not in variants.txt")
                yield _item(folder, f"{image}.jpg", label_of[name], name)

        return Annotations(names, *(tuple(items(split)) for split in SPLITS))

    return Source(("variants.txt", *(f"images_variant_{split}.txt" for split in SPLITS)), read)


def wordnet_folders(images: str, *, train: str = "", test: str = "", numbered: bool = False) -> Source:
    """ImageNet and its variants: `<images>/<split>/<WordNet id>/<image>`, and the class names in `classnames.txt`.

    The classes are those with a folder, in the order of their ids; images are in the order of their names. Without `train`, the
    benchmark is only evaluated on; without `test`, the class folders are directly in `images`. `classnames.txt` has lines
    `<WordNet id> <class name>`. With `numbered`, the class folders are named 0, 1, … after these lines, not after the ids.
    """
    places = {"train": train, "test": test} if train else {"test": test}

    def read(folder: Path) -> Annotations:
        name_of = _wordnet_names(folder / "classnames.txt")
        id_of = {str(line): wnid for line, wnid in enumerate(name_of)} if numbered else {wnid: wnid for wnid in name_of}
        folders = [
            (_wordnet_id(name, id_of, folder / images / place), split, f"{place}/{name}".lstrip("/"))
            for split, place in places.items()
            for name in _class_folders(folder / images / place)
        ]
        label_of = {wnid: label for label, wnid in enumerate(sorted({wnid for wnid, *_ in folders}))}
        splits: dict[str, list[Item]] = {split: [] for split in SPLITS}
        with progress(f"listing {folder.name}", len(folders), "folders") as advance:
            for wnid, split, path in sorted(folders):
                files = sorted(file for file in os.listdir(folder / images / path) if is_image_name(file))
                label, name = label_of[wnid], name_of[wnid]
                splits[split] += [Item(f"{path}/{file}", label, name) for file in files if not is_hidden(file)]
                advance()
        return Annotations(tuple(name_of[wnid] for wnid in label_of), *(tuple(splits[split]) for split in SPLITS))

    needs = (_IMAGENET_NAMES[0], *(f"{images}/{place}".rstrip("/") for place in places.values()))
    return Source(needs, read, _IMAGENET_NAMES)


def _wordnet_names(path: Path) -> dict[str, str]:
    """WordNet id → class name, in the order of the file."""
    name_of = {}
    for number, line in enumerate(_lines(path), start=1):
        wnid, _, name = line.partition(" ")
        if not re.fullmatch(r"n\d{8}", wnid) or not name.strip():
            raise InputError(f"{path}, line {number}: expected <WordNet id> <class name>, got {line!r:.80}")
        name_of[wnid] = name.strip()
    return name_of


def _class_folders(place: Path) -> list[str]:
    with os.scandir(place) as entries:
        found = [entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name)]
    if not found:
        raise InputError(f"no class folders in {place}: expected {place}/<class>/<image>; sort the images into folders")
    return found


def _wordnet_id(name: str, id_of: Mapping[str, str], place: Path) -> str:
    if name not in id_of:
        raise InputError(f"the folder {place / name} is not a class of classnames.txt; remove it or complete the file")
    return id_of[name]


# --- split files -----------------------------------------------------------------------------------------------------


def read_split_file(path: Path) -> Annotations:
    """Read a split file in CoOp's format; an `InputError` names the first entry of another format."""
    try:
        data = read_json(path)
    except InputError as error:
        raise InputError(f"cannot read the split file {path}: {error}; download it again") from None
    if not isinstance(data, dict) or not all(isinstance(data.get(split), list) for split in SPLITS):
        raise InputError(
            f'{path} is not a split file: expected {{"train": [[path, label, class name], …], "val": …, "test": …}}'
        )
    name_of: dict[int, str] = {}
    splits = [tuple(_split_items(data[split], name_of, f"{path}, {split}")) for split in SPLITS]
    if sorted(name_of) != list(range(len(name_of))):
        raise InputError(
            f"{path}: labels must be 0 to {len(name_of) - 1} without a gap, got {min(name_of)} to {max(name_of)}; "
            "download it again"
        )
    return Annotations(tuple(name_of[label] for label in range(len(name_of))), *splits)


def _split_items(entries: list[Any], name_of: dict[int, str], where: str) -> Iterator[Item]:
    """The items of one split; adds the class names found to `name_of`."""
    for number, entry in enumerate(entries):
        if not (isinstance(entry, list) and [type(field) for field in entry] == [str, int, str]):
            raise InputError(f"{where}[{number}]: expected [path, label, class name], got {entry!r:.80}")
        path, label, name = entry
        if label < 0 or not name.strip():
            raise InputError(
                f"{where}[{number}]: expected a label ≥ 0 and a class name that is not empty, got {entry!r:.80}"
            )
        if name_of.setdefault(label, name) != name:
            raise InputError(f"{where}[{number}]: label {label} is both {name_of[label]!r} and {name!r}")
        yield _item(f"{where}[{number}]", path, label, name)


def leaves_root(path: str) -> bool:
    r"""Whether a relative path could lead out of its folder: absolute, or with `..`, a drive or a backslash.

    Only the text is examined: symbolic links inside a data root are common and belong to the user.

    >>> [leaves_root(path) for path in ("cat/1.jpg", "a..b.jpg", "../1.jpg", "/etc/passwd", "a/../../b.jpg", "C:\\1")]
    [False, False, True, True, True, True]
    """
    if path[:1] in ("", "/") or path[1:2] == ":" or "\\" in path or "\0" in path:
        return True
    return ".." in path and ".." in path.split("/")


def _item(where: object, path: str, label: int, name: str) -> Item:
    if leaves_root(path):
        raise InputError(f"{where}: the path {path!r} leaves the images folder and is refused")
    return Item(path, label, name)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]
