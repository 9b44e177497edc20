"""The Gradio Space: its function classifies images; the page itself is built where gradio is installed."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from PIL import Image

from slimprompt import PromptClassifier


def test_the_function_of_the_space(
    examples: Path, classifier: PromptClassifier, photos: Path, tmp_path: Path, monkeypatch
) -> None:
    path = sorted(photos.glob("*/*.png"))[0]
    monkeypatch.setenv("MODEL", str(classifier.save(tmp_path / "my-prompt")))
    app = runpy.run_path(str(examples / "space" / "app.py"))
    answer = app["classify"](Image.open(path))
    assert answer == pytest.approx(dict(zip(classifier.classes_, classifier.predict_proba([path])[0], strict=True)))


def test_it_has_about_twenty_lines_and_names_its_packages(examples: Path) -> None:
    lines = (examples / "space" / "app.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 25
    lines = (examples / "space" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["slimprompt", "gradio"]
