from dataclasses import replace

import pandas as pd
import pytest

from slimprompt.report.table import Cell, Column, Pivot, best_marks, difference, entries, make_table


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (Cell(80.123, 0.456, show_sd=True), "80.12 ± 0.46"),
        (Cell(80.123, 0.456), "80.12"),
        (Cell(-0.14, signed=True), "−0.14"),
        (Cell(-0.001, signed=True), "+0.00"),
        (Cell(0.9, decimals=1), "0.9"),
        (Cell(None), "—"),
        (Cell("Rank 4"), "Rank 4"),
    ],
)
def test_text_of_a_cell(one, text):
    assert one.text() == text


def test_exceeding_the_spread_needs_both_sds():
    one = Cell(80.0, 0.3, published=79.5, published_sd=0.4)
    assert one.exceeds_spread is False  # 0.5 is not above √(0.09 + 0.16)
    assert replace(one, value=80.1).exceeds_spread is True
    assert replace(one, published_sd=None).exceeds_spread is None


NAN = float("nan")


def frame(values, columns=(1, 2)):
    """Cells × seeds with the levels backbone and label."""
    index = pd.MultiIndex.from_tuples(values, names=["backbone", "label"])
    return pd.DataFrame(list(values.values()), index, list(columns), dtype=float)


@pytest.mark.parametrize(
    ("values", "bold"),
    [
        ([1.0, 2.0, 3.0], [False, False, True]),
        ([3.001, 3.004, 1.0], [True, True, False]),  # tied after rounding
        ([2.0, 2.0], [False, False]),  # all tied
        ([2.0, NAN], [False, False]),  # nothing to compare with
        ([NAN, NAN], [False, False]),
    ],
)
def test_the_best_number_is_bold(values, bold):
    rows = frame({("RN50", f"{place}"): [value] for place, value in enumerate(values)}, [1])
    assert best_marks(rows, ["label"], 2).tolist() == bold


def test_the_best_number_is_that_on_common_seeds():
    """Seed 1 is easy and seed 2 is hard: the mean over other seeds says nothing."""
    rows = frame({("RN50", "easy"): [80.0, NAN], ("RN50", "both"): [81.0, 41.0]})
    assert best_marks(rows, ["label"], 2).tolist() == [False, True]
    apart = frame({("RN50", "easy"): [80.0, NAN], ("RN50", "hard"): [NAN, 40.0]})
    assert not best_marks(apart, ["label"], 2).any()


def test_a_difference_is_paired_by_seed():
    rows = frame({("RN50", "a"): [80.0, 82.0], ("ViT", "a"): [70.0, NAN]})
    others = frame({("RN50", "b"): [79.0, 79.0], ("ViT", "b"): [NAN, 60.0]})
    (found,) = difference(rows, others, ["backbone"]).to_dict("records")
    assert (found["backbone"], found["label"], found["mean"], found["n"]) == ("RN50", "a", 2.0, 2)
    assert found["sd"] == pytest.approx(2**0.5)


def test_a_pivot_has_the_order_of_its_titles_and_values():
    rows = frame({("B", "x"): [1.0, 3.0], ("A", "y"): [4.0, 4.0], ("A", "left out"): [9.0, 9.0]})
    pivot = Pivot(
        "name", "Title", {"Backbone": "{backbone}"}, "{label}", titles={"label": {"y": "Y", "x": "X", "z": "Z"}}
    )
    table = pivot.of(entries(rows, along=["label"], show_sd=True), {"X": "(1)"})
    assert table.headers == ("Backbone",)
    assert table.columns == [Column("Y"), Column("X", "", "(1)"), Column("Z")]
    assert [row.labels for row in table.rows] == [("A",), ("B",)]
    texts = [[cell.text() for cell in row.cells] for row in table.rows]
    assert texts == [["4.00 ± 0.00", "—", "—"], ["—", "2.00 ± 1.41", "—"]]
    assert pivot.of(entries(rows.iloc[:0])).empty


def test_a_rule_separates_blocks_of_rows():
    rows = [(("A", "1"), [Cell(1.0)]), (("A", "2"), [Cell(1.0)]), (("B", "1"), [Cell(1.0)])]
    table = make_table("t", "", ("One", "Two"), [Column("x")], rows)
    assert [row.rule for row in table.rows] == [True, False, True]
