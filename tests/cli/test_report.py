from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from slimprompt.cli.report import report
from slimprompt.errors import InputError
from tests.synthetic_runs import write_run

app = Typer()
app.command()(report)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in (1, 2):
        for shots in (1, 4):
            write_run(
                tmp_path / "runs",
                {"backbone": "pocket", "dataset": "dtd", "shots": shots, "seed": seed, "variant": "dense"},
            )
    return tmp_path / "runs"


def test_a_page_is_written_and_missing_parts_are_named(runs: Path, tmp_path: Path):
    outcome = CliRunner().invoke(
        app, [str(runs), "--out", str(tmp_path / "page"), "--where", "shots=4"], catch_exceptions=False
    )
    assert outcome.exit_code == 0
    assert (tmp_path / "page" / "index.html").is_file()
    assert "2 runs," in outcome.output and f"open {tmp_path / 'page' / 'index.html'}" in outcome.output
    assert "no runs yet for: gain_over_dense" in outcome.output
    assert "pocket world: a stand-in, not the paper's results" in outcome.output


def test_running_again_overwrites_the_page(runs: Path, tmp_path: Path):
    arguments = [str(runs), "--out", str(tmp_path / "page")]
    for _ in range(2):
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert "4 runs" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


def test_no_runs_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match="no runs folder"):
        CliRunner().invoke(app, [str(tmp_path / "nowhere")], catch_exceptions=False)
