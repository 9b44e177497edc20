"""The embedded models on the pocket benchmarks: intact, above chance, and improved by a learned prompt."""

import hashlib
import json
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import slimprompt.clip.backbone
from slimprompt.clip.backbone import Backbone, load_backbone
from slimprompt.images.encoding import encode_eval_views
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS, PocketBenchmark
from slimprompt.prompts.start import start_prompt
from slimprompt.text.encoder import SharedPrefixTextEncoder
from slimprompt.training.evaluation import accuracy
from slimprompt.training.loop import train
from slimprompt.training.recipe import RECIPES

MODELS = Path(slimprompt.clip.backbone.__file__).parent / "models"
NAMES = ("pocket", "pocket-rn")


@pytest.fixture(scope="module", params=NAMES)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return load_backbone(request.param)


@lru_cache
def rendered(benchmark: PocketBenchmark, split: str, per_class: int) -> list[tuple[Image.Image, int]]:
    """The first images of each class, with their labels."""
    labels, numbers = range(benchmark.n_classes), benchmark.numbers[split][:per_class]
    return [(Image.fromarray(benchmark.image(label, number)), label) for label in labels for number in numbers]


def encoded(
    backbone: Backbone, benchmark: PocketBenchmark, split: str, per_class: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n, embed_dim) and labels (n,)."""
    images, labels = zip(*rendered(benchmark, split, per_class), strict=True)
    return encode_eval_views(backbone, images), torch.tensor(labels)


def test_weights_match_their_hash_and_are_small() -> None:
    for name in NAMES:
        facts = json.loads((MODELS / f"{name}.facts.json").read_text())
        weights = (MODELS / f"{name}.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() == facts["sha256"]
        assert facts["held_out"].keys() == POCKET_BENCHMARKS.keys()
    assert sum(path.stat().st_size for path in MODELS.iterdir()) <= 8_000_000


@pytest.mark.slow
def test_fingerprints_do_not_depend_on_the_processor() -> None:
    """Without AVX2, as on other processors, torch rounds the random embeddings of untrained tokens in another way."""
    code = f"from slimprompt import load_backbone; print(*(load_backbone(name).fingerprint for name in {NAMES}))"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == [load_backbone(name).fingerprint for name in NAMES]


def test_all_words_of_the_benchmarks_were_trained() -> None:
    for name in NAMES:
        rows = set(load_file(MODELS / f"{name}.safetensors")["token_embedding.rows"].tolist())
        backbone = load_backbone(name)
        for benchmark in POCKET_BENCHMARKS.values():
            for template in (*benchmark.templates, benchmark.style_template):
                assert all(set(backbone.tokenize(template.format(n))) <= rows for n in benchmark.class_names)


def test_documents_show_the_recorded_values() -> None:
    facts = [json.loads((MODELS / f"{name}.facts.json").read_text())["held_out"] for name in NAMES]
    documents = [MODELS / "README.md", Path(__file__).parents[2] / "docs" / "notes" / "pocket.md"]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for name in POCKET_BENCHMARKS:
            values = [facts[0][name]["chance"]] + [row[name][key] for row in facts for key in ("plain", "style")]
            numbers = " | ".join(f"{100 * value:.1f}" for value in values)
            assert re.search(rf"^\| `{name}` \|.* {re.escape(numbers)} \|$", text, re.MULTILINE), (document, name)


@pytest.mark.parametrize("name", POCKET_BENCHMARKS)
def test_zero_shot_accuracy_is_above_chance_and_below_saturation(backbone: Backbone, name: str) -> None:
    """The recorded value is 30–75 %; the value on this smaller sample is within three standard errors of it."""
    benchmark = POCKET_BENCHMARKS[name]
    recorded = json.loads((MODELS / f"{backbone.name}.facts.json").read_text())["held_out"][name]["plain"]
    assert 0.30 < recorded < 0.75
    features, labels = encoded(backbone, benchmark, "test", 5)
    text = zero_shot_features(backbone, benchmark.class_names, benchmark.templates)
    measured = accuracy(features, text, labels) / 100
    assert abs(measured - recorded) < 3 * (recorded * (1 - recorded) / len(labels)) ** 0.5
    assert measured > 5 / benchmark.n_classes


def test_few_shot_prompts_beat_zero_shot_on_average() -> None:
    backbone = load_backbone("pocket")
    benchmark = POCKET_BENCHMARKS["pocket-sketch"]
    encode = SharedPrefixTextEncoder(backbone, benchmark.class_names, 16)
    features, labels = encoded(backbone, benchmark, "train", 16)
    test_features, test_labels = encoded(backbone, benchmark, "test", 12)
    plain = zero_shot_features(backbone, benchmark.class_names, benchmark.templates)
    reached = []
    for seed in (1, 2):
        prompt = start_prompt("dense", width=backbone.text_width, seed=seed)
        train([prompt], encode, lambda _: features, labels, backbone.logit_scale, RECIPES["fast"], seed=seed)
        with torch.no_grad():
            reached.append(accuracy(test_features, encode(prompt()), test_labels))
    assert sum(reached) / len(reached) > accuracy(test_features, plain, test_labels) + 2
