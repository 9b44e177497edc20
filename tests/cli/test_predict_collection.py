"""`slimprompt predict --out`: the options of `predict` on a few images, the summary, and refusals."""

import csv
import json
import os
import shutil
import sys

import pytest

from tests.cli.conftest import QUICK, failed, ok


@pytest.fixture(scope="module")
def model(run, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "my-prompt"
    ok(run("fit", photos, "--out", folder, "--shots", 4, *QUICK))
    return folder


@pytest.fixture(scope="module")
def head(run, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads") / "my-head"
    options = ["--method", "gda", "--backbone", "tiny-for-tests", "--pretrained", "random:0", "--device", "cpu"]
    ok(run("fit", photos, "--out", folder, "--shots", 4, "--set", "views=1", *options))
    return folder


OPTIONS = [(), ("--top", 2, "--min-confidence", 0.4), ("--coverage", 0.5), ("--classes", "red panda,otter", "--top", 2)]


def nearly(found, expected):
    """Equal but for float rounding of probabilities and scores."""
    assert [row["image"] for row in found] == [row["image"] for row in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine["answer"] == theirs["answer"]
        assert [one["name"] for one in mine["classes"]] == [one["name"] for one in theirs["classes"]]
        numbers = [[row["concept_match"], *(one["probability"] for one in row["classes"])] for row in (mine, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options)))
def test_rows_are_those_of_predict_on_a_few_images(run, model, photos, tmp_path, options):
    ok(run("predict", model, photos, "--out", tmp_path / "p.jsonl", *options))
    found = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert {row.pop("error") for row in found} == {None}
    nearly(found, json.loads(ok(run("predict", model, photos, "--format", "json", *options))))


def test_csv_and_parquet_have_the_columns_of_the_csv_format(run, head, photos, tmp_path):
    import pandas as pd

    pytest.importorskip("pyarrow")
    options = ("--top", 3, "--min-confidence", 0.9)
    for name in ("p.csv", "p.parquet", "p"):
        ok(run("predict", head, photos, "--out", tmp_path / name, *options))
    printed = list(csv.reader(ok(run("predict", head, photos, "--format", "csv", *options)).splitlines()))
    written = list(csv.reader((tmp_path / "p.csv").read_text().splitlines()))
    assert written[0] == [*printed[0], "error"]
    assert [(row[0], row[1], row[2], row[4]) for row in written] == [
        (row[0], row[1], row[2], row[4]) for row in printed
    ]
    table, expected = pd.read_parquet(tmp_path / "p.parquet"), pd.read_csv(tmp_path / "p.csv")
    assert list(table.columns) == list(expected.columns) and len(table) == 54
    for column in ("image", "rank", "class", "probability", "answer", "concept_match"):
        assert table[column].tolist() == expected[column].tolist()
    assert table["error"].isna().all()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "p"), table)


def test_the_summary(run, model, photos, tmp_path):
    mixed = shutil.copytree(photos, tmp_path / "mixed")
    (mixed / "bad.png").write_text("no image")
    out = ok(run("predict", model, mixed, "--out", tmp_path / "p.csv"))
    assert f"19 images in {tmp_path / 'p.csv'}, 1 of them unreadable (column error)" in out
    answers = [row["answer"] for row in csv.DictReader((tmp_path / "p.csv").open()) if not row["error"]]
    for answer in set(answers):
        (line,) = [line for line in out.splitlines() if line.startswith(answer)]
        assert str(answers.count(answer)) in line and f"{100 * answers.count(answer) / 18:.1f} %" in line
    assert "18 images predicted, 1 failed, " in out and "images/s" in out
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["mixed", "p.csv"]


def test_if_no_image_can_be_read_the_exit_code_is_1(run, model, tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_text("no image")
    result = run("predict", model, tmp_path, "--out", tmp_path / "p.csv")
    assert result.returncode == 1
    assert "0 images predicted, 2 failed" in result.stdout and "none of the 2 images could be read" in result.stdout
    assert [bool(row["error"]) for row in csv.DictReader((tmp_path / "p.csv").open())] == [True, True]


def test_names_that_are_formulas_or_not_utf_8(run, model, photos, tmp_path, monkeypatch):
    folder = tmp_path / "odd"
    folder.mkdir()
    image = next((photos / "red disc").iterdir()).read_bytes()
    for name in (b"=1+1.png", b"caf\xe9.png"):
        with open(os.fsencode(folder) + b"/" + name, "wb") as file:
            file.write(image)
    monkeypatch.chdir(folder)
    ok(run("predict", model, ".", "--out", tmp_path / "p.csv"))
    assert [row["image"] for row in csv.DictReader((tmp_path / "p.csv").open())] == ["'=1+1.png", "caf\\udce9.png"]
    ok(run("predict", model, ".", "--out", tmp_path / "p.jsonl"))
    lines = (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["image"] for line in lines] == ["=1+1.png", "caf\udce9.png"]


def test_bad_input_is_one_line(run, model, photos, tmp_path):
    predict, out = ("predict", model, photos), tmp_path / "p.csv"
    failed(run(*predict, "--out", tmp_path / "p.xlsx"), "unknown suffix of --out '.xlsx'", ".csv, .jsonl, .parquet")
    failed(run(*predict, "--out", out, "--format", "json"), "its name says the format")
    failed(run(*predict, "--out", out, "--skip-bad-images"), "unreadable images are rows with an error")
    failed(run(*predict, "--out", out, "--executor", "spark"), "unknown executor 'spark'", "local, ray")
    failed(run(*predict, "--out", out, "--gpus", 1), "add --executor ray")
    failed(run(*predict, "--executor", "ray"), "add --out")
    failed(run(*predict, "--out", out, "--column", "x"), "none of them was given")
    failed(run(*predict, "--out", out, "--min-confidence", 0.5, "--coverage", 0.5), "give one of them")
    (tmp_path / "empty").mkdir()
    failed(run("predict", model, tmp_path / "empty", "--out", out), "no images under")
    failed(run("predict", model, tmp_path / "none", "--out", out), "no such image, folder or table")
    failed(run("predict", tmp_path / "empty", photos, "--out", out), "no saved model at")
    failed(run(*predict, "--out", tmp_path / "empty" / "a" / ("x" * 300 + ".csv")), "cannot be written")
    out.write_text("mine")
    failed(run(*predict, "--out", out), "exists already", "--overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "p.csv"]
    ok(run(*predict, "--out", out, "--overwrite"))


@pytest.mark.parametrize(
    ("package", "given", "extra"),
    [
        ("pyarrow", ["--out", "p.parquet"], "parquet"),
        ("pyarrow", ["--out", "p"], "parquet"),
        ("pyarrow", ["t.parquet", "--out", "p.csv"], "parquet"),
        ("ray", ["--out", "p.csv", "--executor", "ray"], "ray"),
    ],
)
def test_a_missing_extra_is_named(run, model, photos, tmp_path, monkeypatch, package, given, extra):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.parquet").touch()
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises an ImportError
    images = [] if given[0] == "t.parquet" else [photos]
    failed(run("predict", model, *images, *given), f"pip install 'slimprompt[{extra}]'")
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
