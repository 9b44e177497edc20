from pathlib import Path

import pytest

from slimprompt.errors import InputError
from slimprompt.report.folder import write_result_folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".contents"
    }


def test_the_folder_is_exactly_the_last_result(tmp_path: Path):
    for files in ({"a.txt": "1", "sub/b": b"\0"}, {"sub/c.txt": "é"}, {"caf\udce9": "caf\udce9"}):
        write_result_folder(tmp_path / "out", files)
        wanted = {
            name: content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
            for name, content in files.items()
        }
        assert contents(tmp_path / "out") == wanted
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["notes.txt", "sub/notes.txt"])
def test_files_of_somebody_else_are_refused_and_kept(tmp_path: Path, name: str):
    out = tmp_path / "out"
    write_result_folder(out, {"sub/a.txt": "1"})
    (out / name).write_text("mine")
    before = contents(out)
    with pytest.raises(InputError, match=f"{name}.*[Gg]ive another folder"):
        write_result_folder(out, {"sub/a.txt": "2"})
    assert contents(out) == before


def test_a_link_to_the_folder_stays(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for text in "12":
        write_result_folder(tmp_path / "link", {"a.txt": text})
        assert (tmp_path / "link").is_symlink() and contents(tmp_path / "real") == {"a.txt": text.encode()}
