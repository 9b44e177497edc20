"""`slimprompt evaluate` on ImageNet and its variants, in small."""

import json
from dataclasses import replace

import pytest

from slimprompt.data.benchmarks import BENCHMARKS
from tests.cli.conftest import QUICK, failed, ok
from tests.conftest import draw

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
    (tmp_path / "imagenet" / "classnames.txt").write_text("".join(lines))
    return tmp_path


@pytest.mark.filterwarnings("ignore:ImageNet")
def test_fit_on_imagenet_and_evaluate_on_a_variant(run, root):
    out = ok(run("fit", "--benchmark", "imagenet", "--data-root", root, "--shots", 2, "--out", root / "p", *QUICK))
    assert "8 training images (2 per class), 8 held out" in out
    assert json.loads((root / "p" / "prompt.json").read_text())["class_names"] == [
        "blue disc",
        "green disc",
        "red disc",
    ]
    scores = json.loads(
        ok(run("evaluate", root / "p", "--benchmark", "imagenet_sketch", "--data-root", root, "--format", "json"))
    )
    assert {"images": 3, "classes": 2, "new_classes": 0}.items() <= scores.items(), "the two blue classes are one"
    assert scores["chance"] == 50
    ok(run("evaluate", root / "p", "--benchmark", "ImageNet", "--data-root", root))


@pytest.mark.filterwarnings("ignore:ImageNet")
def test_fit_on_a_variant_is_refused(run, root):
    arguments = ("fit", "--benchmark", "imagenet_sketch", "--data-root", root, "--out", root / "p", *QUICK)
    failed(
        run(*arguments), "imagenet_sketch has no train split", "slimprompt evaluate PROMPT --benchmark imagenet_sketch"
    )
    assert not (root / "p").exists()
