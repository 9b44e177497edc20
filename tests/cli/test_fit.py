"""The commands as a user types them."""

import csv
import io
import json
import shutil
import signal
import socket
import time

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from slimprompt import InputError, PromptClassifier
from slimprompt.clip.backbone import Backbone
from slimprompt.files import cache_dir
from slimprompt.images.store import cached_banks
from tests.cli.conftest import QUICK, QUICK_DENSE, QUICK_WORDS, failed, ok
from tests.conftest import TINY, draw, entries_of
from tests.fork_server import start_command
from tests.html_page import Page


@pytest.fixture(scope="module")
def prompt(run, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "my-prompt"
    page = folder.parent / "page.html"
    out = ok(run("fit", photos, "--out", folder, "--shots", 4, *QUICK, "--verbose", "--report", page))
    return folder, out


def test_fit_says_what_it_did(prompt):
    folder, out = prompt
    assert "3 classes, 12 training images (4 per class), 6 held out" in out
    assert f"64 numbers trained (fixed-B, rank 2, orthogonal basis) on {TINY} (random:0, GELU)" in out
    for part in ("zero-shot, “a photo of a {}.”", "learned prompt", "chance (3 classes)", "33.3 %", "green disc"):
        assert part in out
    description = entries_of(folder)
    assert description["class_names"] == ["blue disc", "green disc", "red disc"]
    assert description["held_out"]["images"] == 6


def test_only_some_of_the_held_out_images_are_encoded(run, photos, tmp_path, monkeypatch):
    out = ok(run("fit", photos, "--out", tmp_path / "given", "--shots", 4, "--held-out", 5, *QUICK))
    assert "12 training images (4 per class), 5 held out" in out
    assert "evaluated on 5 of 6 held-out images; --held-out changes the number" in out
    assert entries_of(tmp_path / "given")["held_out"]["images"] == 5
    monkeypatch.setattr("slimprompt.cli.fit._HELD_OUT", 2)
    assert "evaluated on 2 of 6" in ok(run("fit", photos, "--out", tmp_path / "default", "--shots", 4, *QUICK))
    for split in ("train", "test"):
        shutil.copytree(photos, tmp_path / "split" / split)
    out = ok(run("fit", tmp_path / "split", "--out", tmp_path / "test split", "--shots", 4, *QUICK))
    assert "18 held out" in out and "evaluated on" not in out


def test_prompts_beyond_the_paper(run, photos, tmp_path):
    image = next(photos.glob("*/*.png"))
    options = {
        "words": ("--words", "a photo of a", "--anchored", "--set", "anchor=8", "--set", "prograd=true"),
        "deep": ("--depth", 2, "--variant", "joint", "--report", tmp_path / "page.html"),
    }
    shown = {
        "words": "64 numbers trained (fixed-B, rank 2, orthogonal basis, anchored at “a photo of a”)",
        "deep": "136 numbers trained (joint, rank 2, depth 2)",
    }
    for name, given in options.items():
        quick = QUICK_WORDS if name == "words" else QUICK
        out = ok(run("fit", photos, "--out", tmp_path / name, "--shots", 4, *quick, *given))
        assert shown[name] in " ".join(out.split())
        ok(run("evaluate", tmp_path / name, photos))
        assert "otter" in ok(run("predict", tmp_path / name, image, "--classes", "otter,badger", "--top", 2))
    assert "joint, rank 2, depth 2" in (tmp_path / "page.html").read_text()
    description = entries_of(tmp_path / "words")
    prompt = description["prompt"]
    assert (prompt["words"], prompt["anchored"], prompt["depth"]) == ("a photo of a", True, 1)
    assert (description["recipe"]["anchor"], description["recipe"]["prograd"]) == (8.0, True)
    fit = ["fit", photos, "--out", tmp_path / "no", *QUICK]
    failed(run(*fit, "--anchored"), "an anchored prompt needs words")
    words = ["fit", photos, "--out", tmp_path / "no", *QUICK_WORDS]
    failed(run(*words, "--words", " "), "words")
    failed(run(*words, "--words", "photo"), "rank 2 does not fit")
    failed(run(*fit, "--words", "a photo of a"), "leave out n_ctx")
    failed(run(*fit, "--depth", 9), "depth 9 does not fit")


def test_evaluate_and_predict(run, prompt, photos):
    folder, _ = prompt
    scores = json.loads(ok(run("evaluate", folder, photos, "--format", "json")))
    assert scores["images"] == 18
    own = scores["metrics"]["model"]
    assert own["accuracy"] == pytest.approx(scores["model"])
    assert own["interval"][0] < own["accuracy"] < own["interval"][1]
    assert own["balanced_accuracy"] == pytest.approx(own["accuracy"])  # six images of each class
    assert own["log_loss"] > 0 and 0 <= own["calibration_error"] <= 1 and 0 <= own["macro_f1"] <= 1
    assert scores["metrics"]["zero_shot"]["accuracy"] == pytest.approx(scores["zero_shot"])
    table = ok(run("evaluate", folder, photos, "--verbose"))
    for part in (
        "95 % interval",
        "balanced",
        "macro F1",
        "log loss",
        "calibration error",
        "chance (3 classes)",
        "green disc",
    ):
        assert part in table
    pictures = sorted(photos.glob("*/*.png"))[:2]
    table = ok(run("predict", folder, *pictures, "--top", 3))
    assert table.count(" disc") >= 6
    rows = json.loads(ok(run("predict", folder, *pictures, "--top", 2, "--format", "json")))
    assert [row["image"] for row in rows] == [str(path) for path in pictures]
    assert all(
        len(row["classes"]) == 2 and row["classes"][0]["probability"] >= row["classes"][1]["probability"]
        for row in rows
    )
    text = ok(run("predict", folder, photos, "--format", "csv", "--classes", "red panda, otter"))
    parsed = list(csv.DictReader(io.StringIO(text)))
    assert len(parsed) == 18
    assert {row["class"] for row in parsed} <= {"red panda", "otter"}


def test_the_activation_of_a_local_file_is_asked_for_once(run, tiny, photos, tmp_path):
    weights = tmp_path / "weights.safetensors"
    save_file(tiny.model.state_dict(), weights)
    fit = ["fit", photos, "--out", tmp_path / "p", *QUICK, "--pretrained", weights]
    failed(run(*fit), "activation of the weights", "--activation quickgelu or --activation gelu")
    assert f"({weights}, QuickGELU)" in ok(run(*fit, "--activation", "quickgelu"))
    image = next(photos.glob("*/*.png"))
    ok(run("predict", tmp_path / "p", image))
    ok(run("evaluate", tmp_path / "p", photos))
    failed(run("predict", tmp_path / "p", image, "--activation", "gelu"), "only works with the weights")
    failed(run("evaluate", tmp_path / "p", photos, "--activation", "relu"), "unknown activation 'relu'")


def test_own_images_need_a_real_model(run, photos, tmp_path, monkeypatch):
    """Without --backbone, OpenAI's ViT-B-16 is loaded; offline, the message names the weights, a way without a network and the toy model."""

    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("open_clip.factory.download_pretrained", no_network)
    parts = ("'openai' of ViT-B-16", "no network", "give a weight file", "--backbone pocket")
    failed(run("fit", photos, "--out", tmp_path / "p"), *parts)
    assert not (tmp_path / "p").exists()
    with pytest.raises(InputError, match="'openai' of ViT-B-16"):
        PromptClassifier().fit(["a.png", "b.png"], ["a", "b"])


def test_the_toy_model_is_called_a_toy_on_own_images_only(run, photos, tmp_path, shared_cache, monkeypatch):
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(shared_cache))  # with rendered benchmarks
    quick = ["--shots", 1, "--set", "epochs=1", "--set", "views=1", "--device", "cpu"]
    assert "pocket is a toy model" in ok(run("fit", photos, "--out", tmp_path / "a", "--backbone", "pocket", *quick))
    out = ok(run("fit", "--benchmark", "Pocket Sketch", "--out", tmp_path / "b", *quick))
    assert "on pocket (GELU)" in out
    assert "toy model" not in out


def test_evaluate_on_classes_new_to_the_prompt(run, prompt, tmp_path):
    for name in ("black disc", "white disc"):
        draw(tmp_path / name / "0.png", name.split()[0], 1)
    out = ok(run("evaluate", prompt[0], tmp_path))
    assert "2 images of 2 classes, 2 of them new to the model" in out


def test_a_field_that_may_be_none(run, photos, tmp_path):
    ok(run("fit", photos, "--out", tmp_path / "p", "--shots", 4, *QUICK, "--set", "batch_size=none"))
    assert entries_of(tmp_path / "p")["recipe"]["batch_size"] is None


def test_a_misspelt_class_folder_is_not_a_new_class(run, prompt, photos, tmp_path):
    for path in photos.glob("*/0.png"):
        folder = tmp_path / path.parent.name.replace("green disc", "gren disc")
        folder.mkdir()
        (folder / path.name).write_bytes(path.read_bytes())
    failed(run("evaluate", prompt[0], tmp_path), "gren disc", "did you mean 'green disc'")


def test_without_a_cache_every_image_is_encoded_once(run, photos, tmp_path, monkeypatch):
    encoded = []
    original = Backbone.encode_images
    monkeypatch.setattr(
        Backbone, "encode_images", lambda self, pixels: (encoded.append(len(pixels)), original(self, pixels))[1]
    )
    ok(run("fit", photos, "--out", tmp_path / "p", "--shots", 4, *QUICK, "--no-cache"))
    # eval views of 12 training and 6 held-out images, and one train view of each training image: 12 + 6 + 12 views, and
    # the bank pads each of the three batches to 32
    assert sum(encoded) == 3 * 32
    assert not cached_banks()


def test_train_and_test_folders_and_csv(run, photos, tmp_path):
    for part, numbers in (("train", range(4)), ("test", range(4, 6))):
        for colour in ("red", "blue"):
            for number in numbers:
                draw(tmp_path / "split" / part / colour / f"{number}.png", colour, number)
    out = ok(run("fit", tmp_path / "split", "--out", tmp_path / "a", "--shots", 2, *QUICK_DENSE))
    assert "2 classes, 4 training images (2 per class), 4 held out" in out
    assert "128 numbers trained (dense)" in out
    lines = ["path,label", *(f"{path},{path.parent.name}" for path in sorted(photos.glob("*/*.png")))]
    (tmp_path / "images.csv").write_text("\n".join(lines))
    assert "3 classes" in ok(run("fit", tmp_path / "images.csv", "--out", tmp_path / "b", "--shots", 2, *QUICK))


@pytest.mark.parametrize("layout", ["classes", "splits"])
def test_a_model_may_be_saved_among_its_images(run, photos, tmp_path, monkeypatch, layout):
    """`fit .` saves to ./model by default, which is no class of the next command."""
    for part in [""] if layout == "classes" else ["train", "test"]:
        shutil.copytree(photos, tmp_path / "images" / part)
    monkeypatch.chdir(tmp_path / "images")
    model = ("--backbone", TINY, "--pretrained", "random:0", "--device", "cpu", "--set", "views=1", "--no-calibration")
    ok(run("fit", ".", "--shots", 2, *QUICK, "--no-calibration"))
    failed(run("fit", ".", "--shots", 2, *model, "--method", "gda"), "exists already")
    again = ok(run("fit", ".", "--shots", 2, *model, "--method", "gda", "--overwrite"))
    assert "3 classes, 6 training images" in again
    assert "18 images of 3 classes" in ok(run("evaluate", "model", "."))


def test_odd_pictures_are_handled(run, tmp_path):
    for colour in ("red", "blue"):
        folder = tmp_path / "odd" / colour
        image = Image.open(draw(folder / "plain.png", colour, 1))
        image.convert("P").save(folder / "palette.png")
        image.convert("RGBA").save(folder / "alpha.png")
        image.convert("CMYK").save(folder / "cmyk.jpg")
        image.convert("L").convert("I;16").save(folder / "sixteen.png")
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(folder / "rotated.jpg", exif=exif)
        (folder / "of a phone.heic").touch()
    out = ok(run("fit", tmp_path / "odd", "--out", tmp_path / "p", "--shots", 4, *QUICK))
    assert "2 classes, 8 training images" in out
    named = "blue/of a phone.heic, red/of a phone.heic"
    assert f"2 other files or folders ignored: {named}; images are <class>/<image> and end in .bmp, " in out
    assert "HEIC files ignored: convert HEIC to JPEG" in out and "deeper" not in out


def test_images_in_deeper_folders_are_counted(run, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "deep")
    for number in range(3):
        draw(tmp_path / "deep" / "red disc" / "more" / str(number % 2) / f"{number}.png", "red", number)
    (tmp_path / "deep" / "notes.txt").touch()
    out = ok(run("fit", tmp_path / "deep", "--out", tmp_path / "p", "--shots", 4, *QUICK))
    assert "2 other files or folders ignored: notes.txt, red disc/more; images are <class>/<image>" in out
    assert "3 images in deeper folders ignored: move them up, to <class>/<image>, to use them" in out


def test_fewer_images_than_shots(run, photos, tmp_path):
    out = ok(run("fit", photos, "--out", tmp_path / "p", "--shots", 10, *QUICK))
    assert "fewer than 10 images, all used: blue disc (6), green disc (6), red disc (6)" in " ".join(out.split())
    assert "no images are left to evaluate on" in out


def test_unreadable_images_stop_or_are_counted(run, photos, tmp_path):
    for path in photos.glob("*/*.png"):
        (tmp_path / "bad" / path.parent.name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "bad" / path.parent.name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "bad" / "red disc" / "0.png").write_bytes(b"broken")
    failed(
        run("fit", tmp_path / "bad", "--out", tmp_path / "p", "--shots", 5, *QUICK),
        "cannot read the image",
        "0.png",
        "; --skip-bad-images leaves such images out",
    )
    assert not (tmp_path / "p").exists()
    out = ok(run("fit", tmp_path / "bad", "--out", tmp_path / "p", "--shots", 5, *QUICK, "--skip-bad-images"))
    assert "1 unreadable image skipped" in out


@pytest.mark.parametrize(
    ("shots", "seed", "said"),
    [
        (1, 1, "3 training images (1 per class), "),
        (3, 2, "9 training images (3 per class), "),
        (4, 1, "11 training images (up to 4 per class), 4 held out fewer than 4 images, all used: red disc (3)"),
    ],
)
def test_unreadable_images_of_a_sample_are_replaced(run, photos, tmp_path, shots, seed, said):
    shutil.copytree(photos, tmp_path / "bad")
    for number in (1, 3, 5):
        (tmp_path / "bad" / "red disc" / f"{number}.png").write_bytes(b"broken")
    fit = ("fit", tmp_path / "bad", "--out", tmp_path / "h", "--method", "gda", "--set", "views=1", "--no-calibration")
    model = ("--backbone", TINY, "--pretrained", "random:0", "--device", "cpu", "--skip-bad-images")
    out = " ".join(ok(run(*fit, *model, "--shots", shots, "--seed", seed)).split())
    assert f"3 classes, {said}" in out and "3 unreadable images skipped" in out
    assert ("1 of 3 classes have no images to evaluate on: red disc; the accuracy" in out) == (shots > 1)


def test_a_class_without_readable_images_is_named(run, photos, tmp_path):
    for path in photos.glob("*/*.png"):
        (tmp_path / "bad" / path.parent.name).mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.parent.name != "red disc" else b"broken"
        (tmp_path / "bad" / path.parent.name / path.name).write_bytes(content)
    options = ["--shots", 5, *QUICK, "--skip-bad-images"]
    failed(run("fit", tmp_path / "bad", "--out", tmp_path / "p", *options), "no training images of 'red disc' are left")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda p: p.mkdir(), ["it is empty", "/<class>/<image>"]),
        (lambda p: draw(p / "x.png", "red", 1), ["found 1 file and no folders"]),
        (lambda p: draw(p / "cats" / "x.png", "red", 1), ["one class only"]),
        (lambda p: [draw(p / name / "x.png", "red", 1) for name in ("red_fox", "Red fox")], ["same words in a prompt"]),
        (lambda p: [draw(p / name / "x.png", "red", 1) for name in ("cat", "_")], ["empty name"]),
        (
            lambda p: [draw(p / name / "x.png", "red", 1) for name in ("cat", "word " * 45)],
            ["does not fit", "Shorten the name"],
        ),
        (lambda p: None, ["no such folder"]),
    ],
)
def test_bad_folders(run, tmp_path, make, parts):
    make(tmp_path / "photos")
    failed(run("fit", tmp_path / "photos", "--out", tmp_path / "p", *QUICK), *parts)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--rank", "0"], ["rank: ", "(given: 0)"]),
        (["--rank", "9"], ["rank 9 does not fit"]),
        (["--rank", "few"], ["--rank takes a whole number or none (given: 'few')"]),
        (["--variant", "dense"], ["a dense prompt has no rank (given: 2); leave it out"]),
        (["--variant", "joint", "--basis", "svd"], ["variant joint freezes no factor, so it takes no basis"]),
        (["--backbone", "ViT-B-61"], ["unknown backbone", "did you mean"]),
        (["--variant", "fixed-C"], ["unknown variant 'fixed-C'", "fixed-B"]),
        (["--basis", "orthogonl"], ["did you mean 'orthogonal'"]),
        (["--recipe", "papr"], ["did you mean 'paper'"]),
        (["--set", "lr=-1"], ["lr", "greater than 0"]),
        (["--recipe", "paper", "--set", "lr=1e30"], ["the loss became", "learning rate is too high"]),
        (["--template", "no place"], ["exactly one {}"]),
    ],
)
def test_bad_options(run, photos, tmp_path, options, parts):
    failed(run("fit", photos, "--out", tmp_path / "p", *QUICK, *options), *parts)
    assert not (tmp_path / "p").exists()


def test_usage_errors(run, prompt, tmp_path):
    failed(run("fit"), "which images?")
    failed(run("evaluate", prompt[0]), "evaluate on what?")
    failed(run("evaluate", tmp_path, tmp_path), "no saved model")
    failed(run("predict", prompt[0], tmp_path / "none.jpg"), "no such image")
    failed(run("predict", prompt[0], tmp_path), "no images under")
    assert run("predict", prompt[0], prompt[0], "--format", "xml").returncode == 2
    failed(run("predict", prompt[0], __file__, "--classes", "a,,b"), "empty name")
    failed(run("fit", tmp_path, "--out", prompt[0], *QUICK), "it is empty")
    assert run("fti").returncode == 2


def test_an_existing_prompt_is_kept_until_asked(run, prompt, photos):
    before = (prompt[0] / "model.safetensors").read_bytes()
    failed(run("fit", photos, "--out", prompt[0], *QUICK), "exists already", "--overwrite")
    assert (prompt[0] / "model.safetensors").read_bytes() == before


def test_debug_shows_where(run, tmp_path):
    result = run("fit", tmp_path / "none", "--debug")
    assert "Traceback" in result.stderr
    assert "no such folder" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_half_written_output(run, photos, tiny_folder, tmp_path, number):
    few = ("--backbone", tiny_folder, *QUICK[QUICK.index("--set") :])
    long = ("--recipe", "paper", "--set", "views=0", "--set", "epochs=100000")
    process = start_command(["fit", photos, "--out", tmp_path / "p", *few, *long])
    deadline = time.monotonic() + 60
    while sum(bank.features for bank in cached_banks()) < 18:  # all images are encoded: it trains
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    try:
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert stderr.count("stopped") == 1
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
    ok(run("fit", photos, "--out", tmp_path / "p", *few))  # the cache is intact


def test_cache_commands(run, prompt, photos):
    ok(run("fit", photos, "--out", prompt[0], *QUICK, "--overwrite"))
    assert "1 feature bank," in ok(run("cache", "show"))
    assert "freed" in ok(run("cache", "clear", "--yes"))
    assert "0 feature banks" in ok(run("cache", "show"))


def test_clearing_the_cache_removes_what_killed_commands_left(run):
    left = cache_dir() / "data" / f".pocket-sketch.{socket.gethostname().replace('.', '-')}.999999999.0.tmp"
    left.mkdir(parents=True)
    assert "removed 1 leftover of killed commands" in ok(run("cache", "clear", "--yes"))
    assert not left.exists()


def test_a_target_is_checked_before_training(run, photos, tmp_path):
    (tmp_path / "file").write_text("")
    for out, part in ((tmp_path / "file", "Not a directory"), (tmp_path / ("x" * 256), "File name too long")):
        failed(run("fit", photos, "--out", out, *QUICK), part)
    assert not cached_banks()  # no image was encoded


def test_backbones(run):
    out = ok(run("backbones", "ViT-B-16"))
    assert "openai" in out
    failed(run("backbones", "nonsense"), "no backbone has 'nonsense'")


def test_report_page(prompt):
    page = (prompt[0].parent / "page.html").read_text()
    assert "green disc" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_page_that_cannot_be_written_is_refused_before_training(run, photos, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    failed(run("fit", photos, "--out", tmp_path / "p", *QUICK, "--report", tmp_path / "file" / "page.html"), "file")
    same = tmp_path / "p"
    failed(run("fit", photos, "--out", same, *QUICK, "--report", same), "is the folder of the model")
    assert not (tmp_path / "p").exists()


def test_each_variant_has_a_basis_of_its_own_by_default(run, photos, tmp_path):
    for variant, basis in {"fixed-B": "orthogonal", "fixed-A": "svd", "joint": None}.items():
        out = tmp_path / variant
        ok(run("fit", photos, "--out", out, "--shots", 2, *QUICK, "--no-calibration", "--variant", variant))
        assert entries_of(out)["prompt"]["basis"] == basis


@pytest.mark.parametrize(
    ("variant", "basis", "others"),
    [
        ("fixed-B", "learned", "gaussian, orthogonal, svd, random, or your own"),
        ("fixed-B", "source", "gaussian, orthogonal, svd, random, or your own"),
        ("fixed-A", "source", "use svd, random"),
    ],
)
def test_bases_of_studies_are_refused_before_anything_is_loaded(run, tmp_path, variant, basis, others):
    failed(run("fit", tmp_path / "nothing", "--variant", variant, "--basis", basis), "which only a study has", others)


def test_a_manifest_given_back_gives_the_same_prompt(run, photos, tmp_path):
    from slimprompt.data import few_shot, load_folder, make_manifest, write_manifest

    ok(run("fit", photos, "--out", tmp_path / "a", "--shots", 3, *QUICK))
    write_manifest(make_manifest(few_shot(load_folder(photos), 3, 1), shots=3, seed=1), tmp_path / "draw.json")
    out = ok(run("fit", photos, "--out", tmp_path / "b", "--manifest", tmp_path / "draw.json", *QUICK))
    assert "9 training images" in out
    prompts = [PromptClassifier.load(tmp_path / name).prompt_ for name in "ab"]
    assert torch.equal(prompts[0].A, prompts[1].A) and torch.equal(prompts[0].B, prompts[1].B)
    failed(run("fit", photos, "--out", tmp_path / "c", "--manifest", tmp_path / "none.json", *QUICK), "none.json")
    both = run("fit", photos, "--out", tmp_path / "c", "--manifest", tmp_path / "draw.json", "--shots", 3, *QUICK)
    failed(both, "--manifest says which images to train on; leave out --shots")


def test_a_basis_of_ones_own_is_imported_by_its_name(run, photos, tmp_path, monkeypatch):
    (tmp_path / "bases_of_this_test.py").write_text(
        "from slimprompt.prompts.start import balanced_svd\n"
        "def reversed_svd(p0, rank, generator):\n    return balanced_svd(p0, rank)[0].flip(1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ("fit", photos, *QUICK, "--basis", "bases_of_this_test:reversed_svd", "--out", tmp_path / "prompt")
    output = ok(run(*command))
    assert "bases_of_this_test:reversed_svd basis" in output
    assert PromptClassifier.load(tmp_path / "prompt").basis == "bases_of_this_test:reversed_svd"


@pytest.mark.parametrize(
    ("given", "optimizer", "views", "epochs"),
    [
        (("--shots", 1), "sgd", 32, 20),
        (("--shots", 4, "--set", "epochs=3"), "sgd", 8, 3),
        (("--shots", 4, "--recipe", "fast", "--set", "epochs=3"), "adamw", 2, 3),
    ],
)
def test_the_recipe_is_chosen_by_the_number_of_images_per_class(run, photos, tmp_path, given, optimizer, views, epochs):
    model = ("--backbone", TINY, "--pretrained", "random:0", "--n-ctx", "4", "--rank", "2", "--device", "cpu")
    ok(run("fit", photos, "--out", tmp_path / "prompt", "--no-calibration", *model, *given))
    recipe = entries_of(tmp_path / "prompt")["recipe"]
    assert (recipe["optimizer"], recipe["views"], recipe["epochs"]) == (optimizer, views, epochs)


def test_switches_of_a_recipe_can_be_turned_off(run, photos, tmp_path):
    model = ("--backbone", TINY, "--pretrained", "random:0", "--n-ctx", "4", "--rank", "2", "--device", "cpu")
    recipe = ("--recipe", "fast", "--set", "epochs=2", "--set", "all_views=false", "--set", "drop_last=false")
    ok(run("fit", photos, "--out", tmp_path / "prompt", "--no-calibration", *model, *recipe))
    saved = entries_of(tmp_path / "prompt")["recipe"]
    assert (saved["all_views"], saved["drop_last"], saved["views"]) == (False, False, 2)


def test_a_recipe_of_ones_own_is_a_file(run, photos, tmp_path):
    model = ("--backbone", TINY, "--pretrained", "random:0", "--n-ctx", "4", "--rank", "2", "--device", "cpu")
    fit = ("fit", photos, "--shots", 4, "--no-calibration", *model)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("epochs: 2\nviews: 1\noptimizer: adamw\nlr: 0.01\n")
    ok(run(*fit, "--out", tmp_path / "p", "--recipe", recipe, "--set", "epochs=3"))
    saved = entries_of(tmp_path / "p")["recipe"]
    assert (saved["epochs"], saved["views"], saved["optimizer"], saved["lr"]) == (3, 1, "adamw", 0.01)
    recipe.write_text("epoch: 2\n")
    failed(run(*fit, "--out", tmp_path / "q", "--recipe", recipe), "mine.yaml 'epoch'; did you mean 'epochs'")
    failed(run(*fit, "--out", tmp_path / "q", "--recipe", tmp_path / "none.yaml"), "none.yaml")
    failed(run(*fit, "--out", tmp_path / "q", "--set", "epohcs=2"), "'epohcs'; did you mean 'epochs'")
    failed(run(*fit, "--out", tmp_path / "q", "--set", "epochs"), "FIELD=VALUE")
    assert not (tmp_path / "q").exists()


def test_the_verdict_of_a_fit(run, photos, tmp_path):
    page = tmp_path / "page.html"
    model = ("--backbone", TINY, "--pretrained", "random:0", "--device", "cpu", "--set", "views=1")
    fit = ("fit", photos, "--shots", 4, "--method", "gda", *model, "--report", page)
    out = ok(run(*fit, "--out", tmp_path / "p"))
    sentence = next(
        line
        for line in out.splitlines()
        if line.startswith("The gda classifier is better than zero-shot on 6 images: +")
    )
    assert sentence in Page(page.read_text(encoding="utf-8")).text
    zero_shot = ok(run("fit", photos, "--method", "zero-shot", *model[:6], "--shots", 4, "--out", tmp_path / "zs"))
    assert "than zero-shot" not in zero_shot


def test_held_out_images_are_stratified(run, photos, tmp_path):
    out = ok(run("fit", photos, "--shots", 3, "--held-out", 3, "--out", tmp_path / "p", *QUICK, "--verbose"))
    assert "have no images to evaluate on" not in out
    rows = [line.split() for line in out.splitlines() if " disc " in line]
    assert [row[2] for row in rows] == ["1", "1", "1"]


def test_classes_in_a_file(run, prompt, photos, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("red panda\n\notter\n", encoding="utf-8")
    image = photos / "red disc" / "0.png"
    predict = ("predict", prompt[0], image, "--top", 2, "--format", "json", "--classes")
    assert run(*predict, names).stdout == ok(run(*predict, "red panda,otter"))
    names.write_text("red panda\n", encoding="utf-8")
    failed(run(*predict, names), "names.txt", "at least two")
    failed(run(*predict, tmp_path / "none.txt"), "no such file")
