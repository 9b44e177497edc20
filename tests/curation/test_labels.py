from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from slimprompt.curation.labels import (
    STRENGTHS,
    LabelCheck,
    check_labels,
    held_out_probabilities,
    label_scores,
)
from slimprompt.data import load_folder
from slimprompt.errors import InputError
from slimprompt.images.bank import FeatureBank
from slimprompt.methods.cross_validation import folds
from tests.curation.conftest import Planted


def test_the_score_is_the_probability_of_the_label_relative_to_its_class():
    probabilities = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.2, 0.8], [np.nan, np.nan]])
    labels = np.array([0, 0, 1, 1, 1])
    scores = label_scores(probabilities, labels)
    assert scores[:4] == pytest.approx([0.9 / 0.5, 0.1 / 0.5, 0.4 / 0.6, 0.8 / 0.6])
    assert np.isnan(scores[4])


def clusters(n: int, n_classes: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % n_classes
    features = np.eye(6)[labels] + noise * rng.standard_normal((n, 6))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_come_from_a_model_that_has_not_seen_the_image(n_classes: int):
    features, labels = clusters(36, n_classes, 0.8)
    found = held_out_probabilities(features, labels, seed=3)
    assert found.shape == (36, n_classes) and found.sum(1) == pytest.approx(np.ones(36))
    candidates = []
    for strength in STRENGTHS:
        expected = np.empty_like(found)
        for kept, held_out in folds(labels.tolist(), 3):
            model = LogisticRegression(C=strength, max_iter=5000).fit(features[kept].astype(float), labels[kept])
            expected[held_out] = model.predict_proba(features[held_out].astype(float))
        candidates.append((-np.log(expected[np.arange(36), labels]), expected))
    lowest = min((losses for losses, _ in candidates), key=np.mean)
    limit = lowest.mean() + lowest.std() / 6  # one standard error of 36 images
    strongest = next(expected for losses, expected in candidates if losses.mean() <= limit)
    assert np.allclose(found, strongest, atol=1e-3)


def test_a_single_image_of_a_class_has_no_probabilities():
    features, labels = clusters(31, 3, 0.2)
    labels[30] = 3
    found = held_out_probabilities(features, labels)
    assert np.isnan(found[30]).all() and np.isfinite(found[:30]).all() and found.shape == (31, 4)


@pytest.fixture(scope="module")
def check(planted: Planted, pocket_bank: FeatureBank) -> LabelCheck:
    return check_labels(pocket_bank, load_folder(planted.folder))


def test_planted_label_errors_are_found(check: LabelCheck, planted: Planted):
    copies = {path for pair in planted.exact for path in pair}
    found = {one.image.path for one in check.suspects}
    wrong = found - copies  # of a file and its copy, either may be suspected
    right = wrong & planted.moved.keys()
    assert len(right) >= 0.8 * len(planted.moved)
    assert len(right) >= 0.8 * len(wrong)
    named = [one.suggested == planted.moved[one.image.path] for one in check.suspects if one.image.path in right]
    assert np.mean(named) > 0.6
    scores = [one.score for one in check.suspects]
    assert scores == sorted(scores) and max(scores) < 0.1
    for one in check.suspects:
        assert one.image.class_name == one.image.path.parent.name != one.suggested
        assert 0 <= one.probability < one.suggested_probability <= 1
    assert check.accuracy is not None and 0.6 < check.accuracy < 0.95


def test_planted_duplicates_are_found_and_nothing_else(check: LabelCheck, planted: Planted):
    def pairs(**wanted: object) -> set[frozenset[Path]]:
        return {
            frozenset((pair.first.path, pair.second.path))
            for pair in check.duplicates
            if all(getattr(pair, name) == value for name, value in wanted.items())
        }

    assert pairs(exact=True) == pairs(kind="across classes") == planted.exact
    assert pairs(exact=False) == pairs(kind="across splits") == planted.leaked
    assert all(pair.similarity == pytest.approx(1) for pair in check.duplicates if pair.exact)
    assert {pair.second.split for pair in check.duplicates if not pair.exact} == {"test"}


def test_the_check_is_deterministic(check: LabelCheck, planted: Planted, pocket_bank: FeatureBank):
    assert check_labels(pocket_bank, load_folder(planted.folder)) == check


def test_a_csv_file_and_its_thresholds(planted: Planted, pocket_bank: FeatureBank, tmp_path: Path):
    lines = [f"{path},{path.parent.name}" for path in sorted(planted.folder.glob("train/*/*.png"))]
    (tmp_path / "labels.csv").write_text("path,label\n" + "\n".join(lines))
    images = load_folder(tmp_path / "labels.csv")
    strict, loose = (check_labels(pocket_bank, images, max_score=value) for value in (0.01, 0.5))
    assert 0 < len(strict.suspects) < len(loose.suspects)
    assert loose.suspects[: len(strict.suspects)] == strict.suspects
    assert len(loose.duplicates) == 4  # there is one split only
    whole = check_labels(pocket_bank, load_folder(planted.folder), similarity=1.0)
    assert {frozenset((pair.first.path, pair.second.path)) for pair in whole.duplicates} == planted.exact


def test_classes_with_too_few_images_are_not_checked(planted: Planted, pocket_bank: FeatureBank, tmp_path: Path):
    classes = sorted((planted.folder / "test").iterdir())
    for number, folder in enumerate(classes[:3]):
        (tmp_path / folder.name).mkdir()
        for path in sorted(folder.iterdir())[: 3 + (number > 0)]:
            shutil.copy(path, tmp_path / folder.name)
    check = check_labels(pocket_bank, load_folder(tmp_path), max_score=1.0)
    assert check.unchecked == {classes[0].name: 3} and check.accuracy is not None
    assert {one.image.class_name for one in check.suspects} <= {folder.name for folder in classes[1:3]}
    for folder in tmp_path.iterdir():
        for path in sorted(folder.iterdir())[1:]:
            path.unlink()
    single = check_labels(pocket_bank, load_folder(tmp_path))
    assert len(single.unchecked) == 3 and single.accuracy is None and single.suspects == []


def test_unreadable_images(planted: Planted, pocket_bank: FeatureBank, tmp_path: Path):
    shutil.copytree(planted.folder / "test", tmp_path / "photos")
    broken = next((tmp_path / "photos").glob("*/*.png"))
    broken.write_bytes(b"no image")
    images = load_folder(tmp_path / "photos")
    whole = check_labels(pocket_bank, images)
    assert len(whole.images) == len(images.items) - 1 and broken.name in whole.unreadable[0]
    gone = sorted((tmp_path / "photos").iterdir())[0]
    for path in gone.iterdir():
        path.write_bytes(b"no image")
    others = check_labels(pocket_bank, images)
    assert gone.name not in others.class_names and others.accuracy is not None, "the others are checked"
    for path in (tmp_path / "photos").glob("*/*"):
        path.write_bytes(b"no image")
    with pytest.raises(InputError, match="none of the 64 images can be read: cannot read the image"):
        check_labels(pocket_bank, images)


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan")])
def test_a_score_out_of_range(value: float, planted: Planted, pocket_bank: FeatureBank):
    with pytest.raises(InputError, match="above 0 and at most 1"):
        check_labels(pocket_bank, load_folder(planted.folder), max_score=value)
