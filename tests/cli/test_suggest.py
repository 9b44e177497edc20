"""`slimprompt suggest` as a user types it."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

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
        and str(tmp_path / "s.html") in out
    )
    rows = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    found = json.loads(ok(run(*given, "--format", "json")))
    assert (found["images"], found["training_images"]) == (12, 6)
    as_text = [
        {name: "" if value is None else str(value) for name, value in one.items()} for one in found["suggestions"]
    ]
    assert as_text == rows == list(csv.DictReader(io.StringIO(ok(run(*given, "--format", "csv")))))
    page = (tmp_path / "s.html").read_text()
    for row, one in zip(rows, found["suggestions"], strict=True):
        assert str(Path(row["path"]).relative_to(photos)) in out and row["path"] in page and row["label"] == ""
        assert one["margin"] == pytest.approx(one["probability"] - one["second_probability"], abs=2e-6)
    best = found["suggestions"][0]
    (predicted,) = json.loads(ok(run("predict", prompt, best["path"], "--top", 2, "--format", "json")))
    first, second = predicted["classes"]
    assert (best["class"], best["second_class"]) == (first["name"], second["name"])
    assert (best["probability"], best["second_probability"]) == pytest.approx(
        (first["probability"], second["probability"]), abs=1e-4
    )
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
    failed(run("suggest", prompt, photos, "--format", "xml"), "xml", "'json'")
    failed(run("suggest", prompt, photos, "--out", "/proc/none/s.csv"), "/proc/none")


def test_bad_images_do_not_stop_the_command(run, prompt, photos, tmp_path):
    broken = [tmp_path / f"broken{number}.png" for number in range(6)]
    for path in broken:
        path.write_bytes(b"no image")
    code, out, err = run("suggest", prompt, photos, *broken, "--n", 5)
    assert code == 1 and "5 of 12 images to label next" in out and all(str(path) in err for path in broken)
    code, out, _ = run("suggest", prompt, photos, *broken, "--n", 5, "--format", "json", "--skip-bad-images")
    assert code == 0 and len(json.loads(out)["suggestions"]) == 5 and len(json.loads(out)["unreadable"]) == 6
    failed(run("suggest", prompt, *broken), "none of the 6 images can be read", "broken0.png")


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_paths_are_never_cut(run, prompt, photos, tmp_path, monkeypatch):
    """On a terminal of 80 columns."""
    names = [f"photograph_of_a_disc_from_the_summer_of_2024_number_{number}_of_many_others.png" for number in range(3)]
    for number, name in enumerate(names):
        draw(tmp_path / "a rather long name of a folder" / name, "red", 20 + number)
    monkeypatch.setattr("slimprompt.cli.printing.shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    monkeypatch.setattr("tests.cli.conftest.io.StringIO", Terminal)
    lines = [line for line in ok(run("suggest", prompt, tmp_path)).splitlines() if line.strip()]
    first_column = "".join(line.split()[0] for line in lines)
    assert all(name in first_column for name in names) and "…" not in first_column
    assert max(map(len, lines[1:])) <= 80
