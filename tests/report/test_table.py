from dataclasses import replace

import pytest

from slimprompt.analysis.results import Estimate
from slimprompt.report.table import Cell, mark_best


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


def test_beyond_sd_needs_both_sds():
    one = Cell(80.0, 0.3, published=79.5, published_sd=0.4)
    assert one.beyond_sd is False  # 0.5 is not above √(0.09 + 0.16)
    assert replace(one, value=80.1).beyond_sd is True
    assert replace(one, published_sd=None).beyond_sd is None


def estimated(by_seed):
    mean = sum(by_seed.values()) / len(by_seed)
    return Cell(mean, estimate=Estimate(mean, None, len(by_seed), by_seed=by_seed))


def test_the_best_cell_is_that_on_common_seeds():
    """Seed 1 is easy and seed 2 is hard: the mean over other seeds says nothing."""
    easy, both = estimated({1: 80.0}), estimated({1: 81.0, 2: 41.0})
    assert easy.number > both.number
    assert [cell.bold for cell in mark_best([easy, Cell(), both])] == [False, False, True]
    assert not any(cell.bold for cell in mark_best([easy, estimated({2: 40.0})]))
