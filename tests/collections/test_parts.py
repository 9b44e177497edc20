"""Finished parts: which images and which command they belong to, and that a folder of them is one table."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
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


def begun(path: Path, *, overwrite: bool = False, **manifest: object) -> PartsFolder:
    path.mkdir(exist_ok=True)
    folder = PartsFolder(path)
    folder.begin(manifest, overwrite=overwrite)
    return folder


def test_parts_are_consecutive_and_read_lazily() -> None:
    taken = []
    parts = parts_of((taken.append(item) or item for item in ITEMS), 2)
    assert next(parts) == Part(0, ITEMS[:2]) and len(taken) == 2
    assert list(parts) == [Part(1, ITEMS[2:4]), Part(2, ITEMS[4:])]


def test_a_part_is_finished_only_for_its_images(paths: list[Path], tmp_path: Path) -> None:
    folder = begun(tmp_path / "p", model="a")
    first, second = parts_of(open_collection(paths), 9)
    assert folder.numbers() == [] and folder.finished(first) is None
    folder.write(finished(first))
    folder = begun(tmp_path / "p", model="a")
    assert folder.finished(first) == folder.parts()[0] and folder.numbers() == [0]
    assert folder.finished(second._replace(number=0)) is None and folder.finished(second) is None
    assert folder.finished(Part(0, first.items[:-1])) is None


def test_a_folder_of_parts_is_one_table_in_order(paths: list[Path], tmp_path: Path) -> None:
    folder = begun(tmp_path / "p", model="a")
    parts = [*parts_of(open_collection(paths), 4)]
    written = [folder.write(finished(part)) for part in reversed(parts)]
    folder.complete(written)
    folder.close()
    assert pd.read_parquet(tmp_path / "p")["image"].tolist() == [str(path) for path in paths]
    dataset = pytest.importorskip("pyarrow.dataset").dataset(tmp_path / "p", format="parquet")
    assert dataset.count_rows() == len(paths)
    others = {path.name for path in (tmp_path / "p").iterdir()} - {path.name for path in written}
    assert others == {"_manifest.json", "_SUCCESS"}


def test_another_command_is_refused_and_named_or_its_parts_are_discarded(tmp_path: Path) -> None:
    old = begun(tmp_path / "p", model="a", top=1).write(finished(Part(0, ITEMS)))
    assert begun(tmp_path / "p", model="a", top=1).parts() == [old]
    with pytest.raises(InputError, match=r"p holds .* another model and top: .*--overwrite"):
        begun(tmp_path / "p", model="b", top=2)
    manifest = tmp_path / "p" / "_manifest.json"
    manifest.write_text("[")
    with pytest.raises(InputError, match="another model and top"):
        begun(tmp_path / "p", model="a", top=1)
    assert old.exists()
    assert begun(tmp_path / "p", overwrite=True, model="b", top=2).parts() == []
    assert json.loads(manifest.read_text()) == {"model": "b", "top": 2}


def test_without_finished_parts_nothing_is_left_and_another_manifest_is_not_refused(tmp_path: Path) -> None:
    begun(tmp_path / "p", top=1)
    begun(tmp_path / "p", top=2).close()
    assert not (tmp_path / "p").exists()
