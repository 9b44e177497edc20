"""A collection in parts, and the folder of finished parts that `predict --out FOLDER` writes.

    predictions/
      _manifest.json                                      what decides the rows: model, options, part size
      part-000012-5e884898-3fa9c1d2e4b5a697.parquet       a finished part, written completely or not at all
      _SUCCESS                                            all parts are finished

pandas, Arrow and Spark read the folder as one table; they leave out names that begin with an underscore or a dot. The name of a
part ends in the checksum of the manifest and in a digest of the names and stamps of its images. So a part is finished if there is a
file of its name, and a file of another name is out of date.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.collections.inputs import Item
from slimprompt.collections.output import write_parquet
from slimprompt.collections.rows import Prediction
from slimprompt.errors import InputError
from slimprompt.files import json_checksum, json_text, new_file, read_json, write_file
from slimprompt.images.prefetch import prefetched

#: Images of a part: what a kill loses at most, and what a Ray worker does at a time.
PART_SIZE = 1024
#: Threads that look up whether the files of finished parts have changed; on a network disk each answer takes a while.
_STAMP_THREADS = 16
_MANIFEST, _COMPLETE, _LOCK = "_manifest.json", "_SUCCESS", ".lock"


class Part(NamedTuple):
    """Consecutive images of a collection."""

    number: int
    items: list[Item]


class FinishedPart(NamedTuple):
    """The predictions of a part."""

    number: int
    digest: str
    predictions: list[Prediction]


def parts_of(items: Iterable[Item], size: int = PART_SIZE) -> Iterator[Part]:
    """Consecutive parts of `size` items; the last one may be smaller."""
    rest, number = iter(items), 0
    while chosen := list(islice(rest, size)):
        yield Part(number, chosen)
        number += 1


def digest_of(items: Sequence[Item], stamps: Iterable[str]) -> str:
    """Hash of the names and stamps of images."""
    digest = hashlib.sha256()
    for item, stamp in zip(items, stamps, strict=True):
        digest.update(f"{len(item.image)} {item.image} {len(stamp)} {stamp}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


class PartsFolder:
    """The folder of finished parts; other files in it are an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key, self._numbers = "", frozenset[int]()
        if path.is_dir() and (other := [one.name for one in path.iterdir() if not _is_own(one.name)]):
            raise InputError(
                f"{path} holds {sorted(other)[0]!r}, which `slimprompt predict` has not written; give --out another name"
            )

    def begin(self, manifest: Mapping[str, Any], *, overwrite: bool) -> None:
        """Begin, or resume what a command with the same manifest has begun.

        The parts of a command with another manifest are an error, or are deleted. A kill in between leaves the new manifest and some of
        the old parts, whose names do not belong to it: the next command deletes them.
        """
        stored = self._manifest()
        if stored not in (None, manifest) and self.parts() and not overwrite:
            names = [name for name in manifest if manifest[name] != (stored or {}).get(name)]
            raise InputError(
                f"{self.path} holds predictions of a command with another {' and '.join(names) or 'version'}: resume that one, "
                "choose another --out, or discard them with --overwrite"
            )
        self._key = json_checksum(manifest)[:8]
        (self.path / _COMPLETE).unlink(missing_ok=True)
        write_file(self.path / _MANIFEST, json_text(manifest))
        for path in self.parts():
            if path.name.split("-")[2] != self._key:
                path.unlink()
        self._numbers = frozenset(self.numbers())

    def parts(self) -> list[Path]:
        """All part files, in the order of their numbers."""
        return sorted(self.path.glob("part-*.parquet"))

    def numbers(self) -> list[int]:
        """The numbers of all part files, ascending."""
        return [int(path.name.split("-")[1]) for path in self.parts()]

    def finished(self, part: Part) -> Path | None:
        """The file of the part, if it was there in the beginning; None if it was not, or its images have changed since."""
        if part.number not in self._numbers:
            return None
        stamps = (stamp for _, stamp in prefetched(lambda item: item.place.stamp(), part.items, _STAMP_THREADS))
        path = self._file(part.number, digest_of(part.items, stamps))
        return path if path.exists() else None

    def write(self, part: FinishedPart) -> Path:
        """Store a finished part."""
        path = self._file(part.number, part.digest)
        with new_file(path) as draft:
            write_parquet(draft, part.predictions)
        return path

    def complete(self, parts: Iterable[Path]) -> None:
        """Delete all parts but these, and mark the folder as complete."""
        for path in set(self.parts()).difference(parts):
            path.unlink()
        write_file(self.path / _COMPLETE, "")

    def close(self) -> None:
        """Delete the lock; without a finished part, the whole folder."""
        if not self.parts() and not (self.path / _COMPLETE).exists():
            (self.path / _MANIFEST).unlink(missing_ok=True)
        with suppress(PermissionError):  # Windows
            (self.path / _LOCK).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def _file(self, number: int, digest: str) -> Path:
        return self.path / f"part-{number:06d}-{self._key}-{digest}.parquet"

    def _manifest(self) -> dict[str, Any] | None:
        """The stored manifest; empty if it is damaged, None if there is none."""
        if not (self.path / _MANIFEST).exists():
            return None
        try:
            stored = read_json(self.path / _MANIFEST)
        except InputError:
            return {}
        return stored if isinstance(stored, dict) else {}


def _is_own(name: str) -> bool:
    return name in (_MANIFEST, _COMPLETE) or name.startswith((".", "part-"))
