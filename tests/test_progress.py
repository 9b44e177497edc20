"""The progress bar: visible on a terminal, silent elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count

import pytest

from slimprompt.errors import InputError
from slimprompt.progress import progress

SCRIPT = """
import threading
from slimprompt.progress import progress
with progress("encoding", 3, "images", show={show}, threads={threads}) as advance:
    for _ in range(3):
        advance(note="loss 0.5")
    assert threading.active_count() == (2 if {threads} and {show} else 1)
print("done")
"""


def on_a_terminal(show: bool, threads: bool = True) -> str:
    """What the script writes to standard error when that is a terminal."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    variables = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", SCRIPT.format(show=show, threads=threads)]
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


@pytest.mark.parametrize("threads", [True, False])
def test_a_bar_with_count_and_note_on_a_terminal(threads: bool) -> None:
    shown = on_a_terminal(show=True, threads=threads)
    assert "encoding" in shown
    assert "3/3" in shown
    assert "loss 0.5" in shown
    assert "0:00:00" in shown  # time left


def test_no_bar_if_told_so() -> None:
    assert on_a_terminal(show=False) == ""


def test_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("encoding", 3) as advance:
        advance(2, note="half")
    assert capsys.readouterr() == ("", "")


def forecast(total: int, capsys: pytest.CaptureFixture[str], *, steps: int = 30, **options: object) -> str:
    """What is printed about work of which a step takes one second."""
    ticks = count()
    with progress("training", total, "steps", clock=lambda: float(next(ticks)), **options) as advance:  # type: ignore[arg-type]
        for _ in range(min(total, steps)):
            advance()
            advance(0, note="no step")
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_long_work_is_forecast_once_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast(2 * 3600, capsys) == "training: 7,200 steps will take about 2 h 00 min; Ctrl-C stops\n"
    assert forecast(2 * 3600, capsys, at_most=True).startswith("training: 7,200 steps will take at most 2 h")


def test_short_work_and_the_first_seconds_are_not_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast(500, capsys) == ""
    assert forecast(7200, capsys, steps=4) == ""
    assert forecast(7200, capsys, show=False) == ""


def test_work_that_cannot_end_is_refused_if_something_can_be_lowered(capsys: pytest.CaptureFixture[str]) -> None:
    days = 40 * 86400
    with pytest.raises(InputError, match=r"^training: 3,456,000 steps will take about 40 days, .*; lower --epochs$"):
        forecast(days, capsys, lower="--epochs")
    assert "about 40 days; Ctrl-C stops" in forecast(days, capsys)
    assert "about 20 days" in forecast(days // 2, capsys, lower="--epochs")


def test_lines_without_a_terminal_if_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress("predicting", None, "images", line_every=0) as advance:
        advance(1000)
        advance(500, total=1500, note="almost")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("predicting: 1,000 images, ") and first.endswith(" images/s")
    assert second.startswith("predicting: 1,500 of 1,500 images, ") and second.endswith(" 0.0 s left, almost")
    monkeypatch.setattr("slimprompt.progress.time.monotonic", count(step=4).__next__)  # a rate below one is not shown
    with progress("figures", 2, "parts", line_every=0) as advance:
        advance()
    assert capsys.readouterr().err == "figures: 1 of 2 parts, 4.0 s left\n"
    with progress("predicting", 10, "images", line_every=3600) as advance:
        advance(10)
    assert capsys.readouterr().err == ""
