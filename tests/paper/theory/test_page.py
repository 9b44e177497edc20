import csv
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from slimprompt.paper.theory import check_theory, page
from slimprompt.paper.theory.figures import descent_with_bounds, residual_against_rank, theory_figures
from slimprompt.paper.theory.page import (
    COLUMNS,
    number,
    statement_rows,
    theory_page,
    theory_section,
    verdict_counts,
    write_theory,
)
from slimprompt.paper.theory.statement import Statement
from tests.paper.theory.theory_objectives import Centres, DoubleWell
from tests.synthetic_runs import write_run

M, D, R = 4, 10, 1


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        cell = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "n_ctx": M, "seed": seed}
        start, end = np.random.default_rng(seed).standard_normal((2, M, D))
        factors = {"B0": np.eye(M), "A0": start, "B": np.eye(M), "A": end}
        write_run(root, {**cell, "variant": "dense"}, factors=factors)
        b, a = np.ones((M, R)), np.ones((R, D))
        write_run(root, {**cell, "variant": "joint", "rank": R}, factors={"B0": b, "A0": a, "B": b, "A": a})
    return load_records(root)


@pytest.fixture(scope="module")
def whole(records):
    objective = Centres(np.random.default_rng(0).standard_normal((12, M, D)))
    return check_theory(m=M, d=D, rank=R, trials=100, records=records, objective=objective, title="toy <loss>", steps=6)


@pytest.fixture(scope="module")
def written(whole, tmp_path_factory):
    """The files of the page, and the figures that it was made of."""
    made = []

    def keep(theory):
        made.extend(theory_figures(theory))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "theory_figures", keep)
        return write_theory(whole, tmp_path_factory.mktemp("page") / "out"), made


@pytest.fixture(scope="module")
def figures(written):
    return written[1]


@pytest.fixture(scope="module")
def without_encoder():
    return check_theory(m=M, d=D, rank=R, trials=100)


def test_numbers_have_four_digits():
    assert [number(value) for value in (0.25, 2048.0, 1.23456e-7, None, float("inf"), -0.24213)] == [
        "0.25",
        "2048",
        "1.235e-07",
        "",
        "inf",
        "-0.2421",
    ]


def test_rows_contain_both_sides_and_the_verdict(whole):
    rows = statement_rows(whole.statements)
    assert all(tuple(row) == COLUMNS for row in rows)
    row = next(row for row in rows if row["statement"] == "Dimension of S_A(B0)")
    assert (row["predicted"], row["measured"], row["verdict"], row["interval"]) == ("10", "10", "holds", "")
    assert sum(map(int, re.findall(r"\d+", verdict_counts(whole.statements)))) == len(rows)


def test_figures_contain_text_elements(figures):
    assert [figure.name for figure in figures] == [
        "theory-residual",
        "theory-kept-share",
        "theory-local-model",
        "theory-descent",
        "theory-descent-fixed-a",
    ]
    for figure in figures:
        assert not figure.missing and figure.png.startswith(b"\x89PNG") and figure.caption
        texts = [element.text for element in ET.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}text")]
        assert len(texts) > 5  # text elements, not glyph outlines
        assert not any("mathdefault" in (text or "") for text in texts)
    assert "learned B, trained P*" in figures[1].svg
    assert "best basis for P* − P0, pocket" in figures[0].svg


def test_figures_are_deterministic(without_encoder):
    first, again = (residual_against_rank(without_encoder.surrogate) for _ in range(2))
    assert first.svg == again.svg and first.png == again.png


def test_violated_inequality_is_marked():
    """In a double well, the step size from the curvature at the start violates the descent inequality."""
    theory = check_theory(m=2, d=3, rank=1, trials=100, seed=2, objective=DoubleWell((2, 3)), title="well", steps=60)
    assert theory.loss is not None
    broken = next(one for one in theory.statements if one.name == "Descent inequality, L_A taken at the start")
    plotted = descent_with_bounds(theory.loss, theory.loss.fixed_b).svg
    assert (broken.verdict == "violated") == ("inequality violated" in plotted)
    assert broken.verdict == "violated"


def test_figures_of_the_loss_need_an_encoder(without_encoder):
    figures = theory_figures(without_encoder)
    assert [figure.name for figure in figures if figure.missing] == [
        "theory-local-model",
        "theory-descent",
        "theory-descent-fixed-a",
    ]
    assert (
        theory_page(without_encoder, figures).count("needs a text encoder") == 6
    )  # in three figures and in three statements


def test_page_shows_every_statement_and_is_self_contained(whole, figures):
    text = theory_page(whole, figures)
    for statement in whole.statements:
        assert statement.name.replace("'", "&#39;") in text
    assert text.count("<svg") == 5 and text.count("<tr>") == len(whole.statements) + len(
        {one.part for one in whole.statements}
    )
    assert "toy &lt;loss&gt;" in text  # text is escaped
    assert "Content-Security-Policy" in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text
    assert "the share it names is the one that is kept" in text


def test_section_can_be_placed_in_another_page(whole, figures):
    section = theory_section(whole, figures)
    assert section.lstrip().startswith("<section") and "<html" not in section
    ids = [element.get("id") for element in ET.fromstring(section.replace("<br>", "<br/>")).iter() if element.get("id")]
    assert len(ids) == len(set(ids))


def test_written_files(whole, written):
    paths, _ = written
    names = sorted(path.name for path in paths)
    assert {"statements.csv", "theory-descent.png", "theory-descent-fixed-a.svg", "theory.html"} < set(names)
    assert len(names) == 12 and all(path.parent.name == "out" and path.is_file() for path in paths)
    with (paths[0].parent / "statements.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["statement"] for row in rows] == [one.name for one in whole.statements]


def test_output_folder_must_not_be_a_file(whole, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(InputError, match="is a file"):
        write_theory(whole, path)


def test_untestable_statement_has_empty_sides():
    (row,) = statement_rows([Statement("part", "name", "claim", "=", None, None, "not testable")])
    assert (row["predicted"], row["measured"], row["interval"]) == ("", "", "")
