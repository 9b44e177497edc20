"""Your own images as a benchmark: class folders, train/val/test folders of class folders, or a CSV file."""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slimprompt.data.benchmark import Benchmark, Item
from slimprompt.errors import InputError
from slimprompt.images.files import IMAGE_SUFFIXES

#: Names that a split folder, or the split column of a CSV file, may have.
_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}

_LAYOUTS = (
    "expected {0}/<class>/<image>, {0}/train/<class>/<image> with {0}/test/<class>/<image>, or a CSV file of path,label"
)


@dataclass(frozen=True)
class FolderBenchmark(Benchmark):
    """A benchmark made of a user's own images."""

    ignored: int = 0
    """Files that are not images and folders that are not classes; none of them is used."""


class _Picture(NamedTuple):
    part: str
    class_name: str
    path: str


def load_folder(path: str | Path) -> FolderBenchmark:
    """Classes and items of a folder or CSV file; no image is opened.

    - `photos/<class>/<image>`: everything is in `train`; test on what a draw leaves over (`few_shot.held_out`).
    - `photos/train/<class>/<image>`, with `test` and perhaps `val` beside `train`; without `test`, `val` is it.
    - a CSV file with the columns path, label and perhaps split (train, val or test); paths are relative to the file.

    Labels follow the sorted class names. Class names that differ only in case, spaces or underscores are refused.
    """
    images, pictures, ignored = _find(Path(path))
    return _benchmark(Path(path), images, pictures, ignored, _known_classes(pictures, Path(path)))


def load_test_folder(path: str | Path, class_names: Sequence[str]) -> FolderBenchmark:
    """The images of a folder or CSV file as `test` items of the given classes, for judging a trained prompt.

    Layouts as in `load_folder`; of a split one only `test` is taken. A class may have no images here, but a class that
    is not in `class_names` is an error.
    """
    images, pictures, ignored = _find(Path(path))
    label_of = {_key(name): label for label, name in enumerate(class_names)}
    for name in sorted({picture.class_name for picture in pictures}):
        if _key(name) not in label_of:
            close = difflib.get_close_matches(name, class_names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InputError(
                f"{path} has the class {name!r}, which is none of the {len(class_names)} classes of this prompt{hint} "
                "Rename the folder, take it out, or give the class names that you want to test on"
            )
    if any(picture.part == "test" for picture in pictures):
        pictures = [picture for picture in pictures if picture.part == "test"]
    as_test = [picture._replace(part="test") for picture in pictures]
    return _benchmark(Path(path), images, as_test, ignored, tuple(class_names))


def _benchmark(
    path: Path, images: Path, pictures: Iterable[_Picture], ignored: int, class_names: tuple[str, ...]
) -> FolderBenchmark:
    label_of = {_key(name): label for label, name in enumerate(class_names)}
    parts: dict[str, list[Item]] = {"train": [], "val": [], "test": []}
    for picture in pictures:
        label = label_of[_key(picture.class_name)]
        parts[picture.part].append(Item(picture.path, label, class_names[label]))
    return FolderBenchmark(
        name=path.resolve().stem,
        images=images,
        class_names=class_names,
        train=tuple(parts["train"]),
        val=tuple(parts["val"]),
        test=tuple(parts["test"]),
        ignored=ignored,
    )


def _known_classes(pictures: Sequence[_Picture], path: Path) -> tuple[str, ...]:
    """The class names of the train part, sorted; every other part may only use these."""
    names = sorted({picture.class_name for picture in pictures if picture.part == "train"})
    if not names:
        raise InputError(f"{path} has no training images: {_LAYOUTS.format(path)}")
    first_of: dict[str, str] = {}
    for name in names:
        other = first_of.setdefault(_key(name), name)
        if other != name:
            raise InputError(
                f"{path}: the classes {other!r} and {name!r} are the same words in a prompt; rename or merge them"
            )
    if len(names) < 2:
        raise InputError(f"{path} has one class only, {names[0]!r}; telling classes apart needs at least two")
    for name in sorted({picture.class_name for picture in pictures}):
        if _key(name) not in first_of:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise InputError(f"{path}: the class {name!r} has no training images{hint}")
    return tuple(names)


def _key(class_name: str) -> str:
    """What of a class name reaches the prompt: `_` is a space there, and the tokenizer lower-cases."""
    return " ".join(class_name.replace("_", " ").split()).casefold()


def _find(path: Path) -> tuple[Path, list[_Picture], int]:
    """The folder that the paths are relative to, the pictures in order, and how much was ignored."""
    if path.is_file():
        if path.suffix.lower() != ".csv":
            raise InputError(
                f"{path} is a file, but neither a folder of images nor a .csv file; {_LAYOUTS.format(path.parent)}"
            )
        return _read_csv(path)
    if not path.is_dir():
        raise InputError(f"no such folder or CSV file: {path}")
    try:
        return path, *_read_folder(path)
    except PermissionError as error:
        raise InputError(f"cannot read {error.filename}: permission denied") from None


# --- folders ---------------------------------------------------------------------------------------------------------


def _read_folder(path: Path) -> tuple[list[_Picture], int]:
    folders, files = _entries(path)
    if not folders:
        found = f"found {_count(len(files), 'file')} and no folders" if files else "it is empty"
        raise InputError(f"no images under {path}: {_LAYOUTS.format(path)}; {found}")
    if not any(name.lower() == "train" and _entries(path / name)[0] for name in folders):
        pictures, ignored = _read_classes(path, "", "train")
        return pictures, ignored + len(files)

    part_of = {name: _PARTS.get(name.lower()) for name in folders}
    strange = [name for name, part in part_of.items() if part is None]
    if strange:
        raise InputError(
            f"{path} has train/ and beside it {', '.join(strange)}; expected only train, val and test folders there"
        )
    if "test" not in part_of.values():  # what is called validation is the only part kept for judging
        part_of = {name: "test" if part == "val" else part for name, part in part_of.items()}
    if len(set(part_of.values())) < len(part_of):
        raise InputError(
            f"{path} has several folders for one part: {', '.join(folders)}; expected train, val and test once each"
        )
    pictures, ignored = [], len(files)
    for name, part in part_of.items():
        some, more = _read_classes(path, f"{name}/", str(part))
        pictures += some
        ignored += more
    return pictures, ignored


def _read_classes(base: Path, prefix: str, part: str) -> tuple[list[_Picture], int]:
    """`base/prefix<class>/<image>`."""
    pictures: list[_Picture] = []
    empty: list[str] = []
    classes, files = _entries(base / prefix)
    ignored = len(files) if prefix else 0
    for name in classes:
        if not _key(name):
            raise InputError(f"the class folder {str(base / prefix / name)!r} has an empty name; give it a word")
        inner, files = _entries(base / prefix / name)
        images = [file for file in files if Path(file).suffix.lower() in IMAGE_SUFFIXES]
        ignored += len(files) - len(images) + len(inner)
        if not images:
            empty.append(f"{name} (holds {_count(len(inner), 'folder')} and {_count(len(files), 'other file')})")
        pictures += [_Picture(part, name, f"{prefix}{name}/{image}") for image in images]
    if empty:
        where = base / prefix
        raise InputError(
            f"no images in {_count(len(empty), 'class folder')} of {where}: {_few(empty)}. "
            f"Expected {where}/<class>/<image> with images ending in {', '.join(sorted(IMAGE_SUFFIXES))}"
        )
    return pictures, ignored


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files in `folder`, sorted; hidden ones and macOS's archive folder left out."""
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name != "__MACOSX":
                (folders if entry.is_dir() else files).append(entry.name)
    return sorted(folders), sorted(files)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


# --- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> tuple[Path, list[_Picture], int]:
    folder = path.parent
    found: list[tuple[str, str, Path]] = []  # part, class name, file
    line_of: dict[Path, int] = {}
    missing: list[str] = []
    for line, name, label, split in _csv_rows(path):
        if not name or not _key(label):
            raise InputError(f"{path}, line {line}: the {'label' if name else 'path'} is empty")
        if split.lower() not in _PARTS:
            raise InputError(f"{path}, line {line}: the split is {split!r}; expected train, val or test")
        image = Path(os.path.normpath(folder / name))
        if line_of.setdefault(image, line) != line:
            raise InputError(f"{path}: lines {line_of[image]} and {line} name the same image {name}")
        if not image.is_file():
            missing.append(f"{name} (line {line})")
        found.append((_PARTS[split.lower()], label, image))
    if missing:
        raise InputError(
            f"{path} names {_count(len(missing), 'file')} that cannot be found: {_few(missing)}. "
            f"Paths are relative to {folder.resolve()}"
        )
    if not found:
        raise InputError(f"{path} names no images: expected a line path,label for each below its first line")
    images = _common_folder(path, [image for _, _, image in found])
    tested = any(part == "test" for part, _, _ in found)
    pictures = [
        _Picture(part if tested or part != "val" else "test", label, Path(os.path.relpath(image, images)).as_posix())
        for part, label, image in found
    ]
    return images, pictures, 0


def _csv_rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Line number, path, label and split ("train" where not given) of every line that is not blank."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        header = lines[0] if lines else ""
        delimiter = max(",;\t", key=header.count)  # spreadsheets of some countries write semicolons
        rows = list(csv.reader(lines, delimiter=delimiter))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path} as a UTF-8 CSV file: {error}") from None
    columns = [name.strip().lower() for name in rows[0]] if rows else []
    if "path" not in columns or "label" not in columns:
        raise InputError(
            f"{path} needs a first line with the columns path and label (and may have split); it is {header!r}"
        )
    for line, values in enumerate(rows[1:], start=2):
        if any(value.strip() for value in values):
            row = dict(zip(columns, (value.strip() for value in values), strict=False))
            yield line, row.get("path", ""), row.get("label", ""), row.get("split", "") or "train"


def _common_folder(path: Path, images: list[Path]) -> Path:
    """The CSV file's own folder if every image is below it, else the deepest folder that holds all images."""
    own = os.path.abspath(path.parent)
    try:
        common = os.path.commonpath([os.path.abspath(image.parent) for image in images])
        return path.parent if os.path.commonpath([common, own]) == own else Path(common)
    except ValueError:  # only where there are drives
        raise InputError(f"{path} names images on different drives; bring them below one folder") from None
