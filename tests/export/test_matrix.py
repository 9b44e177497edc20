"""The class matrix: the snippets of the documentation give the probabilities of `predict_proba`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from slimprompt import Backbone, Classifier, InputError, load_backbone
from slimprompt.export import export_matrix
from slimprompt.images.decode import open_image
from tests.export.conftest import NAMES

DOCUMENT = Path(__file__).parents[2] / "docs" / "production.md"
NUMPY, TRANSFORMERS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_numpy(features: np.ndarray) -> dict[str, Any]:
    """What the numpy snippet computes from features that need not have unit length."""
    names: dict[str, Any] = {"features": 3 * features}
    exec(NUMPY, names)
    return names


def test_a_prompt_in_numpy(
    tiny: Backbone, prompt_classifier: Callable[[Backbone], Classifier], images: list[Path]
) -> None:
    classifier = prompt_classifier(tiny)
    export_matrix(classifier, "classes.safetensors")
    tensors = load_file("classes.safetensors")
    assert torch.allclose(tensors["weights"].norm(dim=1), torch.ones(4)) and not tensors["bias"].any()
    with safe_open("classes.safetensors", "np") as file:
        facts = file.metadata()
    assert json.loads(facts["class_names"]) == list(NAMES)
    assert float(facts["temperature"]) == 0.7 and float(facts["scale"]) == tiny.logit_scale
    assert json.loads(facts["backbone"])["fingerprint"] == tiny.fingerprint
    assert json.loads(facts["preprocessing"])["size"] == [32, 32]
    found = in_numpy(classifier.encode(images).numpy())
    assert np.allclose(found["probabilities"], classifier.predict_proba(images), atol=1e-5)
    assert found["predicted"] == classifier.predict(images).tolist()


def test_a_linear_head_has_its_bias(tiny: Backbone, images: list[Path]) -> None:
    labels = [path.parent.name for path in images]
    classifier = Classifier(tiny, method="gda", views=0, cache=False).fit(images, labels)
    export_matrix(classifier, "classes.safetensors")
    found = in_numpy(classifier.encode(images).numpy())
    assert np.allclose(found["probabilities"], classifier.predict_proba(images), atol=1e-4)
    other = classifier.with_classes(["red disc", "blue disc"])
    with pytest.raises(InputError, match="exists"):
        export_matrix(other, "classes.safetensors")
    export_matrix(other, "classes.safetensors", overwrite=True)
    assert in_numpy(classifier.encode(images).numpy())["predicted"] == other.predict(images).tolist()


def test_a_cache_head_is_no_matrix(tiny: Backbone, images: list[Path], tmp_path: Path) -> None:
    labels = [path.parent.name for path in images]
    classifier = Classifier(tiny, method="tip-adapter", views=0, cache=False).fit(images, labels)
    with pytest.raises(InputError, match=r"a head of tip-adapter .* is not a matrix: export it as ONNX"):
        export_matrix(classifier, "classes.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("activation", ["gelu", "quickgelu"])
def test_clip_model_of_transformers(
    activation: str,
    model_config: Callable[[str, dict[str, Any]], str],
    prompt_classifier: Callable[[Backbone], Classifier],
    images: list[Path],
    tmp_path: Path,
) -> None:
    """The same weights in other software, and the two snippets one after the other."""
    pytest.importorskip("transformers", reason="transformers is not installed (pip install 'slimprompt[hf]')")
    from transformers import CLIPModel

    from tests.conftest import TINY, TINY_CONFIG, rotated_copy
    from tests.hf_clip import save_clip_model

    backbone = load_backbone(model_config(TINY, TINY_CONFIG), seed=0, device="cpu", activation=activation)
    classifier = prompt_classifier(backbone)
    export_matrix(classifier, "classes.safetensors")
    folder = save_clip_model(backbone, tmp_path / "clip")

    pixels = torch.stack([backbone.eval_view(open_image(path)) for path in images])
    with torch.inference_mode():
        found = CLIPModel.from_pretrained(folder).get_image_features(pixel_values=pixels)
    same = in_numpy(getattr(found, "pooler_output", found).numpy())
    assert np.allclose(same["probabilities"], classifier.predict_proba(images), atol=1e-5)

    name = "openai/clip-vit-base-patch16"
    assert name in TRANSFORMERS
    for path in images[::4]:
        rotated_copy(path, "a.jpg")
        names: dict[str, Any] = {}
        exec(TRANSFORMERS.replace(name, str(folder)), names)
        exec(NUMPY, names)
        upright = names["processor"](images=open_image(path), return_tensors="pt")
        assert torch.equal(names["inputs"]["pixel_values"], upright["pixel_values"])
        assert names["predicted"] == classifier.predict([path]).tolist()
        assert np.allclose(names["probabilities"], classifier.predict_proba([path]), atol=0.02)


@pytest.mark.parametrize("kind", ["prompt", "head"])
def test_class_names_of_numbered_labels(kind: str, tiny: Backbone, images: list[Path]) -> None:
    """The names are exported, not the labels."""
    names = sorted({path.parent.name for path in images})
    labels = [names.index(path.parent.name) for path in images]
    short = {"n_ctx": 2, "rank": 1, "recipe": {"epochs": 1, "views": 0}}
    settings = short if kind == "prompt" else {"method": "zero-shot"}
    classifier = Classifier(tiny, cache=False, class_names=names, **settings)
    export_matrix(classifier.fit(images, labels), "classes.safetensors")
    with safe_open("classes.safetensors", "np") as file:
        assert json.loads(file.metadata()["class_names"]) == names
