"""A folder that holds exactly one result: written beside it, and put in its place when it is complete."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from slimprompt.errors import InputError, first_few
from slimprompt.files import check_folder, draft_folder, publish, read_text

#: Lists the files of the folder, one per line, so that the next result replaces this one and nothing else.
CONTENTS = ".contents"


def check_result_folder(folder: Path) -> None:
    """Raise an `InputError` unless `folder` can be written and is missing, empty or an earlier result."""
    check_folder(folder)
    if foreign := _foreign(folder):
        raise InputError(
            f"{folder} holds files that are not of an earlier result: {first_few(foreign)}; they would be mixed with the new ones. "
            "Give another folder, or remove them"
        )


def write_result_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Make `folder` hold exactly these files (path in the folder → content); an earlier result is replaced as a whole."""
    check_result_folder(folder)
    target = folder.resolve()  # a link keeps leading to the folder
    with draft_folder(target) as draft:
        for name, content in {**files, CONTENTS: "\n".join(sorted(files)) + "\n"}.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            # A file name that is not UTF-8 is written with escapes.
            (draft / name).write_bytes(
                content.encode(errors="backslashreplace") if isinstance(content, str) else content
            )
        publish(draft, target)


def _foreign(folder: Path) -> list[str]:
    """The first few files in a folder that no earlier result put there."""
    ours = {CONTENTS, *(read_text(folder / CONTENTS).splitlines() if (folder / CONTENTS).is_file() else ())}
    present = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return list(islice((name for path in present if (name := path.relative_to(folder).as_posix()) not in ours), 4))
