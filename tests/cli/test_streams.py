"""Printing never fails: closed streams, a reader that has gone, a full disk, characters that the terminal lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import QUICK
from tests.fork_server import start_command

PRINT = """
import sys
from slimprompt.cli.streams import output_error, safe_streams
safe_streams()
print("“é” " * 20_000)
print("“é”", file=sys.stderr)
error = output_error()
open(sys.argv[1], "w").write("none" if error is None else error.strerror)
"""
#: Redirections of a shell, environment variables, and what `output_error` says.
CASES = {
    "reader gone": ("| true", {}, "none"),
    "reader takes one line": ("| head -1", {}, "none"),
    "stdout closed": (">&-", {}, "none"),
    "stderr closed": ("2>&-", {}, "none"),
    "all closed": ("<&- >&- 2>&-", {}, "none"),
    "full disk": ("> /dev/full", {}, "No space left on device"),
    "full disk of messages": ("2> /dev/full", {}, "none"),
    "ascii": ("", {"PYTHONIOENCODING": "ascii"}, "none"),
    "latin": ("", {"PYTHONIOENCODING": "iso-8859-1:strict"}, "none"),
}


def shell(command: list[str], redirection: str, variables: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    line = f'set -o pipefail; "$@" {redirection}'
    return subprocess.run(["bash", "-c", line, "bash", *command], env=environment, capture_output=True, check=False)


@pytest.mark.parametrize(("redirection", "variables", "expected"), CASES.values(), ids=CASES)
def test_printing_never_fails(redirection: str, variables: dict[str, str], expected: str, tmp_path: Path) -> None:
    done = shell([sys.executable, "-c", PRINT, str(tmp_path / "told")], redirection, variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told").read_text() == expected
    assert b"Exception" not in done.stderr and b"Error" not in done.stderr
    if variables:
        assert done.stdout.startswith(b"??? " if variables["PYTHONIOENCODING"] == "ascii" else b"?\xe9? ")


def test_a_closed_stream_leaves_no_free_number(tmp_path: Path) -> None:
    """Otherwise the next file that is opened is standard output, and native code would print into it."""
    script = f"from slimprompt.cli.streams import safe_streams; safe_streams(); print(open({str(tmp_path / 'x')!r}, 'w').fileno(), file=open({str(tmp_path / 'n')!r}, 'w'))"
    shell([sys.executable, "-c", script], "<&- >&- 2>&-", {})
    assert int((tmp_path / "n").read_text()) > 2


def check_fit(folder: Path, code: int, errors: str, error: str) -> None:
    """The prompt is there, and the exit code tells whether the output was written."""
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors"]
    assert code == (0 if error == "none" else 2), errors
    assert "Traceback" not in errors and "bug" not in errors
    if error != "none":
        assert f"the output could not be written completely: {error}" in errors


@pytest.mark.slow
@pytest.mark.parametrize("case", ["reader gone", "all closed", "full disk"])
def test_fit_saves_its_prompt_whatever_happens_to_its_output(
    case: str, tiny_folder: str, photos: Path, tmp_path: Path
) -> None:
    gone, write = os.pipe()
    os.close(gone)
    with open("/dev/full", "w") as full:
        streams: dict[str, dict[int, int | None]] = {
            "reader gone": {1: write},
            "all closed": dict.fromkeys((0, 1, 2)),
            "full disk": {1: full.fileno()},
        }
        command = ["fit", photos, "--out", tmp_path / "p", "--backbone", tiny_folder, *QUICK[QUICK.index("--set") :]]
        process = start_command(command, streams=streams[case])
    os.close(write)
    _, errors = process.communicate(timeout=120)
    assert process.returncode is not None
    check_fit(tmp_path / "p", process.returncode, errors, CASES[case][2])
