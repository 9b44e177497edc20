"""A collection in parts, and the folder of finished parts from which a stopped command is resumed.

    predictions.parquet.parts/
      manifest.json     what decides the rows: model, options, part size
      00000012.jsonl    a finished part, written completely or not at all: a line with its digest, then one line per image

The digest of a part is a hash of the names and stamps of its images. A finished part is used only if the images at its
positions have the same digest; otherwise it is predicted again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from slimprompt.collections.inputs import Item
from slimprompt.collections.rows import Prediction
from slimprompt.errors import InputError
from slimprompt.files import cannot_read, json_text, read_json, remove_folder, write_file
from slimprompt.images.prefetch import prefetched

#: Images of a part: what a kill loses at most, and what a Ray worker does at a time.
PART_SIZE = 1024
#: Threads that look up whether the files of finished parts have changed; on a network disk each answer takes a while.
_STAMP_THREADS = 16


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
    return digest.hexdigest()


class PartsFolder:
    """The folder of finished parts beside an output file.

    Parameters
    ----------
    target
        The output file.
    """

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.parts")

    def open(self, manifest: Mapping[str, Any], *, overwrite: bool) -> None:
        """Begin, or resume what a command with the same manifest has begun.

        Parameters
        ----------
        manifest
            What decides the rows, as plain JSON data.
        overwrite
            Delete what a command with another manifest has left.

        Raises
        ------
        InputError
            If the folder holds finished parts of a command with another manifest.
        """
        stored = self._manifest()
        if stored is not None and stored != manifest:
            if not overwrite:
                names = [name for name in manifest if manifest[name] != stored.get(name)]
                raise InputError(
                    f"{self.path} holds finished parts of a command with another {' and '.join(names) or 'version'}: resume "
                    "that one, choose another --out, or discard them with --overwrite"
                )
            self.discard_parts()
        if stored != manifest:
            write_file(self.path / _MANIFEST, json_text(manifest))

    @property
    def has_parts(self) -> bool:
        """Whether a command was stopped after it had finished a part."""
        return next(self._parts(), None) is not None

    def is_finished(self, part: Part) -> bool:
        """Whether the part is stored, and its images have not changed since."""
        header = self._header(part.number)
        if header is None or header.get("images") != len(part.items):
            return False
        stamps = (stamp for _, stamp in prefetched(lambda item: item.place.stamp(), part.items, _STAMP_THREADS))
        return bool(header.get("digest") == digest_of(part.items, stamps))

    def last_part(self) -> int | None:
        """The largest number of a stored part; None if there is none."""
        return max((int(path.stem) for path in self._parts()), default=None)

    def write(self, part: FinishedPart) -> None:
        """Store a finished part."""
        header = json.dumps({"digest": part.digest, "images": len(part.predictions)})
        lines = [header, *(one.as_line() for one in part.predictions)]
        write_file(self._file(part.number), "".join(f"{line}\n" for line in lines))

    def predictions(self, n_parts: int) -> Iterator[Prediction]:
        """The predictions of the first `n_parts` parts, in order."""
        for number in range(n_parts):
            path = self._file(number)
            try:
                with path.open(encoding="utf-8") as file:
                    expected = json.loads(next(file))["images"]
                    found = [Prediction.from_line(line) for line in file]
            except OSError as error:
                raise cannot_read(path, error) from None
            except (ValueError, LookupError, TypeError, StopIteration):
                expected, found = -1, []
            if len(found) != expected:
                raise InputError(f"{path} is damaged; delete it and run the command again")
            yield from found

    def discard_parts(self) -> None:
        """Delete the finished parts."""
        for path in self._parts():
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder."""
        remove_folder(self.path)

    def _file(self, number: int) -> Path:
        return self.path / f"{number:08d}.jsonl"

    def _parts(self) -> Iterator[Path]:
        return self.path.glob("[0-9]*.jsonl")

    def _manifest(self) -> dict[str, Any] | None:
        """The manifest of the finished parts; empty if it is damaged, None if there are no parts."""
        if not self.has_parts:
            return None
        try:
            stored = read_json(self.path / _MANIFEST)
        except InputError:
            return {}
        return stored if isinstance(stored, dict) else {}

    def _header(self, number: int) -> dict[str, Any] | None:
        try:
            with self._file(number).open(encoding="utf-8") as file:
                header = json.loads(file.readline(1000))
        except (OSError, ValueError):
            return None
        return header if isinstance(header, dict) else None


_MANIFEST = "manifest.json"
