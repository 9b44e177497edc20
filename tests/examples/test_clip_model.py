"""The CLIPModel notebook runs from top to bottom and gives the classifier's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slimprompt import PromptClassifier
from slimprompt.export import export_matrix
from slimprompt.images.decode import open_image
from tests.conftest import rotated_copy


def test_the_notebook(
    examples: Path, classifier: PromptClassifier, photos: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Its code cells in order, with the model converted from generated weights instead of OpenAI's."""
    pytest.importorskip("transformers", reason="transformers is not installed (pip install 'slimprompt[hf]')")
    from tests.hf_clip import save_clip_model

    notebook = json.loads((examples / "clip_model.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    monkeypatch.chdir(tmp_path)
    export_matrix(classifier, "classes.safetensors")
    image = sorted(photos.glob("red disc/*.png"))[0]
    rotated_copy(image, "a.jpg")
    save_clip_model(classifier.backbone_, tmp_path / "clip")
    name = "openai/clip-vit-base-patch16"
    assert name in cells[0]
    names: dict[str, Any] = {}
    for cell in [cells[0].replace(name, "clip"), *cells[1:]]:
        exec(cell, names)
    assert names["class_names"] == classifier.classes_.tolist()
    upright = names["processor"](images=open_image(image), return_tensors="pt")
    assert torch.equal(names["inputs"]["pixel_values"], upright["pixel_values"])
    expected = classifier.predict_proba([image])[0]
    assert names["probabilities"].numpy() == pytest.approx(expected, abs=0.05)
    shown = capsys.readouterr().out
    assert "3 classes on pocket" in shown and f"{classifier.predict([image])[0]}: " in shown
