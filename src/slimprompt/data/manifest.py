"""Portable manifests: which images a run was given, as JSON with relative paths, labels and content hashes.

A manifest names no folder of the machine it was made on. Given back to a run elsewhere, it stands in for the few-shot
draw, and the hashes show that the pictures are the same.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.data.benchmark import Benchmark, Item
from slimprompt.data.splits import PARTS, leaves_root
from slimprompt.errors import InputError
from slimprompt.images.files import file_sha256
from slimprompt.storage import write_file

FORMAT = "slimprompt manifest 1"


class ManifestItem(NamedTuple):
    """One image: path relative to the benchmark's images folder, label, and sha256 of the file (None: not hashed)."""

    path: str
    label: int
    sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """The items of a draw; `class_names[label]`. `shots` and `seed` say how it was drawn, if it was."""

    benchmark: str
    class_names: tuple[str, ...]
    train: tuple[ManifestItem, ...]
    val: tuple[ManifestItem, ...] = ()
    test: tuple[ManifestItem, ...] = ()
    shots: int | None = None
    seed: int | None = None


def make_manifest(
    draw: Benchmark, *, shots: int | None = None, seed: int | None = None, test: bool = False, hashes: bool = True
) -> Manifest:
    """The manifest of a draw's train and val items, and with `test` of its test items too.

    Without `hashes` no picture needs to be there.
    """

    def hashed(items: tuple[Item, ...]) -> tuple[ManifestItem, ...]:
        if not hashes:
            return tuple(ManifestItem(item.path, item.label, None) for item in items)
        with ThreadPoolExecutor() as pool:
            digests = pool.map(lambda item: file_sha256(draw.path(item)), items)
            return tuple(ManifestItem(item.path, item.label, next(digests)) for item in items)

    tested = hashed(draw.test) if test else ()
    return Manifest(draw.name, draw.class_names, hashed(draw.train), hashed(draw.val), tested, shots=shots, seed=seed)


def write_manifest(manifest: Manifest, path: str | Path) -> None:
    """Write as JSON, one image per line; the file is there whole or not at all."""
    head = {
        "format": FORMAT,
        "benchmark": manifest.benchmark,
        "shots": manifest.shots,
        "seed": manifest.seed,
        "class_names": manifest.class_names,
    }
    lines = [f'"{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in head.items()]
    for part in PARTS:
        entries = ",\n".join(json.dumps(item._asdict(), ensure_ascii=False) for item in getattr(manifest, part))
        lines.append(f'"{part}": [\n{entries}\n]' if entries else f'"{part}": []')
    write_file(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")


def read_manifest(path: str | Path) -> Manifest:
    """A manifest file; anything that is not one is an `InputError`."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the manifest {path}: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f'{path} is not a manifest: expected JSON with "format": "{FORMAT}"')
    try:
        class_names = tuple(str(name) for name in data["class_names"])
        train, val, test = (tuple(_item(entry, class_names) for entry in data[part]) for part in PARTS)
        return Manifest(str(data["benchmark"]), class_names, train, val, test, shots=data["shots"], seed=data["seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is a damaged manifest: {error!r}") from None


def _item(entry: Any, class_names: tuple[str, ...]) -> ManifestItem:
    item = ManifestItem(**entry)
    if not isinstance(item.path, str) or leaves_root(item.path):
        raise ValueError(f"the path {item.path!r} leaves the images folder")
    if type(item.label) is not int or not 0 <= item.label < len(class_names):
        raise ValueError(f"{item.path} has the label {item.label!r}, but there are {len(class_names)} classes")
    if item.sha256 is not None and not (isinstance(item.sha256, str) and len(item.sha256) == 64):
        raise ValueError(f"{item.path} has the hash {item.sha256!r}")
    return item


def apply_manifest(manifest: Manifest, benchmark: Benchmark, *, verify: bool = True) -> Benchmark:
    """The benchmark with the manifest's items as train and val, in the manifest's order, instead of a draw of its own.

    Both must have the same classes in the same order, and no image to train on may be one to test on. With `verify`
    every hashed picture must be there with the same content.
    """
    if manifest.class_names != benchmark.class_names:
        raise InputError(
            f"the manifest is for {manifest.benchmark} with {_classes(manifest.class_names)}, but the data are "
            f"{benchmark.name} with {_classes(benchmark.class_names)}"
        )
    tested = {item.path for item in benchmark.test}
    leaked = [item.path for item in (*manifest.train, *manifest.val) if item.path in tested]
    if leaked:
        raise InputError(
            f"{len(leaked)} images of the manifest are in the test part of {benchmark.name}, e.g. {leaked[0]}; "
            "it was made with another split"
        )
    if verify:
        verify_manifest(manifest, benchmark.images)

    def items(part: tuple[ManifestItem, ...]) -> tuple[Item, ...]:
        return tuple(Item(item.path, item.label, manifest.class_names[item.label]) for item in part)

    return replace(benchmark, train=items(manifest.train), val=items(manifest.val))


def verify_manifest(manifest: Manifest, images: Path) -> None:
    """Every hashed picture is below `images` with the content that the manifest says; else an `InputError`."""
    items = [item for part in PARTS for item in getattr(manifest, part) if item.sha256 is not None]
    missing = [item.path for item in items if not (images / item.path).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(items)} images of the manifest are not in {images}: {', '.join(missing[:3])}"
            f"{', …' if len(missing) > 3 else ''}"
        )
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda item: file_sha256(images / item.path), items)
        changed = [item.path for item, digest in zip(items, digests, strict=True) if digest != item.sha256]
    if changed:
        raise InputError(
            f"{len(changed)} of {len(items)} images in {images} are not the ones of the manifest: "
            f"{', '.join(changed[:3])}{', …' if len(changed) > 3 else ''} (resized or compressed again?)"
        )


def _classes(names: tuple[str, ...]) -> str:
    return f"{len(names)} classes ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
