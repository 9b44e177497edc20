"""Calibration and unknown classes on the pocket benchmarks.

    python benchmarks/calibration.py [--benchmarks pocket-sketch pocket-comic] [--shots 2 4 16] [--seeds 1 2 3] [--methods prompt gda]

Trains on the base classes of each benchmark (its first half) and measures on all test images: those of the base classes are known,
those of the other half are unknowns. "before" is temperature 1, "after" the temperature of `slimprompt fit`, which is found by
cross-validation inside the training images. Prints a Markdown table with means over benchmarks and seeds:

- calibration error (15 bins, in points) and log loss on the known images;
- AUROC of telling known from unknown images by the confidence before and after, and by maximum concept matching;
- of the known and of the unknown images, the percentage that gets an answer with `--coverage 0.9`.

With `--shuffled`, the labels of the training images, and those of the test images, are exchanged at random, so that every method is
at chance. The best that probabilities can do is then to be equal: log loss log(number of base classes), the column "equal".

With `--held-out 50 100 200 300`, it measures instead how many held-out images a temperature needs: temperatures of so many images,
compared with those of all training images. It trains on all classes at 16 shots, with recipe `fast`.

The pocket model is a toy; these are not results about CLIP.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from statistics import mean
from typing import Any

COLUMNS = {
    "accuracy": "accuracy (%)",
    "error_before": "calibration error before",
    "error_after": "after",
    "loss_before": "log loss before",
    "loss_after": "after",
    "loss_equal": "equal",
    "auroc_before": "AUROC, confidence before",
    "auroc_after": "confidence after",
    "auroc_match": "concept matching",
    "known": "known images answered (%)",
    "unknown": "unknown (%)",
}


@lru_cache
def open_bank() -> Any:
    import torch

    from slimprompt import FeatureBank, load_backbone

    torch.set_num_threads(1)
    return FeatureBank(load_backbone("pocket", device="cpu"), show_progress=False)


def fit(method: str, sample: Any, seed: int, recipe: str = "auto") -> tuple[Any, Any]:
    """A classifier that is fitted to a few-shot sample but not calibrated, and its task."""
    from slimprompt import Classifier
    from slimprompt.fit import labelled_images
    from slimprompt.methods.task import make_task

    params = {"recipe": recipe} if method == "prompt" else {}
    classifier = Classifier(open_bank().backbone, method=method, seed=seed, **params)
    task = make_task(open_bank(), labelled_images(sample, sample.train), seed)
    return classifier.fit_task(task), task


def measure(method: str, benchmark: str, shots: int, seed: int, *, shuffled: bool) -> dict[str, float]:
    """The columns of one training; with `shuffled`, the labels of the images are exchanged at random."""
    import random
    from dataclasses import replace

    import numpy as np
    from sklearn.metrics import roc_auc_score

    from slimprompt.calibration import softmax
    from slimprompt.data import base_new, few_shot, load_benchmark
    from slimprompt.scores import scores_of

    bank = open_bank()
    base, new = base_new(few_shot(load_benchmark(benchmark), shots, seed))
    if shuffled:
        exchanged = []
        for items in (base.train, base.test):
            labels = random.Random(seed).sample([item.label for item in items], len(items))
            pairs = zip(items, labels, strict=True)
            exchanged.append(tuple(item._replace(label=one, class_name=base.class_names[one]) for item, one in pairs))
        base = replace(base, train=exchanged[0], test=exchanged[1])
    classifier, task = fit(method, base, seed)
    classifier.fit_calibration(task)

    features = [bank.features([part.path(item) for item in part.test], decode=part.decode) for part in (base, new)]
    truth = np.array([item.label for item in base.test])
    logits = [classifier.logits(one).cpu().numpy() for one in features]
    before, after = ([softmax(one, t) for one in logits] for t in (1.0, classifier.calibration_.temperature))
    matches = [classifier.concept_match(one) for one in features]
    known = np.repeat([True, False], [len(one) for one in features])
    scores = [scores_of(part[0], truth) for part in (before, after)]
    auroc = [
        float(roc_auc_score(known, np.concatenate(parts)))
        for parts in ([one.max(1) for one in before], [one.max(1) for one in after], matches)
    ]
    lowest = classifier.calibration_.threshold(0.9) if classifier.calibration_.confidences else 0.0
    answered = [100 * float((one.max(1) >= lowest).mean()) for one in after]
    values = (
        scores[0].accuracy.value,
        *(score.calibration_error for score in scores),
        *(score.log_loss for score in scores),
        float(np.log(len(base.class_names))),
        *auroc,
        *answered,
    )
    return dict(zip(COLUMNS, values, strict=True))


def fewer_images(method: str, benchmark: str, seed: int, sizes: list[int]) -> Iterator[tuple[int, float, float, float]]:
    """For each number of held-out images, five times: log(T / T of all), and what its T adds to log loss and calibration error."""
    import numpy as np

    from slimprompt.calibration import FOLDS, fit_temperature, softmax
    from slimprompt.data import few_shot, load_benchmark
    from slimprompt.methods.cross_validation import folds
    from slimprompt.scores import scores_of

    sample = few_shot(load_benchmark(benchmark), 16, seed)
    classifier, task = fit(method, sample, seed, recipe="fast")
    logits, labels = classifier.held_out_logits(task, folds(task.labels, seed, FOLDS))
    test = open_bank().features([sample.path(item) for item in sample.test], decode=sample.decode)
    test_logits = classifier.logits(test).cpu().numpy()
    truth = np.array([item.label for item in sample.test])
    temperature = fit_temperature(logits, labels)
    best = scores_of(softmax(test_logits, temperature), truth)
    rng = np.random.default_rng(seed)
    for size in sizes:
        for _ in range(5):
            some = rng.choice(len(labels), min(size, len(labels)), replace=False)
            found = fit_temperature(logits[some], labels[some])
            scores = scores_of(softmax(test_logits, found), truth)
            changes = (scores.log_loss - best.log_loss, scores.calibration_error - best.calibration_error)
            yield size, float(np.log(found / temperature)), *changes


def print_fewer_images(methods: list[str], benchmarks: list[str], seeds: list[int], sizes: list[int]) -> None:
    """A Markdown table of `fewer_images`: means over benchmarks and seeds, and the largest additions."""
    print(
        "| method | held-out images | log(T / T of all), root mean square | log loss, mean and largest | calibration error |"
    )
    print("|---" * 5 + "|")
    for method in methods:
        rows = [row for key in product(benchmarks, seeds) for row in fewer_images(method, *key, sizes)]
        for size in sizes:
            _, logs, losses, errors = zip(*(row for row in rows if row[0] == size), strict=True)
            spread = mean(value**2 for value in logs) ** 0.5
            print(
                f"| {method} | {size} | {spread:.3f} | {mean(losses):+.4f}, {max(losses):+.4f} | {mean(errors):+.2f}, {max(errors):+.2f} |",
                flush=True,
            )


def main() -> None:
    from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", nargs="+", default=list(POCKET_BENCHMARKS))
    parser.add_argument("--shots", nargs="+", type=int, default=[2, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--methods", nargs="+", default=["prompt", "gda"], help="prompt, or a name of slimprompt.methods.table"
    )
    parser.add_argument("--shuffled", action="store_true", help="exchange the labels of the training images at random")
    parser.add_argument("--held-out", nargs="+", type=int, help="numbers of held-out images to compare with all")
    chosen = parser.parse_args()
    if chosen.held_out:
        print_fewer_images(chosen.methods, chosen.benchmarks, chosen.seeds, chosen.held_out)
        return
    print("| method | shots | " + " | ".join(COLUMNS.values()) + " |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for method, shots in product(chosen.methods, chosen.shots):
        found = [
            measure(method, *key, shuffled=chosen.shuffled) for key in product(chosen.benchmarks, [shots], chosen.seeds)
        ]
        cells = [
            f"{mean(row[name] for row in found):.{2 if name.startswith(('loss', 'auroc')) else 1}f}" for name in COLUMNS
        ]
        print(f"| {method} | {shots} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
