"""Rows of `predict`: what they hold, and how they are written."""

from __future__ import annotations

import numpy as np

from slimprompt import load_classifier
from slimprompt.collections.rows import Prediction, _best, make_predictions


def test_a_line_has_no_line_breaks() -> None:
    assert "\n" not in Prediction.unreadable("caf\udce9\n.png", "no such image").as_line()


def test_the_best_classes_are_those_of_a_complete_sort() -> None:
    probabilities = np.random.default_rng(0).random((20, 7))
    full = np.argsort(-probabilities, axis=1)
    for top in (1, 3, 6, 7, 9):
        assert (_best(probabilities, top) == full[:, :top]).all()


def test_an_answer_below_the_lowest_confidence_is_none_of_these(models, paths) -> None:
    classifier = load_classifier(models / "prompt", device="cpu")
    features = classifier.encode(paths)
    names = [str(path) for path in paths]
    probabilities = classifier.predict_proba(paths)
    middle = float(np.sort(probabilities.max(1))[len(paths) // 2])
    rows = make_predictions(classifier, names, features, top=2, lowest=middle)
    for row, name, mine in zip(rows, names, probabilities, strict=True):
        best = str(classifier.classes_[mine.argmax()])
        assert row.image == name and row.classes[0][0] == best
        assert row.answer == (best if mine.max() >= middle else "none of these")
    assert len({row.answer for row in rows}) > 1 and "none of these" in {row.answer for row in rows}
