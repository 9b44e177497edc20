"""What commands print: no markup, no failure on odd names, one function."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

import slimprompt.cli
from slimprompt.cli.printing import Format, emit, format_of, note, percent, print_json, print_table, say
from slimprompt.errors import InputError

ODD = "caf\udce9[/] [red]“x”"


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str, function, *arguments, **options) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")  # as `safe_streams` makes them
    monkeypatch.setattr(sys, "stdout", stream)
    function(*arguments, **options)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", "caf\\udce9[/] [red]“x”\n"),
        ("ascii", "caf\\udce9[/] [red]?x?\n"),
        ("latin-1", "caf\\udce9[/] [red]?x?\n"),
    ],
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
    assert echoed[0] == "name  verdict" and echoed[2] == "b     holds"
    assert echoed[1].startswith("a     \x1b[31mviolated\x1b[0m")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown_on_terminal(monkeypatch: pytest.MonkeyPatch, width: int, function, *arguments, **options) -> list[str]:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    function(*arguments, **options)
    return terminal.getvalue().splitlines()


@pytest.mark.parametrize(
    ("name", "value", "coloured"), [("TERM", "xterm", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False)]
)
def test_colours_can_be_turned_off(monkeypatch, name, value, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    for function, arguments in ((note, ("odd:", "x")), (print_table, (("a",), [("violated",)]))):
        options = {"colours": {"violated": "red"}} if function is print_table else {}
        lines = shown_on_terminal(monkeypatch, 80, function, *arguments, **options)
        assert ("\x1b[" in "".join(lines)) == coloured


def test_wide_characters_are_aligned(monkeypatch):
    rows = [("猫", "1"), ("🦊 fox", "2"), ("cat", "3")]
    lines = printed(monkeypatch, "utf-8", print_table, ("name", "n"), rows).splitlines()
    assert lines == ["name    n", "猫      1", "🦊 fox  2", "cat     3"]


def test_long_texts_take_several_lines_on_a_narrow_terminal(monkeypatch):
    """Nothing is left out: two paths that differ in the middle stay different."""
    path = "photos/a folder with a long name/Bengal_1.jpg"
    table = (("image", "class", "probability"), [(path, "Bengal", "97.0 %"), ("猫" * 30, "Sphynx", "3.0 %")])
    lines = shown_on_terminal(monkeypatch, 50, print_table, *table, right=("probability",))
    assert max(map(cell_len, lines)) <= 50 and len(lines) > 3
    assert "".join(line[:20] for line in lines).replace(" ", "").count("猫") == 30
    assert sum("97.0 %" in line for line in lines) == 1
    assert path in shown_on_terminal(monkeypatch, 80, print_table, *table, right=("probability",))[1]
    monkeypatch.setenv("COLUMNS", "50")
    assert path in printed(monkeypatch, "utf-8", print_table, *table, right=("probability",))


def test_every_command_prints_through_say():
    folder = Path(slimprompt.cli.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "printing.py":
            assert "typer.echo" not in text and "typer.secho" not in text and " print(" not in text, path.name


ROWS = [
    {"name": "猫", "accuracy": 0.2167, "interval": [0.1, 0.3], "images": 3},
    {"name": "=1+1", "accuracy": None, "interval": None, "images": 12},
]


def test_rows_are_a_table_for_people(monkeypatch):
    columns = {"name": str, "accuracy": percent, "images": str}
    lines = printed(monkeypatch, "utf-8", emit, ROWS, columns=columns).splitlines()
    assert lines == ["name  accuracy  images", "猫      21.7 %       3", "=1+1         –      12"]
    assert printed(monkeypatch, "utf-8", emit, []) == ""


def test_rows_are_json_and_csv_with_fractions(monkeypatch, tmp_path):
    assert json.loads(printed(monkeypatch, "utf-8", emit, ROWS, Format.json)) == ROWS
    document = json.loads(printed(monkeypatch, "utf-8", emit, ROWS, Format.json, facts={"n": 2}, key="classes"))
    assert document == {"n": 2, "classes": ROWS}
    text = printed(monkeypatch, "utf-8", emit, ROWS, Format.csv)
    cells = list(csv.DictReader(io.StringIO(text)))
    assert cells[0] == {"name": "猫", "accuracy": "0.2167", "interval": "[0.1, 0.3]", "images": "3"}
    assert (cells[1]["name"], cells[1]["accuracy"]) == ("'=1+1", "")  # no formula in a spreadsheet
    for name in ("rows.csv", "rows.JSON"):
        emit(ROWS, format_of(tmp_path / name), tmp_path / name)
    assert (tmp_path / "rows.csv").read_text(encoding="utf-8") == text
    assert json.loads((tmp_path / "rows.JSON").read_text(encoding="utf-8")) == ROWS


def test_a_file_of_rows_has_a_known_suffix():
    with pytest.raises(InputError, match="rows.xlsx must end in"):
        format_of(Path("rows.xlsx"))
