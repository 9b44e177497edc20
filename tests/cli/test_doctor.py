"""`slimprompt doctor` as a user types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from slimprompt.cli import app
from slimprompt.doctor.checks import CHECKS


def test_it_prints_a_row_per_check_and_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    result = CliRunner().invoke(app, ["doctor", "--quick", "--device", "cpu"])
    assert result.exit_code == 0
    for check in CHECKS:
        assert f"  {check.name}" in result.stdout
    assert result.stdout.splitlines()[-1] == "7 ok, 4 skipped"


def test_json_has_the_same_rows_and_a_failure_sets_the_exit_code() -> None:
    result = CliRunner().invoke(app, ["doctor", "--quick", "--format", "json", "--backbone", "local-dir:/nowhere"])
    assert result.exit_code == 1
    rows = {row["check"]: row for row in json.loads(result.stdout)}
    assert set(rows["backbone"]) == {"check", "shows", "verdict", "details"}
    assert rows["backbone"]["verdict"] == "FAILED" and "cannot load local-dir:/nowhere" in rows["backbone"]["details"]
    assert rows["versions"]["verdict"] == "ok"
