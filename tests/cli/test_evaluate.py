"""`slimprompt evaluate`: known training images, the page, and ImageNet and its variants in small."""

import csv
import io
import json
import shutil
from dataclasses import replace

import pytest
from PIL import Image

from slimprompt import load_classifier
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.files import sha256
from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import TINY, draw, entries_of
from tests.html_page import Page

COLOURS = {"n00000001": "red", "n00000002": "green", "n00000003": "blue", "n00000004": "blue"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Four classes of discs in ImageNet's layout, two of which have one name, and three of them as sketches."""
    for name, classes, sizes in (("imagenet", 4, (12, 0, 8)), ("imagenet_sketch", 3, (0, 0, 3))):
        monkeypatch.setitem(BENCHMARKS, name, replace(BENCHMARKS[name], classes=classes, sizes=sizes))
    for number, (wnid, colour) in enumerate(COLOURS.items()):
        for image in range(5):
            split = "train" if image < 3 else "val"
            draw(tmp_path / "imagenet" / "images" / split / wnid / f"{image}.JPEG", colour, 5 * number + image)
        if number:
            draw(tmp_path / "imagenet-sketch" / "images" / wnid / "1.JPEG", colour, number)
    lines = [f"{wnid} {colour} disc\n" for wnid, colour in COLOURS.items()]
    for folder in ("imagenet", "imagenet-sketch"):
        (tmp_path / folder / "classnames.txt").write_text("".join(lines))
    return tmp_path


def test_class_folders_that_are_codes(run, photos, tmp_path):
    codes = {path.name: f"n0000000{number}" for number, path in enumerate(sorted(photos.iterdir()))}
    for name, code in codes.items():
        shutil.copytree(photos / name, tmp_path / "coded" / code)
    table = tmp_path / "names.csv"
    table.write_text("label,name\n" + "".join(f"{code},{name}\n" for name, code in codes.items()))
    given = ("--shots", 4, *QUICK)
    coded = run("fit", tmp_path / "coded", "--out", tmp_path / "codes", *given)
    ok(coded)
    hint = "the class names look like codes (n00000000, n00000001, n00000002): CLIP reads class names"
    assert hint in coded.stderr
    named = run("fit", tmp_path / "coded", "--class-names", table, "--out", tmp_path / "named", *given)
    ok(named)
    assert "look like codes" not in named.stderr
    ok(run("fit", photos, "--out", tmp_path / "plain", *given))
    plain, named = (entries_of(tmp_path / one) for one in ("plain", "named"))
    assert named["class_names"] == plain["class_names"] and named["held_out"] == plain["held_out"]
    scores = [
        json.loads(ok(run("evaluate", tmp_path / "named", *source, "--format", "json")))
        for source in ((photos,), (tmp_path / "coded", "--class-names", table), (tmp_path / "coded",))
    ]
    assert (
        scores[0] == scores[1] == scores[2] and scores[0]["new_classes"] == 0
    )  # the model keeps the names of the codes
    classifier = load_classifier(tmp_path / "named", device="cpu")
    classifier.save(tmp_path / "copy")
    assert entries_of(tmp_path / "copy")["codes"] == {code: name for name, code in codes.items()}
    message = "--class-names is for images of your own; a benchmark has its class names"
    for command in (("fit", "--out", tmp_path / "x"), ("evaluate", tmp_path / "named")):
        assert message in failed(run(*command, "--benchmark", "pocket-sketch", "--class-names", table))


@pytest.mark.filterwarnings("ignore:ImageNet")
def test_fit_on_imagenet_and_evaluate_on_a_variant(run, root):
    out = ok(run("fit", "--benchmark", "imagenet", "--data-root", root, "--shots", 2, "--out", root / "p", *QUICK))
    assert "8 training images (2 per class), 8 held out" in out
    named_twice = ["red disc", "green disc", "blue disc", "blue disc"]  # equal names are equal texts, of two classes
    assert entries_of(root / "p")["class_names"] == named_twice
    scores = json.loads(
        ok(run("evaluate", root / "p", "--benchmark", "imagenet_sketch", "--data-root", root, "--format", "json"))
    )
    assert {"images": 3, "classes": 3, "new_classes": 0}.items() <= scores.items()
    assert scores["chance"] == pytest.approx(1 / 3)
    ok(run("evaluate", root / "p", "--benchmark", "ImageNet", "--data-root", root))


@pytest.mark.filterwarnings("ignore:ImageNet")
def test_fit_on_a_variant_is_refused(run, root):
    arguments = ("fit", "--benchmark", "imagenet_sketch", "--data-root", root, "--out", root / "p", *QUICK)
    failed(
        run(*arguments), "imagenet_sketch has no train split", "slimprompt evaluate PROMPT --benchmark imagenet_sketch"
    )
    assert not (root / "p").exists()


@pytest.fixture(scope="module")
def models(run, photos, tmp_path_factory):
    """A prompt and a head, both fitted on the same twelve of the eighteen photos."""
    root = tmp_path_factory.mktemp("models")
    model = ("--backbone", TINY, "--pretrained", "random:0", "--device", "cpu", "--set", "views=1")
    ok(run("fit", photos, "--out", root / "prompt", "--shots", 4, *QUICK))
    out = ok(run("fit", photos, "--out", root / "head", "--shots", 4, "--method", "gda", *model))
    assert "were training images" not in out  # the images that fit evaluates on are held out
    return root


@pytest.mark.parametrize("kind", ["prompt", "head"])
def test_training_images_are_noticed(run, models, photos, tmp_path, kind):
    description = entries_of(models / kind)
    assert len(description["training_images"]) == 12 * 17 - 1  # twelve hashes of 8 bytes, separated by spaces
    out = " ".join(ok(run("evaluate", models / kind, photos)).split())
    assert "12 of the 18 images were training images: without them, the accuracy is " in out and "on 6 images" in out
    scores = json.loads(ok(run("evaluate", models / kind, photos, "--format", "json")))
    assert scores["training_images"] == 12
    others = scores["without_training_images"]
    assert others["accuracy"] == pytest.approx(description["held_out"]["model"])  # the same six images as in fit
    assert f"the accuracy is {100 * others['accuracy']:.1f} % ({100 * others['interval'][0]:.1f}–" in out

    for number, colour in enumerate(("red", "green", "blue")):  # the same content under another name, and new images
        folder = tmp_path / "new" / f"{colour} disc"
        draw(folder / "new.png", colour, 20 + number)
    assert "were training images" not in ok(run("evaluate", models / kind, tmp_path / "new"))
    known = set(description["training_images"].split())
    for path in photos.glob("*/*.png"):
        if sha256(path)[:16] in known:
            copy = tmp_path / "copies" / path.parent.name / f"copy {path.name}"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    out = ok(run("evaluate", models / kind, tmp_path / "copies"))
    assert "all 12 images were training images: these numbers say nothing about new images" in out
    scores = json.loads(ok(run("evaluate", models / kind, tmp_path / "copies", "--format", "json")))
    assert scores["training_images"] == 12 and scores["without_training_images"] is None


def test_classes_without_images_are_named(run, models, photos, tmp_path):
    shutil.copytree(photos / "red disc", tmp_path / "red disc")
    out = " ".join(ok(run("evaluate", models / "prompt", tmp_path)).split())
    assert "6 images of 1 of the 3 classes " in out
    assert "2 of 3 classes have no images: blue disc, green disc; the accuracy is that of the others" in out
    found = json.loads(ok(run("evaluate", models / "prompt", tmp_path, "--format", "json")))
    assert found["classes"] == 3 and found["classes_without_images"] == ["blue disc", "green disc"]
    assert [(one["name"], one["images"]) for one in found["per_class"]] == [
        ("blue disc", 0),
        ("green disc", 0),
        ("red disc", 6),
    ]
    assert found["per_class"][0]["model"] is None and found["per_class"][0]["zero_shot"] is None
    assert found["per_class"][2]["model"] == found["model"]
    assert found["per_class"][2]["zero_shot"] == found["zero_shot"]


def test_json_has_the_accuracy_of_each_class(run, models, photos):
    out = run("evaluate", models / "head", photos, "--verbose")
    found = json.loads(ok(run("evaluate", models / "head", photos, "--format", "json")))
    lines = {line.split("  ")[0]: line.split() for line in ok(out).splitlines()}
    assert found["classes_without_images"] == [] and len(found["per_class"]) == 3
    for one in found["per_class"]:
        shown = [f"{one['images']}", f"{100 * one['zero_shot']:.0f}", "%", f"{100 * one['model']:.0f}", "%"]
        assert lines[one["name"]][2:] == shown


@pytest.mark.parametrize(
    ("names", "question"),
    [(("red disk", "blue disk", "green disk"), " (did you mean 'blue disc'?)"), (("otter", "red panda", "cat"), "")],
)
def test_new_class_names_are_another_task(run, models, photos, tmp_path, names, question):
    for name, folder in zip(names, ("red disc", "blue disc", "green disc"), strict=True):
        shutil.copytree(photos / folder, tmp_path / name)
    out = " ".join(ok(run("evaluate", models / "prompt", tmp_path)).split())
    assert f"none of these names is a class of the model{question}: it is evaluated on the new names" in out
    assert "none of these names" not in ok(run("evaluate", models / "prompt", photos))


def test_missing_images_of_a_benchmark_are_counted(run, models, tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "eurosat", replace(BENCHMARKS["eurosat"], classes=2, sizes=(2, 0, 2)))
    items = [["Forest/1.jpg", 0, "Forest"], ["River/1.jpg", 1, "River"]]
    (tmp_path / "eurosat").mkdir()
    (tmp_path / "eurosat" / "split_zhou_EuroSAT.json").write_text(
        json.dumps({"train": items, "val": [], "test": items})
    )
    evaluate = ("evaluate", models / "prompt", "--benchmark", "eurosat", "--data-root", tmp_path)
    failed(run(*evaluate), "2 of 2 images of eurosat are missing", "Forest/1.jpg", "slimprompt data check eurosat")


@pytest.mark.parametrize("kind", ["prompt", "head"])
def test_the_page_of_any_labelled_set(run, models, photos, tmp_path, kind):
    out = ok(run("evaluate", models / kind, photos, "--report", tmp_path / "page.html"))
    assert f"report: {tmp_path / 'page.html'}" in out
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    shown = page.text
    for part in ("12 of these images were training images", "green disc", "Reliability diagram", "balanced accuracy"):
        assert part in shown, part
    assert ("learned prompt" in shown) == (kind == "prompt") and ("gda" in shown) == (kind == "head")
    again = ("evaluate", models / kind, photos, "--report", tmp_path / "page.html")
    failed(run(*again), "page.html exists already", "--overwrite")
    ok(run(*again, "--overwrite"))
    (tmp_path / "file").write_text("")
    failed(run("evaluate", models / kind, photos, "--report", tmp_path / "file" / "page.html"), "cannot be written")


def test_several_templates_are_one_baseline(run, models, photos, tmp_path):
    """JSON and page compare with the average of the templates, whatever their order."""
    first, second = "a drawing of a {}.", "{}"
    page, losses = tmp_path / "page.html", []
    for given in ([first, second], [second, first], [first]):
        options = [option for template in given for option in ("--template", template)]
        found = run("evaluate", models / "head", photos, *options, "--format", "json", "--report", page, "--overwrite")
        scores = json.loads(ok(found))  # a page does not disturb the JSON
        assert scores["images"] == 18
        losses.append(scores["metrics"]["zero_shot"]["log_loss"])
        about = "; ".join(given) + (" (averaged)" if len(given) > 1 else "")
        assert about in Page(page.read_text(encoding="utf-8")).text
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0] != pytest.approx(losses[2], rel=1e-4)


def test_imbalanced_classes_have_balanced_scores(run, models, photos, tmp_path):
    for path in photos.glob("*/*.png"):
        if path.parent.name == "red disc" or path.stem == "5":
            copy = tmp_path / "images" / path.parent.name / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    found = json.loads(ok(run("evaluate", models / "head", tmp_path / "images", "--format", "json")))["metrics"]
    zero_shot = found["zero_shot"]  # the random model takes all images for one class
    assert zero_shot["balanced_accuracy"] == pytest.approx(1 / 3) and zero_shot["accuracy"] != pytest.approx(1 / 3)


def test_class_weights_are_an_option_and_part_of_the_recipe(run, photos, tmp_path):
    fit = ("fit", photos, "--shots", 4, *QUICK, "--no-calibration")
    ok(run(*fit, "--out", tmp_path / "p", "--set", "class_weights=balanced"))
    assert entries_of(tmp_path / "p")["recipe"]["class_weights"] == "balanced"
    failed(run(*fit, "--out", tmp_path / "q", "--set", "class_weights=equal"), "class_weights", "'none' or 'balanced'")


def test_csv_and_json_have_fractions(run, models, photos):
    evaluate = ("evaluate", models / "head", photos, "--format")
    found = json.loads(ok(run(*evaluate, "json")))
    rows = list(csv.DictReader(io.StringIO(ok(run(*evaluate, "csv")))))
    assert [row["name"] for row in rows] == [one["name"] for one in found["per_class"]]
    assert all(0 <= float(row["model"]) <= 1 for row in rows)
    numbers = [found[name] for name in ("model", "zero_shot", "chance")]
    for scores in (*found["metrics"].values(), found["without_training_images"]):
        numbers += [scores[name] for name in scores if name not in ("log_loss", "interval")] + scores["interval"]
    assert all(0 <= number <= 1 for number in numbers)
    gain = found["gain_over_zero_shot"]  # on the images that were not training images
    assert -1 <= gain["low"] <= gain["value"] <= gain["high"] <= 1


def test_all_unreadable_images_are_named_at_once(run, models, photos, tmp_path):
    """By `fit`, also those that are held out, and by `evaluate`; small `predict` answers for the others and exits with 1."""
    shutil.copytree(photos, tmp_path / "bad")
    for number in (0, 1, 2):
        (tmp_path / "bad" / "red disc" / f"{number}.png").write_bytes(b"broken")
    fit = ("fit", tmp_path / "bad", "--out", tmp_path / "p", "--shots", 3, *QUICK)
    for command in (fit, ("evaluate", models / "head", tmp_path / "bad")):
        message = failed(run(*command), "3 images cannot be read", "--skip-bad-images")
        assert all(f"red disc/{number}.png" in message for number in (0, 1, 2)), message
    assert not (tmp_path / "p").exists()
    predict = ("predict", models / "head", tmp_path / "bad", "--format", "json")
    result = run(*predict)
    assert result.returncode == 1 and len(json.loads(result.stdout)) == 15
    assert all(f"red disc/{number}.png" in result.stderr for number in (0, 1, 2))
    assert len(json.loads(ok(run(*predict, "--skip-bad-images")))) == 15


def test_large_images_are_read_if_asked(run, models, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)
    for colour in ("red", "green", "blue"):
        folder = tmp_path / "large" / f"{colour} disc"
        folder.mkdir(parents=True)
        Image.new("RGB", (80, 80), colour).save(folder / "0.png")
    image = tmp_path / "large" / "red disc" / "0.png"
    for command in (
        ("evaluate", models / "head", tmp_path / "large"),
        ("predict", models / "head", image),
        ("predict", models / "head", image, "--out", tmp_path / "rows.csv"),
    ):
        result = run(*command)
        assert result.returncode in (1, 2)
        assert "--max-megapixels" in result.stderr or "--max-megapixels" in (tmp_path / "rows.csv").read_text()
        ok(run(*command, "--max-megapixels", 0.0064, *(["--overwrite"] if "--out" in command else [])))
    assert Image.MAX_IMAGE_PIXELS == 5_000


def test_the_verdict_compares_with_zero_shot(run, models, photos, tmp_path):
    assert "The gda classifier is better than zero-shot on 6 images: +" in ok(run("evaluate", models / "head", photos))
    page = tmp_path / "page.html"
    ok(run("evaluate", models / "head", photos, "--report", page))
    assert "The gda classifier is better than zero-shot on 6 images" in Page(page.read_text(encoding="utf-8")).text
