"""Finished parts: which images they belong to, and when they are not used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slimprompt.collections.inputs import Item, open_collection
from slimprompt.collections.parts import FinishedPart, Part, PartsFolder, digest_of, parts_of
from slimprompt.collections.places import Unreadable
from slimprompt.collections.rows import Prediction
from slimprompt.errors import InputError

ITEMS = [Item(f"{number}.png", Unreadable("missing")) for number in range(5)]


def finished(part: Part) -> FinishedPart:
    digest = digest_of(part.items, [item.place.stamp() for item in part.items])
    return FinishedPart(part.number, digest, [Prediction.unreadable(item.image, "missing") for item in part.items])


def test_parts_are_consecutive_and_read_lazily() -> None:
    taken = []
    parts = parts_of((taken.append(item) or item for item in ITEMS), 2)
    assert next(parts) == Part(0, ITEMS[:2]) and len(taken) == 2
    assert list(parts) == [Part(1, ITEMS[2:4]), Part(2, ITEMS[4:])]


def test_a_digest_depends_on_names_stamps_and_order() -> None:
    stamps = ["1", "2", "3", "4", "5"]
    renamed = [*ITEMS[:4], ITEMS[4]._replace(image="other.png")]
    digests = {
        digest_of(ITEMS, stamps),
        digest_of(ITEMS, ["1", "2", "3", "4", "6"]),
        digest_of(ITEMS[::-1], stamps[::-1]),
        digest_of(renamed, stamps),
        digest_of(ITEMS[:4], stamps[:4]),
    }
    assert len(digests) == 5


def test_a_part_is_finished_only_for_its_images(paths: list[Path], tmp_path: Path) -> None:
    folder = PartsFolder(tmp_path / "p.csv")
    folder.open({"model": "a"}, overwrite=False)
    first, second = parts_of(open_collection(paths), 9)
    assert folder.last_part() is None and not folder.is_finished(first)
    folder.write(finished(first))
    assert folder.is_finished(first) and folder.last_part() == 0
    assert not folder.is_finished(second._replace(number=0)) and not folder.is_finished(second)
    assert not folder.is_finished(Part(0, first.items[:-1]))
    folder.write(finished(second))
    assert [one.image for one in folder.predictions(2)] == [str(path) for path in paths]


def test_without_finished_parts_another_manifest_is_not_refused(tmp_path: Path) -> None:
    folder = PartsFolder(tmp_path / "p.csv")
    folder.open({"top": 1}, overwrite=False)
    assert not folder.has_parts
    folder.open({"top": 2}, overwrite=False)
    assert json.loads((folder.path / "manifest.json").read_text()) == {"top": 2}


def test_another_manifest_is_refused_and_named(tmp_path: Path) -> None:
    folder = PartsFolder(tmp_path / "p.csv")
    folder.open({"model": "a", "top": 1}, overwrite=False)
    folder.write(finished(Part(0, ITEMS)))
    folder.open({"model": "a", "top": 1}, overwrite=False)
    with pytest.raises(InputError, match=r"p\.csv\.parts holds .* another model and top: .*--overwrite"):
        folder.open({"model": "b", "top": 2}, overwrite=False)
    (folder.path / "manifest.json").write_text("[")
    with pytest.raises(InputError, match="another model and top"):
        folder.open({"model": "a", "top": 1}, overwrite=False)
    assert folder.last_part() == 0
    folder.open({"model": "b", "top": 2}, overwrite=True)
    assert folder.last_part() is None
    assert json.loads((folder.path / "manifest.json").read_text()) == {"model": "b", "top": 2}


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"[]\n", b'{"images": 5, "digest": "x"}\n{"image": 3}\n'])
def test_a_damaged_part_is_predicted_again_or_refused(tmp_path: Path, damage: bytes) -> None:
    folder, part = PartsFolder(tmp_path / "p.csv"), Part(0, ITEMS)
    folder.open({}, overwrite=False)
    folder.write(finished(part))
    (folder.path / "00000000.jsonl").write_bytes(damage)
    assert not folder.is_finished(part)
    with pytest.raises(InputError, match=r"00000000\.jsonl is damaged; delete it"):
        list(folder.predictions(1))
