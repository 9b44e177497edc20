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
def sample(small: Benchmark) -> Benchmark:
    return few_shot(small, 2, seed=3)


def test_round_trip(sample: Benchmark, tmp_path: Path) -> None:
    manifest = make_manifest(sample, shots=2, seed=3)
    write_manifest(manifest, tmp_path / "manifest.json")
    assert read_manifest(tmp_path / "manifest.json") == manifest
    data = json.loads((tmp_path / "manifest.json").read_text())
    first = sample.train[0]
    assert data["train"][0] == {
        "path": first.path,
        "label": first.label,
        "sha256": hashlib.sha256(sample.path(first).read_bytes()).hexdigest(),
    }
    assert str(tmp_path) not in (tmp_path / "manifest.json").read_text(), "no absolute paths"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "manifest.json"]


def test_apply_to_a_moved_folder(small: Benchmark, sample: Benchmark, tmp_path: Path) -> None:
    write_manifest(make_manifest(sample), tmp_path / "manifest.json")
    shutil.move(tmp_path / "images", tmp_path / "moved")
    there = replace(small, images=tmp_path / "moved")
    again = apply_manifest(read_manifest(tmp_path / "manifest.json"), there)
    assert (again.train, again.val, again.test) == (sample.train, sample.val, small.test)
    base, _ = base_new(there)
    base_sample, _ = base_new(sample)
    assert (
        apply_manifest(make_manifest(replace(base_sample, images=tmp_path / "moved")), base).train == base_sample.train
    )


def test_without_hashes_images_need_not_exist(small: Benchmark, sample: Benchmark) -> None:
    shutil.rmtree(small.images)
    manifest = make_manifest(sample, hashes=False)
    assert apply_manifest(manifest, small).train == sample.train
    with pytest.raises(InputError, match="no such image|cannot read"):
        make_manifest(sample)


def test_changed_and_missing_images(small: Benchmark, sample: Benchmark) -> None:
    manifest = make_manifest(sample)
    victim = sample.path(sample.train[1])
    victim.write_bytes(victim.read_bytes() + b" ")
    with pytest.raises(
        InputError, match=rf"1 of 12 images .* differ from those of the manifest: {sample.train[1].path}"
    ):
        apply_manifest(manifest, small)
    assert apply_manifest(manifest, small, verify=False).train == sample.train
    victim.unlink()
    with pytest.raises(InputError, match=f"1 of 12 images of the manifest are not in .*: {sample.train[1].path}"):
        apply_manifest(manifest, small)


def test_different_classes(small: Benchmark, sample: Benchmark) -> None:
    with pytest.raises(InputError, match=r"for small with 3 classes .*but the dataset is small with 2 classes"):
        apply_manifest(make_manifest(sample), base_new(small)[0])


def test_training_on_test_images_is_refused(small: Benchmark, sample: Benchmark) -> None:
    leaking = replace(sample, train=(*sample.train, small.test[0]))
    with pytest.raises(InputError, match=f"in the test split of small, e.g. {small.test[0].path}"):
        apply_manifest(make_manifest(leaking), small)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "is not a manifest"),
        ({"train": [{"path": "../a.png", "label": 0, "sha256": None}]}, "path inside the images folder"),
        ({"train": [{"path": "a\0b", "label": 0, "sha256": None}]}, "path inside the images folder"),
        ({"train": [{"path": "a.png", "label": 3, "sha256": None}]}, "has the label 3, but there are 3 classes"),
        ({"train": [{"path": "a.png", "label": "1", "sha256": None}]}, "damaged manifest: train.*label"),
        ({"train": [{"path": "a.png", "label": 0, "sha256": "12"}]}, "damaged manifest: train.*sha256.*'12'"),
        ({"train": [{"path": "a.png"}]}, "damaged manifest"),
        ({"train": None}, "damaged manifest"),
        ({"train": [5]}, "damaged manifest"),
        ({"class_names": "cat"}, "damaged manifest: class_names"),
        ({"class_names": ["a", 3]}, "damaged manifest: class_names"),
        ({"shots": "x" * 5000}, "damaged manifest: shots.*'xxx"),
    ],
)
def test_bad_manifests(change: dict[str, object], message: str, sample: Benchmark, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(make_manifest(sample), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message) as caught:
        read_manifest(path)
    assert len(str(caught.value)) < 400


def test_unreadable_and_unwritable(sample: Benchmark, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"format":')
    with pytest.raises(InputError, match="cannot read the manifest"):
        read_manifest(tmp_path / "half.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_manifest(make_manifest(sample), tmp_path / "half.json" / "inside a file.json")


def test_a_manifest_names_every_class(sample: Benchmark, small: Benchmark) -> None:
    manifest = make_manifest(sample)
    without = replace(manifest, train=tuple(item for item in manifest.train if item.label != 1))
    with pytest.raises(InputError, match=f"the manifest has no training images of '{small.class_names[1]}' \\(1 of"):
        apply_manifest(without, small)


@pytest.mark.parametrize("path", ["a" * 3000, "\ud800"])
def test_impossible_paths_are_missing_images(sample: Benchmark, small: Benchmark, path: str) -> None:
    manifest = make_manifest(sample)
    changed = replace(manifest, train=(manifest.train[0]._replace(path=path), *manifest.train[1:]))
    with pytest.raises(InputError, match="1 of .* images of the manifest are not in") as caught:
        apply_manifest(replace(changed, val=()), small)
    assert len(str(caught.value)) < 400


def test_file_names_that_are_not_utf8(sample: Benchmark, tmp_path: Path) -> None:
    first = sample.train[0]._replace(path="caf\udce9.png")
    manifest = make_manifest(replace(sample, train=(first, *sample.train[1:])), hashes=False)
    write_manifest(manifest, tmp_path / "manifest.json")
    assert read_manifest(tmp_path / "manifest.json") == manifest


def test_two_classes_may_have_the_same_name(small: Benchmark, tmp_path: Path) -> None:
    """As in ImageNet, where classes are told apart by their folders."""
    same = replace(small, class_names=("crane", "crane", *small.class_names[2:]))
    sample = few_shot(same, 2, seed=1)
    write_manifest(make_manifest(sample, shots=2, seed=1), tmp_path / "manifest.json")
    applied = apply_manifest(read_manifest(tmp_path / "manifest.json"), same)
    assert [(item.path, item.label) for item in applied.train] == [(item.path, item.label) for item in sample.train]
