from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slimprompt.data import Benchmark, apply_manifest, base_new, few_shot, make_manifest, read_manifest, write_manifest
from slimprompt.errors import InputError


@pytest.fixture
def draw(small: Benchmark) -> Benchmark:
    return few_shot(small, 2, seed=3)


def test_written_and_read_back(draw: Benchmark, tmp_path: Path) -> None:
    manifest = make_manifest(draw, shots=2, seed=3)
    write_manifest(manifest, tmp_path / "manifest.json")
    assert read_manifest(tmp_path / "manifest.json") == manifest
    data = json.loads((tmp_path / "manifest.json").read_text())
    first = draw.train[0]
    assert data["train"][0] == {
        "path": first.path,
        "label": first.label,
        "sha256": hashlib.sha256(draw.path(first).read_bytes()).hexdigest(),
    }
    assert str(tmp_path) not in (tmp_path / "manifest.json").read_text(), "no folder of this machine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "manifest.json"]


def test_given_back_on_another_machine(small: Benchmark, draw: Benchmark, tmp_path: Path) -> None:
    write_manifest(make_manifest(draw), tmp_path / "manifest.json")
    shutil.move(tmp_path / "images", tmp_path / "moved")
    there = replace(small, images=tmp_path / "moved")
    again = apply_manifest(read_manifest(tmp_path / "manifest.json"), there)
    assert (again.train, again.val, again.test) == (draw.train, draw.val, small.test)
    base, _ = base_new(there)
    base_draw, _ = base_new(draw)
    assert apply_manifest(make_manifest(replace(base_draw, images=tmp_path / "moved")), base).train == base_draw.train


def test_without_hashes_no_picture_is_needed(small: Benchmark, draw: Benchmark) -> None:
    shutil.rmtree(small.images)
    manifest = make_manifest(draw, hashes=False)
    assert apply_manifest(manifest, small).train == draw.train
    with pytest.raises(InputError, match="no such image|cannot read"):
        make_manifest(draw)


def test_changed_and_missing_pictures(small: Benchmark, draw: Benchmark) -> None:
    manifest = make_manifest(draw)
    victim = draw.path(draw.train[1])
    victim.write_bytes(victim.read_bytes() + b" ")
    with pytest.raises(InputError, match=rf"1 of 12 images .* not the ones of the manifest: {draw.train[1].path}"):
        apply_manifest(manifest, small)
    assert apply_manifest(manifest, small, verify=False).train == draw.train
    victim.unlink()
    with pytest.raises(InputError, match=f"1 of 12 images of the manifest are not in .*: {draw.train[1].path}"):
        apply_manifest(manifest, small)


def test_other_classes(small: Benchmark, draw: Benchmark) -> None:
    with pytest.raises(InputError, match=r"for small with 3 classes .*but the data are small with 2 classes"):
        apply_manifest(make_manifest(draw), base_new(small)[0])


def test_training_images_may_not_be_tested_on(small: Benchmark, draw: Benchmark) -> None:
    leaking = replace(draw, train=(*draw.train, small.test[0]))
    with pytest.raises(InputError, match=f"in the test part of small, e.g. {small.test[0].path}"):
        apply_manifest(make_manifest(leaking), small)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "is not a manifest"),
        ({"train": [{"path": "../a.png", "label": 0, "sha256": None}]}, "leaves the images folder"),
        ({"train": [{"path": "a.png", "label": 3, "sha256": None}]}, "has the label 3, but there are 3 classes"),
        ({"train": [{"path": "a.png", "label": 0, "sha256": "12"}]}, "has the hash '12'"),
        ({"train": [{"path": "a.png"}]}, "damaged manifest"),
        ({"train": None}, "damaged manifest"),
    ],
)
def test_bad_manifests(change: dict[str, object], message: str, draw: Benchmark, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(make_manifest(draw), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        read_manifest(path)


def test_unreadable_and_unwritable(draw: Benchmark, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"format":')
    with pytest.raises(InputError, match="cannot read the manifest"):
        read_manifest(tmp_path / "half.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_manifest(make_manifest(draw), tmp_path / "half.json" / "below a file.json")
