"""The work ahead of a fit."""

from __future__ import annotations

from slimprompt.classifier import Classifier
from slimprompt.fit import work_ahead
from slimprompt.training.recipe import make_recipe


def test_work_ahead() -> None:
    """Two classes of four images, five held out; three folds of a calibration train on 4, 6 and 6 of the eight images."""
    labels = [0] * 4 + [1] * 4
    paper = Classifier("pocket", recipe="paper")
    assert work_ahead(paper, labels, 5) == "encoding up to 1,613 image views; training 200 steps"
    recipe = make_recipe("paper", 4, {"epochs": 10, "batch_size": 2, "views": 3, "tolerance": 0.1})
    some = Classifier("pocket", recipe=recipe, calibrate=True)
    expected = "encoding up to 37 image views; training up to 40 steps, plus 80 for the calibration"
    assert work_ahead(some, labels, 5) == expected
    for method, views in {"gda": 8 * 11 + 5, "linear-probe": 8 + 5}.items():
        assert work_ahead(Classifier(method=method, views=10), labels, 5) == f"encoding up to {views} image views"
