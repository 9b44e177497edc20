"""Your own images as a benchmark: class folders, train/val/test folders of class folders, or a CSV file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from slimprompt.data.benchmark import SPLITS, Benchmark, Item
from slimprompt.errors import InputError, did_you_mean, first_few, printable, shown
from slimprompt.files import draft_folder, publish
from slimprompt.images.decode import IMAGE_SUFFIXES, is_hidden, is_image_name, walk_images
from slimprompt.names import check_class_names, name_key
from slimprompt.spreadsheet import csv_records

#: Accepted names of a split folder, and values of the split column of a CSV file.
_SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
#: Characters of a path, as on Linux.
_MOST_PATH = 4096

_LAYOUTS = (
    "expected {0}/<class>/<image>, {0}/train/<class>/<image> with {0}/test/<class>/<image>, or a CSV file of path,label"
)


@dataclass(frozen=True)
class FolderBenchmark(Benchmark):
    """A benchmark that consists of a user's own images."""

    ignored_paths: tuple[str, ...] = ()
    """Files that are not images and folders that are not classes, relative to `images`."""

    @property
    def ignored(self) -> int:
        """Number of files and folders that were ignored."""
        return len(self.ignored_paths)

    def count_ignored_images(self) -> int:
        """Number of images below the folders that were ignored."""
        folders = [self.images / path for path in self.ignored_paths if (self.images / path).is_dir()]
        return sum(1 for folder in folders for _ in walk_images(folder))

    def _fingerprint_entries(self, items: tuple[Item, ...]) -> Iterator[tuple[object, ...]]:
        """With the sizes of the files: a user's own images may be replaced under their names."""
        for item in items:
            try:
                yield item.path, item.label, os.stat(self.path(item)).st_size
            except OSError as error:
                raise InputError(f"cannot read {self.path(item)}: {error.strerror}") from None


class _File(NamedTuple):
    """A labelled image file; `path` is relative to the folder of the images."""

    split: str
    class_name: str
    path: str


class _Listing(NamedTuple):
    """The image files of a folder or CSV file, in order."""

    source: Path
    images: Path
    files: list[_File]
    ignored: tuple[str, ...] = ()

    def class_names(self, split: str | None = None) -> list[str]:
        return sorted({file.class_name for file in self.files if split in (None, file.split)})


def load_folder(path: str | Path, *, names: Mapping[str, str] | None = None) -> FolderBenchmark:
    """Read the classes and items of a folder or CSV file; no image is opened.

    Labels follow the sorted class names. Hidden files and folders, and folders of saved models, are ignored. There are three layouts:

    - `photos/<class>/<image>`: all images are train items; evaluate on those that are not sampled (`few_shot.held_out`).
    - `photos/train/<class>/<image>`, with `test` and optionally `val` next to `train`. Without `test`, `val` is used as the test split.
    - a CSV file with the columns path, label and optionally split (train, val or test); paths are relative to the file.

    If the names of the class folders or the labels of the CSV file are codes, `names` has a class name for each. An `InputError` if
    the layout is another one, there are fewer than two classes, or two of them are the same words in a prompt.
    """
    listing = _list_files(Path(path), names)
    return _benchmark(listing, _train_classes(listing))


def load_eval_folder(
    path: str | Path,
    known_names: Sequence[str],
    key: Callable[[str], Hashable] = name_key,
    *,
    names: Mapping[str, str] | None = None,
    codes: Mapping[str, str] | None = None,
) -> FolderBenchmark:
    """Read the images of a folder or CSV file as test items, for the evaluation of a trained classifier.

    Layouts and `names` are as in `load_folder`; if there is a test split, only its images are used. `codes` are the names of a model
    that was fitted on codes: they are used in the place of `names` if all labels are among these codes. If all classes are known, the
    labels are those of `known_names`. If none is known, the folder is read as new classes in sorted order. If some are, that is an
    `InputError`: a misspelt name would count as a new class. Names with equal `key` are the same class.
    """
    if names is None and codes and codes.keys() >= set(_list_labels(Path(path)).class_names()):
        names = codes
    listing = _list_files(Path(path), names)
    found, unknown = listing.class_names(), _unknown_names(listing, known_names, key)
    tested = [file for file in listing.files if file.split == "test"] or listing.files
    as_test = listing._replace(files=[file._replace(split="test") for file in tested])
    if not unknown:
        return _benchmark(as_test, known_names, key)
    if len(unknown) < len(found):
        questions = {name: did_you_mean(name, known_names, 1) for name in unknown[:4]}  # three are shown
        listed = first_few([f"{name!r} ({asked})" if asked else repr(name) for name, asked in questions.items()], 200)
        raise InputError(
            f"{path}: {len(unknown)} of {len(found)} classes are unknown to this prompt: {listed}. Rename their folders "
            "or labels to class names of the prompt, or keep only new classes to evaluate the prompt on those"
        )
    if not listing.class_names("train"):  # a CSV file of test images only
        listing = listing._replace(files=[file._replace(split="train") for file in listing.files])
    return _benchmark(as_test, _train_classes(listing))


def write_folder(benchmark: Benchmark, out: Path) -> None:
    """Copy the train and test images of a benchmark to `out/{train,test}/<class>/<image>`, a layout of `load_folder`.

    An `InputError` if `out` exists and is not an empty folder, or is the current folder.
    """
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} already exists and is not an empty folder; choose another one")
    if out.resolve() == Path.cwd().resolve():  # it is replaced, and whoever works in it would be left in the old one
        raise InputError(f"{out} is the current folder; give the name of a new one in it")
    with draft_folder(out) as draft:
        for split, items in (("train", benchmark.train), ("test", benchmark.test)):
            for item in items:
                folder = draft / split / item.class_name.replace(" ", "_")
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(benchmark.path(item), folder / Path(item.path).name)
        publish(draft, out)


# --- class names -----------------------------------------------------------------------------------------------------


def _benchmark(
    listing: _Listing, class_names: Iterable[str], key: Callable[[str], Hashable] = name_key
) -> FolderBenchmark:
    names = tuple(class_names)
    label_of = {key(name): label for label, name in enumerate(names)}
    items: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for file in listing.files:
        label = label_of[key(file.class_name)]
        items[file.split].append(Item(file.path, label, names[label]))
    train, val, test = (tuple(items[split]) for split in SPLITS)
    name = listing.source.resolve().stem
    return FolderBenchmark(name, listing.images, names, train, val, test, ignored_paths=listing.ignored)


def _train_classes(listing: _Listing) -> list[str]:
    """The class names of the train split, sorted; the other splits may only use these."""
    path, names = listing.source, listing.class_names("train")
    if not names:
        raise InputError(f"{path} has no training images: {_LAYOUTS.format(path)}")
    try:
        check_class_names(names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if len(names) < 2:
        raise InputError(f"{path} has one class only, {names[0]!r}; a classifier needs at least two")
    for name in _unknown_names(listing, names):
        question = did_you_mean(name, names)
        raise InputError(f"{path}: the class {name!r} has no training images{f'; {question}' if question else '.'}")
    return names


def _unknown_names(listing: _Listing, known: Iterable[str], key: Callable[[str], Hashable] = name_key) -> list[str]:
    keys = {key(name) for name in known}
    return [name for name in listing.class_names() if key(name) not in keys]


def _check_distinct(path: Path, name_of: Mapping[str, str]) -> None:
    """Raise an error if two class folders or labels have names that are the same words in a prompt."""
    first_of: dict[str, str] = {}
    for label, name in name_of.items():
        other = first_of.setdefault(name_key(name), label)
        if other != label:
            kind = "class folders" if path.is_dir() else "labels"
            raise InputError(
                f"the {kind} {shown(other)} and {shown(label)} of {path} are the same words in a prompt, {shown(name)}: "
                "rename one of them, or merge their images"
            )


# --- folders ---------------------------------------------------------------------------------------------------------


def _list_files(path: Path, names: Mapping[str, str] | None = None) -> _Listing:
    """The labelled image files of a folder or CSV file; with `names`, the labels are codes that are replaced by these names."""
    listing = _list_labels(path)
    if not listing.class_names("test"):  # val is then the only split to evaluate on
        files = [file._replace(split="test") if file.split == "val" else file for file in listing.files]
        listing = listing._replace(files=files)
    if names is None:
        for split in SPLITS:  # the spelling may differ between splits
            _check_distinct(path, {label: label for label in listing.class_names(split)})
        return listing
    labels = listing.class_names()
    if missing := [repr(label) for label in labels if label not in names]:
        raise InputError(
            f"{path}: {len(missing)} of {len(labels)} labels have no class name: {first_few(missing)}. "
            f"The labels with names are {first_few([repr(label) for label in names])}"
        )
    _check_distinct(path, {label: names[label] for label in labels})
    return listing._replace(files=[file._replace(class_name=names[file.class_name]) for file in listing.files])


def _list_labels(path: Path) -> _Listing:
    if not os.path.exists(path):  # also for a text that cannot be a path
        raise InputError(f"no such folder or CSV file: {path}")
    if path.is_dir():
        return _read_folder(path)
    if path.suffix.lower() == ".csv":
        return _read_csv(path)
    raise InputError(f"{path} is neither a folder of images nor a .csv file; {_LAYOUTS.format(path.parent)}")


def _read_folder(path: Path) -> _Listing:
    folders, files = _entries(path)
    if not folders:
        found = f"found {_count(len(files), 'file')} and no folders" if files else "it is empty"
        raise InputError(f"no images under {path}: {_LAYOUTS.format(path)}; {found}")
    listing = _Listing(path, path, [], tuple(files))
    has_splits = any(name.lower() == "train" and _entries(path / name)[0] for name in folders)
    for prefix, split in _split_folders(path, folders) if has_splits else [("", "train")]:
        found_files, ignored = _read_classes(path, prefix, split)
        listing = listing._replace(files=listing.files + found_files, ignored=(*listing.ignored, *ignored))
    return listing


def _split_folders(path: Path, folders: list[str]) -> list[tuple[str, str]]:
    """(`<folder>/`, split) of each folder next to train."""
    split_of = {name: _SPLIT_NAMES.get(name.lower(), "") for name in folders}
    if others := [name for name, split in split_of.items() if not split]:
        raise InputError(f"{path} has train/ and also {', '.join(others)}; expected only train, val and test folders")
    if len(set(split_of.values())) < len(split_of):
        raise InputError(
            f"{path} has several folders for one split: {', '.join(folders)}; expected train, val and test once each"
        )
    return [(f"{name}/", split) for name, split in split_of.items()]


def _read_classes(base: Path, prefix: str, split: str) -> tuple[list[_File], list[str]]:
    """The images `base/prefix<class>/<image>`, and the ignored entries."""
    found: list[_File] = []
    empty: list[str] = []
    where = base / prefix
    classes, files = _entries(where)
    ignored = [f"{prefix}{file}" for file in files] if prefix else []
    for name in classes:
        if not name_key(name):
            raise InputError(f"the class folder {shown(str(where / name))} has an empty name; rename it")
        if printable(name) != name:
            raise InputError(
                f"the name of the class folder {where / name} is not UTF-8, and a class name becomes part of the prompt; "
                "rename the folder"
            )
        inner, files = _entries(where / name)
        images = [file for file in files if is_image_name(file)]
        ignored += [
            f"{prefix}{name}/{entry}" for entry in (*inner, *(file for file in files if not is_image_name(file)))
        ]
        if not images:
            empty.append(f"{name} (holds {_count(len(inner), 'folder')} and {_count(len(files), 'other file')})")
        found += [_File(split, name, f"{prefix}{name}/{image}") for image in images]
    if empty:
        raise InputError(
            f"no images in {_count(len(empty), 'class folder')} of {where}: {first_few(empty)}. "
            f"Expected {where}/<class>/<image> with images ending in {', '.join(sorted(IMAGE_SUFFIXES))}"
        )
    return found, ignored


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Sorted names of the folders and of the files in `folder`, without hidden ones and saved models."""
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not is_hidden(entry.name):
                    (folders if entry.is_dir() else files).append(entry.name)
    except PermissionError:
        raise InputError(f"cannot read {folder}: permission denied") from None
    return sorted(name for name in folders if not _is_saved_model(folder / name)), sorted(files)


def _is_saved_model(folder: Path) -> bool:
    """Whether a folder holds a saved model: `slimprompt fit .` saves it beside the class folders."""
    return (folder / "model.safetensors").is_file()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- CSV files -------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> _Listing:
    folder = path.parent
    found: list[tuple[str, str, Path]] = []  # split, class name, file
    line_of: dict[Path, int] = {}
    missing: list[str] = []
    for line, row in csv_records(path, ("path", "label"), ("split",)):
        name, label, split = row["path"], row["label"], row.get("split") or "train"
        if not name or not name_key(label):
            column = "label" if name else "path"
            raise InputError(f"{path}, line {line}: the {column} is empty; fill it in, or remove the line")
        if split.lower() not in _SPLIT_NAMES:
            raise InputError(f"{path}, line {line}: the split is {shown(split)}; expected train, val or test")
        if "\0" in name or len(name) > _MOST_PATH:
            raise InputError(f"{path}, line {line}: {shown(name)} is not a path")
        image = Path(os.path.normpath(folder / name))
        if line_of.setdefault(image, line) != line:
            raise InputError(f"{path}: lines {line_of[image]} and {line} name the same image {name}")
        if not os.path.isfile(image):
            missing.append(f"{name} (line {line})")
        found.append((_SPLIT_NAMES[split.lower()], label, image))
    if missing:
        raise InputError(
            f"{path} names {_count(len(missing), 'file')} that cannot be found: {first_few(missing)}. "
            f"Paths are relative to {folder.resolve()}"
        )
    if not found:
        raise InputError(f"{path} names no images: expected one line path,label per image below the first line")
    images = _common_folder(path, [image for _, _, image in found])
    files = [_File(split, label, Path(os.path.relpath(image, images)).as_posix()) for split, label, image in found]
    return _Listing(path, images, files)


def _common_folder(path: Path, images: list[Path]) -> Path:
    """The folder of the CSV file if it contains every image, else the deepest folder that does."""
    own = os.path.abspath(path.parent)
    try:
        common = os.path.commonpath([os.path.abspath(image.parent) for image in images])
        return path.parent if os.path.commonpath([common, own]) == own else Path(common)
    except ValueError:  # Windows only
        raise InputError(f"{path} names images on different drives; move them below one folder") from None
