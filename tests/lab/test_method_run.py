from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slimprompt.data import base_new, few_shot, load_folder, read_manifest
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.records import CURVE, Record
from slimprompt.lab.run import LoadedInputs, make_run
from slimprompt.lab.spec import RunSpec
from slimprompt.methods.head import CacheHead, Head
from slimprompt.methods.table import METHODS
from slimprompt.methods.task import LabelledImages, make_task
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.training.evaluation import accuracy, make_eval_set


@pytest.fixture
def loaded(environment: RunEnvironment) -> LoadedInputs:
    return LoadedInputs(environment)


@pytest.fixture
def method_spec(tiny_folder: str, collections: dict[str, str]) -> Callable[..., RunSpec]:
    def make(method: str, **fields: Any) -> RunSpec:
        return RunSpec(
            **{
                "backbone": tiny_folder,
                "dataset": collections["warm"],
                "shots": 2,
                "seed": 1,
                "method": method,
                **fields,
            }
        )

    return make


def stored_head(record: Record, class_names: tuple[str, ...]) -> Head | CacheHead:
    """The head from the files of a run alone."""
    numbers = dict(record.facts["head"])
    kind = {"linear": Head, "cache": CacheHead}[numbers.pop("kind")]
    tensors = {name: torch.from_numpy(value) for name, value in record.factors().items()}
    if "labels" in tensors:
        tensors["labels"] = tensors["labels"].long()
    return kind(class_names=class_names, **tensors, **numbers)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_fitted_to_the_sample_of_the_prompts(
    method_spec: Callable[..., RunSpec], run_spec: Callable[..., RunSpec], loaded: LoadedInputs, method: str
) -> None:
    spec = method_spec(method)
    record = make_run(spec, loaded)
    assert record.error is None
    images = load_folder(spec.dataset)
    sample, bank = few_shot(images, 2, 1), loaded.bank(spec.model)
    paths, labels = [images.path(item) for item in sample.train], [item.label for item in sample.train]
    task = make_task(bank, LabelledImages(paths, labels, images.class_names), seed=1)
    fitted = METHODS[method].fit(task)
    test = make_eval_set(
        bank, [images.path(item) for item in images.test], [item.label for item in images.test], images.class_names
    )
    assert record.metrics["accuracy"] == pytest.approx(100 * float(fitted.head.correct(test).double().mean()))
    assert record.facts["trainable_parameters"] == fitted.n_trained
    assert record.facts["settings"] == fitted.settings
    stored = stored_head(record, images.class_names)
    torch.testing.assert_close(
        stored.logits(test.features.double()), fitted.head.logits(test.features).double(), rtol=1e-4, atol=1e-3
    )
    assert set(record.facts["times"]) == {"setup", "features", "training", "evaluation", "total"}
    assert not (record.folder / CURVE).exists()
    manifest = read_manifest(record.folder / "manifest.json")
    assert manifest == loaded.manifest(run_spec().sample)


def test_the_zero_shot_method_is_the_zero_shot_level(method_spec: Callable[..., RunSpec], loaded: LoadedInputs) -> None:
    metrics = make_run(method_spec("zero-shot", class_subset="base"), loaded).metrics
    for name in ("seen", "unseen", "harmonic"):
        assert metrics[name] == metrics[f"zero_shot_{name}"]


def test_a_method_without_new_names_has_no_accuracy_on_new_classes(
    method_spec: Callable[..., RunSpec], loaded: LoadedInputs
) -> None:
    spec = method_spec("gda", class_subset="base")
    record = make_run(spec, loaded)
    assert set(record.metrics) == {"seen", "zero_shot_seen", "zero_shot_unseen", "zero_shot_harmonic"}
    base, _ = base_new(few_shot(load_folder(spec.dataset), 2, 1))
    assert len(record.factors()["weights"]) == len(base.class_names)
    assert record.facts["n_classes"] == {"train": 3, "seen": 3, "unseen": 2}


def test_other_datasets_are_classified_by_their_names_only(
    run_spec: Callable[..., RunSpec],
    method_spec: Callable[..., RunSpec],
    loaded: LoadedInputs,
    collections: dict[str, str],
) -> None:
    cold = collections["cold"]
    spec = run_spec(evaluate_on=[cold], recipe={"epochs": 4, "views": 2, "batch_size": 4, "lr": 0.5})
    record, plain = make_run(spec, loaded), make_run(RunSpec(**dict(spec) | {"evaluate_on": ()}), loaded)
    zero_shot = make_run(method_spec("zero-shot", evaluate_on=[cold]), loaded)
    bank, images = loaded.bank(spec.model), load_folder(cold)
    test = make_eval_set(
        bank, [images.path(item) for item in images.test], [item.label for item in images.test], images.class_names
    )
    factors = record.factors()
    context = torch.from_numpy(factors["B"] @ factors["A"]).float()
    with torch.inference_mode():
        text = SharedPrefixTextEncoder(bank.backbone, images.class_names, spec.n_ctx)(context)
        template = zero_shot_features(bank.backbone, images.class_names, ["a photo of a {}."])
    level = accuracy(test.features, template, test.labels)
    assert record.metrics[f"accuracy@{cold}"] == accuracy(test.features, text, test.labels)
    assert record.metrics[f"zero_shot_accuracy@{cold}"] == level
    assert zero_shot.metrics[f"accuracy@{cold}"] == level
    assert record.metrics["accuracy"] == plain.metrics["accuracy"]  # the same training
    assert np.array_equal(factors["A"], plain.factors()["A"])
    data = json.loads((record.folder / "record.json").read_text())
    assert data["n_classes"] == {"train": 5, "test": 5, f"accuracy@{cold}": 4}
