"""The classifiers inside scikit-learn: its own estimator checks, model selection, pipelines, pickles, labels with names."""

import pickle
import warnings
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.ensemble import StackingClassifier, VotingClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

from slimprompt import Classifier, InputError, Recipe
from slimprompt.clip import backbone as backbone_module
from slimprompt.clip.backbone import load_backbone

QUICK = Recipe(epochs=4, batch_size=8, views=2)
METHODS = {
    "prompt": lambda backbone, **options: Classifier(backbone, recipe=QUICK, n_ctx=4, rank=2, **options),
    "head": lambda backbone, **options: Classifier(backbone, method="gda", views=2, **options),
}


@pytest.fixture(scope="module")
def images(photos):
    return sorted(photos.glob("*/*.png"))


@pytest.fixture(scope="module")
def labels(images):
    return [path.parent.name for path in images]


@pytest.fixture(scope="module")
def numbers(labels):
    return np.unique(labels, return_inverse=True)[1]


NAMES = ["blue disc", "green disc", "red disc"]


@pytest.fixture(params=METHODS)
def make(request):
    return METHODS[request.param]


# ---------------------------------------------------------------- scikit-learn's own checks


class AnyName(dict):
    """Names every label: the checks of scikit-learn use whole numbers, floats and text as labels."""

    def __contains__(self, label):
        return label == label  # not nan

    def __missing__(self, label):
        return f"class {label}"


def as_images(rows):
    """One small image for each row of numbers; equal rows give equal images."""
    squashed = 1 / (1 + np.exp(-np.asarray(rows, dtype=float)))
    repeated = squashed[:, np.arange(4 * 4 * 3) % squashed.shape[1]]  # (n, 48)
    pixels = (255 * repeated).astype(np.uint8).reshape(-1, 4, 4, 3)
    return [Image.fromarray(one) for one in pixels.repeat(8, axis=1).repeat(8, axis=2)]  # (n, 32, 32, 3)


class RowsAsImages:
    """Lets scikit-learn check a classifier of images: its rows of numbers are drawn as images."""

    def fit(self, X, y):
        self.n_columns_ = np.asarray(X).shape[1]
        return super().fit(self.drawn(X), y)

    def predict_proba(self, X):
        return super().predict_proba(self.drawn(X))

    def decision_function(self, X):
        return super().decision_function(self.drawn(X))

    def transform(self, X):
        return super().transform(self.drawn(X))

    def fit_transform(self, X, y):
        return self.fit(X, y).transform(X)

    def score(self, X, y, sample_weight=None):
        return super().score(self.drawn(X), y, sample_weight)

    def drawn(self, X):
        if isinstance(X, list) and all(isinstance(one, Image.Image) for one in X):
            return X  # `score` calls `predict_proba`
        if np.asarray(X).shape[1] != getattr(self, "n_columns_", np.asarray(X).shape[1]):
            raise ValueError("other number of columns")  # not asked of images, which may have any size
        return as_images(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


class OnRows(RowsAsImages, Classifier):
    pass


ROWS = "about rows of numbers; what is no image is refused with an InputError, a ValueError"
NOT_APPLICABLE = {
    "check_n_features_in": "images have no number of features",
    "check_n_features_in_after_fitting": "images have no number of features",
    "check_complex_data": ROWS,
    "check_estimators_empty_data_messages": ROWS,
    "check_estimators_nan_inf": ROWS,
    "check_estimator_sparse_tag": ROWS,
    "check_estimator_sparse_array": ROWS,
    "check_estimator_sparse_matrix": ROWS,
    "check_fit1d": ROWS,
    "check_fit2d_predict1d": ROWS,
    "check_methods_subset_invariance": "asks for 1e-7; the float32 features of an image tower vary by more with the batch",
}
if torch.backends.cpu.get_cpu_capability() == "DEFAULT":  # no AVX2: they vary with the place in the batch as well
    NOT_APPLICABLE["check_methods_sample_order_invariance"] = NOT_APPLICABLE["check_methods_subset_invariance"]


@pytest.mark.parametrize("kind", ["prompt", "head"])
def test_estimator_checks(kind, tiny):
    options = {"class_names": AnyName(), "cache": False}
    prompt = OnRows(tiny, recipe={"views": 1, "epochs": 2}, n_ctx=2, rank=2, **options)
    needs_meaning = {"check_classifiers_train": "asks for 83 % accuracy; the names and the text tower here are random"}
    not_applicable = NOT_APPLICABLE | (needs_meaning if kind == "prompt" else {})
    estimator = prompt if kind == "prompt" else OnRows(tiny, method="gda", views=0, **options)
    checks = estimator_checks_generator(estimator, expected_failed_checks=not_applicable, mark="skip")
    n_passed, failed = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for subject, check in checks:
            try:
                check(subject)
                n_passed += 1
            except SkipTest:
                pass
            except Exception as error:
                failed.append(f"{check}: {error}")
    assert not failed, "\n".join(failed)
    assert n_passed >= 37 + (torch.backends.cpu.get_cpu_capability() != "DEFAULT")


# ---------------------------------------------------------------- model selection and pipelines


def test_cross_validation_and_search(make, tiny, images, labels):
    folds = StratifiedKFold(3)
    scores = cross_val_score(make(tiny), images, labels, cv=folds)
    assert scores.shape == (3,) and (scores >= 0).all() and np.isfinite(scores).all()
    assert set(cross_val_predict(make(tiny), images, labels, cv=folds)) <= set(labels)
    classifier = make(tiny)
    name, values = ("rank", [1, 2]) if classifier.method == "prompt" else ("method", ["gda", "tip-adapter"])
    search = GridSearchCV(classifier, {name: values}, cv=folds).fit(images, labels)
    assert search.best_params_[name] in values
    assert search.best_estimator_.backbone_ is tiny  # nothing copied
    best = search.cv_results_["mean_test_score"].max()
    assert search.best_score_ == best
    direct = cross_val_score(classifier.set_params(**search.best_params_), images, labels, cv=folds).mean()
    assert direct == pytest.approx(best)


def test_settings_of_a_search_encode_no_image_again(make, tiny, images, labels, monkeypatch):
    folds = StratifiedKFold(3)
    cross_val_score(make(tiny), images, labels, cv=folds)
    monkeypatch.setattr(type(tiny), "encode_images", lambda *_: pytest.fail("an image is encoded again"))
    cross_val_score(make(tiny), images, labels, cv=folds)
    with pytest.raises(pytest.fail.Exception):
        make(tiny).fit(images, labels).predict(images[:1])


@pytest.mark.slow
def test_search_in_worker_processes(tiny_folder, images, labels, monkeypatch):
    """joblib's workers are other processes, to which the backbone goes by its name."""
    folds = StratifiedKFold(2)
    alone = GridSearchCV(METHODS["prompt"](tiny_folder), {"rank": [1, 2]}, cv=folds).fit(images, labels)
    workers = GridSearchCV(METHODS["prompt"](load_backbone(tiny_folder)), {"rank": [1, 2]}, cv=folds, n_jobs=2)
    workers.fit(images, labels)
    assert workers.cv_results_["mean_test_score"].tolist() == alone.cv_results_["mean_test_score"].tolist()


def test_arrays_and_tensors_are_split_like_lists(tiny, images, labels):
    arrays = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in images])
    as_list = cross_val_score(METHODS["head"](tiny), images, labels, cv=3)
    assert cross_val_score(METHODS["head"](tiny), arrays, labels, cv=3).tolist() == as_list.tolist()
    assert (
        cross_val_score(METHODS["head"](tiny), pd.Series(images), pd.Series(labels), cv=3).tolist() == as_list.tolist()
    )
    tensors = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    assert METHODS["head"](tiny).fit(tensors, labels).score(tensors, labels) == METHODS["head"](tiny).fit(
        images, labels
    ).score(images, labels)


def test_clones_share_the_backbone(make, tiny):
    assert clone(make(tiny)).backbone is tiny


# ---------------------------------------------------------------- pickles


def test_a_pickle_is_small_and_predicts_the_same(make, tiny_folder, images, labels):
    classifier = make(load_backbone(tiny_folder), calibrate=True).fit(images, labels)
    pickled = pickle.dumps(classifier)
    assert len(pickled) < 100_000  # the weights of the model are 6 MB
    other = pickle.loads(pickled)
    assert other.backbone_ is not classifier.backbone_
    assert other.backbone_.fingerprint == classifier.backbone_.fingerprint
    assert (other.predict_proba(images) == classifier.predict_proba(images)).all()
    assert other.calibration_ == classifier.calibration_
    assert other.training_images_ == classifier.training_images_


def test_a_pickle_of_other_weights_is_refused(tiny_folder, monkeypatch):
    data = pickle.dumps(load_backbone(tiny_folder))
    monkeypatch.setattr(backbone_module, "_fingerprint", lambda model: "0" * 64)
    backbone_module._load_again.cache_clear()
    with pytest.raises(InputError, match="differ from those of the pickled backbone"):
        pickle.loads(data)


def test_a_pickle_from_another_device_says_so(tiny_folder, monkeypatch):
    backbone = load_backbone(tiny_folder)
    load, (name, pretrained, activation, _, *others) = backbone.__reduce__()
    with pytest.warns(UserWarning, match="device 'cuda:7' is not available"):
        other = load(name, pretrained, activation, "cuda:7", *others)
    assert other.device.type in ("cpu", "mps")


# ---------------------------------------------------------------- labels with names


@pytest.mark.parametrize("names", [NAMES, dict(enumerate(NAMES)), [*NAMES, "a class without images"]])
def test_numbers_as_labels(names, make, tiny, images, labels, numbers):
    classifier = make(tiny, class_names=names).fit(images, numbers)
    named = make(tiny).fit(images, labels)
    assert classifier.class_names_ == tuple(NAMES) == named.class_names_
    assert classifier.classes_.tolist() == [0, 1, 2]
    predicted = classifier.predict(images)
    assert predicted.dtype.kind == "i"
    assert [NAMES[number] for number in predicted] == named.predict(images).tolist()
    assert (classifier.predict_proba(images) == named.predict_proba(images)).all()
    assert classifier.score(images, numbers) == named.score(images, labels)
    assert classifier.score(images, numbers.tolist()) == classifier.score(images, torch.from_numpy(numbers))
    assert classifier.score(images, iter(numbers)) == classifier.score(images, numbers)


NUMBERING = {
    "probabilities": lambda classifier, *data: cross_val_predict(classifier, *data, cv=2, method="predict_proba"),
    "voting": lambda classifier, *data: VotingClassifier([("one", classifier)]).fit(*data).predict(data[0]),
    "stacking": lambda classifier, *data: StackingClassifier([("one", classifier)], cv=2).fit(*data).predict(data[0]),
}


@pytest.mark.parametrize("use", NUMBERING.values(), ids=NUMBERING)
def test_where_scikit_learn_numbers_the_labels_the_names_are_given(use, tiny, images, labels):
    with pytest.raises(InputError, match="name numbers by class_names=.* where scikit-learn replaces names by numbers"):
        use(METHODS["head"](tiny), images, labels)
    answer = use(METHODS["head"](tiny, class_names=sorted(set(labels))), images, labels)
    assert len(answer) == len(images) and (answer.ndim == 2 or set(answer) <= set(labels))


def test_labels_of_any_kind_by_a_dictionary(tiny, images, labels):
    codes = {"n01": "red disc", "n02": "green disc", "n03": "blue disc"}
    code_of = {name: code for code, name in codes.items()}
    classifier = METHODS["head"](tiny, class_names=codes).fit(images, [code_of[label] for label in labels])
    assert classifier.class_names_ == ("red disc", "green disc", "blue disc")
    assert set(classifier.predict(images)) <= set(codes)


def test_saved_and_other_classes_have_names(make, tiny, images, numbers, tmp_path):
    classifier = make(tiny, class_names=NAMES).fit(images, numbers)
    classifier.save(tmp_path / "saved")
    loaded = type(classifier).load(tmp_path / "saved", backbone=tiny)
    assert loaded.classes_.tolist() == NAMES
    fewer = classifier.with_classes(["red disc", "blue disc"])
    assert fewer.classes_.tolist() == ["red disc", "blue disc"]
    assert fewer.score(images[:1], ["blue disc"]) in (0.0, 1.0)


@pytest.mark.parametrize("names", [NAMES[:2], None])
def test_labels_without_a_usable_name(names, tiny, images, numbers):
    with pytest.raises(InputError):
        METHODS["head"](tiny, class_names=names).fit(images, numbers)
