"""From annotation files to train, val and test items. No picture is opened here.

Each function below makes a `Source`: one way to find the split of a benchmark, with the files that it needs. A row of
the catalogue names its sources in order of preference: the published split first, the stated fallback after it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.data.benchmark import Item
from slimprompt.errors import InputError
from slimprompt.images.files import IMAGE_SUFFIXES
from slimprompt.seeds import stream_seed

PARTS = ("train", "val", "test")


class Split(NamedTuple):
    """`class_names[label]`, and the items of the three parts in the order of the annotation."""

    class_names: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]


@dataclass(frozen=True)
class Source:
    """One way to find the split of a benchmark."""

    kind: str
    """What it is, in a few words for people."""
    needs: tuple[str, ...]
    """Files and folders, relative to the benchmark's folder; the source is there when all of them are."""
    reader: Callable[[Path], Split]
    """From the benchmark's folder to the split."""
    drawn_here: bool = False
    """Whether items are dealt to the parts by our own random stream, so that the split is not the published one."""

    def missing(self, folder: Path) -> list[str]:
        """Which of the needed files are not in `folder`."""
        return [name for name in self.needs if not (folder / name).exists()]

    def read(self, folder: Path) -> Split:
        """The split; damaged annotation files are an `InputError`."""
        try:
            return self.reader(folder)
        except InputError:
            raise
        except Exception as error:  # bad lines, and whatever scipy makes of a damaged .mat file
            needs = ", ".join(self.needs)
            raise InputError(
                f"cannot read {needs} in {folder}: {error!r}; are they damaged? Fetch them again"
            ) from None


# --- the sources -----------------------------------------------------------------------------------------------------


def split_file(name: str) -> Source:
    """CoOp's format: {"train": [[relative path, label, class name], …], "val": …, "test": …}."""
    return Source("split file", (name,), lambda folder: read_split_file(folder / name))


def variant_lists() -> Source:
    """FGVC Aircraft: `images_variant_{train,val,test}.txt` with lines `id variant`; labels as in variants.txt."""

    def read(folder: Path) -> Split:
        names = tuple(_lines(folder / "variants.txt"))
        label_of = {name: label for label, name in enumerate(names)}
        parts = []
        for part in PARTS:
            items = []
            for line in _lines(folder / f"images_variant_{part}.txt"):
                image, _, name = line.partition(" ")
                if name not in label_of:
                    raise InputError(f"{folder}/images_variant_{part}.txt names {name!r}, which is not in variants.txt")
                items.append(_item(folder, f"{image}.jpg", label_of[name], name))
            parts.append(tuple(items))
        return Split(names, *parts)

    files = tuple(f"images_variant_{part}.txt" for part in PARTS)
    return Source("official lists", ("variants.txt", *files), read)


def class_folders(images: str, *, ignored: Iterable[str] = (), renamed: Mapping[str, str] | None = None) -> Source:
    """`images/<class>/<picture>`, each class dealt 50 % train, 20 % val, 30 % test."""
    left_out, new_names = frozenset(ignored), dict(renamed or {})

    def read(folder: Path) -> Split:
        base = folder / images
        classes = sorted(entry.name for entry in base.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        items = []
        for label, name in enumerate(name for name in classes if name not in left_out):
            pictures = sorted(entry.name for entry in (base / name).iterdir() if _is_picture(entry))
            items += [Item(f"{name}/{picture}", label, new_names.get(name, name)) for picture in pictures]
        return _dealt(items, folder)

    return Source("own 50/20/30 split of the class folders", (images,), read, drawn_here=True)


def flower_labels() -> Source:
    """Oxford Flowers: `imagelabels.mat` gives image n its label from 1; 50 % train, 20 % val, 30 % test per class."""

    def read(folder: Path) -> Split:
        from scipy.io import loadmat

        labels = loadmat(folder / "imagelabels.mat")["labels"].ravel().tolist()
        names = json.loads((folder / "cat_to_name.json").read_text(encoding="utf-8"))
        items = [
            Item(f"image_{number:05d}.jpg", int(label) - 1, names[str(label)])
            for number, label in enumerate(labels, start=1)
        ]
        return _dealt(items, folder)

    return Source("own 50/20/30 split", ("imagelabels.mat", "cat_to_name.json"), read, drawn_here=True)


def pet_lists() -> Source:
    """Oxford Pets: `annotations/{trainval,test}.txt` with lines `Breed_7 label …`; trainval is dealt 80 % / 20 %."""

    def read_list(path: Path) -> list[Item]:
        items = []
        for line in _lines(path):
            image, label = line.split()[:2]
            items.append(_item(path, f"{image}.jpg", int(label) - 1, image.rpartition("_")[0].lower()))
        return items

    def read(folder: Path) -> Split:
        test = read_list(folder / "annotations" / "test.txt")
        return _train_and_val(read_list(folder / "annotations" / "trainval.txt"), test, folder)

    needs = ("annotations/trainval.txt", "annotations/test.txt")
    return Source("official test list, own 80/20 split of trainval", needs, read, drawn_here=True)


def action_lists() -> Source:
    """UCF101: list 1 of the official three; `ApplyLipstick/v_x.avi` becomes `Apply_Lipstick/v_x.jpg`."""

    def read(folder: Path) -> Split:
        lists = folder / "ucfTrainTestlist"
        label_of = {}
        for line in _lines(lists / "classInd.txt"):
            number, action = line.split()
            label_of[action] = int(number) - 1

        def read_list(name: str) -> list[Item]:
            items = []
            for line in _lines(lists / name):
                action, _, video = line.split()[0].partition("/")
                if action not in label_of:
                    raise InputError(f"{lists / name} names {action!r}, which is not in classInd.txt")
                class_name = underscored(action)
                frame = f"{class_name}/{video.removesuffix('.avi')}.jpg"
                items.append(_item(lists / name, frame, label_of[action], class_name))
            return items

        return _train_and_val(read_list("trainlist01.txt"), read_list("testlist01.txt"), folder)

    needs = tuple(f"ucfTrainTestlist/{name}.txt" for name in ("classInd", "trainlist01", "testlist01"))
    return Source("official test list, own 80/20 split of the train list", needs, read, drawn_here=True)


def underscored(camel_case: str) -> str:
    """`ApplyEyeMakeup` → `Apply_Eye_Makeup`."""
    return "_".join(re.findall("[A-Z][^A-Z]*", camel_case))


# --- reading a split file --------------------------------------------------------------------------------------------


def read_split_file(path: Path) -> Split:
    """A split file in CoOp's format; anything else in it is an `InputError` that names the entry."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the split file {path}: {error}; fetch it again") from None
    if not isinstance(data, dict) or not all(isinstance(data.get(part), list) for part in PARTS):
        raise InputError(
            f'{path} is not a split file: expected {{"train": [[path, label, class name], …], "val": …, "test": …}}'
        )
    name_of: dict[int, str] = {}
    parts = [tuple(_entries(data[part], name_of, f"{path}, {part}")) for part in PARTS]
    if sorted(name_of) != list(range(len(name_of))):
        raise InputError(
            f"{path}: labels must be 0 to {len(name_of) - 1} without a gap, got {min(name_of)} to {max(name_of)}"
        )
    return Split(tuple(name_of[label] for label in range(len(name_of))), *parts)


def _entries(entries: list[Any], name_of: dict[int, str], where: str) -> list[Item]:
    items = []
    for number, entry in enumerate(entries):
        if not (isinstance(entry, list) and [type(field) for field in entry] == [str, int, str]):
            raise InputError(f"{where}[{number}]: expected [path, label, class name], got {entry!r:.80}")
        path, label, name = entry
        if leaves_root(path):
            raise InputError(f"{where}[{number}]: the path {path!r} leaves the images folder and is refused")
        if label not in name_of:
            if label < 0 or not name.strip():
                raise InputError(
                    f"{where}[{number}]: a label is 0 or above and a class name not empty, got {entry!r:.80}"
                )
            name_of[label] = name
        elif name_of[label] != name:
            raise InputError(f"{where}[{number}]: label {label} is both {name_of[label]!r} and {name!r}")
        items.append(Item(path, label, name_of[label]))
    return items


def leaves_root(path: str) -> bool:
    r"""Whether a relative path of a split could lead out of its folder: absolute, with `..`, a drive, or a backslash.

    The text alone decides: data roots are often made of links, and those are the user's own.

    >>> [leaves_root(path) for path in ("cat/1.jpg", "a..b.jpg", "../1.jpg", "/etc/passwd", "a/../../b.jpg", "C:\\1")]
    [False, False, True, True, True, True]
    """
    if path[:1] in ("", "/") or path[1:2] == ":" or "\\" in path or "\0" in path:
        return True
    return ".." in path and ".." in path.split("/")


# --- dealing items to the parts --------------------------------------------------------------------------------------


def _own_stream(folder: Path) -> random.Random:
    # A stream of its own, with no seed of a run in it: the split belongs to the benchmark, and the few-shot draw of a
    # seed is the same whether or not a split had to be dealt before it.
    return random.Random(stream_seed(0, "split", folder.name))


def _by_label(items: Iterable[Item]) -> dict[int, list[Item]]:
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    return groups


def _dealt(items: list[Item], folder: Path) -> Split:
    """50 % train, 20 % val, 30 % test of every class."""
    stream = _own_stream(folder)
    parts: tuple[list[Item], ...] = ([], [], [])
    for group in _by_label(items).values():
        stream.shuffle(group)
        n_train, n_val = round(len(group) * 0.5), round(len(group) * 0.2)
        dealt = (group[:n_train], group[n_train : n_train + n_val], group[n_train + n_val :])
        if not all(dealt):
            raise InputError(
                f"class {group[0].class_name!r} in {folder} has {len(group)} pictures, too few for 50 % train, 20 % "
                "val and 30 % test; is the benchmark only half downloaded?"
            )
        for part, some in zip(parts, dealt, strict=True):
            part.extend(some)
    return Split(_names(items, folder), *(tuple(part) for part in parts))


def _train_and_val(trainval: list[Item], test: list[Item], folder: Path) -> Split:
    """80 % train and 20 % val of every class; test as it is."""
    stream = _own_stream(folder)
    train: list[Item] = []
    val: list[Item] = []
    for group in _by_label(trainval).values():
        stream.shuffle(group)
        n_val = round(len(group) * 0.2)
        val += group[:n_val]
        train += group[n_val:]
    return Split(_names([*trainval, *test], folder), tuple(train), tuple(val), tuple(test))


def _names(items: Iterable[Item], folder: Path) -> tuple[str, ...]:
    name_of = {item.label: item.class_name for item in items}
    if sorted(name_of) != list(range(len(name_of))):
        raise InputError(f"the labels in {folder} are not 0 to {len(name_of) - 1} without a gap; fetch its files again")
    return tuple(name_of[label] for label in range(len(name_of)))


def _item(where: Path, path: str, label: int, name: str) -> Item:
    if leaves_root(path):
        raise InputError(f"{where}: the path {path!r} leaves the images folder and is refused")
    return Item(path, label, name)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
