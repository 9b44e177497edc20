"""A warm start (`fit --continue-from`) against a cold start on the pocket benchmarks, after classes or images were added.

    python benchmarks/continued.py [--benchmarks pocket-sketch pocket-comic] [--shots 1 4] [--seeds 1 2 3] [--variants fixed-B joint]

- classes: the start is trained on the base classes (the first half), the fits on all classes with the same number of shots.
- images: the start is trained on the given number of shots, the fits on four times as many, which contain its images.

Prints a Markdown table with means over benchmarks and seeds, all on the test images: accuracy of zero-shot, of the start before
training, of a cold and of a warm start, and of both starts the epochs until training stopped (recipe fast: at most 20) and the
calibration error in points. The pocket model is a toy; these are not results about CLIP.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from itertools import product
from statistics import mean
from typing import Any

from slimprompt import PromptClassifier
from slimprompt.data import Benchmark, base_new, few_shot, load_benchmark
from slimprompt.fit import labelled_images
from slimprompt.methods.task import Task, make_task
from slimprompt.methods.zero_shot import zero_shot_head
from slimprompt.scores import scores_of
from slimprompt.training.evaluation import EvalSet, make_eval_set

COLUMNS = ("zero-shot", "start", "cold", "warm", "epochs, cold", "warm", "calibration error, cold", "warm")
#: Training images of the second fit per image of the first, if images are added.
MORE = 4


@lru_cache
def open_bank() -> Any:
    import torch

    from slimprompt import FeatureBank, load_backbone

    torch.set_num_threads(1)
    return FeatureBank(load_backbone("pocket", device="cpu"), show_progress=False)


def task_of(sample: Benchmark, seed: int) -> Task:
    return make_task(open_bank(), labelled_images(sample, sample.train), seed, sample.templates)


def test_set(images: Benchmark) -> EvalSet:
    paths, labels = [images.path(item) for item in images.test], [item.label for item in images.test]
    return make_eval_set(open_bank(), paths, labels, images.class_names, images.decode)


def accuracy(classifier: PromptClassifier, tested: EvalSet) -> float:
    return scores(classifier, tested).accuracy.value


def scores(classifier: PromptClassifier, tested: EvalSet) -> Any:
    return scores_of(classifier.probabilities(tested.features), tested.labels.numpy())


def measure(added: str, variant: str, benchmark: str, shots: int, seed: int) -> list[float]:
    """The columns of one comparison."""
    images = load_benchmark(benchmark)
    few = few_shot(images, shots, seed)
    if added == "classes":
        first, second = base_new(few)[0], few
    else:
        first, second = few, few_shot(images, MORE * shots, seed, keep=few.train)
    settings = {"variant": variant, "recipe": "fast", "seed": seed}
    start, cold = (PromptClassifier(open_bank().backbone, **settings) for _ in range(2))
    start.fit_task(task_of(first, seed))
    warm = start.unfitted(continue_from=start)
    for one in (cold, warm):
        one.fit_task(task_of(second, seed)).fit_calibration(task_of(second, seed))
    tested = test_set(images)
    zero_shot = zero_shot_head(open_bank().backbone, images.class_names, images.templates[:1])
    results = [scores(one, tested) for one in (cold, warm)]
    return [
        100 * float(zero_shot.correct(tested).double().mean()),
        accuracy(start.with_classes(images.class_names), tested),
        *(one.accuracy.value for one in results),
        *(len(one.curve_) for one in (cold, warm)),
        *(one.calibration_error for one in results),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", nargs="+", default=["pocket-sketch", "pocket-comic"])
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", default=["fixed-B", "joint"])
    given = parser.parse_args()
    print("| added | variant | shots | " + " | ".join(COLUMNS) + " |")
    print("|---|---|---:|" + "---:|" * len(COLUMNS))
    for added, variant, shots in product(("classes", "images"), given.variants, given.shots):
        rows = [measure(added, variant, name, shots, seed) for name, seed in product(given.benchmarks, given.seeds)]
        means = (f"{mean(column):.1f}" for column in zip(*rows, strict=True))
        shown = f"{shots}" if added == "classes" else f"{shots} → {MORE * shots}"
        print(f"| {added} | {variant} | {shown} | {' | '.join(means)} |", flush=True)


if __name__ == "__main__":
    main()
