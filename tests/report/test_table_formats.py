import io
import re
from dataclasses import replace

import openpyxl
import pytest

from slimprompt.errors import InputError
from slimprompt.report.table import Cell, Column, make_table
from slimprompt.report.table_formats import FORMATS, escape_latex, table_files, to_latex, to_markdown

#: A table whose texts contain the special characters of every format.
HOSTILE = make_table(
    "hostile",
    "50 % of {A_B} & C|D",
    ("s_1", "Dataset"),
    (Column("a|b", "g_1"), Column("c#", "g_1", "(1,000)")),
    (
        (("", "my_set & 100%|*x*"), (Cell(1.5, 0.25, 3, ("runs/1",), show_sd=True, bold=True), Cell("x_y"))),
        (("s_1", "=cmd()"), (Cell(-2.0, signed=True), Cell())),
    ),
    ("note with ^ and ~ and √ and 日",),
)


def workbook(*tables):
    return openpyxl.load_workbook(io.BytesIO(table_files(tables, ["xlsx"])["tables.xlsx"]))


def test_markdown_escapes_names_and_keeps_the_columns():
    lines = to_markdown(HOSTILE).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert r"my\_set & 100%\|\*x\*" in to_markdown(HOSTILE)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in rows)
    assert "**1.50 ± 0.25**" in to_markdown(HOSTILE)


def test_latex_escapes_names():
    text = to_latex(HOSTILE)
    assert r"my\_set \& 100\%|*x*" in text
    assert r"{\bfseries\boldmath 1.50 $\pm$ 0.25}" in text
    assert r"\multicolumn{2}{c}{g\_1}" in text and r"\toprule" in text and r"\bottomrule" in text
    assert text.isascii()
    assert escape_latex("a\\b") == r"a\textbackslash{}b"
    assert escape_latex("joint r4 from “a photo of a”, 0 … 3") == r"joint r4 from ``a photo of a'', 0 \ldots{} 3"


def test_a_workbook_contains_no_formulas():
    sheet = workbook(HOSTILE)["hostile"]
    values = [one for row in sheet.iter_rows() for one in row if one.value is not None]
    assert all(one.data_type != "f" for one in values)
    assert any("=cmd()" in str(one.value) for one in values)


def test_numbers_in_a_workbook_have_the_decimals_and_the_weight_of_the_table():
    cells = (Cell(2048.0, decimals=0), Cell(1.5, decimals=1, bold=True), Cell(-0.25, signed=True))
    columns = tuple(Column(name) for name in "abc")
    sheet = workbook(make_table("numbers", "", ("Row",), columns, [(("one",), cells)]))["numbers"]
    assert [one.value for one in sheet[3]] == ["one", 2048.0, 1.5, -0.25]
    assert [one.number_format for one in sheet[3][1:]] == ["0", "0.0", "+0.00;-0.00"]
    assert [bool(one.font.bold) for one in sheet[3][1:]] == [False, True, False]


def test_sheets_of_long_names_have_names_that_excel_allows():
    names = ["b_ablation_rank4_vitb16laion400me31", "b_ablation_rank4_vitb16laion400me32", "contents"]
    sheets = workbook(*(replace(HOSTILE, name=name) for name in names)).sheetnames
    assert sheets[1:] == ["b_ablation_rank4_vitb16laion400", "b_ablation_rank4_vitb16laion4~2", "contents~2"]
    assert max(map(len, sheets)) == 31


def test_unknown_formats_are_errors():
    with pytest.raises(InputError, match="did you mean 'markdown'"):
        table_files([HOSTILE], ["markdwn"])
    assert set(FORMATS) == {"markdown", "latex", "csv", "xlsx"}
