import csv
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from slimprompt.paper.theory import check_theory
from slimprompt.paper.theory.figures import plot_figures
from slimprompt.paper.theory.page import COLUMNS, number, statement_rows, theory_page, verdict_counts, write_theory
from slimprompt.paper.theory.reader import read_theory, report_section
from slimprompt.paper.theory.statement import Check
from tests.paper.theory.theory_objectives import Centres, DoubleWell
from tests.synthetic_runs import write_run

M, D, R = 4, 10, 1
FIGURES = ["theory-residual", "theory-kept-share", "theory-local-model", "theory-descent", "theory-descent-fixed-a"]


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
    return check_theory(m=M, d=D, rank=R, trials=100, records=records, objective=objective, steps=6)


@pytest.fixture(scope="module")
def figures(whole):
    return plot_figures(whole.series)


@pytest.fixture(scope="module")
def folder(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "out"
    write_theory(whole, folder)
    return folder


@pytest.fixture(scope="module")
def without_encoder():
    return check_theory(m=M, d=D, rank=R, trials=100)


def test_numbers_have_four_digits():
    values = (0.25, 2048.0, 1.23456e-7, None, float("inf"), -0.24213)
    assert [number(value) for value in values] == ["0.25", "2048", "1.235e-07", "", "inf", "-0.2421"]


def test_rows_contain_both_sides_and_the_verdict(whole):
    rows = statement_rows(whole.statements)
    assert all(tuple(row) == COLUMNS for row in rows)
    row = next(row for row in rows if row["statement"] == "Dimension of S_A(B0)")
    assert (row["predicted"], row["measured"], row["verdict"], row["interval"]) == ("10", "10", "holds", "")
    assert sum(map(int, re.findall(r"\d+", verdict_counts(rows)))) == len(rows)
    (row,) = statement_rows([Check("part", "name", "claim").not_applicable("nothing to measure")])
    assert (row["predicted"], row["measured"], row["interval"]) == ("", "", "")


def test_figures_contain_text_elements(figures):
    assert [figure.name for figure in figures] == FIGURES
    for figure in figures:
        assert not figure.missing and figure.png.startswith(b"\x89PNG") and figure.caption
        texts = [element.text for element in ET.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}text")]
        assert len(texts) > 5  # text elements, not glyph outlines
        assert not any("mathdefault" in (text or "") for text in texts)
    assert "learned B, pocket" in figures[1].svg and "trained prompt P*" in figures[1].svg
    assert "best basis for P* − P0, pocket" in figures[0].svg


def test_figures_are_deterministic(whole, figures):
    assert plot_figures(whole.series) == figures


def test_violated_inequality_is_marked():
    """In a double well, the step size from the curvature at the start violates the descent inequality."""
    theory = check_theory(m=2, d=3, rank=1, trials=100, seed=2, objective=DoubleWell((2, 3)), steps=60)
    broken = next(one for one in theory.statements if one.name == "Descent inequality, L_A taken at the start")
    (marked,) = (
        one
        for one in theory.series
        if one.figure == "theory-descent" and one.label == "inequality violated" and one.at.size
    )
    assert broken.verdict == "violated" and f"first at t = {marked.at[0] - 1}" in broken.detail


def test_long_series_are_thinned():
    steps = 600
    theory = check_theory(m=2, d=3, rank=1, trials=10, objective=DoubleWell((2, 3)), steps=steps)
    (loss,) = (one for one in theory.series if one.figure == "theory-descent" and one.label == "loss, η = 1/L_A")
    assert loss.at.size == 500 and (loss.at[0], loss.at[-1]) == (0, steps)


def test_figures_of_the_loss_need_an_encoder(without_encoder):
    figures = plot_figures(without_encoder.series)
    assert [figure.name for figure in figures if figure.missing] == FIGURES[2:]
    # in three figures and in three statements
    assert theory_page(without_encoder, figures).count("needs a text encoder") == 6


def test_page_shows_every_statement_and_is_self_contained(whole, figures):
    text = theory_page(whole, figures)
    for statement in whole.statements:
        assert statement.name.replace("'", "&#39;") in text
    parts = {one.part for one in whole.statements}
    assert text.count("<svg") == 5 and text.count("<tr>") == len(whole.statements) + len(parts)
    assert "toy &lt;loss&gt;" in text  # text is escaped
    assert "Content-Security-Policy" in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_written_files(whole, folder):
    figures = [f"{name}.{suffix}" for name in FIGURES for suffix in ("svg", "png")]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [".contents", "statements.csv", "figures.csv", "theory.html", *figures]
    )
    with (folder / "statements.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["statement"] for row in rows] == [one.name for one in whole.statements]


def test_figures_of_an_earlier_call_are_not_left_behind(whole, without_encoder, tmp_path):
    write_theory(whole, tmp_path)
    write_theory(without_encoder, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(FIGURES[:2])


def test_output_folder_must_not_be_a_file(whole, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(InputError, match="is a file"):
        write_theory(whole, path)


# -- reading ------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(whole, figures, folder):
    rows, series = read_theory(folder)
    assert rows == statement_rows(whole.statements)
    assert plot_figures(series) == figures  # to the byte


def test_section_for_another_page(folder, figures):
    section = report_section(folder)
    assert section.lstrip().startswith("<section") and "<html" not in section and section.count("<svg") == len(figures)
    ids = [element.get("id") for element in ET.fromstring(section.replace("<br>", "<br/>")).iter() if element.get("id")]
    assert "theory" in ids and len(ids) == len(set(ids))


def test_nothing_but_the_numbers_of_a_figure_is_read(folder, tmp_path):
    """A foreign SVG file does not reach the page, and text in the tables is escaped."""
    statements = (folder / "statements.csv").read_text(encoding="utf-8")
    (tmp_path / "statements.csv").write_text(statements.replace("Haar bases", "<script>1</script>"), encoding="utf-8")
    figures = (folder / "figures.csv").read_text(encoding="utf-8")
    (tmp_path / "figures.csv").write_text(figures.replace("learned B", "<script>2</script>"), encoding="utf-8")
    (tmp_path / "theory-residual.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>3</script></svg>')
    section = report_section(tmp_path)
    assert "<script" not in section
    assert "&lt;script&gt;1" in section and "&lt;script&gt;2" in section and "3</script>" not in section


def changed(path, change):
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


def point(*cells):
    return lambda text: text + ",".join(cells) + "\n"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("statements.csv", lambda text: ""),
        ("statements.csv", lambda text: text.splitlines()[0] + "\n"),
        ("statements.csv", lambda text: text.replace("part,statement", "part,name")),
        ("statements.csv", lambda text: text[: len(text) // 2]),
        ("statements.csv", lambda text: text.replace(",holds,", ",proven,", 1)),
        ("statements.csv", lambda text: text.replace(",2.5,", ",many,") + "a,b,c,=,many,,,holds,\n"),
        ("statements.csv", lambda text: text + '"not closed'),
        ("statements.csv", lambda text: text + "x" * 17 * 2**20),
        ("figures.csv", lambda text: text.rpartition(",")[0]),
        ("figures.csv", lambda text: "".join(line for line in text.splitlines(True) if ",rate," not in line)),
        ("figures.csv", point("theory-other", "token", "a", "blue points", "1", "1", "", "")),
        ("figures.csv", point("theory-residual", "token", "a", "no-look", "1", "1", "", "")),
        ("figures.csv", point("theory-residual", "token", "a", "blue points", "x", "1", "", "")),
        ("figures.csv", point("theory-residual", "token", "a", "blue points", "1", "inf", "", "")),
        ("figures.csv", point("theory-residual", "token", "a\x01", "blue points", "1", "1", "", "")),
        ("figures.csv", point("theory-residual", "token", "a" * 301, "blue points", "1", "1", "", "")),
        (
            "figures.csv",
            lambda text: text + "".join(f"theory-residual,token,{i},blue line,1,1,,\n" for i in range(400)),
        ),
    ],
)
def test_damaged_files_are_one_clear_error(folder, tmp_path, name, change):
    for other in ("statements.csv", "figures.csv"):
        (tmp_path / other).write_bytes((folder / other).read_bytes())
    changed(tmp_path / name, change)
    with pytest.raises(InputError, match=rf"holds no theory result \({name}: .*slimprompt theory --out"):
        read_theory(tmp_path)


def test_only_regular_files_are_read(folder, tmp_path):
    with pytest.raises(InputError, match="holds no theory result .*no such file"):
        read_theory(tmp_path)
    (tmp_path / "statements.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_theory(tmp_path)
