"""One setting, one meaning: the command line, Python and a study give equal factors and equal accuracies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from slimprompt import Classifier, FeatureBank
from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.data import Benchmark, few_shot, load_benchmark
from slimprompt.fit import fit
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.spec import RunSpec
from slimprompt.saved import model_parts
from slimprompt.training.recipe import Recipe, replace_fields
from tests.conftest import complete_study

DATASET, SHOTS, SEED = "pocket-negative", 2, 3
RECIPE = Recipe(epochs=3, views=2, batch_size=16)


class Found(NamedTuple):
    """What one door gives."""

    tensors: dict[str, np.ndarray]
    accuracy: float


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("pocket", device="cpu")


@pytest.fixture(scope="module")
def images() -> Benchmark:
    """The benchmark with fewer test images."""
    whole = load_benchmark(DATASET)
    return replace(whole, test=whole.test[::5])


def tensors_of(classifier: Classifier) -> dict[str, np.ndarray]:
    model = classifier.prompt_ if classifier.prompt_ is not None else classifier.head_
    return {name: value.numpy() for name, value in model_parts(model)[2].items()}


def by_command(backbone: Backbone, images: Benchmark, params: dict[str, Any]) -> Found:
    """What `slimprompt fit --benchmark` does between parsing and printing."""
    classifier = Classifier(backbone, seed=SEED, **params)
    done = fit(classifier, FeatureBank(backbone), images, few_shot(images, SHOTS, SEED))
    assert done.comparison is not None
    return Found(tensors_of(classifier), done.comparison.accuracies["model"])


def by_python(backbone: Backbone, images: Benchmark, params: dict[str, Any]) -> Found:
    """A user's few lines; the templates of the benchmark are part of the setting."""
    train = few_shot(images, SHOTS, SEED).train
    settings = {"templates": images.templates[:1], "class_names": images.class_names, "seed": SEED}
    classifier = Classifier(backbone, **settings, **params)
    classifier.fit([images.path(item) for item in train], [item.label for item in train])
    test = [images.path(item) for item in images.test], [item.label for item in images.test]
    return Found(tensors_of(classifier), classifier.score(*test))


def by_study(images: Benchmark, params: dict[str, Any], runs: Path, patch: pytest.MonkeyPatch) -> Found:
    """A run of a study."""
    patch.setattr("slimprompt.lab.run.open_dataset", lambda *_: images)
    spec = RunSpec(backbone="pocket", dataset=DATASET, shots=SHOTS, seed=SEED, **params)
    executor = InlineExecutor(RunEnvironment(runs=runs, device="cpu"))
    (record,) = complete_study([spec], runs, executor).complete
    factors = {name: value for name, value in record.factors().items() if not name.endswith("0")}
    return Found(factors, record.metrics["accuracy"])


@pytest.mark.parametrize(
    "params",
    [
        {"variant": "joint", "rank": 2, "n_ctx": 4, "recipe": RECIPE},
        {"n_ctx": 4, "recipe": replace_fields(RECIPE, {"anchor": 8})},
        {"words": "a photo of a", "anchored": True, "recipe": replace_fields(RECIPE, {"prograd": True})},
        {"tower": "both", "n_ctx": 8, "share_basis": True, "image_blocks": "2:4", "recipe": RECIPE},
        {"tower": "image", "recipe": replace_fields(RECIPE, {"prograd": True})},
        {"method": "clap"},
        {"method": "gda"},
    ],
    ids=["prompt", "anchor", "prograd", "both towers", "image tower", "clap", "gda"],
)
def test_three_doors(
    params: dict[str, Any], backbone: Backbone, images: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, python = by_command(backbone, images, params), by_python(backbone, images, params)
    study = by_study(images, params, tmp_path / "runs", monkeypatch)
    assert [command.accuracy, python.accuracy] == pytest.approx([study.accuracy / 100] * 2)  # records are in percent
    for other in (command, python):
        assert other.tensors.keys() == study.tensors.keys()
        for name, value in other.tensors.items():
            np.testing.assert_allclose(value, study.tensors[name], rtol=1e-6, atol=1e-7)
