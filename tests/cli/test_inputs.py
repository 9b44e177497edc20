"""Hostile input on the command line: each ends in one line and exit code 2, before any long work."""

import csv
import io
import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from slimprompt.cli import main
from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import draw


@pytest.fixture
def odd(photos, tmp_path):
    """Images in a folder whose name is not UTF-8, one of them with such a name too."""
    folder = tmp_path / "od\udce9"
    shutil.copytree(photos, folder)
    image = next((folder / "red disc").iterdir())
    image.rename(image.with_name("caf\udce9.png"))
    return folder


def test_file_names_that_are_not_utf8(run, odd, tmp_path):
    prompt, manifest = tmp_path / "p\udce9", tmp_path / "m\udce9.json"
    assert "saved to" in ok(run("fit", odd, "--out", prompt, *QUICK, "--shots", "9"))
    assert "caf\\udce9.png" in ok(run("predict", prompt, odd))
    rows = list(csv.reader(io.StringIO(ok(run("predict", prompt, odd, "--format", "csv")))))
    assert any(row[0].endswith("od\\udce9/red disc/caf\\udce9.png") for row in rows)
    found = json.loads(ok(run("predict", prompt, odd, "--format", "json")))
    assert str(odd / "red disc" / "caf\udce9.png") in {one["image"] for one in found}
    assert "od\\udce9: 3 classes" in ok(run("data", "check", odd))
    ok(run("data", "sample", odd, "--shots", "9", "--out", manifest))
    ok(run("fit", odd, "--manifest", manifest, "--out", tmp_path / "other", *QUICK))


def test_a_study_on_file_names_that_are_not_utf8(run, odd, tiny_folder, tmp_path):
    grid = ["--backbones", tiny_folder, "--datasets", odd, "--shots", "1", "--seeds", "1", "--ranks", "2"]
    options = [
        "--n-ctx",
        "4",
        "--short-ctx",
        "2",
        "--set",
        "epochs=1",
        "--set",
        "views=1",
        "--executor",
        "inline",
        "--device",
        "cpu",
    ]
    result = run("study", "headline", *grid, *options, "--runs", tmp_path / "r\udce9")
    assert "3 of 3 runs complete" in ok(result)
    assert "od\\udce9" in ok(run("runs", "list", "--runs", tmp_path / "r\udce9"))


def test_markup_in_names_is_printed_as_it_is(run, tmp_path):
    for name in ("a[/]b", "[red]c"):
        for number in range(3):
            draw(tmp_path / "photos[bold]" / name.replace("/", "∕") / f"{number}.png", "red", number)
    options = ("--shots", "2", "--verbose", "--template", "a [/] {}")
    text = ok(run("fit", tmp_path / "photos[bold]", "--out", tmp_path / "p[/x]", *QUICK, *options))
    assert "a[∕]b" in text and "[red]c" in text and "“a [/] {}”" in text and "p[/x]" in text
    assert "[/x]" in failed(run("predict", tmp_path / "none[/x]", tmp_path))


def test_class_names_do_not_become_formulas(run, photos, tmp_path):
    ok(run("fit", photos, "--out", tmp_path / "p", *QUICK))
    image = next((photos / "red disc").iterdir())
    text = ok(run("predict", tmp_path / "p", image, "--classes", "=cmd,@b,+c,-d", "--top", "4", "--format", "csv"))
    rows = list(csv.reader(io.StringIO(text)))[1:]
    assert sorted(row[2] for row in rows) == ["'+c", "'-d", "'=cmd", "'@b"]


def test_pipes_and_devices_are_not_read(run, photos, tmp_path):
    for name in ("a.json", "a.csv", "a.yaml", "a.png"):
        os.mkfifo(tmp_path / name)
    out = ("--out", tmp_path / "out", *QUICK)
    failed(run("fit", photos, "--manifest", tmp_path / "a.json", *out), "pipe or a device")
    failed(run("fit", photos, "--manifest", "/dev/zero", *out), "pipe or a device")
    failed(run("fit", tmp_path / "a.csv", *out), "pipe or a device")
    failed(run("study", tmp_path / "a.yaml", "--plan"), "pipe or a device")
    ok(run("fit", photos, *out))
    result = run("predict", tmp_path / "out", tmp_path / "a.png")
    assert result.returncode == 1 and "pipe or a device" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "epochs=1000000000"), "epochs: Input should be less than or equal to 1000000"),
        (("--set", "views=10000000"), "views: Input should be less than or equal to 10000"),
        (("--set", "lr=1e38"), "lr: Input should be less than or equal"),
        (("--set", "weight_decay=inf"), "weight_decay: Input should be less than or equal"),
        (("--n-ctx", "1000000000"), "n_ctx=1000000000 does not fit"),
        (("--template", "a" * 5000), "the template 'aaa"),
        (("--template", "caf\udce9 {}"), "not UTF-8; give it as text"),
        (("--recipe", "a" * 5000), "unknown recipe 'aaa"),
        (("--manifest", "a" * 5000), "cannot read the manifest aaa"),
        (("--out", "a" * 5000), "File name too long"),
    ],
)
def test_options_that_cannot_be_used(run, photos, tmp_path, options, message):
    text = failed(run("fit", photos, "--out", tmp_path / "p", *QUICK, *options), message)
    assert len(text) < 1100
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("target", ["/proc/none/x", "file/x", "a" * 300])
def test_targets_are_checked_before_the_work(run, photos, tmp_path, target):
    (tmp_path / "file").write_text("mine")
    out = ("--out", tmp_path / target)
    for command in (
        ("theory", *out),
        ("tables", "--published", *out),
        ("report", tmp_path / "runs", *out),
        ("geometry", tmp_path / "runs", *out),
        ("quickstart", *out),
        ("data", "sample", photos, *out),
        ("data", "pocket", *out),
        ("data", "check", photos, "--hashes", tmp_path / target),
    ):
        failed(run(*command), "cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_as_the_name_of_a_file_is_refused_before_the_work(run, photos, tmp_path):
    for command in (
        ("fit", photos, "--out", tmp_path / "p", *QUICK, "--report", photos),
        ("evaluate", tmp_path / "none", photos, "--report", photos),
        ("suggest", tmp_path / "none", photos, "--out", photos),
        ("suggest", tmp_path / "none", photos, "--report", photos),
        ("check-labels", photos, "--backbone", "none", "--out", photos),
        ("data", "sample", photos, "--out", photos),
        ("data", "check", photos, "--hashes", photos),
    ):
        failed(run(*command), f"{photos} is a folder; give the name of a file")
    assert not list(tmp_path.iterdir())


def test_two_files_of_one_name_are_refused_before_the_work(run, photos, tmp_path):
    one, other = tmp_path / "x", tmp_path / "y" / ".." / "x"
    for command in (
        ("suggest", tmp_path / "none", photos, "--out", one, "--report", other),
        ("check-labels", photos, "--backbone", "none", "--out", one, "--report", other),
        ("export", tmp_path / "none", "--onnx", one, "--matrix", other),
    ):
        failed(run(*command), "is given as the name of two files")


def test_too_little_memory_is_not_called_a_bug(capsys):
    for error in (
        MemoryError("Unable to allocate 644. GiB for an array"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(Mock(side_effect=error))
        message = " ".join(capsys.readouterr().err.split())
        assert stop.value.code == 2 and f"there is not enough memory ({error})" in message and "--device" in message
        assert "bug" not in message


def test_an_input_is_not_overwritten(run, photos, tmp_path):
    table, manifest = tmp_path / "images.csv", tmp_path / "sample.json"
    rows = "".join(f"{path},{path.parent.name}\n" for path in sorted(photos.glob("*/*.png")))
    table.write_text(f"path,label\n{rows}")
    ok(run("data", "sample", table, "--out", manifest))
    for output in (
        ("fit", table, "--out", tmp_path / "p", *QUICK, "--report", table),
        ("fit", table, "--out", tmp_path / "p", *QUICK, "--manifest", manifest, "--report", manifest),
        ("evaluate", tmp_path / "none", table, "--report", table),
        ("check-labels", table, "--backbone", "none", "--out", table),
        ("data", "sample", table, "--out", tmp_path / "x" / ".." / "images.csv"),
        ("data", "check", table, "--hashes", table),
        ("data", "check", table, "--against", manifest, "--hashes", manifest),
    ):
        failed(run(*output), "is one of the inputs; choose another name for the output")
    assert table.read_text() == f"path,label\n{rows}" and manifest.read_text().startswith("{")


def test_other_files_are_not_overwritten(run, photos, tmp_path):
    """Refused before the model is loaded, which does not exist here."""
    ours = tmp_path / "none"
    for name in ("image.jpg", "notes.txt", "own.html", "marks.csv"):
        (tmp_path / name).write_text("mine")
    image, notes, page, table = (tmp_path / name for name in ("image.jpg", "notes.txt", "own.html", "marks.csv"))
    for command, part in (
        (("evaluate", ours, photos, "--report", image), "ends in .html or .htm"),
        (("fit", photos, "--out", ours, *QUICK, "--report", notes), "ends in .html or .htm"),
        (("fit", photos, "--out", ours, *QUICK, "--report", page), "add --overwrite"),
        (("suggest", ours, photos, "--report", page), "add --overwrite"),
        (("suggest", ours, photos, "--out", notes), "ends in .csv"),
        (("suggest", ours, photos, "--out", table), "add --overwrite"),
        (("check-labels", photos, "--backbone", "none", "--out", table), "add --overwrite"),
        (("check-labels", photos, "--backbone", "none", "--out", notes, "--overwrite"), "ends in .csv"),
        (("check-labels", photos, "--backbone", "none", "--report", image), "ends in .html or .htm"),
    ):
        failed(run(*command), part)
    failed(run("suggest", ours, photos, "--out", table, "--overwrite"), "no saved model")
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}


def break_class(photos: Path, folder: Path, name: str) -> Path:
    shutil.copytree(photos, folder)
    for image in (folder / name).iterdir():
        image.write_bytes(b"no image")
    return folder


def test_a_class_without_readable_images_stops_the_command(run, photos, tmp_path):
    broken = break_class(photos, tmp_path / "broken", "red disc")
    failed(
        run("fit", broken, "--out", tmp_path / "p", *QUICK, "--skip-bad-images"),
        "no training images of 'red disc' are left",
    )
    ok(run("fit", photos, "--out", tmp_path / "p", *QUICK))
    failed(run("evaluate", tmp_path / "p", broken, "--skip-bad-images"), "no images of 'red disc' are left")
    ok(run("data", "sample", photos, "--shots", "2", "--out", tmp_path / "m.json"))
    data = json.loads((tmp_path / "m.json").read_text())
    data["train"] = [item for item in data["train"] if item["label"] != 2]
    (tmp_path / "m.json").write_text(json.dumps(data))
    manifest = ("--manifest", tmp_path / "m.json", "--out", tmp_path / "p2", *QUICK)
    failed(run("fit", photos, *manifest), "the manifest has no training images of 'red disc' (1 of 3 classes)")
