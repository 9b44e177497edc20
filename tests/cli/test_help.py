"""The help of every command at the widths of common terminals."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from slimprompt.cli import app


def leaves(command, path=()):
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))
    elif not command.hidden:
        yield path, command


LEAVES = list(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_every_option_is_shown_in_full(path, command, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= width
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("--") and not parameter.hidden:
                assert any(option in line.split() or option in line.replace(",", " ").split() for line in lines), option
    assert all(text not in result.output for text in ("<bool>", "BOOLEAN", "\\["))


@pytest.mark.parametrize("path", [[], ["runs"], ["data"], ["cache"]])
def test_flags_of_groups_show_no_type(path):
    assert "<bool>" not in CliRunner().invoke(app, [*path, "--help"]).output


def test_examples_are_lines_of_their_own():
    output = CliRunner().invoke(app, ["predict", "--help"]).output
    examples = [line for line in output.splitlines() if "Example:" in line]
    assert len(examples) > 2 and all(line.startswith(" Example: ") for line in examples)


@pytest.mark.parametrize("path", [[], ["fit"], ["runs", "list"]])
def test_help_has_a_short_name(path):
    short, long = (CliRunner().invoke(app, [*path, option]) for option in ("-h", "--help"))
    assert short.exit_code == 0 and short.output == long.output
