"""Training that starts at a finished prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slimprompt import Classifier, InputError, Recipe, load_backbone
from slimprompt.classifier import finished_prompt
from slimprompt.clip.backbone import Backbone
from slimprompt.images.bank import FeatureBank
from slimprompt.saved import model_file, tensors_sha256
from tests.conftest import TINY, draw

QUICK = Recipe(epochs=4, batch_size=8, views=2)
OLD, NEW = ("red", "green"), ("red", "green", "blue")
PROMPTS = {
    "fixed-B": {},
    "dense": {"variant": "dense", "rank": None},
    "joint": {"variant": "joint"},
    "fixed-A": {"variant": "fixed-A", "basis": "svd"},
    "anchored": {"words": "a photo of a", "anchored": True},
    "deep": {"depth": 3, "variant": "joint"},
}


def images_of(root: Path, colours: tuple[str, ...], numbers: range) -> tuple[list[Path], list[str]]:
    paths = [
        draw(root / f"{colour} disc" / f"{number}.png", colour, number) for colour in colours for number in numbers
    ]
    return paths, [path.parent.name for path in paths]


def make(tiny: Backbone, **options) -> Classifier:
    shape = {"rank": 2} if "words" in options else {"n_ctx": 4, "rank": 2}
    return Classifier(tiny, **({"recipe": QUICK, **shape} | options))


@pytest.fixture(scope="module")
def old_images(tmp_path_factory):
    return images_of(tmp_path_factory.mktemp("old"), OLD, range(3))


@pytest.fixture(scope="module")
def new_images(tmp_path_factory):
    return images_of(tmp_path_factory.mktemp("new"), NEW, range(2, 6))


@pytest.mark.parametrize("options", PROMPTS.values(), ids=PROMPTS)
def test_the_first_step_starts_at_the_saved_factors(tiny, old_images, new_images, tmp_path, options) -> None:
    old = make(tiny, **options).fit(*old_images)
    folder = old.save(tmp_path / "old")
    started = finished_prompt(folder).prompt_for(tiny)
    assert started.trainable == old.prompt_.trainable
    for name, factor in old.prompt_.tensors().items():
        assert torch.equal(started.tensors()[name], factor)
    # A learning rate of almost zero changes nothing that float32 shows; a cold start is elsewhere.
    still = QUICK.model_copy(update={"epochs": 1, "lr": 1e-30, "warmup_lr": 0.0, "weight_decay": 0.0})
    grown = make(tiny, **options, continue_from=folder, recipe=still).fit(*new_images)
    assert torch.equal(grown.prompt_(), old.prompt_())
    assert not torch.equal(make(tiny, **options, recipe=still).fit(*new_images).prompt_(), old.prompt_())
    trained = make(tiny, **options, continue_from=folder).fit(*new_images)
    assert not torch.equal(trained.prompt_(), old.prompt_())
    assert trained.classes_.tolist() == ["blue disc", "green disc", "red disc"]
    assert torch.equal(old.prompt_(), Classifier.load(folder, backbone=tiny).prompt_())  # it was copied


def test_a_folder_and_a_fitted_classifier_are_the_same_start(tiny, old_images, new_images, tmp_path) -> None:
    old = make(tiny).fit(*old_images)
    folder = old.save(tmp_path / "old")
    by_folder, by_classifier = (make(tiny, continue_from=start).fit(*new_images) for start in (folder, old))
    for name, classifier in (("a", by_folder), ("b", by_classifier)):
        classifier.save(tmp_path / name)
    assert model_file(tmp_path / "a").read_bytes() == model_file(tmp_path / "b").read_bytes()


def test_origin_and_training_images_are_recorded(tiny, old_images, new_images, tmp_path) -> None:
    old = make(tiny).fit(*old_images)
    folder = old.save(tmp_path / "old")
    grown = make(tiny, continue_from=folder).fit(*new_images)
    alone = make(tiny).fit(*new_images)
    assert grown.training_images_ == old.training_images_ | alone.training_images_
    assert grown.trained_on(FeatureBank(tiny, None), old_images[0]).all()
    assert grown.continued_from_ == tensors_sha256(old.prompt_)
    assert (old.continued_from_, alone.continued_from_) == (None, None)
    saved = grown.save(tmp_path / "grown")
    loaded = Classifier.load(saved, backbone=tiny)
    assert loaded.continued_from_ == loaded.with_classes(["otter", "cat"]).continued_from_ == grown.continued_from_
    assert loaded.training_images_ == grown.training_images_


def test_the_folds_of_the_calibration_start_cold(tiny, old_images, new_images) -> None:
    """A fold that the start was trained on is not held out from it: the temperature would be too small."""
    old = make(tiny).fit(*old_images)
    grown = make(tiny, continue_from=old, calibrate=True).fit(*new_images)
    cold = make(tiny, calibrate=True).fit(*new_images)
    assert grown.calibration_.confidences and grown.calibration_ == cold.calibration_
    assert not torch.equal(grown.prompt_(), cold.prompt_())


def test_no_view_is_encoded_twice(tiny, old_images, new_images, monkeypatch) -> None:
    """The old and new images share one file; of the new fit, only the views of its other images are encoded."""
    encoded = []
    encode_images = Backbone.encode_images
    monkeypatch.setattr(Backbone, "encode_images", lambda *given: encoded.append(1) or encode_images(*given))
    bank = FeatureBank(tiny, "default")
    old = make(tiny).fit(*old_images)
    before = len(bank)
    make(tiny, continue_from=old).fit(*old_images)
    assert len(bank) == before
    passes = len(encoded)
    make(tiny, continue_from=old, calibrate=True).fit(*old_images)  # the calibration needs the eval views too
    assert (len(bank), len(encoded)) == (before + len(old_images[0]), passes + 1)
    make(tiny, continue_from=old, calibrate=True).fit(*old_images)
    assert len(encoded) == passes + 1
    n_shared = len(OLD)  # image number 2 of each class
    make(tiny, continue_from=old).fit(*new_images)
    n_views = len(list(QUICK.all_view_numbers()))
    assert len(bank) == before + len(old_images[0]) + (len(new_images[0]) - n_shared) * n_views


@pytest.mark.parametrize("options", [{"rank": 3}, {"variant": "joint"}, {"depth": 2}])
def test_other_settings_are_refused_before_a_backbone_is_loaded(tiny, old_images, tmp_path, options) -> None:
    folder = make(tiny).fit(*old_images).save(tmp_path / "old")
    classifier = make(tiny, continue_from=folder).set_params(backbone="no such model", **options)
    with pytest.raises(InputError, match=f"{next(iter(options))}=.* the prompt to continue from"):
        classifier.fit(*old_images)


def test_other_weights_are_refused(tiny, old_images) -> None:
    old = make(tiny).fit(*old_images)
    other = load_backbone(TINY, seed=1, device="cpu")
    with pytest.raises(InputError, match="a model only works with the weights it was fitted on"):
        make(other, continue_from=old).fit(*old_images)


def test_a_warm_start_with_the_fast_recipe_takes_no_more_steps(old_images, new_images) -> None:
    pocket = load_backbone("pocket", device="cpu")
    old = Classifier(pocket).fit(*old_images)
    cold = Classifier(pocket).fit(*new_images)
    again, grown = (Classifier(pocket, continue_from=old).fit(*some) for some in (old_images, new_images))
    assert len(again.curve_) <= len(old.curve_) and len(grown.curve_) <= len(cold.curve_)
    assert again.curve_[0].loss < old.curve_[0].loss


def test_a_continue_from_itself_is_refused_with_the_way_to_train_on(tiny, old_images) -> None:
    old = make(tiny).fit(*old_images)
    new = old.unfitted(continue_from=old).fit(*old_images)
    assert new.continued_from_ == finished_prompt(old).sha256
    assert "continue_from=Classifier(…)" in repr(new)
    with pytest.raises(
        InputError, match=r"continue_from is the classifier itself.*unfitted\(continue_from=classifier\)"
    ):
        old.set_params(continue_from=old).fit(*old_images)
    assert "continue_from=Classifier(…)" in repr(old)
