"""Served models: shared backbones, names, and answers equal to those of the classifiers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slimprompt import Classifier, load_classifier
from slimprompt.errors import InputError
from slimprompt.service.models import ServedModel, load_models
from tests.hub_server import Hub, Repository


def test_models_with_the_same_weights_share_a_backbone(models: dict[str, ServedModel]) -> None:
    assert list(models) == ["prompt", "gda", "zero-shot"]
    assert len({id(model.backbone) for model in models.values()}) == 1
    assert [model.describe().takes_new_names for model in models.values()] == [True, False, True]


def test_models_keep_their_own_preprocessing(saved: Path, tmp_path: Path, photos: Path) -> None:
    """Although they share the weights."""
    prompt = load_classifier(saved / "prompt", device="cpu")
    backbone = prompt.backbone_.with_preprocessing(replace(prompt.backbone_.preprocess, mean=(0.0, 0.0, 0.0)))
    other = Classifier(backbone, method="zero-shot").fit(
        sorted(photos.glob("*/*.png")), [path.parent.name for path in sorted(photos.glob("*/*.png"))]
    )
    other.save(tmp_path / "other")
    models = load_models([saved / "prompt", tmp_path / "other"], device="cpu")
    assert models["prompt"].backbone.preprocess == prompt.backbone_.preprocess
    assert models["other"].backbone.preprocess == backbone.preprocess
    assert models["other"].backbone.model is models["prompt"].backbone.model


def test_models_are_named_by_folder_or_by_path(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        load_classifier(saved / "prompt", device="cpu").save(tmp_path / name / "prompt")
    folders = [tmp_path / "a" / "prompt", tmp_path / "b" / "prompt", saved / "gda"]
    assert list(load_models(folders, device="cpu")) == [str(folders[0]), str(folders[1]), "gda"]
    (tmp_path / "current").symlink_to(saved / "gda")
    for inside, given in (("prompt", "."), ("prompt/more", "..")):
        (tmp_path / "a" / inside).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "a" / inside)
        assert list(load_models([tmp_path / "current", Path(given)], device="cpu")) == ["current", "prompt"]
    with pytest.raises(InputError, match="given twice"):
        load_models([saved / "gda", saved / "gda"], device="cpu")


def test_a_model_of_the_hub_is_served_under_its_name(saved: Path, local_hub: Hub) -> None:
    repository = local_hub.repositories["user/discs"] = Repository()
    repository.commit({path.name: path.read_bytes() for path in (saved / "prompt").iterdir()})
    models = load_models([Path("hf:user/discs"), saved / "gda"], device="cpu")
    assert list(models) == ["discs", "gda"]
    assert models["discs"].backbone is models["gda"].backbone
