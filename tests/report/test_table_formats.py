import re
from dataclasses import replace

import openpyxl
import pytest

from slimprompt.errors import InputError
from slimprompt.report.table import Cell, Column, Row, Table
from slimprompt.report.table_formats import FORMATS, escape_latex, to_latex, to_markdown, write_tables

#: A table whose texts contain the special characters of every format.
HOSTILE = Table(
    "hostile",
    "50 % of {A_B} & C|D",
    ("Dataset",),
    (Column("a|b", "g_1"), Column("c#", "g_1", "(1,000)")),
    (
        Row(("my_set & 100%|*x*",), (Cell(1.5, 0.25, 3, ("runs/1",), show_sd=True, bold=True), Cell("x_y")), rule=True),
        Row(("=cmd()",), (Cell(-2.0, signed=True), Cell()), section="s_1"),
    ),
    ("note with ^ and ~ and √ and 日",),
)


def test_markdown_escapes_names_and_keeps_the_columns():
    lines = to_markdown(HOSTILE).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert r"my\_set & 100%\|\*x\*" in to_markdown(HOSTILE)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in rows)
    assert "**1.50 ± 0.25**" in to_markdown(HOSTILE)


def test_latex_escapes_names():
    text = to_latex(HOSTILE)
    assert r"my\_set \& 100\%|*x*" in text
    assert r"{\bfseries\boldmath 1.50 $\pm$ 0.25}" in text
    assert r"\multicolumn{2}{c}{g\_1}" in text and r"\cmidrule(lr){2-3}" in text
    assert text.isascii()
    assert escape_latex("a\\b") == r"a\textbackslash{}b"
    assert escape_latex("joint r4 from “a photo of a”, 0 … 3") == r"joint r4 from ``a photo of a'', 0 \ldots{} 3"


def test_a_workbook_contains_no_formulas(tmp_path):
    write_tables([HOSTILE], tmp_path, ["xlsx"])
    sheet = openpyxl.load_workbook(tmp_path / "tables.xlsx")["hostile"]
    values = [one for row in sheet.iter_rows() for one in row if one.value is not None]
    assert all(one.data_type != "f" for one in values)
    assert any("=cmd()" in str(one.value) for one in values)


def test_numbers_in_a_workbook_have_the_decimals_of_the_table(tmp_path):
    cells = (Cell(2048.0, decimals=0), Cell(1.5, decimals=1), Cell(-0.25, signed=True))
    columns = tuple(Column(name) for name in "abc")
    write_tables([Table("numbers", "", ("Row",), columns, (Row(("one",), cells),))], tmp_path, ["xlsx"])
    sheet = openpyxl.load_workbook(tmp_path / "tables.xlsx")["numbers"]
    assert [one.number_format for one in sheet[3][1:]] == ["0", "0.0", "+0.00;-0.00"]


def test_sheets_of_long_names_have_names_that_excel_allows(tmp_path):
    names = ["b_ablation_rank4_vitb16laion400me31", "b_ablation_rank4_vitb16laion400me32", "contents"]
    write_tables([replace(HOSTILE, name=name) for name in names], tmp_path, ["xlsx"])
    sheets = openpyxl.load_workbook(tmp_path / "tables.xlsx").sheetnames
    assert sheets[1:] == ["b_ablation_rank4_vitb16laion400", "b_ablation_rank4_vitb16laion4~2", "contents~2"]
    assert max(map(len, sheets)) == 31


def test_unknown_formats_and_file_targets_are_errors(tmp_path):
    with pytest.raises(InputError, match="did you mean 'markdown'"):
        write_tables([HOSTILE], tmp_path, ["markdwn"])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        write_tables([HOSTILE], tmp_path / "file", ["csv"])
    assert set(FORMATS) == {"markdown", "latex", "csv", "xlsx"}
