from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from slimprompt.cli.laboratory import add_commands
from slimprompt.errors import InputError
from slimprompt.paper.contents import PAPER
from tests.synthetic_runs import write_run

app = Typer()
add_commands(app, lambda: PAPER)


STAGES = ("reading runs", "geometry", "tables and figures")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in (1, 2):
        for shots in (1, 4):
            write_run(
                tmp_path / "runs",
                {"backbone": "pocket", "dataset": "dtd", "shots": shots, "seed": seed, "variant": "dense"},
            )
    return tmp_path / "runs"


def test_a_page_is_written_and_overwritten(runs: Path, tmp_path: Path):
    """Missing parts are named."""
    page = tmp_path / "page" / "index.html"
    arguments = ["report", str(runs), "--out", str(tmp_path / "page")]
    outcome = CliRunner().invoke(app, [*arguments, "--where", "shots=4"], catch_exceptions=False)
    assert outcome.exit_code == 0
    assert "2 runs" in page.read_text(encoding="utf-8")
    assert "reading" not in outcome.stderr  # no bar without a terminal
    assert "2 runs," in outcome.output and f"open {tmp_path / 'page' / 'index.html'}" in outcome.output
    assert "no runs yet for: gain_over_dense" in outcome.output
    assert "pocket world: a stand-in, not the paper's results" in outcome.output

    write_run(runs, {"backbone": "pocket", "dataset": "dtd", "shots": 1, "seed": 1, "variant": "joint", "rank": 2})
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert again.exit_code == 0
    assert "5 runs" in page.read_text(encoding="utf-8")


def test_a_folder_without_a_theory_result_is_an_error_before_the_runs_are_read(tmp_path: Path):
    with pytest.raises(InputError, match="holds no theory result"):
        CliRunner().invoke(
            app,
            ["report", str(tmp_path / "no-runs"), "--theory", str(tmp_path), "--out", str(tmp_path / "page")],
            catch_exceptions=False,
        )


def test_no_runs_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match="no runs folder"):
        CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")], catch_exceptions=False)


def test_every_stage_has_a_bar_on_a_terminal(runs: Path, tmp_path: Path):
    pty = pytest.importorskip("pty")
    write_run(runs, {"backbone": "pocket", "dataset": "dtd", "shots": 1, "seed": 1, "variant": "joint", "rank": 2})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "slimprompt", "report", str(runs), "--out", str(tmp_path / "page")],
        stderr=theirs,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert "5 runs," in process.communicate()[0] and process.returncode == 0
    places = [shown.decode().find(f"{stage} ") for stage in STAGES]
    assert -1 not in places and places == sorted(places)
    assert "5/5" in shown.decode() and "0:00:00" in shown.decode()  # runs read, time left
