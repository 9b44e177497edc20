"""Manifests: the images of a run as a portable JSON file of relative paths, labels and content hashes.

A manifest does not depend on the machine it was written on. Passed to a run elsewhere, it replaces the few-shot
sampling, and the hashes verify that the images are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError

from slimprompt.data.benchmark import SPLITS, Benchmark, Item
from slimprompt.data.check import in_threads
from slimprompt.data.few_shot import check_every_class
from slimprompt.data.readers import leaves_root
from slimprompt.errors import InputError, first_few, problems
from slimprompt.files import read_json, write_file
from slimprompt.images.decode import file_sha256

FORMAT = "slimprompt manifest 1"


def _inner_path(path: Any) -> str:
    if not isinstance(path, str) or leaves_root(path):
        raise ValueError("expected a path inside the images folder")
    return path  # a name that is not UTF-8 too


class ManifestItem(NamedTuple):
    """One image: path relative to the image folder, label, and sha256 of the file (None: not hashed)."""

    path: Annotated[str, PlainValidator(_inner_path)]
    label: Annotated[int, Field(strict=True, ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None


@dataclass(frozen=True)
class Manifest:
    """The items of a few-shot sample, or of a whole benchmark. It is validated where it is read."""

    benchmark: str
    class_names: tuple[Annotated[str, Field(pattern=r"\S")], ...]
    """`class_names[label]`; of ImageNet's names, some belong to two classes."""
    train: tuple[ManifestItem, ...]
    val: tuple[ManifestItem, ...] = ()
    test: tuple[ManifestItem, ...] = ()
    """Empty in the manifest of a few-shot sample."""
    shots: Annotated[int, Field(strict=True)] | None = None
    """Arguments of `few_shot`, if the items were sampled."""
    seed: Annotated[int, Field(strict=True)] | None = None

    @property
    def items(self) -> tuple[ManifestItem, ...]:
        """All items: train, then val, then test."""
        return (*self.train, *self.val, *self.test)


def make_manifest(
    sample: Benchmark, *, shots: int | None = None, seed: int | None = None, hashes: bool = True
) -> Manifest:
    """The manifest of the train and val items of a few-shot sample; without hashes, the files need not exist."""
    items = (*sample.train, *sample.val)
    found = zip(items, in_threads(file_sha256, (sample.path(item) for item in items)), strict=True) if hashes else ()
    manifest = list_all(replace(sample, test=()), {item.path: digest for item, digest in found})
    return replace(manifest, shots=shots, seed=seed)


def list_all(benchmark: Benchmark, sha256: Mapping[str, str]) -> Manifest:
    """The manifest of all items, with the hashes that are known by path."""

    def hashed(items: tuple[Item, ...]) -> tuple[ManifestItem, ...]:
        return tuple(ManifestItem(item.path, item.label, sha256.get(item.path)) for item in items)

    train, val, test = (hashed(getattr(benchmark, split)) for split in SPLITS)
    return Manifest(benchmark.name, benchmark.class_names, train, val, test)


def write_manifest(manifest: Manifest, path: str | Path) -> None:
    """Write a manifest atomically as JSON, one image per line."""
    names = ("benchmark", "shots", "seed", "class_names")
    head = {"format": FORMAT, **{name: getattr(manifest, name) for name in names}}
    lines = [f'"{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in head.items()]
    for split in SPLITS:
        entries = ",\n".join(json.dumps(item._asdict(), ensure_ascii=False) for item in getattr(manifest, split))
        lines.append(f'"{split}": [\n{entries}\n]' if entries else f'"{split}": []')
    write_file(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")


def read_manifest(path: str | Path) -> Manifest:
    """Read a manifest file; a file that is not a valid manifest raises an `InputError`."""
    try:
        data = read_json(Path(path))
    except InputError as error:
        raise InputError(f"cannot read the manifest {path}: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f'{path} is not a manifest: expected JSON with "format": "{FORMAT}"')
    try:
        manifest = TypeAdapter(Manifest).validate_python(data)
    except ValidationError as error:
        raise InputError(f"{path} is a damaged manifest: {problems(error)[0]}") from None
    n_classes = len(manifest.class_names)
    if unknown := [item for item in manifest.items if item.label >= n_classes]:
        raise InputError(
            f"{path} is a damaged manifest: {unknown[0].path} has the label {unknown[0].label}, but there are {n_classes} classes"
        )
    return manifest


def apply_manifest(manifest: Manifest, benchmark: Benchmark, *, verify: bool = True) -> Benchmark:
    """Replace the train and val items of a benchmark by those of a manifest, in the order of the manifest.

    An `InputError` if the classes differ, a class has no training image in the manifest, or an item of the manifest is a test item
    of the benchmark; with `verify`, also unless every hashed image exists with the same content.
    """
    if manifest.class_names != benchmark.class_names:
        raise InputError(
            f"the manifest is for {manifest.benchmark} with {_classes(manifest.class_names)}, but the dataset is "
            f"{benchmark.name} with {_classes(benchmark.class_names)}"
        )
    tested = {item.path for item in benchmark.test}
    leaked = [item.path for item in (*manifest.train, *manifest.val) if item.path in tested]
    if leaked:
        raise InputError(
            f"{len(leaked)} images of the manifest are in the test split of {benchmark.name}, e.g. {leaked[0]}; "
            "the manifest was made with another split"
        )

    def items(listed: tuple[ManifestItem, ...]) -> tuple[Item, ...]:
        return tuple(Item(item.path, item.label, manifest.class_names[item.label]) for item in listed)

    applied = replace(benchmark, train=items(manifest.train), val=items(manifest.val))
    check_every_class(applied, "the manifest")
    if verify:
        verify_manifest(manifest, benchmark.images)
    return applied


def verify_manifest(manifest: Manifest, images: Path) -> None:
    """Raise an `InputError` unless every hashed image exists in the folder `images` with the same content."""
    items = [item for item in manifest.items if item.sha256 is not None]
    missing = [item.path for item in items if not os.path.isfile(images / item.path)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(items)} images of the manifest are not in {images}: {first_few(missing)}"
        )
    digests = in_threads(file_sha256, (images / item.path for item in items))
    changed = [item.path for item, digest in zip(items, digests, strict=True) if digest != item.sha256]
    if changed:
        raise InputError(
            f"{len(changed)} of {len(items)} images in {images} differ from those of the manifest: "
            f"{first_few(changed)} (resized or compressed again?)"
        )


def check_listed(manifest: Manifest, benchmark: Benchmark) -> None:
    """Raise an `InputError` unless the manifest lists every image of the benchmark."""
    listed = {item.path for item in manifest.items}
    added = [item.path for item in benchmark.items if item.path not in listed]
    if added:
        raise InputError(
            f"{len(added)} of {len(benchmark.items)} images in {benchmark.images} are not in the manifest: {first_few(added)}"
        )


def _classes(names: tuple[str, ...]) -> str:
    return f"{len(names)} classes ({first_few(names)})"
