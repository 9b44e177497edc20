"""`slimprompt fit --continue-from MODEL`: a saved model grows with its images."""

import json
import shutil

import pytest
from PIL import Image

from slimprompt import Classifier, PromptClassifier
from slimprompt.clip.backbone import Backbone
from slimprompt.methods.prompt import make_prompt
from slimprompt.prompts.spec import make_spec
from slimprompt.saved import tensors_sha256
from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import draw, entries_of


def add(root, colour, numbers):
    return [draw(root / f"{colour} disc" / f"{number}.png", colour, number) for number in numbers]


def described(folder):
    """The description of a saved model, with the fields of its prompt."""
    entries = entries_of(folder)
    return entries | (entries["prompt"] or {})


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Three classes of six images."""
    root = tmp_path_factory.mktemp("first")
    for colour in ("red", "green", "blue"):
        add(root, colour, range(6))
    return root


@pytest.fixture(scope="module")
def old(run, first, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "old"
    ok(run("fit", first, "--out", folder, "--shots", 3, *QUICK, "--seed", 2, "--variant", "joint", "--depth", 2))
    return folder


@pytest.fixture
def grown_images(first, tmp_path):
    """The same images, two more of each class, and a class more."""
    root = tmp_path / "grown"
    shutil.copytree(first, root)
    for colour in ("red", "green", "blue"):
        add(root, colour, range(6, 8))
    add(root, "yellow", range(6))
    return root


def test_settings_come_from_the_model_and_classes_are_added(run, old, grown_images, tmp_path):
    out = ok(run("fit", grown_images, "--continue-from", old, "--out", tmp_path / "new", "--device", "cpu"))
    assert "4 classes, 12 training images (3 per class), 18 held out" in out
    assert f"continued from {old}: 3 of the training images are new to it, 9 are not" in out
    assert out.splitlines()[-1] == "classes: 1 added (yellow disc), none removed"
    before, after = described(old), described(tmp_path / "new")
    for name in ("variant", "rank", "n_ctx", "depth", "position", "recipe", "seed", "shots", "backbone", "templates"):
        assert before[name] == after[name], name
    assert (after["variant"], after["depth"], after["seed"], after["recipe"]["epochs"]) == ("joint", 2, 2, 2)
    factors = PromptClassifier.load(old, device="cpu").prompt_
    assert after["continued_from"] == tensors_sha256(factors) and str(old) not in json.dumps(after)
    assert set(before["training_images"].split()) < set(after["training_images"].split())


def test_the_accuracy_of_the_start_is_that_of_the_old_prompt_on_the_new_classes(run, old, grown_images, tmp_path):
    test = tmp_path / "split" / "test"
    shutil.copytree(grown_images, tmp_path / "split" / "train")
    for colour in ("red", "green", "blue", "yellow"):
        add(test, colour, range(10, 14))
    out = ok(run("fit", test.parent, "--continue-from", old, "--out", tmp_path / "new"))
    lines = [line.rsplit("  ", 1) for line in out.splitlines() if line.endswith("%")]
    shown = {title.strip(): value.strip() for title, value in lines}
    assert list(shown) == [
        "zero-shot, “a photo of a {}.”",
        "the prompt it started from",
        "learned prompt",
        "chance (4 classes)",
    ]
    # `evaluate` of the old prompt on these names, all of them new to a prompt that was fitted on other words
    images = sorted(test.glob("*/*.png"))
    renamed = PromptClassifier.load(old, device="cpu").with_classes(sorted({path.parent.name for path in images}))
    accuracy = renamed.score(images, [path.parent.name for path in images])
    assert shown["the prompt it started from"] == f"{100 * accuracy:.1f} %"
    held_out = described(tmp_path / "new")["held_out"]
    assert held_out["start"] == pytest.approx(accuracy) and held_out["images"] == 16


def test_unchanged_images_cost_nothing(run, old, first, grown_images, tmp_path, monkeypatch):
    """After a first fit, nothing is encoded by the same images, and of more images only what is new."""
    ok(
        run("fit", first, "--out", tmp_path / "again", "--shots", 3, *QUICK, "--seed", 2, "--depth", 2)
    )  # fills the bank
    encoded = []
    encode_images = Backbone.encode_images

    def count(self, pixels, *args, **kwargs):
        encoded.append(len(pixels))
        return encode_images(self, pixels, *args, **kwargs)

    monkeypatch.setattr(Backbone, "encode_images", count)
    ok(run("fit", first, "--continue-from", old, "--out", tmp_path / "same"))
    assert not encoded
    ok(run("fit", grown_images, "--continue-from", old, "--out", tmp_path / "more"))
    assert encoded
    encoded.clear()
    ok(run("fit", grown_images, "--continue-from", tmp_path / "more", "--out", tmp_path / "most"))
    assert not encoded


def test_training_images_of_the_model_are_not_held_out(run, old, grown_images, tmp_path):
    """Also with another seed and fewer shots: the start knows these images, whatever is sampled now."""
    out = ok(run("fit", grown_images, "--continue-from", old, "--out", tmp_path / "new", "--seed", 7, "--shots", 1))
    assert "4 classes, 10 training images (at least 1 per class), 20 held out" in out
    assert f"continued from {old}: 1 of the training images are new to it, 9 are not" in out
    assert "were training images" not in out
    assert (described(tmp_path / "new")["seed"], described(tmp_path / "new")["shots"]) == (7, 1)


def test_held_out_images_that_the_model_was_trained_on_are_named(run, old, grown_images, tmp_path):
    """A test folder is evaluated on as it is; the accuracy without images that the start knows is given too."""
    known = set(described(old)["training_images"].split())
    split = tmp_path / "split"
    shutil.copytree(grown_images, split / "train")
    shutil.copytree(grown_images, split / "test")
    out = " ".join(ok(run("fit", split, "--continue-from", old, "--out", tmp_path / "new")).split())
    new = set(described(tmp_path / "new")["training_images"].split())
    assert known < new
    assert f"{len(new)} of the 30 images were training images: without them, the accuracy is" in out


def test_removed_classes_are_named(run, old, first, tmp_path):
    shutil.copytree(first / "red disc", tmp_path / "images" / "red disc")
    shutil.copytree(first / "green disc", tmp_path / "images" / "Green_disc")  # the same words in a prompt
    out = ok(run("fit", tmp_path / "images", "--continue-from", old, "--out", tmp_path / "new"))
    assert "no images of blue disc were given: these classes are not in the new model" in out
    assert "classes: none added, 1 removed (blue disc)" in out
    assert described(tmp_path / "new")["class_names"] == ["Green_disc", "red disc"]


def test_a_model_can_grow_in_place(run, old, grown_images, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(old, model)
    failed(run("fit", grown_images, "--continue-from", model, "--out", model), "exists already")
    ok(run("fit", grown_images, "--continue-from", model, "--out", model, "--overwrite"))
    factors = PromptClassifier.load(old, device="cpu").prompt_
    assert described(model)["continued_from"] == tensors_sha256(factors)
    assert "yellow disc" in described(model)["class_names"]


def test_options_that_may_change(run, old, first, tmp_path):
    fit = ("fit", first, "--continue-from", old, "--out")
    ok(run(*fit, tmp_path / "lr", "--set", "lr=0.01", "--set", "epochs=3", "--depth", 2))
    recipe = described(tmp_path / "lr")["recipe"]
    assert (recipe["lr"], recipe["epochs"], recipe["views"]) == (0.01, 3, 1)  # the others are the model's
    ok(run(*fit, tmp_path / "fast", "--recipe", "fast"))
    assert described(tmp_path / "fast")["recipe"]["optimizer"] == "adamw"


@pytest.mark.parametrize(
    ("option", "value", "has"),
    [
        ("--rank", "4", "2"),  # the default of the command, but not of the model
        ("--variant", "fixed-B", "joint"),
        ("--basis", "svd", "none"),
        ("--n-ctx", "16", "4"),
        ("--words", "a photo of a", "none"),
        ("--depth", "1", "2"),
        ("--position", "front", "end"),
        ("--backbone", "pocket", "tiny-for-tests"),
        ("--precision", "bf16", "fp32"),
        ("--method", "gda", "prompt"),
    ],
)
def test_an_option_that_contradicts_the_model_is_an_error(run, old, first, tmp_path, option, value, has):
    result = run("fit", first, "--continue-from", old, "--out", tmp_path / "new", option, value)
    failed(result, f"{option} {value} contradicts {old}, which has {has}:", "Leave the option out")
    assert not (tmp_path / "new").exists()


def test_other_weights_and_other_folders_are_errors(run, old, first, tmp_path):
    fit = ["fit", first, "--out", tmp_path / "new", "--continue-from"]
    failed(run(*fit, old, "--pretrained", "random:1"), "a model only works with the weights it was fitted on")
    failed(run(*fit, tmp_path), f"no saved model at {tmp_path}")
    damaged = tmp_path / "damaged"
    shutil.copytree(old, damaged)
    (damaged / "model.safetensors").write_bytes(b"")
    failed(run(*fit, damaged), "is damaged")
    Image.new("RGB", (8, 8)).save(tmp_path / "file.png")
    failed(run(*fit, tmp_path / "file.png"), "no saved model at")


def test_a_head_is_fitted_again_with_its_settings(run, first, grown_images, tmp_path):
    model = QUICK[:4]
    given = ("--method", "gda", "--shots", 3, "--seed", 2, "--set", "views=1", "--template", "a {} here")
    ok(run("fit", first, *model, *given, "--out", tmp_path / "old"))
    out = ok(run("fit", grown_images, "--continue-from", tmp_path / "old", "--out", tmp_path / "new"))
    assert (
        "gda was fitted again: only a prompt can be trained further" in out
        and "classes: 1 added (yellow disc), none removed" in out
    )
    cold = ok(run("fit", grown_images, *model, *given, "--out", tmp_path / "cold"))
    assert "fitted again" not in cold
    files = [tmp_path / name / "model.safetensors" for name in ("new", "cold")]
    assert files[0].read_bytes() == files[1].read_bytes()
    failed(run("fit", first, "--continue-from", tmp_path / "old", "--rank", 2), "--rank can only be used with prompts")
    failed(run("fit", first, "--continue-from", tmp_path / "old", "--method", "clap"), "--method clap contradicts")


def test_an_imported_prompt_can_be_continued(run, tiny, first, tmp_path):
    spec = make_spec(n_ctx=4, variant="dense")
    prompt = make_prompt(tiny, spec, seed=1)
    imported = Classifier.of_prompt(tiny, prompt, spec, ["red disc", "cat"], imported={"from": "model.pth.tar-2"})
    imported.save(tmp_path / "imported")
    fit = ("fit", first, "--continue-from", tmp_path / "imported", "--out", tmp_path / "new", "--no-calibration")
    out = ok(run(*fit, "--set", "epochs=1", "--set", "views=0"))
    assert "the training images of" in out and "are not known" in out
