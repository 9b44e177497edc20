"""A classifier with prompts of the image tower, from fit to saved file, on a small vision transformer."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from sklearn.base import clone

from slimprompt import Backbone, Classifier, FeatureBank, InputError, load_backbone
from slimprompt.clip.image_reference import plain_image_features
from slimprompt.export import export_matrix, export_onnx
from slimprompt.images.decode import open_image
from slimprompt.methods.prompt import make_prompt
from slimprompt.service.app import create_app
from slimprompt.service.models import ServedModel

SITES = [
    {"tower": "image"},
    {"tower": "both", "n_ctx": 4, "n_ctx_image": 4},
    {"tower": "both", "n_ctx": 4, "share_basis": True, "image_blocks": "0:1"},
    {"tower": "image", "variant": "dense", "n_ctx_image": 2},
    {"tower": "both", "variant": "joint", "n_ctx": 4, "n_ctx_image": 5, "rank": 2},
    {"tower": "both", "variant": "fixed-A", "n_ctx": 4, "n_ctx_image": 4, "rank": 2, "share_basis": True},
]
RECIPE = {"epochs": 3, "batch_size": 4, "lr": 0.01}


@pytest.fixture(scope="module")
def images(photos: Path) -> list[Path]:
    return sorted(photos.glob("*/*.png"))


@pytest.fixture(scope="module")
def labels(images: list[Path]) -> list[str]:
    return [path.parent.name for path in images]


def _fitted(backbone: Backbone, images: list[Path], labels: list[str], **params: object) -> Classifier:
    return Classifier(backbone, recipe=RECIPE, **params).fit(images, labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("site", SITES, ids=str)
def test_fit_save_load_and_new_names(
    tiny: Backbone, images: list[Path], labels: list[str], tmp_path: Path, site: dict[str, object]
) -> None:
    before = {name: value.clone() for name, value in tiny.model.state_dict().items()}
    classifier = _fitted(tiny, images, labels, **site)
    assert all(torch.equal(before[name], value) for name, value in tiny.model.state_dict().items())
    assert classifier.backbone_.fingerprint != tiny.fingerprint and classifier.backbone_.frozen is tiny

    # Its features are those of a plain pass with the rows put in by hand.
    prompt = classifier.prompt_
    assert prompt is not None and prompt.image is not None
    pixels = torch.stack([tiny.eval_view(open_image(path)) for path in images])
    plain = plain_image_features(tiny.model.visual, pixels, prompt.image.first, prompt.image().detach())
    expected = torch.nn.functional.normalize(plain, dim=-1)
    torch.testing.assert_close(classifier.encode(images), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, tiny.encode_images(pixels), atol=1e-4)

    classifier.save(tmp_path / "model")
    loaded = Classifier.load(tmp_path / "model", backbone=tiny)
    np.testing.assert_array_equal(loaded.predict_proba(images), classifier.predict_proba(images))
    assert loaded.spec_ == classifier.spec_ and loaded.backbone_.fingerprint == classifier.backbone_.fingerprint
    again = classifier.with_classes(["a new name", *classifier.class_names_])
    torch.testing.assert_close(again.head_.weights[1:], classifier.head_.weights, rtol=1e-4, atol=1e-5)


def test_the_loss_decreases_and_text_is_fixed_for_the_image_tower_alone(
    tiny: Backbone, images: list[Path], labels: list[str]
) -> None:
    classifier = Classifier(tiny, tower="image", recipe={"epochs": 20, "lr": 0.02}).fit(images, labels)
    assert classifier.curve_[-1].loss < classifier.curve_[0].loss
    words = _fitted(tiny, images, labels, tower="image", n_ctx_image=4).head_.weights
    torch.testing.assert_close(words, classifier.head_.weights)


def test_training_from_stored_inputs_equals_training_from_pixels(
    tiny: Backbone, images: list[Path], labels: list[str]
) -> None:
    """Rows before block 0 and before the last block, trained on inputs of block 0 and of the last block."""
    n_blocks = len(tiny.image_tower.transformer.resblocks)
    late = {"tower": "image", "image_blocks": f"{n_blocks - 1}:{n_blocks}"}
    stored = _fitted(tiny, images, labels, **late)
    prompt = make_prompt(tiny, stored.prompt_spec(), 1)
    assert prompt.image is not None and stored.prompt_ is not None and stored.prompt_.image is not None
    pixels = torch.stack([tiny.eval_view(open_image(path)) for path in images])
    bank = FeatureBank(tiny, None)
    rows = prompt.image().detach()
    found = bank.features_with_rows(images, n_blocks - 1, rows)
    plain = plain_image_features(tiny.model.visual, pixels, n_blocks - 1, rows)
    torch.testing.assert_close(found, torch.nn.functional.normalize(plain, dim=-1), rtol=1e-4, atol=1e-5)


def test_the_image_site_leaves_the_start_of_the_text_site_as_it_is(tiny: Backbone) -> None:
    text = make_prompt(tiny, Classifier(tiny, n_ctx=4).prompt_spec(), 7)
    both = make_prompt(tiny, Classifier(tiny, n_ctx=4, tower="both").prompt_spec(), 7)
    assert both.image is not None
    assert torch.equal(text.B, both.B) and torch.equal(text.A, both.A)
    shared = make_prompt(tiny, Classifier(tiny, n_ctx=4, tower="both", share_basis=True).prompt_spec(), 7)
    assert shared.image is not None and shared.image.B is shared.B
    n_blocks = len(both.image.A)
    assert both.trainable_parameters == 4 * (tiny.text_width + n_blocks * tiny.image_width)


def test_calibration_and_continued_training(tiny: Backbone, images: list[Path], labels: list[str]) -> None:
    classifier = Classifier(tiny, tower="both", n_ctx=4, recipe=RECIPE, calibrate=True).fit(images, labels)
    assert len(classifier.calibration_.confidences) > 0
    further = classifier.unfitted(continue_from=classifier).fit(images, labels)
    assert further.continued_from_ is not None and further.curve_[0].loss < classifier.curve_[0].loss


def test_towers_and_blocks_that_do_not_exist(tiny: Backbone, images: list[Path], labels: list[str]) -> None:
    with pytest.raises(InputError, match="has . blocks"):
        Classifier(tiny, tower="image", image_blocks="8:12").fit(images, labels)
    resnet = load_backbone("RN50", "random:0", device="cpu")
    with pytest.raises(InputError, match="RN50 takes no prompts"):
        Classifier(resnet, tower="image").fit(images, labels)


def test_pickles_and_clones(tiny_folder: str, images: list[Path], labels: list[str]) -> None:
    classifier = _fitted(load_backbone(tiny_folder, device="cpu"), images, labels, tower="both", n_ctx=4)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(images), classifier.predict_proba(images))
    assert clone(classifier).get_params()["tower"] == "both"


def test_exports(tiny: Backbone, images: list[Path], labels: list[str], tmp_path: Path) -> None:
    """The ONNX file holds the rows, and equals torch, or the export fails; a matrix on frozen features cannot say it."""
    classifier = _fitted(tiny, images, labels, tower="image")
    found = export_onnx(classifier, tmp_path / "classifier.onnx", images=images[:3])
    assert found.n_agree == found.n_images and found.largest_difference < 1e-4
    with pytest.raises(InputError, match="changes the image tower"):
        export_matrix(classifier, tmp_path / "head.safetensors")


def test_the_service_answers_for_both_towers(
    tiny: Backbone, images: list[Path], labels: list[str], tmp_path: Path
) -> None:
    """Beside another model on the same backbone; zero-shot is that of the frozen tower."""
    adapted, text = _fitted(tiny, images, labels, tower="image"), _fitted(tiny, images, labels, n_ctx=4)
    models = {"adapted": ServedModel("adapted", adapted), "text": ServedModel("text", text)}
    with TestClient(create_app(models)) as client:
        files = [("images", (path.name, path.read_bytes())) for path in images[:4]]
        answers = {
            name: client.post("/predict", files=files, data={"model": name, "zero_shot": "true", "top": 3}).json()
            for name in models
        }
    for name, classifier in (("adapted", adapted), ("text", text)):
        expected = classifier.predict_proba(images[:4]).max(1)
        found = [row["classes"][0]["probability"] for row in answers[name]["predictions"]]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert answers["adapted"]["zero_shot"] == answers["text"]["zero_shot"]


@pytest.mark.parametrize("on_disk", [True, False])
def test_inputs_that_do_not_fit_are_refused_before_any_is_encoded(
    on_disk: bool, tiny: Backbone, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=10_000, available=10_000)
    monkeypatch.setattr("shutil.disk_usage", lambda place: free)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    bank = FeatureBank(tiny, tmp_path if on_disk else None).at_block(0)
    with pytest.raises(InputError, match="there is no room for the inputs of block 0"):
        bank.build(images)
    assert len(bank) == 0
