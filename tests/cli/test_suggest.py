"""`slimprompt suggest` as a user types it."""

import csv
import json
import shutil

import pytest

from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import draw


@pytest.fixture(scope="module")
def prompt(run, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "my-prompt"
    ok(run("fit", photos, "--out", folder, "--shots", 2, *QUICK))
    return folder


def test_table_csv_page_and_json_agree(run, prompt, photos, tmp_path):
    given = ("suggest", prompt, photos, "--n", 5)
    out = ok(run(*given, "--out", tmp_path / "s.csv", "--report", tmp_path / "s.html"))
    assert (
        "5 of 12 images to label next" in out
        and "6 training images of the model left out" in out
        and f"report: {tmp_path / 's.html'}" in out
    )
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    found = json.loads(ok(run(*given, "--format", "json")))
    assert (found["images"], found["training_images"]) == (12, 6)
    assert [one["image"] for one in found["suggestions"]] == [row["path"] for row in rows]
    page = (tmp_path / "s.html").read_text()
    for row, one in zip(rows, found["suggestions"], strict=True):
        assert row["path"] in out and row["path"] in page and row["label"] == ""
        first, second = one["classes"]
        assert one["margin"] == pytest.approx(first["probability"] - second["probability"], abs=2e-6)
        assert float(row["margin"]) == one["margin"] and row["class"] == first["name"]
    (predicted,) = json.loads(ok(run("predict", prompt, rows[0]["path"], "--top", 2, "--format", "json")))
    for mine, theirs in zip(found["suggestions"][0]["classes"], predicted["classes"], strict=True):
        assert mine["name"] == theirs["name"] and mine["probability"] == pytest.approx(theirs["probability"], abs=1e-4)
    assert rows[0]["similarity"] == "" and 0 < float(rows[1]["similarity"]) < 1


def test_a_head_and_all_images(run, photos, tmp_path):
    options = ["--method", "zero-shot", "--backbone", "tiny-for-tests", "--pretrained", "random:0", "--device", "cpu"]
    for colour in ("red", "blue"):
        draw(tmp_path / "labelled" / f"{colour} disc" / "7.png", colour, 7)
    ok(run("fit", tmp_path / "labelled", "--out", tmp_path / "head", *options))
    copy = tmp_path / "=copy.png"
    shutil.copy(next((photos / "red disc").iterdir()), copy)
    found = json.loads(ok(run("suggest", tmp_path / "head", photos, copy, "--format", "json", "--no-cache")))
    assert found["images"] == 19 and found["near_duplicates"] >= 1
    assert len(found["suggestions"]) == 19 - found["near_duplicates"]


def test_names_do_not_become_formulas(run, prompt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "=1+1.png", "red", 7)
    ok(run("suggest", prompt, "=1+1.png", "--out", "s.csv"))
    assert "1,'=1+1.png," in (tmp_path / "s.csv").read_text()


def test_the_csv_file_with_labels_filled_in_can_be_fitted_and_predicted(run, prompt, photos, tmp_path, monkeypatch):
    """Paths are relative to the CSV file, which is in another folder than the images and the command."""
    shutil.copytree(photos, tmp_path / "work" / "unlabelled")
    monkeypatch.chdir(tmp_path / "work")
    table = tmp_path / "results" / "s.csv"
    ok(run("suggest", prompt, "unlabelled", "--n", 9, "--out", "../results/s.csv"))
    rows = list(csv.DictReader(table.open()))
    assert {row["path"].split("/")[0] for row in rows} == {".."}
    failed(run("fit", table, "--out", "new", *QUICK), "line 2: the label is empty; fill it in, or remove the line")
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(row | {"label": row["path"].split("/")[-2]} for row in rows)
    monkeypatch.chdir(photos)
    assert "training images (" in ok(run("fit", table, "--out", tmp_path / "new", "--shots", 2, *QUICK))
    out = ok(run("predict", prompt, table, "--out", tmp_path / "p.csv"))
    assert f"9 images in {tmp_path / 'p.csv'}\n" in out


def test_bad_input_is_one_line(run, prompt, photos, tmp_path):
    (tmp_path / "empty").mkdir()
    failed(run("suggest", prompt, tmp_path / "none"), "no such image")
    failed(run("suggest", prompt, tmp_path / "empty"), "no images under")
    failed(run("suggest", tmp_path / "none", photos), "none")
    failed(run("suggest", prompt, photos, "--format", "xml"), "unknown format 'xml'")
    failed(run("suggest", prompt, photos, "--out", "/proc/none/s.csv"), "/proc/none")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    failed(run("suggest", prompt, photos, broken), "broken.png", "; --skip-bad-images leaves such images out")
    assert "1 unreadable image skipped" in ok(run("suggest", prompt, photos, broken, "--skip-bad-images"))
