"""Readers of annotation files: from the files of a benchmark to its train, val and test items. No image is opened.

Each function of the first section returns a `Source`, one way to obtain the split of a benchmark. A row of the table in
`slimprompt.data.benchmarks` lists its sources in order of preference: the published split first, then a fallback.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.data.benchmark import SPLITS, Item
from slimprompt.errors import InputError
from slimprompt.files import read_json, read_text
from slimprompt.images.decode import is_hidden, is_image_name
from slimprompt.progress import progress
from slimprompt.seeds import stream_seed


class Annotations(NamedTuple):
    """`class_names[label]`, and the items of each split in the order of the annotation files."""

    class_names: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]


@dataclass(frozen=True)
class Source:
    """One way to obtain the split of a benchmark."""

    kind: str
    """Short description for messages."""
    needs: tuple[str, ...]
    """Required files and folders, relative to the benchmark's folder."""
    reader: Callable[[Path], Annotations]
    """Reads the annotations from the benchmark's folder."""
    own_split: bool = False
    """Whether items are assigned to splits by our own random stream, so that the split is not the published one."""
    listed: bool = False
    """Whether the items are the files of the image folders, so that none of them can be missing."""

    def missing(self, folder: Path) -> list[str]:
        """Required files and folders that are not in `folder`."""
        return [name for name in self.needs if not _beside(folder, name).exists()]

    def read(self, folder: Path) -> Annotations:
        """Read the annotations; damaged files raise an `InputError`."""
        try:
            return self.reader(folder)
        except InputError:
            raise
        except Exception as error:  # malformed lines, and whatever scipy raises for a damaged .mat file
            needs = ", ".join(self.needs)
            raise InputError(f"cannot read {needs} in {folder}: {error!r}; if damaged, download them again") from None


# --- sources ---------------------------------------------------------------------------------------------------------


def split_file(name: str) -> Source:
    """CoOp's format: {"train": [[relative path, label, class name], …], "val": …, "test": …}."""
    return Source("split file", (name,), lambda folder: read_split_file(folder / name))


def variant_lists() -> Source:
    """FGVC Aircraft: `images_variant_{train,val,test}.txt` with lines `id variant`; labels follow `variants.txt`."""

    def read(folder: Path) -> Annotations:
        names = tuple(_lines(folder / "variants.txt"))
        label_of = {name: label for label, name in enumerate(names)}
        splits = []
        for split in SPLITS:
            items = []
            for line in _lines(folder / f"images_variant_{split}.txt"):
                image, _, name = line.partition(" ")
                if name not in label_of:
                    raise InputError(f"{folder}/images_variant_{split}.txt has {name!r}, which is not in variants.txt")
                items.append(_item(folder, f"{image}.jpg", label_of[name], name))
            splits.append(tuple(items))
        return Annotations(names, *splits)

    files = tuple(f"images_variant_{split}.txt" for split in SPLITS)
    return Source("official lists", ("variants.txt", *files), read)


def class_folders(images: str, *, ignored: Iterable[str] = (), renamed: Mapping[str, str] | None = None) -> Source:
    """`images/<class>/<image>`, each class divided at random into 50 % train, 20 % val and 30 % test.

    Folders in `ignored` are not classes; `renamed` maps names of folders to class names, where they differ.
    """
    left_out, new_names = frozenset(ignored), dict(renamed or {})

    def read(folder: Path) -> Annotations:
        base = folder / images
        classes = [name for name in sorted(_class_folder_names(base)) if name not in left_out]
        items = []
        for label, name in enumerate(classes):
            files = sorted(filter(_is_image_name, os.listdir(base / name)))
            items += [Item(f"{name}/{file}", label, new_names.get(name, name)) for file in files]
        return _split_50_20_30(items, folder)

    return Source("own 50/20/30 split of the class folders", (images,), read, own_split=True, listed=True)


def flower_labels() -> Source:
    """Oxford Flowers: `imagelabels.mat` holds the 1-based label of each image; split 50/20/30 per class."""

    def read(folder: Path) -> Annotations:
        from scipy.io import loadmat

        labels = loadmat(folder / "imagelabels.mat")["labels"].ravel().tolist()
        names = read_json(folder / "cat_to_name.json")
        items = [
            Item(f"image_{number:05d}.jpg", int(label) - 1, names[str(label)])
            for number, label in enumerate(labels, start=1)
        ]
        return _split_50_20_30(items, folder)

    return Source("own 50/20/30 split", ("imagelabels.mat", "cat_to_name.json"), read, own_split=True)


def pet_lists() -> Source:
    """Oxford Pets: `annotations/{trainval,test}.txt` with lines `Breed_7 label …`; trainval is split 80/20."""

    def read_list(path: Path) -> list[Item]:
        items = []
        for line in _lines(path):
            image, label = line.split()[:2]
            items.append(_item(path, f"{image}.jpg", int(label) - 1, image.rpartition("_")[0].lower()))
        return items

    def read(folder: Path) -> Annotations:
        test = read_list(folder / "annotations" / "test.txt")
        return _split_80_20(read_list(folder / "annotations" / "trainval.txt"), test, folder)

    needs = ("annotations/trainval.txt", "annotations/test.txt")
    return Source("official test list, own 80/20 split of trainval", needs, read, own_split=True)


def action_lists() -> Source:
    """UCF101: the first of the three official lists; `ApplyLipstick/v_x.avi` becomes `Apply_Lipstick/v_x.jpg`."""

    def read(folder: Path) -> Annotations:
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
                    raise InputError(f"{lists / name} has {action!r}, which is not in classInd.txt")
                class_name = underscored(action)
                frame = f"{class_name}/{video.removesuffix('.avi')}.jpg"
                items.append(_item(lists / name, frame, label_of[action], class_name))
            return items

        return _split_80_20(read_list("trainlist01.txt"), read_list("testlist01.txt"), folder)

    needs = tuple(f"ucfTrainTestlist/{name}.txt" for name in ("classInd", "trainlist01", "testlist01"))
    return Source("official test list, own 80/20 split of the train list", needs, read, own_split=True)


def wordnet_folders(
    images: str, *, train: str = "", test: str = "", names: str = "classnames.txt", numbered: bool = False
) -> Source:
    """ImageNet and its variants: `<images>/<split>/<WordNet id>/<image>`, and a list of class names.

    The classes are those with a folder, in the order of their ids; images are in the order of their names. Without `train`, the
    benchmark is only evaluated on; without `test`, the class folders are directly in `images`. The file `names` has lines
    `<WordNet id> <class name>`. With `numbered`, the class folders are named 0, 1, … after these lines, not after the ids.
    """
    places = {"train": train, "test": test} if train else {"test": test}

    def read(folder: Path) -> Annotations:
        name_of = _wordnet_names(_beside(folder, names))
        id_of = {str(line): wnid for line, wnid in enumerate(name_of)} if numbered else {wnid: wnid for wnid in name_of}
        folders = [
            (split, f"{place}/{name}".lstrip("/"), _known_folder(name, id_of, folder / images / place, names))
            for split, place in places.items()
            for name in _class_folder_names(folder / images / place)
        ]
        label_of = {wnid: label for label, wnid in enumerate(sorted({wnid for *_, wnid in folders}))}
        splits: dict[str, list[Item]] = {split: [] for split in SPLITS}
        with progress(f"listing {folder.name}", len(folders), "folders") as advance:
            for split, path, wnid in sorted(folders, key=lambda entry: entry[2]):
                label, name = label_of[wnid], name_of[wnid]
                files = sorted(filter(_is_image_name, os.listdir(folder / images / path)))
                splits[split] += [Item(f"{path}/{file}", label, name) for file in files]
                advance()
        return Annotations(tuple(name_of[wnid] for wnid in label_of), *(tuple(splits[split]) for split in SPLITS))

    needs = (names, *(f"{images}/{place}".rstrip("/") for place in places.values()))
    return Source("class folders", needs, read, listed=True)


def _beside(folder: Path, name: str) -> Path:
    """The path of `name` in the folder; `../imagenet/x` is in the folder beside it in the data root, also if it is a link."""
    return Path(os.path.normpath(folder / name))


def _wordnet_names(path: Path) -> dict[str, str]:
    """WordNet id → class name, in the order of the file."""
    name_of = {}
    for number, line in enumerate(_lines(path), start=1):
        wnid, _, name = line.partition(" ")
        if not re.fullmatch(r"n\d{8}", wnid) or not name.strip():
            raise InputError(f"{path}, line {number}: expected <WordNet id> <class name>, got {line!r:.80}")
        name_of[wnid] = name.strip()
    return name_of


def _class_folder_names(place: Path) -> list[str]:
    with os.scandir(place) as entries:
        found = [entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name)]
    if not found:
        raise InputError(f"no class folders in {place}: expected {place}/<class>/<image>; sort the images into folders")
    return found


def _known_folder(name: str, id_of: Mapping[str, str], place: Path, names: str) -> str:
    """WordNet id of a class folder."""
    if name not in id_of:
        raise InputError(f"the folder {place / name} is not a class of {names}; remove it or complete {names}")
    return id_of[name]


def underscored(camel_case: str) -> str:
    """`ApplyEyeMakeup` → `Apply_Eye_Makeup`."""
    return "_".join(re.findall("[A-Z][^A-Z]*", camel_case))


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
    splits = [tuple(_entries(data[split], name_of, f"{path}, {split}")) for split in SPLITS]
    return Annotations(_class_names(name_of, path), *splits)


def _entries(entries: list[Any], name_of: dict[int, str], where: str) -> list[Item]:
    """The items of one split; adds the class names found to `name_of`."""
    items = []
    for number, entry in enumerate(entries):
        if not (isinstance(entry, list) and [type(field) for field in entry] == [str, int, str]):
            raise InputError(f"{where}[{number}]: expected [path, label, class name], got {entry!r:.80}")
        path, label, name = entry
        if label not in name_of:
            if label < 0 or not name.strip():
                raise InputError(
                    f"{where}[{number}]: expected a label ≥ 0 and a class name that is not empty, got {entry!r:.80}"
                )
            name_of[label] = name
        elif name_of[label] != name:
            raise InputError(f"{where}[{number}]: label {label} is both {name_of[label]!r} and {name!r}")
        items.append(_item(f"{where}[{number}]", path, label, name))
    return items


def leaves_root(path: str) -> bool:
    r"""Whether a relative path could lead out of its folder: absolute, or with `..`, a drive or a backslash.

    Only the text is examined: symbolic links inside a data root are common and belong to the user.

    >>> [leaves_root(path) for path in ("cat/1.jpg", "a..b.jpg", "../1.jpg", "/etc/passwd", "a/../../b.jpg", "C:\\1")]
    [False, False, True, True, True, True]
    """
    if path[:1] in ("", "/") or path[1:2] == ":" or "\\" in path or "\0" in path:
        return True
    return ".." in path and ".." in path.split("/")


# --- random splits ---------------------------------------------------------------------------------------------------


def _split_50_20_30(items: list[Item], folder: Path) -> Annotations:
    """Divide every class into 50 % train, 20 % val and 30 % test."""
    splits: tuple[list[Item], ...] = ([], [], [])
    for group in _shuffled_classes(items, folder):
        n_train, n_val = round(len(group) * 0.5), round(len(group) * 0.2)
        shares = (group[:n_train], group[n_train : n_train + n_val], group[n_train + n_val :])
        if not all(shares):
            raise InputError(
                f"class {group[0].class_name!r} in {folder} has {len(group)} images, too few for 50 % train, 20 % val "
                "and 30 % test; is the download complete?"
            )
        for split, share in zip(splits, shares, strict=True):
            split.extend(share)
    return Annotations(_item_classes(items, folder), *(tuple(split) for split in splits))


def _split_80_20(trainval: list[Item], test: list[Item], folder: Path) -> Annotations:
    """Divide every class of `trainval` into 80 % train and 20 % val; `test` is given."""
    train: list[Item] = []
    val: list[Item] = []
    for group in _shuffled_classes(trainval, folder):
        n_val = round(len(group) * 0.2)
        val += group[:n_val]
        train += group[n_val:]
    return Annotations(_item_classes([*trainval, *test], folder), tuple(train), tuple(val), tuple(test))


def _shuffled_classes(items: Iterable[Item], folder: Path) -> list[list[Item]]:
    """The items of each class in random order, classes in order of first appearance."""
    # The stream depends on the benchmark only, not on the seed of a run: the split belongs to the benchmark.
    stream = random.Random(stream_seed(0, "split", folder.name))
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    for group in groups.values():
        stream.shuffle(group)
    return list(groups.values())


# --- helpers ---------------------------------------------------------------------------------------------------------


def _item_classes(items: Iterable[Item], folder: Path) -> tuple[str, ...]:
    return _class_names({item.label: item.class_name for item in items}, folder)


def _class_names(name_of: dict[int, str], where: Path) -> tuple[str, ...]:
    if sorted(name_of) != list(range(len(name_of))):
        raise InputError(
            f"{where}: labels must be 0 to {len(name_of) - 1} without a gap, got {min(name_of)} to {max(name_of)}; "
            "download the annotation files again"
        )
    return tuple(name_of[label] for label in range(len(name_of)))


def _item(where: object, path: str, label: int, name: str) -> Item:
    if leaves_root(path):
        raise InputError(f"{where}: the path {path!r} leaves the images folder and is refused")
    return Item(path, label, name)


def _is_image_name(name: str) -> bool:
    return is_image_name(name) and not is_hidden(name)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]
