from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from slimprompt import files
from slimprompt.errors import InputError


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "below" / "file.txt"
    assert files.write_file(target, "é") == target
    assert target.read_bytes() == "é".encode()
    with suppress(KeyError), files.new_file(target) as draft:
        draft.write_text("half")
        raise KeyError
    assert target.read_text(encoding="utf-8") == "é"
    assert [path.name for path in target.parent.iterdir()] == ["file.txt"]


def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for refused in (files.check_files, lambda path: files.write_file(path, "text")):
        with pytest.raises(InputError):
            refused(pipe)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_file(tmp_path / "file", "")
        with files.draft_folder(tmp_path / "folder") as draft:
            files.publish(draft, tmp_path / "folder")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder")]
    assert modes == [0o640, 0o750]


def test_a_folder_is_published_replaced_and_removed(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for content in ("one", "two"):
        with files.draft_folder(target) as draft:
            (draft / "file").write_text(content)
            files.publish(draft, target)
        assert (target / "file").read_text() == content
    with files.draft_folder(target) as draft:
        (draft / "file").write_text("never published")
    assert (target / "file").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    files.remove_folder(target)
    assert list(tmp_path.iterdir()) == []


def leave_a_folder_and_a_file(folder: Path) -> None:
    """What a process leaves that is killed while it writes."""
    script = (
        "import os, sys, pathlib; from slimprompt import files\n"
        "kept = files.draft_folder(pathlib.Path(sys.argv[1])); kept.__enter__(); open(files._temporary(pathlib.Path(sys.argv[2])), 'w')\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(folder / "run.one"), str(folder / "page.html")], check=False)


def test_leftovers_of_dead_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / ".mine.tmp").write_text("")
    (tmp_path / f".x.{files._host()}.{10**30}.0.tmp").write_text("")  # no process has such a number
    with files.draft_folder(tmp_path / "busy") as draft:
        leave_a_folder_and_a_file(tmp_path)
        assert len(list(tmp_path.iterdir())) == 4
        assert files.remove_leftovers(tmp_path) == 2
        assert draft.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [".mine.tmp"]


def test_the_next_writer_removes_leftovers(tmp_path: Path) -> None:
    for name in ("file", "folder"):
        leave_a_folder_and_a_file(tmp_path / name)
    files.write_file(tmp_path / "file" / "new", "")
    with files.draft_folder(tmp_path / "folder" / "new") as draft:
        files.publish(draft, tmp_path / "folder" / "new")
    assert [path.name for name in ("file", "folder") for path in (tmp_path / name).iterdir()] == ["new", "new"]


def test_a_leftover_of_an_earlier_process_with_our_number_is_removed(tmp_path: Path) -> None:
    """After a restart of a container, processes have the same numbers again."""
    ours = files._temporary(tmp_path / "x")
    ours.write_text("")
    earlier = ours.with_name(ours.name.replace(files._PROCESS, "0" * len(files._PROCESS)))
    earlier.write_text("")
    assert files.remove_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == [ours]


def test_hash_of_bytes_and_of_a_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000  # more than one chunk
    (tmp_path / "file").write_bytes(content)
    assert files.sha256(tmp_path / "file") == files.sha256(content)
    assert files.sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_only_regular_text_files_of_limited_size_are_read(tmp_path: Path) -> None:
    pipe, large, binary, fits = (tmp_path / name for name in ("pipe", "large", "binary", "fits"))
    os.mkfifo(pipe)
    large.write_text("x" * 11)
    binary.write_bytes(b"\xff")
    fits.write_bytes(b"\xef\xbb\xbf0123456")
    names = [tmp_path / name for name in ("none", "a" * 300, "a\0b")]
    for path in (pipe, Path("/dev/zero"), tmp_path, large, binary, *names):
        with pytest.raises(InputError):
            files.read_text(path, most=10)
    assert files.read_text(fits, most=10) == "0123456"


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "", "9" * 5000, '{"a": \x00}'])
def test_a_file_that_is_not_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match="a.json is not a readable JSON file"):
        files.read_json(tmp_path / "a.json")


def test_names_that_are_not_utf8_survive_in_json(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.json", json.dumps("caf\udce9 é", ensure_ascii=False))
    assert files.read_json(tmp_path / "a.json") == "caf\udce9 é"


def test_a_target_is_checked_before_the_work(tmp_path: Path) -> None:
    for name in ("file", "table.csv", "page.HTM"):
        (tmp_path / name).write_text("mine")
    files.check_writable(tmp_path / "a" / "b" / "c")
    files.check_writable(tmp_path / "file")
    files.check_folder(tmp_path)
    files.check_files(tmp_path / "file", None, tmp_path / "a" / "b")
    files.check_outputs(table=tmp_path / "new.CSV", page=tmp_path / "new.html")
    files.check_outputs(table=tmp_path / "table.csv", page=tmp_path / "page.HTM", overwrite=True)
    refused: list[Callable[[], object]] = [
        *(partial(files.check_writable, path) for path in (tmp_path / "file" / "x", tmp_path / ("a" * 300))),
        partial(files.check_folder, tmp_path / "file"),
        partial(files.check_files, None, tmp_path),
        partial(files.check_files, tmp_path / "a", tmp_path / "b" / ".." / "a"),  # one name twice
        partial(files.check_outputs, table=tmp_path / "new.txt"),
        partial(files.check_outputs, page=tmp_path / "new"),
        partial(files.check_outputs, page=tmp_path / "page.HTM"),
    ]
    for check in refused:
        with pytest.raises(InputError):
            check()
    with pytest.raises(InputError, match=r"table\.csv exists already; choose another name, or add --overwrite"):
        files.check_outputs(table=tmp_path / "table.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "page.HTM", "table.csv"]


def test_a_folder_is_locked_by_one_and_may_be_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with files.locked_folder(folder, "writing x.csv"):
        with (
            pytest.raises(InputError, match="another command is writing x.csv; wait"),
            files.locked_folder(folder, "writing x.csv"),
        ):
            pass
        files.remove_folder(folder)
    assert list((tmp_path / "new").iterdir()) == []
    with files.locked_folder(folder, "writing x.csv"):
        assert folder.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"), files.locked_folder(tmp_path / "file" / "x", "writing"):
        pass
