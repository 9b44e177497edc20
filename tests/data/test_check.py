from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slimprompt.data import Benchmark, check_benchmark, check_images, load_benchmark
from slimprompt.data.manifest import list_all
from slimprompt.errors import InputError
from slimprompt.images.decode import file_sha256


def test_complete_benchmark(small: Benchmark) -> None:
    calls = []
    report = check_benchmark(small, advance=lambda: calls.append(1))
    assert report.ok
    assert len(calls) == len(report.sha256) == 27
    assert report.sha256["dog/3.png"] == file_sha256(small.images / "dog/3.png")
    assert list_all(small, report.sha256).test[0].sha256 == report.sha256[small.test[0].path]
    check_images(small)


def test_missing_images_are_named_and_counted(small: Benchmark) -> None:
    for name in ("cat/1.png", "dog/0.png", "dog/7.png", "eel/8.png"):
        (small.images / name).unlink()
    message = r"4 of 27 images of small are missing in .*images: cat/1\.png, dog/0\.png, dog/7\.png, …"
    with pytest.raises(InputError, match=message):
        check_images(small)
    report = check_benchmark(small)
    assert report.missing == ["cat/1.png", "dog/0.png", "dog/7.png", "eel/8.png"]
    assert not report.ok
    assert len(report.sha256) == 23


def test_corrupt_images_do_not_stop_the_check(small: Benchmark) -> None:
    (small.images / "cat/2.png").write_bytes(b"not an image")
    whole = (small.images / "eel/4.png").read_bytes()
    (small.images / "eel/4.png").write_bytes(whole[: len(whole) // 2])
    report = check_benchmark(small, workers=2)
    assert set(report.unreadable) == {"cat/2.png", "eel/4.png"}
    assert all(path in problem for path, problem in report.unreadable.items())
    assert len(report.sha256) == 27


def test_digest_changes_with_the_images(small: Benchmark, tmp_path: Path) -> None:
    digest = check_benchmark(small).digest
    shutil.copytree(small.images, tmp_path / "copy")
    copy = replace(small, images=tmp_path / "copy")
    assert check_benchmark(copy, workers=1).digest == digest
    shutil.copyfile(copy.images / "cat/0.png", copy.images / "cat/1.png")
    assert check_benchmark(copy).digest != digest


@pytest.mark.parametrize("name", ["caltech101", "oxford_flowers", "oxford_pets"])
def test_downloaded_benchmarks_have_all_images(name: str, data_root: Path) -> None:
    check_images(load_benchmark(name, data_root))


@pytest.mark.filterwarnings("ignore:DTD")
def test_benchmark_without_images(dtd_root: Path) -> None:
    with pytest.raises(InputError, match=r"376 of 376 images of dtd are missing .*class0/0\.jpg"):
        check_images(load_benchmark("dtd", dtd_root))
