from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from slimprompt.classifier import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.fit import Comparison, scored
from slimprompt.methods.head import Head
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.report.fit_page import FitFindings, measure_fit, write_fit_page
from slimprompt.training.evaluation import EvalSet
from slimprompt.training.recipe import Recipe
from tests.html_page import Page

NAMES = ['<b>cat</b> & "dog"', "a $5 fish", "plain"]


@pytest.fixture(scope="module")
def classifier(tiny: Backbone) -> Classifier:
    colours = dict(zip(NAMES, ("red", "green", "blue"), strict=True))
    images = [Image.new("RGB", (32, 32), colours[name]) for name in NAMES for _ in range(2)]
    labels = [name for name in NAMES for _ in range(2)]
    recipe = Recipe(epochs=2, views=0)
    return Classifier(tiny, recipe=recipe, n_ctx=4, rank=2, cache=False).fit(images, labels)


def compare(
    classifier: Classifier, images: list, labels: list[int], predicted: list[int], zero_shot: torch.Tensor
) -> Comparison:
    """The classifier and zero-shot class features on images whose features are those of the predicted classes."""
    names = classifier.class_names_
    eval_set = EvalSet(classifier.head_.weights[predicted], torch.tensor(labels), names)
    before = scored("zero-shot", Head(names, zero_shot, classifier.backbone_.logit_scale), eval_set)
    return Comparison(images, eval_set, [before, scored("learned prompt", classifier.head_, eval_set)])


@pytest.fixture(scope="module")
def findings(classifier: Classifier) -> FitFindings:
    # The zero-shot features are those of the prompt with classes 0 and 1 swapped.
    images = [Image.new("RGB", (8, 200), "red")] * 6
    swapped = classifier.head_.weights[[1, 0, 2]]
    return measure_fit(classifier, compare(classifier, images, [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 0], swapped))


def test_accuracies_agreement_and_verdict(findings: FitFindings):
    assert findings.scores.accuracy.value == pytest.approx(100 * 4 / 6)
    assert findings.zero_shot.value == pytest.approx(100 * 1 / 6)
    assert 0 <= findings.scores.accuracy.low < findings.scores.accuracy.value < findings.scores.accuracy.high <= 100
    assert findings.agreement == {"both right": 0, "only the learned prompt": 4, "only zero-shot": 1, "both wrong": 1}
    assert findings.verdict.startswith(
        "It is not clear whether the learned prompt is better than zero-shot on 6 images: +50.0 points"
    )


def test_class_accuracies_and_confused_pairs(findings: FitFindings, classifier: Classifier):
    names = [str(name) for name in classifier.classes_]
    assert [row.labels for row in findings.classes.rows] == list(zip(names, "321", strict=True))
    learned = [row.cells[1].value for row in findings.classes.rows]
    assert learned == pytest.approx([100 * 2 / 3, 100.0, 0.0])
    pairs = [(row.labels, row.cells[0].value, row.cells[1].value) for row in findings.confused.rows]
    assert pairs[0][0] == (names[0], names[1]) and pairs[0][1:] == pytest.approx((1.0, 100 / 3))
    assert pairs[1] == ((names[2], names[0]), 1.0, 100.0)


def test_mistakes_have_thumbnails_and_are_sorted_by_confidence(findings: FitFindings, classifier: Classifier):
    assert findings.n_mistakes == len(findings.mistakes) == 2
    confidences = [one.confidence for one in findings.mistakes]
    assert confidences == sorted(confidences, reverse=True)
    names = [str(name) for name in classifier.classes_]
    assert {(one.true, one.predicted) for one in findings.mistakes} == {(names[0], names[1]), (names[2], names[0])}
    assert all(one.thumbnail.startswith("data:image/") and one.of_true < one.confidence for one in findings.mistakes)


def test_the_page_shows_the_findings_and_escapes_names(classifier: Classifier, tmp_path: Path):
    names = [str(name) for name in classifier.classes_]
    image_path = tmp_path / "x & 'y'.png"
    Image.new("RGB", (30, 20), "blue").save(image_path)
    zero_shot = zero_shot_features(classifier.backbone_, names, ["a photo of a {}."])
    path = write_fit_page(
        tmp_path / "sub" / "fit.html",
        classifier,
        compare(classifier, [image_path] * 4, [0, 1, 2, 2], [0, 1, 2, 1], zero_shot),
        templates=["a photo of a {}."],
    )
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert text.count("<script") == 1 and "<b>cat" not in text
    shown = "".join(page.words)
    for part in (*names, "a photo of a {}.", "x & 'y'.png", "2 epochs"):
        assert part in shown, part
    assert "pocket world" not in shown
    (image,) = page.all("img")
    assert str(image["src"]).startswith("data:image/")
    assert len(page.all("svg", role="img")) == 3  # learning curve, reliability diagram, confusion matrix
    assert "expected calibration error" in shown and "balanced accuracy" in shown
    assert "75.0 %" in shown


def test_a_perfect_prompt_has_no_mistakes(classifier: Classifier, tmp_path: Path):
    path = write_fit_page(
        tmp_path / "fit.html",
        classifier,
        compare(classifier, [Image.new("RGB", (8, 8))] * 3, [0, 1, 2], [0, 1, 2], classifier.head_.weights),
        templates=["{}"],
    )
    text = Page(path.read_text(encoding="utf-8")).text
    assert "All images are classified correctly." in text and "No class was confused with another." in text
