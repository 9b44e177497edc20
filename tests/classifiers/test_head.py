"""Any method as a classifier, and saved heads."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from slimprompt import HeadClassifier, InputError, PromptClassifier, load_classifier
from slimprompt.clip.backbone import load_backbone
from slimprompt.files import json_checksum
from slimprompt.methods.table import METHODS
from slimprompt.methods.zero_shot import zero_shot_head
from tests.conftest import TINY


@pytest.fixture(scope="module")
def images(photos):
    paths = sorted(photos.glob("*/*.png"))
    return paths, [path.parent.name for path in paths]


def make(method, tiny, **fields):
    return HeadClassifier(method, tiny, **{"views": 1, "cache": False, **fields})


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_head_predicts_the_same(method, tiny, images, tmp_path):
    paths, labels = images
    classifier = make(method, tiny).fit(paths, labels)
    assert classifier.classes_.tolist() == ["blue disc", "green disc", "red disc"]
    probabilities = classifier.predict_proba(paths)
    assert probabilities.shape == (18, 3) and np.allclose(probabilities.sum(1), 1)
    if method in ("linear-probe", "zs-linear-probe", "gda", "cross-modal"):  # the others stay close to random zero-shot
        assert classifier.score(paths, np.array(labels)) >= 0.9
    folder = classifier.save(tmp_path / "head", note="kept")
    assert sorted(path.name for path in folder.iterdir()) == ["head.json", "head.safetensors"]
    assert json.loads((folder / "head.json").read_text())["note"] == "kept"
    loaded = HeadClassifier.load(folder, backbone=tiny)
    assert np.array_equal(loaded.predict_proba(paths), probabilities)
    assert (loaded.method, loaded.settings_, loaded.n_trained_) == (method, classifier.settings_, classifier.n_trained_)
    assert loaded.get_params(deep=False) | {"backbone": 0, "cache": 0} == classifier.get_params(deep=False) | {
        "backbone": 0,
        "cache": 0,
    }
    assert loaded.predict([]).shape == (0,)


def test_it_follows_scikit_learn(tiny):
    classifier = clone(make("gda", tiny, seed=3))
    assert classifier.get_params(deep=False)["seed"] == 3
    with pytest.raises(NotFittedError, match="not fitted"):
        classifier.predict(["a.png"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "gdaa"}, "unknown method 'gdaa'; did you mean 'gda'"),
        ({"method": "antigravity:fly"}, r"antigravity is not imported; import it first \(--import antigravity\)"),
        ({"templates": ["no place"]}, "exactly one {}"),
        ({"templates": []}, "at least one template"),
        ({"templates": "a photo of a {}."}, r"templates must be a list of texts, such as \['a photo of a {}.'\]"),
        ({"views": -1}, "views must be a whole number"),
    ],
)
def test_bad_settings(fields, message, images):
    with pytest.raises(InputError, match=message):  # before a backbone is loaded, which does not exist
        HeadClassifier(**{"method": "gda", "backbone": "no such model", **fields}).fit(*images)


def test_new_class_names(tiny, images, tmp_path):
    fitted = make("gda", tiny).fit(*images)
    with pytest.raises(InputError, match="gda cannot take new class names \\(otter\\).*3 classes.*zero-shot"):
        fitted.with_classes(["red disc", "otter"])
    zero_shot = make("zero-shot", tiny, templates=("a drawing of a {}.",)).fit(*images)
    zero_shot = HeadClassifier.load(zero_shot.save(tmp_path / "head"), backbone=tiny).with_classes(["otter", "badger"])
    expected = zero_shot_head(tiny, ["otter", "badger"], ["a drawing of a {}."])
    torch.testing.assert_close(zero_shot.head_.weights, expected.weights)
    with pytest.raises(InputError, match="'otter' was given twice"):
        zero_shot.with_classes(["otter", "otter"])
    with pytest.raises(InputError, match="no class names were given"):
        zero_shot.with_classes([])


def test_zero_shot_needs_no_images(tiny, images):
    templates = ("a drawing of a {}.", "a {}.")
    paths, labels = images
    made = HeadClassifier.zero_shot(tiny, sorted(set(labels)), templates)
    fitted = make("zero-shot", tiny, templates=templates).fit(paths, labels)
    assert np.array_equal(made.predict_proba(paths), fitted.predict_proba(paths))
    features = fitted.encode(paths)
    assert np.array_equal(made.concept_match(features), fitted.concept_match(features))
    with pytest.raises(InputError, match="'otter' was given twice"):
        HeadClassifier.zero_shot(tiny, ["otter", "otter"])


@pytest.mark.parametrize("method", ["gda", "tip-adapter"])
def test_some_of_its_classes_in_another_order(method, tiny, images):
    paths, labels = images
    classifier = make(method, tiny).fit(paths, labels)
    some = classifier.with_classes(["red disc", "blue disc"])
    both = classifier.predict_proba(paths)[:, [2, 0]]
    np.testing.assert_allclose(some.predict_proba(paths), both / both.sum(1, keepdims=True), rtol=1e-4)


def test_other_weights_are_refused(tiny, images, tmp_path):
    folder = make("gda", tiny).fit(*images).save(tmp_path / "head")
    other = load_backbone(TINY, seed=1, device="cpu")
    with pytest.raises(InputError, match="a head only works with the weights it was trained on"):
        HeadClassifier.load(folder, backbone=other)
    with pytest.raises(InputError, match="only works with the weights"):
        HeadClassifier.load(folder, pretrained="random:1", device="cpu")
    assert HeadClassifier.load(folder, device="cpu").backbone_.fingerprint == tiny.fingerprint


def rename_class(path):
    path.write_text(path.read_text().replace("red disc", "tan disc"))


def damage(change):
    def apply(folder):
        path = folder / "head.json"
        content = json.loads(path.read_text())
        del content["checksum"]
        change(content)
        path.write_text(json.dumps(content | {"checksum": json_checksum(content)}))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "head.safetensors").write_bytes(b"x"), "is damaged"),
        (lambda folder: (folder / "head.safetensors").unlink(), "is damaged"),
        (lambda folder: (folder / "head.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "head.json").unlink(), "no saved head at .*head.json and head.safetensors"),
        (damage(lambda content: content.update(format=2)), "head format 2; this slimprompt reads format 1"),
        (damage(lambda content: content.update(method="magic")), "unknown method 'magic'"),
        (damage(lambda content: content.update(kind="pickle")), "is damaged"),
        (damage(lambda content: content["class_names"].pop()), "is damaged.*2 class names, but the shape is .3, "),
        (damage(lambda content: content["numbers"].pop("scale")), "is damaged"),
        (damage(lambda content: content["numbers"].update(scale=float("nan"))), "is damaged"),
        (damage(lambda content: content.pop("backbone")), "is damaged"),
        (lambda folder: rename_class(folder / "head.json"), "head.json is damaged: checksum"),
    ],
)
def test_damaged_files_are_refused(change, message, tiny, images, tmp_path):
    folder = make("gda", tiny).fit(*images).save(tmp_path / "head")
    change(folder)
    with pytest.raises(InputError, match=message):
        HeadClassifier.load(folder, backbone=tiny)


@pytest.mark.parametrize(
    ("method", "part", "value", "message"),
    [
        ("gda", "weights", torch.full((3, 16), torch.nan), "weights: it holds numbers that are not finite"),
        ("gda", "weights", torch.zeros(3), "weights: 3 class names, but the shape is"),
        ("gda", "bias", torch.zeros(2), "bias: 3 class names, but the shape is"),
        ("tip-adapter", "keys", torch.zeros(2, 5), "keys: the shape is"),
        ("tip-adapter", "labels", torch.tensor([0]), "keys: the shape is"),
        ("tip-adapter", "labels", "next class", "labels: they are not whole numbers from 0 to 2"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(method, part, value, message, tiny, images, tmp_path):
    fitted = make(method, tiny).fit(*images)
    value = fitted.head_.labels + 1 if isinstance(value, str) else value
    fitted.head_ = replace(fitted.head_, **{part: value})
    folder = fitted.save(tmp_path / "head")
    with pytest.raises(InputError, match=f"head.safetensors is damaged: {message}"):
        HeadClassifier.load(folder, backbone=tiny)


def test_an_existing_folder_is_kept_until_asked(tiny, images, tmp_path):
    classifier = make("gda", tiny).fit(*images)
    classifier.save(tmp_path / "head")
    with pytest.raises(InputError, match="already holds a saved head.*Python: overwrite=True"):
        classifier.save(tmp_path / "head")
    classifier.save(tmp_path / "head", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(InputError, match="is not a saved head, so it is left alone"):
        classifier.save(tmp_path / "other", overwrite=True)


def test_load_classifier_reads_prompts_and_heads(tiny, images, tmp_path):
    paths, labels = images
    prompt = PromptClassifier(tiny, recipe="fast", n_ctx=4, rank=2, cache=False)
    prompt.fit(paths[::3], labels[::3]).save(tmp_path / "prompt")
    make("gda", tiny).fit(paths, labels).save(tmp_path / "head")
    assert isinstance(load_classifier(tmp_path / "prompt", backbone=tiny), PromptClassifier)
    assert isinstance(load_classifier(tmp_path / "head", backbone=tiny), HeadClassifier)
    with pytest.raises(InputError, match="no saved prompt"):
        load_classifier(tmp_path, backbone=tiny)


def test_save_writes_what_was_fitted_not_the_current_parameters(tiny, images, tmp_path):
    classifier = make("gda", tiny).fit(*images)
    before = classifier.save(tmp_path / "before")
    concepts = make("gda", tiny).fit(*images).concept_features()
    classifier.set_params(method="zero-shot", templates=("a drawing of a {}.",), views=3, seed=5)
    after = classifier.save(tmp_path / "after")
    for file in ("head.safetensors", "head.json"):
        assert (after / file).read_bytes() == (before / file).read_bytes()
    assert torch.equal(classifier.concept_features(), concepts)
    with pytest.raises(InputError, match="a head of gda cannot take new class names"):
        classifier.with_classes(["red disc", "otter"])


@pytest.mark.parametrize("name", ["templates", "method", "class_names"])
def test_facts_do_not_replace_entries(name, tiny, images, tmp_path):
    with pytest.raises(InputError, match=f"head.json has entries of these names already: {name}"):
        make("zero-shot", tiny).fit(*images).save(tmp_path / "head", **{name: ["{}"]})
    assert not (tmp_path / "head").exists()
