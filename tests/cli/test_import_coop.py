"""`slimprompt import-coop`, and the evaluation of imported prompts."""

import json

import pytest

from tests.cli.conftest import failed, ok
from tests.conftest import TINY, draw, entries_of
from tests.test_coop import train_and_save

NAMES = ["red-707", "Blue 3", "green_C-130"]
MODEL = ["--backbone", TINY, "--pretrained", "random:0"]


@pytest.fixture
def checkpoint(tiny, tmp_path):
    path = tmp_path / "model.pth.tar-2"
    train_and_save(tiny, path, names=NAMES)
    return path


def split_file(path):
    entries = [[f"{label}.jpg", label, name] for label, name in enumerate(NAMES)]
    path.write_text(json.dumps({"train": entries[::-1], "val": [], "test": entries}))
    return path


def text_file(path):
    path.write_text("\n".join(NAMES) + "\n")
    return path


@pytest.mark.parametrize("form", ["list", "text file", "split file"])
def test_spelling_of_the_class_names(run, checkpoint, tmp_path, form):
    given = {
        "list": lambda: ", ".join(NAMES),
        "text file": lambda: text_file(tmp_path / "NAMES.TXT"),
        "split file": lambda: split_file(tmp_path / "split_zhou_X.json"),
    }[form]()
    out = ok(run("import-coop", checkpoint, "--out", tmp_path / "p", *MODEL, "--classes", given))
    assert "4 context vectors for 3 classes" in out
    assert entries_of(tmp_path / "p")["class_names"] == NAMES


def test_names_read_from_tokens_match_those_of_a_folder(run, checkpoint, tmp_path):
    ok(run("import-coop", checkpoint, "--out", tmp_path / "p", *MODEL))
    assert entries_of(tmp_path / "p")["class_names"][0] == "red - 7 0 7"
    for name in NAMES:
        draw(tmp_path / "test" / name / "0.png", "red", 1)
    scores = json.loads(ok(run("evaluate", tmp_path / "p", tmp_path / "test", "--format", "json")))
    assert (scores["classes"], scores["new_classes"]) == (3, 0)
    draw(tmp_path / "test" / "blue 4" / "0.png", "red", 1)
    failed(run("evaluate", tmp_path / "p", tmp_path / "test"), "1 of 4 classes are unknown", "'blue 4'")


def test_a_model_folder_needs_no_pretrained(run, tiny_folder, checkpoint, tmp_path):
    out = ok(run("import-coop", checkpoint, "--out", tmp_path / "p", "--backbone", tiny_folder))
    assert tiny_folder in out


def test_bad_class_names(run, checkpoint, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bad.json").write_text("[]")
    for given, *parts in (
        ("red-707,Blue 4,green_C-130", "class 2 of", "'blue 3'", "'Blue 4' was given"),
        ("red-707,Blue 3", "3 classes, but 2 names"),
        (tmp_path / "none.txt", "no such file"),
        (tmp_path / "empty.txt", "holds no class"),
        (tmp_path / "bad.json", "is not a split file"),
    ):
        failed(run("import-coop", checkpoint, "--out", tmp_path / "p", *MODEL, "--classes", given), *parts)
    assert not (tmp_path / "p").exists()
