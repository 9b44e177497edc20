"""What commands print: no markup, no failure on odd names, one function."""

import io
import json
import sys
from pathlib import Path

import pytest

import slimprompt.cli
from slimprompt.cli.printing import print_json, print_table, say

ODD = "caf\udce9[/] [red]“x”"


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str, function, *arguments, **options) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    function(*arguments, **options)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("utf-8", "caf\\xe9[/] [red]“x”\n"), ("ascii", "caf\\xe9[/] [red]?x?\n"), ("latin-1", "caf\\xe9[/] [red]?x?\n")],
)
def test_any_text_can_be_printed(monkeypatch, encoding, expected):
    assert printed(monkeypatch, encoding, say, ODD) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_keeps_the_name(monkeypatch, encoding):
    assert json.loads(printed(monkeypatch, encoding, print_json, {"image": ODD})) == {"image": ODD}


def test_a_cell_is_one_line_without_control_characters(monkeypatch):
    rows = [("a\nb\x1b[31m", "violated"), (ODD, "holds")]
    lines = printed(monkeypatch, "utf-8", print_table, ("name", "verdict"), rows).splitlines()
    assert lines[1].startswith("a b\\x1b[31m ") and "\x1b" not in "".join(lines)
    assert lines[0].index("verdict") == lines[1].index("violated") == lines[2].index("holds")


def test_only_the_named_cells_are_coloured(monkeypatch):
    echoed = []
    monkeypatch.setattr("slimprompt.cli.printing.say", lambda text, err: echoed.append(text))
    print_table(("name", "verdict"), [("a", "violated"), ("b", "holds")], colours={"violated": "red"})
    assert echoed == ["name  verdict", "a     \x1b[31mviolated\x1b[0m", "b     holds"]


def test_every_command_prints_through_say():
    folder = Path(slimprompt.cli.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "printing.py":
            assert "typer.echo" not in text and "typer.secho" not in text and " print(" not in text, path.name
