"""Temperature, calibration error and thresholds, and that they come from held-out training images only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax as scipy_softmax

from slimprompt import Classifier, FeatureBank, InputError, load_classifier
from slimprompt.calibration import (
    Calibration,
    calibration_folds,
    calibration_of,
    expected_calibration_error,
    fit_temperature,
    probability_text,
    reliability_bins,
    softmax,
    useful_temperature,
)
from slimprompt.methods.cross_validation import folds
from slimprompt.methods.prompt import make_prompt
from slimprompt.methods.table import METHODS
from slimprompt.methods.task import LabelledImages, Task, make_task
from slimprompt.prompts.spec import make_spec

QUICK = {"n_ctx": 4, "rank": 2, "recipe": {"epochs": 20, "views": 0}, "cache": False}


def test_probabilities_are_those_of_scipy():
    logits = 100 * np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    logits[0] = 1e30  # no overflow
    for temperature in (1.0, 0.3, 2.5):
        expected = scipy_softmax(logits.astype(np.float64) / temperature, axis=1)
        assert np.array_equal(softmax(logits, temperature), expected)


def test_the_temperature_of_two_classes_by_hand() -> None:
    """Logit gap 3, 8 of 10 right, s = 3 / T: the derivative of 8 log(1 + e^−s) + 2 log(1 + e^s) + 2 (log T)² in log T is 0."""
    temperature = fit_temperature(np.tile([3.0, 0.0], (10, 1)), np.array([0] * 8 + [1] * 2))
    s = 3 / temperature
    p = 1 / (1 + np.exp(-s))  # of the first class
    assert s * (8 * (1 - p) - 2 * p) + 4 * np.log(temperature) == pytest.approx(0, abs=1e-3)


def test_certainty_is_said_only_of_certainty() -> None:
    assert [probability_text(p) for p in (1.0, 0.99995, 0.99949, 0.5, 0.0006, 2e-9, 0.0)] == [
        *("100.0 %", "> 99.9 %", "99.9 %", "50.0 %", "0.1 %", "< 0.1 %", "0.0 %")
    ]
    assert [probability_text(p, 0) for p in (1.0, 0.997, 0.99)] == ["100 %", "> 99 %", "99 %"]


def test_many_images_give_the_temperature_they_were_sampled_with() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 5)) * 2
    labels = np.array([rng.choice(5, p=row) for row in softmax(logits, 2.5)])
    assert fit_temperature(logits, labels) == pytest.approx(2.5, rel=0.05)


def test_few_images_leave_the_temperature_close_to_one() -> None:
    """All right with any number of images: without the prior, T would go to 0."""
    logits = np.tile([2.0, 0.0, -1.0], (300, 1))
    few, many = (fit_temperature(logits[:n], np.zeros(n, dtype=int)) for n in (4, 300))
    assert 0.7 < few < 1.0 and many < few / 2


@pytest.mark.parametrize("seed", range(20))
def test_at_chance_a_temperature_does_no_harm(seed: int) -> None:
    """6 classes of 4 images, labels independent of the logits: T is 1, or makes probabilities more equal than they were."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(24, 6))
    assert useful_temperature(logits, np.arange(24) % 6) >= 1.0


def test_a_temperature_is_used_only_if_it_helps_by_more_than_its_standard_error() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 5)) * 2
    calibrated, overconfident = (
        np.array([rng.choice(5, p=row) for row in softmax(logits, temperature)]) for temperature in (1.0, 3.0)
    )
    assert useful_temperature(logits, calibrated) == 1.0
    assert useful_temperature(logits, overconfident) == fit_temperature(logits, overconfident) > 2
    assert useful_temperature(logits[:1], overconfident[:1]) == 1.0
    found = calibration_of(logits[:12], calibrated[:12])
    assert found.temperature == 1.0 and len(found.confidences) == 12


def test_calibration_error_and_bins_by_hand() -> None:
    confidences = np.array([0.05, 0.1, 0.95, 0.9, 1.0])
    correct = np.array([False, True, True, True, False])
    first, *_, ninth, last = reliability_bins(confidences, correct, n_bins=10)
    assert (first.low, first.high, first.n_images, first.confidence, first.accuracy) == pytest.approx(
        (0, 0.1, 2, 0.075, 0.5)
    )
    assert (ninth.n_images, ninth.accuracy) == (1, 1.0)  # 0.9 belongs to (0.8, 0.9]
    assert (last.n_images, last.confidence, last.accuracy) == pytest.approx((2, 0.975, 0.5))
    expected = (2 * 0.425 + 0.1 + 2 * 0.475) / 5
    assert expected_calibration_error(confidences, correct, n_bins=10) == pytest.approx(expected)


def test_the_threshold_covers_the_asked_fraction() -> None:
    calibration = Calibration(1.0, tuple(np.linspace(0.1, 1.0, 10)))
    for coverage in (0.0, 0.5, 0.9, 1.0):
        reached = np.mean(np.array(calibration.confidences) >= calibration.threshold(coverage))
        assert reached >= coverage
    assert calibration.threshold(0.9) == pytest.approx(0.1)
    with pytest.raises(InputError, match="one image per class.*--min-confidence"):
        Calibration().threshold(0.9)
    with pytest.raises(InputError, match="the coverage is 1.5"):
        calibration.threshold(1.5)


def make(kind, tiny, **fields):
    if kind == "prompt":
        return Classifier(tiny, **QUICK, **fields)
    return Classifier(tiny, method=kind, views=0, cache=False, **fields)


def watch_fits(monkeypatch) -> list[Task]:
    """The tasks that classifiers are fitted to from now on."""
    tasks: list[Task] = []
    original = Classifier._fit_head
    monkeypatch.setattr(
        Classifier,
        "_fit_head",
        lambda self, task, *args, **kw: (tasks.append(task), original(self, task, *args, **kw))[1],
    )
    return tasks


@pytest.mark.parametrize("kind", ["prompt", "gda", "tip-adapter"])
def test_a_calibrated_classifier_predicts_the_same_classes(kind, tiny, photos, tmp_path) -> None:
    paths = sorted(photos.glob("*/*.png"))
    labels = [path.parent.name for path in paths]
    plain, calibrated = (make(kind, tiny, calibrate=on).fit(paths, labels) for on in (False, True))
    assert plain.calibration_ == Calibration()
    assert len(calibrated.calibration_.confidences) == 18
    calibration = calibrated.calibration_ = calibrated.calibration_._replace(temperature=20.0)
    assert calibrated.predict(paths).tolist() == plain.predict(paths).tolist()
    probabilities = calibrated.predict_proba(paths)
    logits = plain.logits(plain.encode(paths)).numpy()
    assert np.allclose(probabilities, softmax(logits, calibration.temperature))
    assert not np.allclose(probabilities, plain.predict_proba(paths))
    loaded = load_classifier(calibrated.save(tmp_path / "model"), backbone=tiny)
    assert loaded.calibration_ == calibration
    assert np.array_equal(loaded.predict_proba(paths), probabilities)
    other = loaded.with_classes(["red disc", "blue disc"]).calibration_
    assert other == Calibration(calibration.temperature)  # confidences belong to the set of classes
    assert loaded.with_classes(["red disc", "blue disc", "green disc"]).calibration_ == calibration


@pytest.mark.parametrize("kind", ["prompt", "gda", "linear-probe", "tip-adapter", "tip-adapter-f"])
def test_the_temperature_is_that_of_refits_without_the_fold(kind, tiny, photos, monkeypatch) -> None:
    paths = sorted(photos.glob("*/*.png"))
    labels = [path.parent.name for path in paths]
    tasks = watch_fits(monkeypatch)
    classifier = make(kind, tiny, calibrate=True).fit(paths, labels)
    whole, *parts = tasks
    assert len(whole.images) == 18 and [len(part.images) for part in parts] == [12, 12, 12]

    logits, truth = [], []
    indices = [sorted(set(labels)).index(label) for label in labels]
    for part, (kept, held_out) in zip(parts, folds(indices, 1, 3), strict=True):
        if kind == "prompt":
            refit = make(kind, tiny).fit([paths[i] for i in kept], [labels[i] for i in kept])
        else:  # with the settings of the classifier: those of fewer images may give logits of another scale
            refit = METHODS[kind].fit(part, classifier.settings_).head
        logits.append(refit.logits(whole.eval_features[held_out]).numpy())
        truth += [indices[i] for i in held_out]
    expected = calibration_of(np.concatenate(logits), np.array(truth))
    assert classifier.calibration_.temperature == pytest.approx(expected.temperature, rel=1e-3)
    assert classifier.calibration_.confidences == pytest.approx(expected.confidences, abs=1e-3)


@pytest.mark.parametrize(
    ("classes", "shots", "sizes"),
    [(100, 16, [600]), (47, 16, [282, 235]), (20, 16, [120, 100, 100]), (100, 2, [100, 100]), (100, 1, [])],
)
def test_folds_are_held_out_until_there_are_enough_images(classes: int, shots: int, sizes: list[int]) -> None:
    labels = list(range(classes)) * shots
    found = calibration_folds(labels, 1)
    assert [len(held_out) for _, held_out in found] == sizes
    for (kept, held_out), (all_kept, all_held_out) in zip(found, folds(labels, 1, 3), strict=False):
        assert torch.equal(kept, all_kept) and torch.equal(held_out, all_held_out)
        assert {labels[i] for i in held_out} == set(range(classes))


def test_one_image_per_class_is_not_calibrated(tiny, photos) -> None:
    paths = sorted(photos.glob("*/0.png"))
    classifier = make("prompt", tiny, calibrate=True).fit(paths, [path.parent.name for path in paths])
    assert classifier.calibration_ == Calibration()


@pytest.mark.parametrize("kind", ["prompt", "gda"])
def test_concept_match_by_hand(kind, tiny, photos) -> None:
    paths = sorted(photos.glob("*/*.png"))
    classifier = make(kind, tiny).fit(paths, [path.parent.name for path in paths])
    features = classifier.encode(paths[:3])
    texts = torch.nn.functional.normalize(classifier.concept_features(), dim=-1)
    expected = (features @ texts.T).double().exp()
    expected = (expected / expected.sum(1, keepdim=True)).max(1).values
    assert classifier.concept_match(features) == pytest.approx(expected.numpy(), rel=1e-5)


def test_a_prompt_of_other_software_can_be_calibrated(tiny, photos):
    """Its recipe is not known, so the trainings on parts of the images use the one of the classifier."""
    paths = sorted(photos.glob("*/*.png"))
    labels = [path.parent.name for path in paths]
    names = sorted(set(labels))
    spec = make_spec(n_ctx=4, rank=2)
    classifier = Classifier.of_prompt(tiny, make_prompt(tiny, spec, seed=1), spec, names, imported={"from": "x"})
    classifier.set_params(recipe={"epochs": 1, "views": 0})
    sample = LabelledImages(paths, [names.index(label) for label in labels], tuple(names))
    task = make_task(FeatureBank(tiny, None), sample, seed=1)
    assert classifier.recipe_ is None
    assert len(classifier.fit_calibration(task).calibration_.confidences) == len(paths)
