"""The progress bar: visible on a terminal, silent elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import threading
from slimprompt.progress import progress
with progress("encoding", 3, "images", show={show}) as advance:
    for _ in range(3):
        advance(note="loss [0.5]")
    assert threading.active_count() == 1  # the process may be forked
with progress("predicting", show={show}) as advance:
    advance()
    advance(total=2)
print("done")
"""


def on_a_terminal(show: bool) -> str:
    """What the script writes to standard error when that is a terminal."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    variables = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", SCRIPT.format(show=show)]
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, text=True, env=variables)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.communicate()[0] == "done\n"
    return shown.decode()


def test_a_bar_with_count_time_left_and_note_on_a_terminal() -> None:
    shown = on_a_terminal(show=True)
    for part in ("encoding", "3/3", "images", "0:00:00", "loss [0.5]", "1/?", "2/2"):
        assert part in shown


def test_no_bar_if_told_so() -> None:
    assert on_a_terminal(show=False) == ""
