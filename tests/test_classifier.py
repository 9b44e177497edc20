"""The classifier: prompts and other methods fitted, saved, loaded, used on other classes."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from slimprompt import Classifier, InputError, Prompt, PromptClassifier, Recipe, load_backbone, load_classifier
from slimprompt.images.decode import open_image
from slimprompt.methods.table import METHODS
from slimprompt.methods.zero_shot import zero_shot_head
from slimprompt.prompts.spec import make_spec
from slimprompt.saved import read_model
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
    shape = {"rank": None if options.get("variant") == "dense" else 2}
    if "words" not in options:
        shape["n_ctx"] = 4
    options = {"recipe": QUICK} | shape | options
    return Classifier(tiny, **options).fit(images, labels)


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


def test_backbone_bytes_are_unchanged_by_fit(images, labels):
    backbone = load_backbone(TINY, seed=0, device="cpu")
    before = state_bytes(backbone.model)
    fitted(backbone, images, labels, variant="joint")
    assert state_bytes(backbone.model) == before


@pytest.mark.parametrize("variant", ["dense", "joint", "fixed-B", "fixed-A"])
def test_equal_fits_give_equal_bytes(tiny, images, labels, variant, tmp_path):
    one, other = (
        fitted(tiny, images, labels, variant=variant, cache=name == "a").save(tmp_path / name) for name in ("a", "b")
    )
    assert one.read_bytes() == other.read_bytes()
    seeded = fitted(tiny, images, labels, variant=variant, seed=2)
    assert not torch.equal(seeded.prompt_(), Classifier.load(one, device="cpu").prompt_())


def test_save_and_load(classifier, images, tmp_path):
    file = classifier.save(tmp_path / "deep" / "prompt", note="kept")
    assert file == tmp_path / "deep" / "prompt" / "model.safetensors"
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.stat().st_size < 5000
    for given in (file, file.parent):
        loaded = Classifier.load(given, device="cpu")
        assert np.array_equal(loaded.predict_proba(images), classifier.predict_proba(images))
    assert read_model(file).entries["note"] == "kept"
    assert (loaded.rank, loaded.n_ctx, loaded.recipe) == (2, 4, QUICK)
    other = classifier.save(tmp_path / "named.safetensors")
    assert other == tmp_path / "named.safetensors" and Classifier.load(other, device="cpu").prompt_ is not None


def test_a_loaded_model_can_be_saved_again(classifier, tmp_path):
    first = classifier.save(tmp_path / "a")
    second = Classifier.load(first, device="cpu").save(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()


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
    loaded = Classifier.load(folder, device="cpu")
    assert np.array_equal(loaded.predict_proba(images), classifier.predict_proba(images))
    names = ["otter", "red_panda"]
    assert np.array_equal(
        loaded.with_classes(names).predict_proba(images), classifier.with_classes(names).predict_proba(images)
    )
    for name in ("words", "anchored", "depth", "recipe"):
        assert getattr(loaded, name) == getattr(classifier, name)
    again = loaded.save(tmp_path / "b")
    assert folder.read_bytes() == again.read_bytes()


def test_class_names_are_checked_before_anything_is_trained(tiny, classifier, images, labels):
    for names in (["otter", "Otter"], ["otter", "<end_of_text>"], ["otter", "a\x00"]):
        with pytest.raises(InputError, match="same words|control token|not text"):
            classifier.with_classes(names)
    odd = ["red_disc" if label == "green disc" else label for label in labels]
    with pytest.raises(InputError, match="same words in a prompt"):
        Classifier(tiny).fit(images, odd)


def test_a_prompt_that_gives_no_numbers_is_refused(classifier):
    prompt = Prompt(classifier.prompt_.B, classifier.prompt_.A * float("nan"), "A")
    with pytest.raises(InputError, match="not finite"):
        Classifier.of_prompt(classifier.backbone_, prompt, make_spec(n_ctx=4), ["otter", "red panda"])


def test_another_backbone_is_refused(classifier, tmp_path):
    folder = classifier.save(tmp_path / "prompt")
    with pytest.raises(InputError, match="only works with the weights it was fitted on"):
        Classifier.load(folder, backbone=load_backbone(TINY, seed=1, device="cpu"))


@pytest.fixture
def local_file(tiny, tmp_path):
    """A weight file whose activation is not known."""
    path = tmp_path / "weights.safetensors"
    save_file(tiny.model.state_dict(), path)
    return path


@pytest.mark.parametrize("activation", ["gelu", "quickgelu"])
def test_the_activation_is_stored_with_the_prompt(images, labels, local_file, tmp_path, activation):
    options = {"recipe": QUICK, "n_ctx": 4, "rank": 2, "device": "cpu"}
    classifier = Classifier(TINY, pretrained=str(local_file), activation=activation, **options)
    folder = classifier.fit(images, labels).save(tmp_path / "prompt")
    assert read_model(folder).description.backbone.activation == activation
    moved = local_file.rename(tmp_path / "moved.safetensors")
    loaded = Classifier.load(folder, pretrained=str(moved), device="cpu")
    assert loaded.backbone_.activation == activation
    assert np.array_equal(loaded.predict_proba(images), classifier.predict_proba(images))
    other = {"gelu": "quickgelu", "quickgelu": "gelu"}[activation]
    with pytest.raises(InputError, match="only works with the weights it was fitted on"):
        Classifier.load(folder, pretrained=str(moved), activation=other, device="cpu")


def test_the_preprocessing_is_stored_with_the_prompt(tiny, images, labels, tmp_path):
    """Weights do not tell it, and a file may be loaded with another one than the tag was."""
    squashed = tiny.with_preprocessing(replace(tiny.preprocess, resize_mode="squash", mean=(0.5, 0.5, 0.5)))
    wide = [open_image(path).resize((80, 40)) for path in images]
    classifier = Classifier(squashed, recipe=QUICK, n_ctx=4, rank=2).fit(wide, labels)
    folder = classifier.save(tmp_path / "prompt")
    loaded = Classifier.load(folder, backbone=tiny)
    assert loaded.backbone_.preprocess == squashed.preprocess
    assert loaded.backbone_.model is tiny.model
    assert np.array_equal(loaded.predict_proba(wide), classifier.predict_proba(wide))
    assert pickle.loads(pickle.dumps(squashed)).preprocess == squashed.preprocess


def test_nothing_is_overwritten_unasked(classifier, tmp_path):
    file = classifier.save(tmp_path / "prompt")
    with pytest.raises(InputError, match="exists already.*overwrite=True"):
        classifier.save(tmp_path / "prompt")
    classifier.save(tmp_path / "prompt", overwrite=True)
    (tmp_path / "prompt" / "thesis.txt").write_text("precious")
    classifier.save(tmp_path / "prompt", overwrite=True)
    assert sorted(path.name for path in file.parent.iterdir()) == ["model.safetensors", "thesis.txt"]


@pytest.mark.parametrize("call", ["predict", "predict_proba", "encode"])
def test_not_fitted(tiny, call):
    with pytest.raises(NotFittedError):
        getattr(Classifier(tiny), call)([])


def test_no_images_give_no_rows(classifier):
    for nothing in ([], np.array([]), iter(())):
        assert classifier.predict_proba(nothing).shape == (0, 3)
    assert classifier.predict([]).dtype == classifier.classes_.dtype
    assert classifier.encode([]).shape == (0, 24)


def test_every_form_of_images_is_classified_alike(classifier, images):
    expected = classifier.predict_proba(images)
    opened = [Image.open(path) for path in images]
    for form in (map(str, images), np.array(images), opened, np.stack(list(map(np.asarray, opened)))):
        np.testing.assert_allclose(classifier.predict_proba(form), expected, rtol=1e-5)


def test_fit_takes_arrays_and_series(tiny, images, labels):
    expected = fitted(tiny, images, labels)
    other = fitted(tiny, (str(path) for path in images), pd.Series(labels, dtype="category"))
    assert torch.equal(other.prompt_.A, expected.prompt_.A)


def test_labels_are_class_names(classifier, images, labels):
    numbers = [classifier.classes_.tolist().index(label) for label in labels]
    for wrong in (numbers, np.array(numbers), [1.5] * 18, [None] * 18, "red disc", 3):
        with pytest.raises(InputError, match="labels must be"):
            classifier.score(images, wrong)
        with pytest.raises(InputError, match="labels must be"):
            classifier.fit(images, wrong)
    with pytest.raises(InputError, match="class names must be"):
        classifier.with_classes("otter")


@pytest.mark.parametrize(
    "parameters",
    [
        {"rank": "4"},
        {"n_ctx": 10**9},
        {"seed": -1},
        {"recipe": {"epoch": 3}},
        {"recipe": None},
        {"recipe": Recipe(epochs=1_000_000)},
        {"variant": "fixed-b"},
    ],
)
def test_parameters_of_the_wrong_kind(tiny, images, labels, parameters):
    with pytest.raises(InputError):
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
    assert after.read_bytes() == before.read_bytes()
    others = (Classifier.load(after, device="cpu"), classifier.with_classes(classifier.classes_))
    for other in others:
        assert np.array_equal(other.predict_proba(images), expected)
        assert (other.spec_.variant, other.spec_.position, other.seed_) == ("fixed-B", "end", 1)
    unchanged = {"recipe": QUICK, "n_ctx": 4, "rank": 2}
    Classifier(classifier.backbone_, continue_from=classifier, **unchanged).check_params()


@pytest.mark.parametrize("facts", [{"temperature": 5.0}, {"shots": [4, 4, 4]}])
def test_facts_that_would_spoil_a_saved_prompt_are_refused(classifier, facts, tmp_path):
    file = classifier.save(tmp_path / "prompt")
    before = file.read_bytes()
    with pytest.raises(InputError):
        classifier.save(file, overwrite=True, **facts)
    assert file.read_bytes() == before


def test_numbers_of_numpy_are_saved_as_plain_ones(tiny, images, labels, tmp_path):
    classifier = fitted(tiny, images, labels, seed=np.int64(3))
    folder = classifier.save(tmp_path / "prompt", accuracy=np.float32(0.5), shots=np.int64(6))
    entries = read_model(folder).entries
    assert (entries["seed"], entries["accuracy"], entries["shots"]) == (3, 0.5, 6)
    assert Classifier.load(folder, device="cpu").seed == 3


# ---------------------------------------------------------------- methods other than prompts


def make(method, tiny, **fields):
    return Classifier(tiny, method=method, **{"views": 1, "cache": False, **fields})


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_head_predicts_the_same(method, tiny, images, labels, tmp_path):
    classifier = make(method, tiny).fit(images, labels)
    assert classifier.classes_.tolist() == ["blue disc", "green disc", "red disc"]
    probabilities = classifier.predict_proba(images)
    assert probabilities.shape == (18, 3) and np.allclose(probabilities.sum(1), 1)
    if method in ("linear-probe", "zs-linear-probe", "gda", "cross-modal"):  # the others stay close to random zero-shot
        assert classifier.score(images, np.array(labels)) >= 0.9
    loaded = load_classifier(classifier.save(tmp_path / "head"), backbone=tiny)
    assert np.array_equal(loaded.predict_proba(images), probabilities)
    assert (loaded.method_, loaded.settings_, loaded.n_trained_) == (
        method,
        classifier.settings_,
        classifier.n_trained_,
    )
    same = {"backbone": tiny, "cache": True}
    assert loaded.get_params(deep=False) | same == classifier.get_params(deep=False) | same
    assert loaded.predict([]).shape == (0,)
    assert isinstance(loaded, PromptClassifier)  # one class for every method


def test_zero_shot_uses_no_training_image(tiny, images, labels):
    assert make("zero-shot", tiny).fit(images, labels).training_images_ == frozenset()
    assert len(make("gda", tiny).fit(images, labels).training_images_) == len(images)


@pytest.mark.parametrize(
    "fields", [{"method": "gdaa"}, {"method": "antigravity:fly"}, {"templates": "a photo of a {}."}, {"rank": 4}]
)
def test_bad_settings(fields, images, labels):
    with pytest.raises(InputError) as error:
        Classifier(**{"method": "gda", "backbone": "no such model", **fields}).fit(images, labels)
    assert "no such model" not in str(error.value)  # it is not loaded before


def test_new_class_names(tiny, images, labels, tmp_path):
    gda = make("gda", tiny).fit(images, labels)
    with pytest.raises(InputError, match="gda cannot take new class names \\(otter\\).*3 classes.*zero-shot"):
        gda.with_classes(["red disc", "otter"])
    zero_shot = make("zero-shot", tiny, templates=("a drawing of a {}.",)).fit(images, labels)
    zero_shot = Classifier.load(zero_shot.save(tmp_path / "head"), backbone=tiny).with_classes(["otter", "badger"])
    expected = zero_shot_head(tiny, ["otter", "badger"], ["a drawing of a {}."])
    torch.testing.assert_close(zero_shot.head_.weights, expected.weights)
    with pytest.raises(InputError, match="'otter' was given twice"):
        zero_shot.with_classes(["otter", "otter"])
    with pytest.raises(InputError, match="no class names were given"):
        zero_shot.with_classes([])


def test_new_class_names_are_not_calibrated(tiny, images, labels):
    """The temperature says nothing about classes that it was not found on."""
    classifier = fitted(tiny, images, labels)
    classifier.calibration_ = classifier.calibration_._replace(temperature=0.5, confidences=(0.4, 0.9))
    new = classifier.with_classes(["otter", "badger"])
    assert (new.calibration_.temperature, new.calibration_.confidences) == (1.0, ())
    some = classifier.with_classes(["red disc", "blue disc"])
    assert (some.calibration_.temperature, some.calibration_.confidences) == (0.5, ())


def test_zero_shot_needs_no_images(tiny, images, labels):
    templates = ("a drawing of a {}.", "a {}.")
    made = Classifier.zero_shot(tiny, sorted(set(labels)), templates)
    other = make("zero-shot", tiny, templates=templates).fit(images, labels)
    assert np.array_equal(made.predict_proba(images), other.predict_proba(images))
    features = other.encode(images)
    assert np.array_equal(made.concept_match(features), other.concept_match(features))
    with pytest.raises(InputError, match="'otter' was given twice"):
        Classifier.zero_shot(tiny, ["otter", "otter"])


@pytest.mark.parametrize("method", ["gda", "tip-adapter"])
def test_some_of_its_classes_in_another_order(method, tiny, images, labels):
    classifier = make(method, tiny).fit(images, labels)
    some = classifier.with_classes(["red disc", "blue disc"])
    both = classifier.predict_proba(images)[:, [2, 0]]
    np.testing.assert_allclose(some.predict_proba(images), both / both.sum(1, keepdims=True), rtol=1e-4)


def test_the_weights_of_a_head_are_checked(tiny, images, labels, tmp_path):
    file = make("gda", tiny).fit(images, labels).save(tmp_path / "head")
    with pytest.raises(InputError, match="only works with the weights"):
        Classifier.load(file, pretrained="random:1", device="cpu")
    assert Classifier.load(file, device="cpu").backbone_.fingerprint == tiny.fingerprint


def test_a_head_saves_what_was_fitted_not_the_current_parameters(tiny, images, labels, tmp_path):
    classifier = make("gda", tiny).fit(images, labels)
    before = classifier.save(tmp_path / "before")
    concepts = make("gda", tiny).fit(images, labels).concept_features()
    classifier.set_params(method="zero-shot", templates=("a drawing of a {}.",), views=3, seed=5)
    assert classifier.save(tmp_path / "after").read_bytes() == before.read_bytes()
    assert torch.equal(classifier.concept_features(), concepts)
    with pytest.raises(InputError, match="a head of gda cannot take new class names"):
        classifier.with_classes(["red disc", "otter"])


# ---------------------------------------------------------------- weights, a validation set, features, notebooks


def test_a_weight_of_two_is_an_image_given_twice(tiny, images, labels):
    """In batches of all images; a weight of zero is an image left out, but for its class."""
    recipe = Recipe(epochs=5, batch_size=None, views=0, lr=0.1)

    def prompt(images, labels, weights=None):
        made = PromptClassifier(tiny, n_ctx=4, rank=2, recipe=recipe)
        return made.fit(images, labels, weights).prompt_.A

    twice = prompt([*images, *images[:4]], [*labels, *labels[:4]])
    weighted = prompt(images, labels, [2] * 4 + [1] * (len(images) - 4))
    torch.testing.assert_close(weighted, twice)
    assert not torch.allclose(weighted, prompt(images, labels))
    torch.testing.assert_close(prompt(images, labels, np.full(len(images), 3.0)), prompt(images, labels))
    left_out = prompt(images[1:], labels[1:])
    torch.testing.assert_close(prompt(images, labels, [0] + [1] * (len(images) - 1)), left_out)


@pytest.mark.parametrize("weights", [[1.0], [-1.0] * 18, [0] * 18, [float("nan")] * 18])
def test_bad_weights(tiny, images, labels, weights):
    with pytest.raises(InputError, match="sample_weight must be 18 numbers"):
        PromptClassifier(tiny).fit(images, labels, weights)
    with pytest.raises(InputError, match="sample_weight is for prompts"):
        Classifier(tiny, method="gda").fit(images, labels, [1] * 18)


def test_a_validation_set_stops_the_training_and_gives_the_verdict(tiny, images, labels):
    """The images that stop the training have wrong labels here: the better the prompt becomes, the higher is the loss on them."""
    held_out = range(0, len(images), 3)
    kept = [index for index in range(len(images)) if index not in held_out]
    train = [images[i] for i in kept], [labels[i] for i in kept]
    others = sorted(set(labels))
    right = [images[i] for i in held_out], [labels[i] for i in held_out]
    wrong = right[0], [others[(others.index(label) + 1) % 3] for label in right[1]]
    recipe = Recipe(epochs=60, batch_size=None, views=0, lr=0.5, warmup_epochs=0, patience=4)

    def fit(method="prompt", validation=None):
        options = {"n_ctx": 4, "rank": 2, "recipe": recipe} if method == "prompt" else {}
        return Classifier(tiny, method=method, **options).fit(*train, validation=validation)

    def loss(classifier, images, labels):
        columns = [list(classifier.classes_).index(label) for label in labels]
        return -np.log(classifier.predict_proba(images)[range(len(labels)), columns]).mean()

    full, stopped = fit(), fit(validation=wrong)
    assert len(full.curve_) == 60 and full.verdict_ is None
    assert len(stopped.curve_) < 60 and loss(stopped, *wrong) < loss(full, *wrong)
    head = fit("gda", validation=right)
    zero_shot = Classifier.zero_shot(tiny, list(head.classes_))
    assert head.verdict_.gain.value == pytest.approx(100 * (head.score(*right) - zero_shot.score(*right)))
    assert head.verdict_.sentence in head._repr_html_()
    assert torch.equal(head.head_.weights, fit("gda").head_.weights)  # never mixed with training
    assert head.training_images_ == fit("gda").training_images_


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda images, labels: (images[:1], labels[:1]), "1 of the validation images are training images too"),
        (lambda images, labels: ([Image.new("RGB", (8, 8))], ["otter"]), "classes without training images: 'otter'"),
        (lambda images, labels: (images[:2], labels[:1]), "2 validation images and 1 labels"),
    ],
)
def test_bad_validation_sets(tiny, images, labels, given, message):
    with pytest.raises(InputError, match=message):
        Classifier(tiny, method="gda").fit(images, labels, validation=given(images, labels))


def test_decision_function_and_transform(classifier, images):
    logits = classifier.decision_function(images)
    assert logits.shape == (18, 3)
    np.testing.assert_array_equal(classifier.classes_[logits.argmax(1)], classifier.predict(images))
    two = classifier.with_classes(["red disc", "blue disc"])
    np.testing.assert_array_equal(two.decision_function(images) > 0, two.predict(images) == "blue disc")
    features = classifier.transform(images)
    assert features.shape == (18, classifier.backbone_.embed_dim)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(features, classifier.encode(images).numpy())


def test_the_display_of_a_notebook(classifier):
    shown = classifier._repr_html_()
    assert "blue disc" in shown and "<th>recipe</th>" in shown
    assert (
        "&lt;b&gt;" in PromptClassifier("<b>")._repr_html_() and "not fitted" in PromptClassifier("<b>")._repr_html_()
    )


def test_what_is_no_backbone_is_an_error(images, labels):
    for given in (None, 3):
        with pytest.raises(InputError, match=f"name of a model, such as 'ViT-B-16', .*given: {given}"):
            PromptClassifier(given).fit(images, labels)


def test_load_backbone_and_the_classifier_agree_on_the_weights(images, labels, monkeypatch):
    """OpenAI's, if nothing is said; both ask for the same tag."""
    asked = []

    def download(cfg, **_):
        asked.append(cfg["url"])
        raise OSError("no network")

    monkeypatch.setattr("open_clip.factory.download_pretrained", download)
    for load in (lambda: load_backbone("ViT-B-16"), lambda: PromptClassifier("ViT-B-16").fit(images, labels)):
        with pytest.raises(InputError, match="'openai' of ViT-B-16"):
            load()
    assert len(asked) == 2 and asked[0] == asked[1]
