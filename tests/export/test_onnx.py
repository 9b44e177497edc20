"""ONNX files compute what torch computes, for batches of any size, or are not written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from slimprompt import Backbone, Classifier, InputError, load_backbone
from slimprompt.export import export_onnx, onnx
from slimprompt.methods.head import CacheHead
from tests.conftest import TINY
from tests.export.conftest import NAMES

pytestmark = pytest.mark.usefixtures("operators_parsed_once")


def run(file: Path, classifier: Classifier, images: list[Path]) -> np.ndarray:
    """Probabilities by onnxruntime alone, in one batch."""
    from slimprompt.images.decode import open_image

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    pixels = torch.stack([classifier.backbone_.eval_view(open_image(path)) for path in images])
    (found,) = session.run(["probabilities"], {"pixels": pixels.numpy()})
    return found


@pytest.mark.parametrize("name", ["pocket", "pocket-rn"])
def test_prompts_on_both_kinds_of_towers(
    name: str, prompt_classifier: Callable[[Backbone], Classifier], images: list[Path], tmp_path: Path
) -> None:
    classifier = prompt_classifier(load_backbone(name, device="cpu"))
    file, steps = tmp_path / "classifier.onnx", []
    found = export_onnx(classifier, file, images=images[:2], report=steps.append)
    assert (found.n_images, found.n_agree, found.n_bytes) == (6, 6, file.stat().st_size)
    assert found.largest_difference < 1e-4
    assert len(steps) == 2 and name in steps[0]
    for n in (1, 2, 7, 18):
        expected = classifier.predict_proba(images[:n])
        assert np.abs(run(file, classifier, images[:n]) - expected).max() < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["classifier.onnx"]  # one file, no external data

    facts = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert json.loads(facts["class_names"]) == list(NAMES)
    assert json.loads(facts["backbone"])["fingerprint"] == classifier.backbone_.fingerprint
    assert float(facts["temperature"]) == 0.7
    size = 48 if name == "pocket" else 64
    config = classifier.backbone_.preprocess
    assert json.loads(facts["preprocessing"]) == {
        "size": [size, size],
        "resize_mode": "shortest",
        "interpolation": "bicubic",
        "fill_color": 0,
        "mean": list(config.mean),
        "std": list(config.std),
    }


@pytest.mark.parametrize("method", ["gda", "tip-adapter"])
def test_heads(method: str, one_layer: Backbone, images: list[Path], tmp_path: Path) -> None:
    """With a bias, and the keys of a cache."""
    labels = [path.parent.name for path in images]
    classifier = Classifier(one_layer, method=method, views=1, cache=False, calibrate=True).fit(images, labels)
    assert isinstance(classifier.head_, CacheHead) or classifier.head_.bias is not None
    found = export_onnx(classifier, tmp_path / "head.onnx")
    assert found.largest_difference < 1e-4
    probabilities = run(tmp_path / "head.onnx", classifier, images)
    assert np.abs(probabilities - classifier.predict_proba(images)).max() < 1e-4
    assert np.ptp(probabilities[:, 0]) > 0.01  # the images differ


def test_a_file_that_computes_something_else_is_not_kept(
    one_layer: Backbone, prompt_classifier: Callable[[Backbone], Classifier], tmp_path: Path, monkeypatch
) -> None:
    file = tmp_path / "classifier.onnx"
    file.write_text("older")
    with pytest.raises(InputError, match="exists; choose another name"):
        export_onnx(prompt_classifier(one_layer), file)
    forward = onnx._Network.forward
    monkeypatch.setattr(onnx._Network, "forward", lambda self, pixels: forward(self, pixels.flip(1)))  # BGR
    exported, programs = onnx._exported, []

    def export_once(*arguments):
        programs[:] = programs or [exported(*arguments)]
        return programs[0]

    monkeypatch.setattr(onnx, "_exported", export_once)
    with pytest.raises(
        InputError, match=r"largest difference of a probability is .*, allowed is 1.0e-03.* not written"
    ):
        export_onnx(prompt_classifier(one_layer), file, overwrite=True)
    assert file.read_text() == "older"
    with pytest.raises(InputError, match="not written"):
        export_onnx(prompt_classifier(one_layer), tmp_path / "new.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["classifier.onnx"]


def test_what_cannot_be_exported_is_one_line(
    tiny: Backbone, prompt_classifier: Callable[[Backbone], Classifier], tmp_path: Path, monkeypatch
) -> None:
    classifier, file = prompt_classifier(tiny), tmp_path / "classifier.onnx"
    half = prompt_classifier(load_backbone(TINY, seed=0, device="cpu", precision="bf16"))
    with pytest.raises(InputError, match="loaded in bf16: load it with precision fp32"):
        export_onnx(half, file)
    with pytest.raises(InputError, match="is a folder"):
        export_onnx(classifier, tmp_path, overwrite=True)
    with pytest.raises(InputError, match="cannot read the image"):
        export_onnx(classifier, file, images=[Path(__file__)], report=pytest.fail)  # before the long steps
    with monkeypatch.context() as patch:
        patch.setattr(onnx, "_LARGEST_FILE", 10_000)
        with pytest.raises(InputError, match=r"one ONNX file holds at most 2 GB: .*--matrix"):
            export_onnx(classifier, file)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"needs onnxscript: pip install 'slimprompt\[onnx\]'"):
        export_onnx(classifier, file)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_bytes"), [("ViT-B-16", 345e6), ("RN50", 153e6)])
def test_true_sizes(
    name: str, n_bytes: float, prompt_classifier: Callable[[Backbone], Classifier], images: list[Path], tmp_path: Path
) -> None:
    classifier = prompt_classifier(load_backbone(name, seed=0, device="cpu"))
    found = export_onnx(classifier, tmp_path / "classifier.onnx")
    assert found.largest_difference < 1e-4 and found.n_agree == found.n_images == 4
    assert found.n_bytes == pytest.approx(n_bytes, rel=0.02)
    difference = run(tmp_path / "classifier.onnx", classifier, images[:1]) - classifier.predict_proba(images[:1])
    assert np.abs(difference).max() < 1e-4
