"""`fit --method` and `fit --compare`, and saved heads in `predict` and `evaluate`."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from slimprompt.clip.backbone import Backbone
from slimprompt.methods.table import METHODS
from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import TINY, draw, entries_of
from tests.html_page import Page

MODEL = ["--backbone", TINY, "--pretrained", "random:0", "--device", "cpu"]


@pytest.fixture(scope="module")
def head(run, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "my-head"
    out = ok(
        run("fit", photos, "--out", folder, "--shots", 4, "--method", "gda", "--set", "views=1", *MODEL, "--verbose")
    )
    return folder, out


def test_fit_a_head(head):
    folder, out = head
    assert "3 classes, 12 training images (4 per class), 6 held out" in out
    assert "75 numbers trained (gda, alpha " in out
    for part in ("zero-shot, “a photo of a {}.”", "gda", "chance (3 classes)", "green disc", "model.safetensors"):
        assert part in out or (folder / part).is_file()
    description = entries_of(folder)
    assert description["method"] == "gda" and description["views"] == 1 and description["shots"] == 4
    assert description["held_out"]["images"] == 6 and "model" in description["held_out"]


def test_predict_and_evaluate_a_head(run, head, photos, tmp_path):
    folder, _ = head
    scores = json.loads(ok(run("evaluate", folder, photos, "--format", "json")))
    assert scores["images"] == 18 and scores["model"] >= 0.9
    assert "gda" in ok(run("evaluate", folder, photos, "--verbose"))
    image = photos / "red disc" / "0.png"
    assert "red disc" in ok(run("predict", folder, image))
    (row,) = json.loads(
        ok(run("predict", folder, image, "--format", "json", "--top", 3, "--classes", "green disc,red disc"))
    )
    assert [one["name"] for one in row["classes"]] == ["red disc", "green disc"]


def test_a_head_refuses_new_class_names(run, head, tmp_path):
    folder, _ = head
    image = draw(tmp_path / "black disc" / "0.png", "black", 1)
    draw(tmp_path / "white disc" / "0.png", "white", 1)
    failed(
        run("predict", folder, image, "--classes", "red panda,otter"),
        "gda cannot take new class names (red panda, otter)",
    )
    failed(run("evaluate", folder, tmp_path), "gda cannot take new class names (black disc, white disc)")


def test_a_zero_shot_head_takes_new_class_names(run, photos, tmp_path):
    ok(
        run(
            "fit", photos, "--out", tmp_path / "zs", "--method", "zero-shot", "--template", "a drawing of a {}.", *MODEL
        )
    )
    text = ok(run("predict", tmp_path / "zs", photos / "red disc" / "0.png", "--classes", "red panda,otter"))
    assert "otter" in text or "red panda" in text
    assert entries_of(tmp_path / "zs")["templates"] == ["a drawing of a {}."]


def test_compare_prints_every_method_on_the_same_images_and_reads_each_once(run, photos, tmp_path, monkeypatch):
    """The methods use the views of the recipe, which are encoded for the prompt anyway."""
    encoded, original = [], Backbone.encode_images
    monkeypatch.setattr(
        Backbone, "encode_images", lambda self, pixels: (encoded.append(len(pixels)), original(self, pixels))[1]
    )
    out = ok(run("fit", photos, "--out", tmp_path / "p", "--shots", 4, *QUICK, "--no-cache", "--compare"))
    assert sum(encoded) == 3 * 32  # as without --compare
    table = out[out.index("all methods on the same 6 held-out images") :].splitlines()
    rows = {line.split()[0]: line.split() for line in table[2:12]}
    assert list(rows) == ["prompt", *METHODS]
    assert [name for name, row in rows.items() if row[-1] == "yes"] == ["prompt", "zero-shot"]
    assert rows["prompt"][-2] == "64" and rows["zero-shot"][-2] == "0" and rows["tip-adapter"][-2] == str(12 * 24)
    assert max(map(len, table[1:12])) <= 80
    learned = next(line for line in out.splitlines() if line.startswith("learned prompt"))
    assert learned.split()[-2] == rows["prompt"][3]
    assert rows["zero-shot"][5] == "–"  # no difference to itself


def test_the_best_method_is_chosen_inside_the_training_images_and_can_be_saved(run, tmp_path):
    """On discs of three colours, some methods are right and zero-shot with random weights is not."""
    images, page = tmp_path / "my images", tmp_path / "page.html"
    for colour in ("red", "green", "blue"):
        for number in range(14):
            draw(images / f"{colour} disc" / f"{number}.png", colour, number)
    fit = ("fit", images, "--shots", 4, "--set", "views=1", *MODEL, "--no-calibration")
    out = ok(run(*fit, "--compare", "--method", "zero-shot", "--out", tmp_path / "zs"))
    chosen = re.search(r"^Use (\S+), the most accurate method .* within the 12 training images", out, re.MULTILINE)[1]
    assert "It is better than zero-shot on 30 images: +" in out
    assert f"What was saved is zero-shot: --save-best saves {chosen}" in out
    out = ok(run(*fit, "--save-best", "--method", "zero-shot", "--out", tmp_path / "best", "--report", page))
    assert "What was saved" not in out
    saved = entries_of(tmp_path / "best")
    assert saved["method"] == chosen and saved["held_out"]["model"] > saved["held_out"]["zero_shot"]
    ok(run(*fit, "--method", chosen, "--out", tmp_path / "again"))
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "best" / "model.safetensors"
    ).read_bytes()
    shown = Page(page.read_text(encoding="utf-8")).text
    assert "tip-adapter-f" in shown and f"Use {chosen}, the most accurate method" in shown


def test_too_few_held_out_images_are_said(run, photos, tmp_path):
    out = ok(run("fit", photos, "--out", tmp_path / "p", "--shots", 5, *QUICK, "--compare"))
    assert "3 held-out images" in out
    assert "cross-validation within the 15 training images" in out
    for option in (["--compare"], ["--report", tmp_path / "page.html"]):
        nothing = run("fit", photos, "--out", tmp_path / "q", "--shots", 6, *QUICK, *option)
        failed(nothing, f"{option[0]} needs held-out images, and all images are training images: give more images or")
    one_shot = run("fit", photos, "--out", tmp_path / "q", "--shots", 1, *QUICK, "--save-best")
    failed(one_shot, "--save-best", "two training images of a class", "--shots")
    assert not (tmp_path / "q").exists()
    out = ok(run("fit", photos, "--out", tmp_path / "q", "--shots", 1, *QUICK, "--compare"))
    assert "No method is chosen" in out


def test_copies_of_training_images_do_not_count(run, photos, tmp_path):
    """The saved accuracy and the comparison of methods with a head leave out what the methods were trained on."""
    split, only_copies = tmp_path / "split", tmp_path / "copies"
    for path in photos.glob("*/*.png"):
        is_new = path.stem in ("4", "5")
        places = (
            [split / "test"]
            if is_new
            else [split / "train", split / "test", only_copies / "train", only_copies / "test"]
        )
        for folder in places:
            (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
            (folder / path.parent.name / f"{folder.name} {path.name}").write_bytes(path.read_bytes())
    fit = ("--shots", 4, "--method", "gda", "--set", "views=1", *MODEL, "--compare")
    printed = ok(run("fit", split, "--out", tmp_path / "h", *fit))
    names = [line.split()[0] for line in printed[printed.index("all methods") :].splitlines()[2:11]]
    assert names == list(METHODS)
    out = " ".join(printed.split())
    assert "12 of the 18 images were training images: without them, the accuracy is " in out
    assert "all methods without a prompt on the same 6 held-out images" in out
    saved = entries_of(tmp_path / "h")["held_out"]
    assert saved["images"] == 6 and f"without them, the accuracy is {100 * saved['model']:.1f} %" in out

    out = " ".join(ok(run("fit", only_copies, "--out", tmp_path / "c", *fit)).split())
    assert "all 12 images were training images" in out
    assert "the methods are not compared: no held-out images are left" in out
    assert "held_out" not in entries_of(tmp_path / "c")


@pytest.mark.parametrize(("method", "batches"), [("zero-shot", 2), ("linear-probe", 2), ("gda", 3)])
def test_only_views_that_a_method_reads_are_encoded(run, photos, tmp_path, monkeypatch, method, batches):
    """The eval views of training and of held-out images; for gda, also the train views."""
    encoded, original = [], Backbone.encode_images
    monkeypatch.setattr(
        Backbone, "encode_images", lambda self, pixels: (encoded.append(len(pixels)), original(self, pixels))[1]
    )
    options = ("--shots", 4, "--method", method, "--set", "views=2", *MODEL, "--no-cache", "--no-calibration")
    ok(run("fit", photos, "--out", tmp_path / "h", *options))
    assert len(encoded) == batches


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--method", "gdaa"], ["unknown method 'gdaa'", "did you mean 'gda'"]),
        (["--method", "gda", "--rank", "4"], ["--rank can only be used with prompts"]),
        (
            ["--method", "gda", "--set", "epochs=2", "--recipe", "paper"],
            ["--recipe, --set epochs can only be used with prompts"],
        ),
        (["--method", "gda", "--template", "no place"], ["exactly one {}"]),
    ],
)
def test_bad_options(run, photos, tmp_path, options, parts):
    failed(run("fit", photos, "--out", tmp_path / "h", *MODEL, *options), *parts)
    assert not (tmp_path / "h").exists()


def test_the_page_of_a_head(run, photos, tmp_path):
    page = tmp_path / "page.html"
    ok(run("fit", photos, "--out", tmp_path / "h", "--method", "gda", "--shots", 4, *MODEL, "--report", page))
    assert "green disc" in page.read_text()
    assert "gda" in page.read_text()


def test_any_model_overwrites_any_other_if_asked(run, head, photos, tmp_path):
    failed(run("fit", photos, "--out", head[0], "--method", "gda", *MODEL), "exists already", "--overwrite")
    shutil.copytree(head[0], tmp_path / "h")
    ok(run("fit", photos, "--out", tmp_path / "h", *QUICK, "--overwrite"))
    assert entries_of(tmp_path / "h")["method"] == "prompt"


OWN_METHODS = """
import torch
from torch.nn import functional as F

from slimprompt.methods.head import FittedHead, Head


def nearest_mean(task, scale=20.0):
    features, labels = task.eval_features, task.targets
    means = torch.stack([features[labels == label].mean(0) for label in range(len(task.class_names))])
    return FittedHead(Head(task.class_names, F.normalize(means, dim=-1), scale), means.numel(), {"scale": scale})


def broken(task):
    return 1 / 0
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The name of a module that is on Python's path and not imported."""
    name = "methods_of_this_test"
    (tmp_path / f"{name}.py").write_text(OWN_METHODS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def test_a_method_of_ones_own_is_imported_by_its_name(run, photos, tmp_path, own_module):
    name = f"{own_module}:nearest_mean"
    fit = ("fit", photos, "--shots", 4, "--set", "views=1", *MODEL, "--out", tmp_path / "mine")
    failed(
        run(*fit, "--method", f"{own_module}:nearest"),
        f"{own_module} has no function nearest; its functions are broken, nearest_mean",
    )
    failed(run(*fit, "--method", f"{own_module}:broken"), "broken' failed: ZeroDivisionError: division by")
    failed(run(*fit, "--method", name, "--rank", 2), "--rank can only be used with prompts")
    out = ok(run(*fit, "--method", name, "--compare"))
    assert f"72 numbers trained ({name}, scale 20)" in out
    rows = [line.split()[0] for line in out[out.index("all methods without a prompt on the same") :].splitlines()[2:12]]
    assert rows == [*METHODS, name]
    description = entries_of(tmp_path / "mine")
    assert (description["method"], description["settings"]) == (name, {"scale": 20.0})
    assert len(description["confidences"]) == 12  # calibrated with the settings of the fit
    # fitted again, with more images
    grown = ("fit", photos, "--continue-from", tmp_path / "mine", "--shots", 5, "--out", tmp_path / "grown")
    assert f"{name} was fitted again" in ok(run(*grown))


def test_a_saved_head_of_ones_own_method_needs_no_module(run, photos, tmp_path, own_module, tiny_folder):
    """In a process that has never imported it."""
    name, head = f"{own_module}:nearest_mean", tmp_path / "mine"
    options = ("--shots", 4, "--set", "views=1", "--no-calibration", "--backbone", tiny_folder)
    ok(run("fit", photos, *options, "--out", head, "--method", name))
    (tmp_path / f"{own_module}.py").unlink()
    program = tmp_path / "use.py"
    program.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from slimprompt import InputError, load_classifier\n"
        "from slimprompt.cli import main\n"
        "from slimprompt.service.models import load_models\n"
        "_, head, photos, image, matrix = sys.argv\n"
        "classifier = load_classifier(head, device='cpu')\n"
        "print(classifier.method, *classifier.predict([image]))\n"
        "print(*classifier.with_classes(['red disc', 'blue disc']).classes_)\n"
        "try:\n    classifier.with_classes(['otter', 'red panda'])\n"
        "except InputError as error:\n    print(error)\n"
        "(model,) = load_models([Path(head)], device='cpu').values()\n"
        "print(model.describe().method, model.describe().takes_new_names)\n"
        "for command in (['evaluate', head, photos], ['export', head, '--matrix', matrix]):\n"
        "    sys.argv = ['slimprompt', *command]\n"
        "    try:\n        main()\n"
        "    except SystemExit as stop:\n        assert not stop.code, stop.code\n"
        f"assert {own_module!r} not in sys.modules\n"
    )
    image, matrix = photos / "red disc" / "0.png", tmp_path / "classes.safetensors"
    given = [sys.executable, program, head, photos, image, matrix]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"{name} red disc", "red disc blue disc"]
    assert f"a head of {name} cannot take new class names (otter, red panda)" in lines[2]
    assert lines[3] == f"{name} False"
    assert any(line.startswith(name) and line.endswith("%") for line in lines[4:])
    assert matrix.is_file()
