"""Zero-shot accuracy of OpenAI's CLIP weights on published benchmarks, beside the published accuracies.

This tests everything at once: weights, activation, preprocessing, class names, templates and splits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slimprompt.clip.backbone import Backbone
from slimprompt.data.benchmark import Benchmark, missing_images
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import load_benchmark
from slimprompt.data.few_shot import base_new
from slimprompt.doctor.machine import is_openai_file
from slimprompt.doctor.subject import FAILED, OK, SKIPPED, Outcome, Subject
from slimprompt.images.bank import FeatureBank
from slimprompt.methods.zero_shot import zero_shot_features
from slimprompt.paper.published import OWN_TEMPLATE, PublishedBaseline, published_baselines
from slimprompt.training.evaluation import accuracy, make_eval_set

#: In points. Other people's measurements of the same accuracy differ by a few tenths of a point, from half precision and
#: from the decoding and resizing of images; a wrong activation or template costs several points.
TOLERANCE = 1.0


def published_accuracies() -> list[PublishedBaseline]:
    """Published zero-shot accuracies with the benchmark's own template."""
    return [row for row in published_baselines() if row.method == "zero-shot" and row.protocol == OWN_TEMPLATE]


def check_zero_shot(subject: Subject) -> Iterator[Outcome]:
    """OpenAI's weights give the published zero-shot accuracy on each benchmark whose test images are present."""
    backbone, root = subject.backbone, subject.benchmarks
    rows = [row for row in published_accuracies() if row.backbone == backbone.name.removesuffix("-quickgelu")]
    reason = ""
    if not _has_openai_weights(backbone):
        reason = f"{backbone.name} ({backbone.pretrained or 'own weights'}) is not a model with OpenAI's weights whose accuracy was published"
    elif root is None:
        reason = "no data root: give --data-root"
    elif subject.quick:
        reason = "left out by --quick"
    if reason or root is None:
        yield Outcome(SKIPPED, reason)
        return
    for row in rows:
        yield _compare(backbone, row, root)


def _has_openai_weights(backbone: Backbone) -> bool:
    """By the tag of the weights, or by the hash of the checkpoint file."""
    given = backbone.pretrained or ""
    known = {row.backbone for row in published_accuracies()}
    name = backbone.name.removesuffix("-quickgelu")
    return name in known and (given == "openai" or is_openai_file(Path(given), name))


def _compare(backbone: Backbone, row: PublishedBaseline, root: Path) -> Outcome:
    """Measure one benchmark and compare it with its published accuracy."""
    info = BENCHMARKS[row.dataset]
    title = row.dataset if row.class_subset == "all" else f"{row.dataset}, {row.class_subset} classes"
    if info.source.missing(root / info.folder):
        return Outcome(SKIPPED, f"no annotation files in {root / info.folder}", title)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        benchmark = load_benchmark(row.dataset, root)
    if benchmark.sizes != info.sizes:
        return Outcome(SKIPPED, f"{len(benchmark.test):,} test items, not the published split", title)
    n_missing = len(missing_images(replace(benchmark, train=(), val=())))
    if n_missing:
        n_test = len(benchmark.test)
        return Outcome(SKIPPED, f"{n_test - n_missing:,} of {n_test:,} test images", title)
    if row.class_subset != "all":
        benchmark = base_new(benchmark)[row.class_subset == "new"]
    found = zero_shot_accuracy(backbone, benchmark)
    verdict = OK if abs(found - row.accuracy) <= TOLERANCE else FAILED
    details = f"{found:.2f} %, published {row.accuracy:.2f} % ± {TOLERANCE:g} ({row.source})"
    return Outcome(verdict, details, title)


def zero_shot_accuracy(backbone: Backbone, benchmark: Benchmark) -> float:
    """Accuracy in percent on the test images, with the benchmark's own template."""
    paths, labels = [benchmark.path(item) for item in benchmark.test], [item.label for item in benchmark.test]
    eval_set = make_eval_set(FeatureBank(backbone), paths, labels, benchmark.class_names, benchmark.decode)
    class_features = zero_shot_features(backbone, benchmark.class_names, benchmark.templates[:1])
    return accuracy(eval_set.features, class_features, eval_set.labels)
