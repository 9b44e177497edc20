import csv
import io

import pandas as pd
import pytest

from slimprompt.spreadsheet import cell_text, cell_value, csv_text, frame_csv

FORMULAS = ["=1+1", "+cat", "-cat", "@SUM(1)", "\tcat", '=HYPERLINK("x")', "-0.1 … 0.3"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_would_be_a_formula(text):
    rows = list(csv.reader(io.StringIO(csv_text(["class", text], [[text, -1.5]]), newline="")))
    assert rows == [["class", f"'{text}"], [f"'{text}", "-1.5"]]
    assert cell_text(cell_value(text)) == text
    frame = pd.DataFrame({"class": [text], text: [-1.5]})
    assert list(csv.reader(io.StringIO(frame_csv(frame), newline=""))) == rows


@pytest.mark.parametrize("value", ["-1.5", "+0.3", "-1e-7", "=", "-", "cat", "", -1.5, -3, None])
def test_numbers_and_plain_text_are_unchanged(value):
    assert cell_value(value) == value


def test_a_frame_without_formulas_is_written_as_pandas_does():
    frame = pd.DataFrame({"name": ["a", None, "b,c"], "number": [1.5, float("nan"), -2], "count": [1, 2, -3]})
    assert frame_csv(frame) == frame.to_csv(index=False)


def test_every_value_is_one_line_of_utf8():
    assert csv_text(["class"], [["\rcat\r=1"], ["caf\udce9.png"]]) == "class\n cat =1\ncaf\\udce9.png\n"
