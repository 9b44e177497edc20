"""Commands of the fork server are processes of their own: streams, exit codes, environment, working folder.

What signals do to them is tested by `tests/cli/test_study.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from slimprompt import __version__
from tests.fork_server import start_command


def test_streams_and_exit_codes(tmp_path: Path) -> None:
    right = start_command(["--version"])
    assert right.communicate() == (f"slimprompt {__version__}\n", "")
    assert right.returncode == 0 and right.pid != os.getpid()
    wrong = start_command(["runs", "list", "--runs", "nowhere"], cwd=tmp_path)
    output, errors = wrong.communicate()
    assert wrong.returncode == 2 and output == ""
    assert errors.startswith("error: no runs folder at nowhere")
    both = start_command(["runs", "list", "--runs", "nowhere"], cwd=tmp_path, one_stream=True)
    assert both.communicate()[0] == errors


def test_environment(tmp_path: Path) -> None:
    variables = {**os.environ, "SLIMPROMPT_CACHE": str(tmp_path / "mine"), "COLUMNS": "200"}
    assert str(tmp_path / "mine") in start_command(["cache", "show"], environment=variables).communicate()[0]
