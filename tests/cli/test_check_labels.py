"""`slimprompt check-labels` as a user types it."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
import typer

from slimprompt.cli import app
from slimprompt.curation.duplicates import SIMILARITY
from slimprompt.curation.labels import MAX_SCORE
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from tests.cli.conftest import failed, ok
from tests.conftest import TINY, draw

POCKET = ("--backbone", "pocket", "--device", "cpu")


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """train|test/<class>/<image>: pocket images of six classes, two of them mislabelled and one both in train and test."""
    from PIL import Image

    root, world = tmp_path_factory.mktemp("mistaken"), POCKET_BENCHMARKS["pocket-negative"]
    names = world.class_names[:6]
    for label, name in enumerate(names):
        for number in range(20):
            path = root / ("train" if number < 16 else "test") / name / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(world.image(label, number)).save(path)
    moved = []
    for one, other in ((0, 1), (2, 3)):
        moved.append(root / "train" / names[other] / "moved.png")
        (root / "train" / names[one] / "005.png").rename(moved[-1])
    shutil.copy(root / "train" / names[4] / "003.png", root / "test" / names[4] / "again.png")
    return root, moved


def test_table_csv_page_and_json_agree(run, mistaken, tmp_path):
    root, moved = mistaken
    given = ("check-labels", root, *POCKET)
    out = ok(run(*given, "--out", tmp_path / "l.csv", "--report", tmp_path / "l.html"))
    for part in ("121 images of 6 classes", f"in {root}", "score below 0.1", "pocket is a toy model"):
        assert part in out
    assert "1 pair of near-duplicates across classes or splits" in out
    rows = list(csv.DictReader((tmp_path / "l.csv").open()))
    suspects = [row for row in rows if row["finding"] == "label"]
    assert {str(path) for path in moved} <= {row["path"] for row in suspects} and len(suspects) <= 4
    (pair,) = [row for row in rows if row["finding"] != "label"]
    assert pair["finding"] == "exact duplicate across splits" and (pair["split"], pair["other_split"]) == (
        "train",
        "test",
    )
    found = json.loads(ok(run(*given, "--format", "json")))
    assert (found["images"], found["classes"], found["unreadable"]) == (121, 6, [])
    assert f"cross-validated accuracy {100 * found['accuracy']:.1f} %" in out and 0.5 < found["accuracy"] < 1
    as_text = [{name: "" if value is None else str(value) for name, value in one.items()} for one in found["findings"]]
    assert as_text == rows == list(csv.DictReader(io.StringIO(ok(run(*given, "--format", "csv")))))
    page = (tmp_path / "l.html").read_text()
    for row in rows:
        assert str(Path(row["path"]).relative_to(root)) in out and row["path"] in page


def test_paths_of_the_csv_file_are_relative_to_it(run, mistaken, tmp_path, monkeypatch):
    root, _ = mistaken
    monkeypatch.chdir(root.parent)
    table = tmp_path / "l.csv"
    ok(run("check-labels", root.name, *POCKET, "--out", table))
    for row in csv.DictReader(table.open()):
        for path in filter(None, (row["path"], row["other_path"])):
            assert path.startswith("..") and (tmp_path / path).is_file()


def test_the_options_have_an_effect(run, mistaken):
    root, _ = mistaken
    strict = json.loads(ok(run("check-labels", root, *POCKET, "--format", "json", "--max-score", "1e-9")))
    assert {one["finding"] for one in strict["findings"]} == {"exact duplicate across splits"}
    all_of_them = json.loads(ok(run("check-labels", root, *POCKET, "--format", "json", "--max-score", "1")))
    assert len(all_of_them["findings"]) > 20


def test_long_tables_are_cut(run, mistaken):
    out = ok(run("check-labels", mistaken[0], *POCKET, "--max-score", "1"))
    assert "more (--out and --report show all)" in out


def test_a_csv_file_with_small_classes(run, tmp_path):
    for name, number in (("red disc", 6), ("blue disc", 6), ("green disc", 2)):
        for index in range(number):
            draw(tmp_path / "images" / f"{name} {index}.png", name.split()[0], index)
    lines = [f"images/{path.name},{path.stem[:-2]}" for path in sorted((tmp_path / "images").iterdir())]
    (tmp_path / "labels.csv").write_text("path,label\n" + "\n".join(lines))
    tiny = ("--backbone", TINY, "--pretrained", "random:0", "--device", "cpu")
    out = ok(run("check-labels", tmp_path / "labels.csv", *tiny))
    assert "classes with too few images to check their labels: green disc (2)" in out
    assert "toy model" not in out
    for name in ("red disc 0", "red disc 3", "green disc 0", "green disc 1"):
        (tmp_path / "images" / f"{name}.png").write_bytes(b"no image")
    code, out, err = run("check-labels", tmp_path / "labels.csv", *tiny)
    assert code == 1 and "10 images of 2 classes" in out and "cross-validated accuracy" in out
    for name in ("red disc 0", "red disc 3", "green disc 0", "green disc 1"):
        assert f"{name}.png" in err
    code, out, err = run("check-labels", tmp_path / "labels.csv", *tiny, "--skip-bad-images")
    assert code == 0 and "10 images of 2 classes" in out and "green disc 1.png" in err


def test_bad_input_is_one_line(run, mistaken, tmp_path):
    root, _ = mistaken
    failed(run("check-labels", tmp_path / "none"), "no such folder or CSV file")
    failed(run("check-labels", tmp_path), "no images under")
    failed(run("check-labels", root, "--format", "xml"), "xml", "'json'")
    failed(run("check-labels", root, *POCKET, "--similarity", "1.5"), "above 0 and at most 1 (given: 1.5)")
    failed(run("check-labels", root, *POCKET, "--max-score", "nan"), "above 0 and at most 1 (given: nan)")
    failed(run("check-labels", root, *POCKET, "--out", "/proc/none/s.csv"), "/proc/none")
    failed(run("check-labels", root, "--backbone", "pockett"), "pockett")


def test_the_help_names_the_defaults():
    command = typer.main.get_command(app).commands["check-labels"]
    help_of = {parameter.name: parameter.help for parameter in command.params}
    assert f"default: {MAX_SCORE}" in help_of["max_score"] and f"default: {SIMILARITY}" in help_of["similarity"]
