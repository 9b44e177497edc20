import hashlib
import io
import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from slimprompt import InputError, Prompt, PromptClassifier, Recipe, load_backbone
from slimprompt.images.decode import open_image
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.training.recipe import make_recipe
from tests.clip.test_backbone import state_bytes
from tests.conftest import TINY

QUICK = Recipe(epochs=4, batch_size=8, views=2)


@pytest.fixture(scope="module")
def images(photos):
    return sorted(photos.glob("*/*.png"))


@pytest.fixture(scope="module")
def labels(images):
    return [path.parent.name for path in images]


def fitted(tiny, images, labels, **options):
    options = {"recipe": QUICK, "n_ctx": 4, "rank": 2} | options
    return PromptClassifier(tiny, **options).fit(images, labels)


@pytest.fixture
def classifier(tiny, images, labels):
    return fitted(tiny, images, labels)


def test_predictions(classifier, images, labels):
    probabilities = classifier.predict_proba(images)
    assert probabilities.shape == (18, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert classifier.classes_.tolist() == ["blue disc", "green disc", "red disc"]
    predicted = classifier.predict(images)
    assert predicted.tolist() == classifier.classes_[probabilities.argmax(1)].tolist()
    assert classifier.score(images, labels) == np.mean(predicted == np.array(labels))
    assert classifier.predict([Image.open(images[0])])[0] == predicted[0]
    assert len(classifier.predict([])) == 0


def test_scikit_learn_manners(classifier):
    assert classifier.get_params()["rank"] == 2
    other = clone(classifier).set_params(rank=3)
    assert (other.rank, classifier.rank) == (3, 2)
    assert not hasattr(other, "prompt_")
    assert "PromptClassifier" in repr(other)


def test_backbone_bytes_are_unchanged_by_fit(images, labels):
    backbone = load_backbone(TINY, seed=0, device="cpu")
    before = state_bytes(backbone.model)
    fitted(backbone, images, labels, variant="joint")
    assert state_bytes(backbone.model) == before


@pytest.mark.parametrize("variant", ["dense", "joint", "fixed-B", "fixed-A"])
def test_equal_fits_give_equal_bytes(tiny, images, labels, variant, tmp_path):
    basis = "svd" if variant == "fixed-A" else "orthogonal"
    for name in ("a", "b"):
        fitted(tiny, images, labels, variant=variant, basis=basis, cache=name == "a").save(tmp_path / name)
    for file in ("prompt.safetensors", "prompt.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    other = fitted(tiny, images, labels, variant=variant, basis=basis, seed=2).save(tmp_path / "c")
    assert (other / "prompt.safetensors").read_bytes() != (tmp_path / "a" / "prompt.safetensors").read_bytes()


def test_save_and_load(classifier, images, tmp_path):
    folder = classifier.save(tmp_path / "deep" / "prompt", note="kept")
    assert sorted(path.name for path in folder.iterdir()) == ["prompt.json", "prompt.safetensors"]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4000
    loaded = PromptClassifier.load(folder, device="cpu")
    assert np.array_equal(loaded.predict_proba(images), classifier.predict_proba(images))
    assert json.loads((folder / "prompt.json").read_text())["note"] == "kept"
    assert (loaded.rank, loaded.n_ctx, loaded.recipe) == (2, 4, QUICK)


def test_a_loaded_prompt_can_be_saved_again(classifier, tmp_path):
    first = classifier.save(tmp_path / "a")
    second = PromptClassifier.load(first, device="cpu").save(tmp_path / "b")
    assert (first / "prompt.json").read_text() == (second / "prompt.json").read_text()


def test_other_class_names(classifier, images):
    other = classifier.with_classes(["otter", "red_panda"])
    assert other.predict_proba(images).shape == (18, 2)
    assert set(other.predict(images)) <= {"otter", "red_panda"}
    assert np.array_equal(
        classifier.with_classes(classifier.classes_).predict_proba(images), classifier.predict_proba(images)
    )
    with pytest.raises(InputError, match="given twice"):
        classifier.with_classes(["otter", "otter"])


BEYOND = {
    "word start": {"words": "a photo of a", "rank": 3},
    "anchored": {"words": "a photo of a", "anchored": True},
    "deep": {"depth": 3},
    "deep word start": {"words": "a photo of a", "depth": 2},
    "kept close": {"words": "a photo of a", "recipe": QUICK.model_copy(update={"anchor": 8.0, "prograd": True})},
}


@pytest.mark.parametrize("options", BEYOND.values(), ids=BEYOND)
def test_prompts_beyond_the_paper_are_saved_loaded_and_used_on_new_names(tiny, images, labels, tmp_path, options):
    classifier = fitted(tiny, images, labels, **options)
    folder = classifier.save(tmp_path / "a")
    loaded = PromptClassifier.load(folder, device="cpu")
    assert np.array_equal(loaded.predict_proba(images), classifier.predict_proba(images))
    names = ["otter", "red_panda"]
    assert np.array_equal(
        loaded.with_classes(names).predict_proba(images), classifier.with_classes(names).predict_proba(images)
    )
    for name in ("words", "anchored", "depth", "recipe"):
        assert getattr(loaded, name) == getattr(classifier, name)
    again = loaded.save(tmp_path / "b")
    for file in ("prompt.safetensors", "prompt.json"):
        assert (folder / file).read_bytes() == (again / file).read_bytes()


def test_an_anchored_prompt_without_its_words_is_refused(tiny, images, labels, tmp_path):
    folder = fitted(tiny, images, labels, **BEYOND["anchored"]).save(tmp_path / "prompt")
    prompt = load_file(folder / "prompt.safetensors")
    assert set(prompt) == {"A", "B", "W"}
    del prompt["W"]
    save_file(prompt, folder / "prompt.safetensors")
    description = json.loads((folder / "prompt.json").read_text())
    description["factors_sha256"] = hashlib.sha256((folder / "prompt.safetensors").read_bytes()).hexdigest()
    (folder / "prompt.json").write_text(json.dumps(description))
    with pytest.raises(InputError, match="damaged"):
        PromptClassifier.load(folder, device="cpu")


def test_keep_close_losses_use_the_template_of_the_words(tiny, images, labels, monkeypatch):
    from slimprompt.methods import prompt as prompt_learning

    templates = []
    monkeypatch.setattr(
        prompt_learning,
        "zero_shot_features",
        lambda backbone, names, given: (templates.append(given), zero_shot_features(backbone, names, given))[1],
    )
    kept = QUICK.model_copy(update={"anchor": 8.0})
    fitted(tiny, images, labels, recipe=kept)
    fitted(tiny, images, labels, recipe=kept, words="a sketch of the")
    assert templates == [("a photo of a {}.",), ("a sketch of the {}.",)]


def test_class_names_are_checked_before_anything_is_trained(tiny, classifier, images, labels):
    for names in (["otter", "Otter"], ["otter", "<end_of_text>"], ["otter", "a\x00"]):
        with pytest.raises(InputError, match="same words|control token|not text"):
            classifier.with_classes(names)
    odd = ["red_disc" if label == "green disc" else label for label in labels]
    with pytest.raises(InputError, match="same words in a prompt"):
        PromptClassifier(tiny).fit(images, odd)


def test_a_prompt_that_gives_no_numbers_is_refused(classifier):
    prompt = Prompt(classifier.prompt_.B, classifier.prompt_.A * float("nan"), "A")
    with pytest.raises(InputError, match="not finite"):
        PromptClassifier(n_ctx=4).set_prompt(classifier.backbone_, prompt, ["otter", "red panda"])


def test_another_backbone_is_refused(classifier, tmp_path):
    folder = classifier.save(tmp_path / "prompt")
    with pytest.raises(InputError, match="only works with the weights it was trained on"):
        PromptClassifier.load(folder, backbone=load_backbone(TINY, seed=1, device="cpu"))


@pytest.fixture
def local_file(tiny, tmp_path):
    """A weight file whose activation is not known."""
    path = tmp_path / "weights.safetensors"
    save_file(tiny.model.state_dict(), path)
    return path


@pytest.mark.parametrize("activation", ["gelu", "quickgelu"])
def test_the_activation_is_stored_with_the_prompt(images, labels, local_file, tmp_path, activation):
    options = {"recipe": QUICK, "n_ctx": 4, "rank": 2, "device": "cpu"}
    classifier = PromptClassifier(TINY, pretrained=str(local_file), activation=activation, **options)
    folder = classifier.fit(images, labels).save(tmp_path / "prompt")
    description = json.loads((folder / "prompt.json").read_text())
    assert description["backbone"]["activation"] == activation
    moved = local_file.rename(tmp_path / "moved.safetensors")
    loaded = PromptClassifier.load(folder, pretrained=str(moved), device="cpu")
    assert np.array_equal(loaded.predict_proba(images), classifier.predict_proba(images))

    # version 0.1 did not store it, nor a checksum
    del description["backbone"]["activation"], description["checksum"]
    (folder / "prompt.json").write_text(json.dumps(description))
    loaded = PromptClassifier.load(folder, pretrained=str(moved), device="cpu")
    assert loaded.backbone_.activation == activation
    other = {"gelu": "quickgelu", "quickgelu": "gelu"}[activation]
    with pytest.raises(InputError, match="only works with the weights it was trained on"):
        PromptClassifier.load(folder, pretrained=str(moved), activation=other, device="cpu")


def test_the_preprocessing_is_stored_with_the_prompt(tiny, images, labels, tmp_path):
    """Weights do not tell it, and a file may be loaded with another one than the tag was."""
    squashed = tiny.with_preprocessing(replace(tiny.preprocess, resize_mode="squash", mean=(0.5, 0.5, 0.5)))
    wide = [open_image(path).resize((80, 40)) for path in images]
    classifier = PromptClassifier(squashed, recipe=QUICK, n_ctx=4, rank=2).fit(wide, labels)
    folder = classifier.save(tmp_path / "prompt")
    loaded = PromptClassifier.load(folder, backbone=tiny)
    assert loaded.backbone_.preprocess == squashed.preprocess
    assert loaded.backbone_.model is tiny.model
    assert np.array_equal(loaded.predict_proba(wide), classifier.predict_proba(wide))
    assert pickle.loads(pickle.dumps(squashed)).preprocess == squashed.preprocess

    # earlier versions did not store it
    description = json.loads((folder / "prompt.json").read_text())
    del description["backbone"]["preprocess"], description["checksum"]
    (folder / "prompt.json").write_text(json.dumps(description))
    assert PromptClassifier.load(folder, backbone=tiny).backbone_ is tiny
    (folder / "prompt.json").write_text(
        json.dumps(description | {"backbone": description["backbone"] | {"preprocess": {"sise": 3}}})
    )
    with pytest.raises(InputError, match="is damaged: backbone"):
        PromptClassifier.load(folder, backbone=tiny)


def test_other_weights_of_unknown_activation_are_refused(classifier, tmp_path):
    folder = classifier.save(tmp_path / "prompt")
    description = json.loads((folder / "prompt.json").read_text())
    del description["backbone"]["activation"], description["checksum"]
    (folder / "prompt.json").write_text(json.dumps(description))
    save_file(load_backbone(TINY, seed=1, device="cpu").model.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="only works with the weights it was trained on"):
        PromptClassifier.load(folder, pretrained=str(tmp_path / "other.safetensors"), device="cpu")


def test_nothing_is_overwritten_unasked(classifier, tmp_path):
    folder = classifier.save(tmp_path / "prompt")
    with pytest.raises(InputError, match="already holds a saved prompt"):
        classifier.save(folder)
    classifier.save(folder, overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="left alone"):
        classifier.save(tmp_path / "mine", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "prompt"]


@pytest.mark.parametrize("damage", ["cut factors", "other factors", "no json", "half json", "no factors", "new format"])
def test_a_damaged_prompt_is_refused(classifier, tmp_path, damage):
    folder = classifier.save(tmp_path / "prompt")
    factors, description = folder / "prompt.safetensors", folder / "prompt.json"
    if damage == "cut factors":
        factors.write_bytes(factors.read_bytes()[:-9])
    elif damage == "other factors":
        data = bytearray(factors.read_bytes())
        data[-1] ^= 1
        factors.write_bytes(bytes(data))
    elif damage == "no json":
        description.unlink()
    elif damage == "half json":
        description.write_text(description.read_text()[:80])
    elif damage == "no factors":
        factors.unlink()
    else:
        description.write_text(description.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="damaged|no saved prompt|format 2"):
        PromptClassifier.load(folder)


def test_a_failed_save_leaves_nothing(classifier, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slimprompt.saved.files.publish", full)
    with pytest.raises(InputError, match="No space left on device"):
        classifier.save(tmp_path / "prompt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("images_", "labels_", "message"),
    [
        ([], [], "no images"),
        (["a.png"], ["a", "b"], "1 images but 2 labels"),
        (["a.png", "b.png"], ["a", "a"], "only one class"),
    ],
)
def test_bad_input(tiny, images_, labels_, message):
    with pytest.raises(InputError, match=message):
        PromptClassifier(tiny).fit(images_, labels_)


def test_bad_parameters(tiny, images, labels):
    with pytest.raises(InputError, match="unknown recipe 'quick'"):
        PromptClassifier(tiny, recipe="quick").fit(images, labels)
    with pytest.raises(InputError, match="rank 5 does not fit"):
        fitted(tiny, images, labels, rank=5)


@pytest.mark.parametrize("call", ["predict", "predict_proba", "encode"])
def test_not_fitted(tiny, call):
    for images in ([], ["a.png"]):
        with pytest.raises(NotFittedError):
            getattr(PromptClassifier(tiny), call)(images)
    with pytest.raises(NotFittedError):
        PromptClassifier(tiny).score([], [])


def test_no_images_give_no_rows(classifier):
    for nothing in ([], np.array([]), iter(())):
        assert classifier.predict_proba(nothing).shape == (0, 3)
    assert classifier.predict([]).dtype == classifier.classes_.dtype
    assert classifier.encode([]).shape == (0, 24)


def test_every_form_of_images_is_classified_alike(classifier, images):
    expected = classifier.predict_proba(images)
    opened = [Image.open(path) for path in images]
    forms = [
        (str(path) for path in images),
        np.array([str(path) for path in images]),
        pd.Series([str(path) for path in images]),
        opened,
        [opened[0], *opened[1:]],
        np.stack([np.asarray(image) for image in opened]),
        [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in opened],
        [io.BytesIO(path.read_bytes()) for path in images],
    ]
    for form in forms:
        np.testing.assert_allclose(classifier.predict_proba(form), expected, rtol=1e-5)


def test_fit_takes_arrays_and_series(tiny, images, labels):
    expected = fitted(tiny, images, labels)
    other = fitted(tiny, (str(path) for path in images), pd.Series(labels, dtype="category"))
    assert torch.equal(other.prompt_.A, expected.prompt_.A)
    of_pixels = fitted(tiny, [np.asarray(Image.open(path)) for path in images], np.array(labels))
    assert of_pixels.classes_.tolist() == expected.classes_.tolist()


@pytest.mark.parametrize("given", ["a.png", Image.new("RGB", (3, 3)), None, [None], [Image.new("RGB", (0, 3))]])
def test_what_is_not_a_list_of_images_is_refused(classifier, given):
    for call in (classifier.predict, classifier.predict_proba):
        with pytest.raises(InputError, match="image|NoneType"):
            call(given)
    with pytest.raises(InputError, match="image|NoneType"):
        classifier.fit(given, ["a"])


def test_labels_are_class_names(classifier, images, labels):
    numbers = [classifier.classes_.tolist().index(label) for label in labels]
    for wrong in (numbers, np.array(numbers), [1.5] * 18, [None] * 18, "red disc", 3):
        with pytest.raises(InputError, match="labels must be"):
            classifier.score(images, wrong)
        with pytest.raises(InputError, match="labels must be"):
            classifier.fit(images, wrong)
    with pytest.raises(InputError, match="class names must be"):
        classifier.with_classes("otter")


def test_cross_validation(tiny, images, labels):
    classifier = PromptClassifier(tiny, recipe=QUICK, n_ctx=4, rank=2)
    scores = cross_val_score(classifier, images, labels, cv=2, error_score="raise")
    assert ((scores >= 0) & (scores <= 1)).all()
    with pytest.raises(InputError, match="labels must be class names"):
        cross_val_score(classifier, images, [0, 1, 2] * 6, cv=2, error_score="raise")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": "4"}, "rank must be a whole number of at least 1 \\(given: '4'\\)"),
        ({"rank": 2.5}, "rank must be a whole number"),
        ({"rank": True}, "rank must be a whole number"),
        ({"rank": 0}, "rank must be"),
        ({"n_ctx": -1}, "n_ctx must be a whole number of at least 1"),
        ({"n_ctx": 10**9}, "does not fit: tiny-for-tests reads 40 tokens"),
        ({"n_ctx": None}, "n_ctx must be"),
        ({"seed": -1}, "seed must be"),
        ({"seed": "1"}, "seed must be"),
        ({"recipe": {"epoch": 3}}, "unknown recipe field 'epoch'; did you mean 'epochs'"),
        ({"recipe": {"epochs": "many"}}, "epochs: .*given: 'many'"),
        ({"recipe": {3: 4}}, "unknown recipe field 3"),
        ({"recipe": None}, "unknown recipe None"),
        ({"recipe": {"lr": 1e38}}, "lr: .*less than"),
        ({"recipe": {"epochs": 10**9}}, "epochs: .*1000000"),
        ({"recipe": {"views": 10**7}}, "views: .*10000"),
        ({"recipe": Recipe(epochs=1_000_000)}, "1,000,000 views of 36 images: 36,000,000 images to encode"),
        ({"variant": 3}, "unknown variant 3"),
        ({"variant": "fixed-b"}, "did you mean 'fixed-B'"),
    ],
)
def test_parameters_of_the_wrong_kind(tiny, images, labels, parameters, message):
    with pytest.raises(InputError, match=message):
        fitted(tiny, list(images) * 2, list(labels) * 2, **parameters)


def test_a_dictionary_replaces_fields_of_the_recipe_for_so_many_images(tiny, images, labels):
    fields = {"epochs": 2, "views": 1}
    classifier = fitted(tiny, images, labels, recipe=fields, rank=np.int64(2))
    expected = fitted(tiny, images, labels, recipe=make_recipe("auto", len(labels) / len(set(labels)), fields))
    assert torch.equal(classifier.prompt_.A, expected.prompt_.A)
    assert clone(classifier).recipe == fields
    assert classifier.recipe_ == expected.recipe_ and classifier.recipe_.optimizer == "sgd"


def test_save_writes_what_was_fitted_not_the_current_parameters(classifier, images, tmp_path):
    expected = classifier.predict_proba(images)
    before = classifier.save(tmp_path / "before")
    classifier.set_params(variant="dense", rank=7, n_ctx=9, position="front", words="a photo of a", seed=5)
    after = classifier.save(tmp_path / "after")
    for file in ("prompt.safetensors", "prompt.json"):
        assert (after / file).read_bytes() == (before / file).read_bytes()
    others = (PromptClassifier.load(after, device="cpu"), classifier.with_classes(classifier.classes_))
    for other in others:
        assert np.array_equal(other.predict_proba(images), expected)
        assert (other.variant, other.position, other.seed) == ("fixed-B", "end", 1)
    unchanged = {"recipe": QUICK, "n_ctx": 4, "rank": 2}
    PromptClassifier(classifier.backbone_, start_from=classifier, **unchanged).check_settings()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"temperature": 5.0}, "prompt.json has entries of these names already: temperature"),
        ({"class_names": ["x", "y", "z"], "format": 2}, "names already: class_names, format"),
        ({"grown_from": "0" * 64, "factors_sha256": ""}, "names already: factors_sha256, grown_from"),
        ({"shots": [4, 4, 4]}, "this prompt cannot be saved: shots: "),
        ({"note": {1, 2}}, r"a set cannot be saved as an entry \(given: {1, 2}\)"),
    ],
)
def test_facts_that_would_spoil_a_saved_prompt_are_refused(classifier, facts, message, tmp_path):
    folder = classifier.save(tmp_path / "prompt")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match=message):
        classifier.save(folder, overwrite=True, **facts)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_numbers_of_numpy_are_saved_as_plain_ones(tiny, images, labels, tmp_path):
    classifier = fitted(tiny, images, labels, seed=np.int64(3))
    folder = classifier.save(tmp_path / "prompt", accuracy=np.float32(0.5), shots=np.int64(6))
    entries = json.loads((folder / "prompt.json").read_text())
    assert (entries["seed"], entries["accuracy"], entries["shots"]) == (3, 0.5, 6)
    assert PromptClassifier.load(folder, device="cpu").seed == 3
