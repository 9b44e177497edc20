"""Hashes of files are remembered across processes, and computed again when a file may have changed."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from slimprompt.errors import InputError
from slimprompt.files import sha256
from slimprompt.images import hashes
from slimprompt.images.hashes import FileHashes


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "images" / f"{number}.png" for number in range(3)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose hash was computed."""
    names: list[str] = []
    original = hashes.file_sha256
    monkeypatch.setattr(hashes, "file_sha256", lambda path: (names.append(path.name), original(path))[1])
    return names


def later() -> int:
    return time.time_ns() + 3 * 10**9


def find(path: Path | None, files: list[Path], clock=later) -> list[str | InputError]:
    """By a new object, as in another process."""
    return FileHashes(path, workers=2, clock=clock).find(files)


def test_every_file_is_hashed_once(files: list[Path], tmp_path: Path, hashed: list[str]) -> None:
    expected = [sha256(path) for path in files]
    for _ in range(3):
        assert find(tmp_path / "hashes.db", files) == expected
    assert sorted(hashed) == [path.name for path in files]


def test_a_new_file_is_not_remembered_before_its_times_have_settled(
    files: list[Path], tmp_path: Path, hashed: list[str]
) -> None:
    changed = files[0].stat().st_ctime_ns
    for _ in range(2):
        find(tmp_path / "hashes.db", files[:1], clock=lambda: changed + 1_999_999_999)
    assert len(hashed) == 2
    for _ in range(2):
        find(tmp_path / "hashes.db", files[:1], clock=lambda: changed + 2_000_000_001)
    assert len(hashed) == 3


@pytest.mark.parametrize("change", ["content", "time", "replaced", "inode"])
def test_a_changed_file_is_hashed_again(files: list[Path], tmp_path: Path, change: str, hashed: list[str]) -> None:
    path = files[1]
    find(tmp_path / "hashes.db", files)
    before = path.stat()
    if change == "content":
        path.write_bytes(b"longer than before")
    elif change == "time":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - 10**9))
    else:  # of the same size and, if possible, with the same times
        other = tmp_path / "other"
        other.write_bytes(path.read_bytes()[::-1] if change == "replaced" else path.read_bytes())
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(path)
    hashed.clear()
    assert find(tmp_path / "hashes.db", files) == [sha256(file) for file in files]
    assert hashed == [path.name]


def test_unreadable_files_are_errors_and_not_remembered(files: list[Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing.png"
    for _ in range(2):
        found = find(tmp_path / "hashes.db", [files[0], missing, tmp_path])
        assert found[0] == sha256(files[0])
        assert "no such image" in str(found[1]) and "is a folder" in str(found[2])
    missing.write_bytes(b"now")
    assert find(tmp_path / "hashes.db", [missing]) == [sha256(missing)]


@pytest.mark.parametrize("state", ["damaged", "folder", "locked", "other tables", "nowhere"])
def test_remembered_hashes_that_cannot_be_used_only_cost_time(
    files: list[Path], tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = tmp_path / "hashes.db", [sha256(file) for file in files]
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout: connect(path, timeout=timeout / 20))
    database = connect(path)
    if state == "damaged":
        path.write_bytes(b"not a database" * 1000)
    elif state == "folder":
        path.unlink()
        path.mkdir()
    elif state == "locked":
        database.execute("BEGIN EXCLUSIVE")
    elif state == "other tables":
        database.execute("CREATE TABLE files (something TEXT)")
    else:
        path = files[0] / "hashes.db"
    for _ in range(2):
        assert find(path, files) == expected
    database.close()


def test_large_inodes(files: list[Path], tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Network disks have inodes that SQLite cannot store."""
    stat = os.stat

    def with_large_inode(path: Any, **options: Any) -> os.stat_result:
        facts = stat(path, **options)
        return os.stat_result((facts[0], 2**63 + facts[1], *facts[2:10]), {"st_mtime_ns": 1, "st_ctime_ns": 1})

    monkeypatch.setattr(os, "stat", with_large_inode)
    first = FileHashes(tmp_path / "hashes.sqlite").find(files)
    assert FileHashes(tmp_path / "hashes.sqlite").find(files) == first
    assert len(hashed) == len(files)  # remembered


def test_paths_that_are_not_text(tmp_path: Path, hashed: list[str]) -> None:
    path = tmp_path / "a\udce9.png"
    path.write_bytes(b"some")
    for _ in range(2):
        assert find(tmp_path / "hashes.db", [path]) == [sha256(path)]
    assert len(hashed) == 1
