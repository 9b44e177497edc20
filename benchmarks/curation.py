"""How many planted errors `check-labels` finds, and what labelling the images of `suggest` brings, on the pocket benchmarks.

    python benchmarks/curation.py labels [--shares 0.01 0.05 0.1] [--seeds 1 2 3]
    python benchmarks/curation.py duplicates [--seeds 1 2 3]
    python benchmarks/curation.py suggest [--shots 4] [--n 48] [--seeds 1 2 3]

`labels` gives a share of all images of each benchmark another label, once uniformly at random and once the class with the most
similar mean feature, and compares the suspects with the planted errors: recall is the share of planted errors that are suspected,
precision the share of suspects that are planted errors. `duplicates` copies images of train to another class of test: as
the same file, as JPEG and with 5 % more brightness. `suggest` fits a linear probe on a few-shot sample, labels n more train images as
suggested or at random, fits again and measures the accuracy on the test images. The pocket model is a toy; these are not results
about CLIP.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from slimprompt import Classifier, FeatureBank, load_backbone
from slimprompt.curation import labels, suggest
from slimprompt.data import Benchmark, few_shot, load_benchmark
from slimprompt.data.benchmark import Item
from slimprompt.fit import labelled_images
from slimprompt.images.decode import open_image
from slimprompt.methods.task import make_task
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.seeds import stream_seed


@lru_cache
def open_bank() -> FeatureBank:
    import torch

    torch.set_num_threads(1)
    return FeatureBank(load_backbone("pocket", device="cpu"), show_progress=False)


def print_rows(headings: list[str], rows: list[list[str]]) -> None:
    """A Markdown table."""
    for row in (headings, ["---"] * len(headings), *rows):
        print_row(row)


def print_row(row: list[str]) -> None:
    print("| " + " | ".join(row) + " |", flush=True)


# ---------------------------------------------------------------- label errors


def plant_errors(images: Benchmark, share: float, seed: int, *, similar: bool) -> tuple[Benchmark, set[str]]:
    """The benchmark with wrong labels, and the paths of these images."""
    rng = np.random.default_rng(stream_seed(seed, "planted labels", images.name))
    names, items = images.class_names, list(images.items)
    nearest = nearest_class(images) if similar else None
    planted = sorted(rng.choice(len(items), round(share * len(items)), replace=False).tolist())
    for index in planted:
        path, label, _ = items[index]
        other = int(nearest[label]) if nearest is not None else (label + int(rng.integers(1, len(names)))) % len(names)
        items[index] = Item(path, other, names[other])
    train, val, _ = np.cumsum(images.sizes)
    changed = replace(images, train=tuple(items[:train]), val=tuple(items[train:val]), test=tuple(items[val:]))
    return changed, {items[index].path for index in planted}


def nearest_class(images: Benchmark) -> np.ndarray:
    """The class with the most similar mean feature, by class."""
    features = open_bank().features([images.path(item) for item in images.items], decode=images.decode).numpy()
    truth = np.array([item.label for item in images.items])
    means = np.stack([features[truth == label].mean(0) for label in range(len(images.class_names))])
    similarities = means @ means.T
    np.fill_diagonal(similarities, -np.inf)
    return similarities.argmax(1)


class Counts(NamedTuple):
    """Sums over seeds."""

    planted: int = 0
    suspects: int = 0
    right: int = 0
    """Planted errors among the suspects."""

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(*(one + more for one, more in zip(self, other, strict=True)))

    def cells(self) -> list[str]:
        """What was found, recall and precision."""
        precision = f"{100 * self.right / self.suspects:.0f} %" if self.suspects else "–"
        return [f"{self.right} of {self.planted}", f"{100 * self.right / self.planted:.0f} %", precision]


def measure_labels(shares: list[float], seeds: list[int]) -> None:
    headings = ["wrong labels", "planted as", "benchmark", "found", "recall", "precision", "cross-validated accuracy"]
    print_rows(headings, [])
    for share in shares:
        for similar in (False, True):
            kind = [f"{100 * share:g} %", "similar class" if similar else "any class"]
            every, accuracies = Counts(), []
            for name in POCKET_BENCHMARKS:
                found, accuracy = find_planted(name, share, seeds, similar=similar)
                every, accuracies = every.plus(found), [*accuracies, accuracy]
                print_row([*kind, name, *found.cells(), f"{100 * accuracy:.0f} %"])
            print_row([*kind, "all", *every.cells(), f"{100 * mean(accuracies):.0f} %"])


def find_planted(name: str, share: float, seeds: list[int], *, similar: bool) -> tuple[Counts, float]:
    """What `check_labels` finds of planted errors, and its mean cross-validated accuracy."""
    counts, accuracies = Counts(), []
    for seed in seeds:
        images, planted = plant_errors(load_benchmark(name), share, seed, similar=similar)
        check = labels.check_labels(open_bank(), images)
        suspects = {one.image.path.relative_to(images.images).as_posix() for one in check.suspects}
        counts = counts.plus(Counts(len(planted), len(suspects), len(suspects & planted)))
        accuracies.append(check.accuracy or 0.0)
    return counts, mean(accuracies)


# ---------------------------------------------------------------- duplicates


def as_jpeg(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "jpeg", quality=90)
    return Image.open(stream).convert("RGB")


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "same file": lambda image: image,
    "JPEG, quality 90": as_jpeg,
    "5 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.05),
}


def measure_duplicates(seeds: list[int], n_copies: int = 40) -> None:
    rows = []
    for name in POCKET_BENCHMARKS:
        images = load_benchmark(name)
        for kind, change in COPIES.items():
            n_found = n_pairs = 0
            for seed in seeds:
                with tempfile.TemporaryDirectory() as folder:
                    planted, copies = plant_copies(images, Path(folder), change, kind == "same file", n_copies, seed)
                    check = labels.check_labels(open_bank(), planted)
                pairs = {frozenset((one.first.path, one.second.path)) for one in check.duplicates}
                n_found += len(pairs & copies)
                n_pairs += len(pairs)
            share = f"{100 * n_found / n_pairs:.0f} %" if n_pairs else "–"
            rows.append([name, kind, f"{n_found} of {n_copies * len(seeds)}", share])
    print_rows(["benchmark", "copied as", "found", "precision"], rows)


def plant_copies(
    images: Benchmark, folder: Path, change: Callable[[Image.Image], Image.Image], exact: bool, n: int, seed: int
) -> tuple[Benchmark, set[frozenset[Path]]]:
    """The benchmark with copies of train images in another class of test, and the pairs of originals and copies."""
    rng = np.random.default_rng(stream_seed(seed, "planted copies", images.name))
    names, copies, pairs = images.class_names, [], set()
    for number, index in enumerate(rng.choice(len(images.train), n, replace=False).tolist()):
        original = images.path(images.train[index])
        copy = folder / f"{number}.png"
        if exact:
            copy.write_bytes(original.read_bytes())
        else:
            change(open_image(original)).save(copy)
        label = (images.train[index].label + int(rng.integers(1, len(names)))) % len(names)
        copies.append(Item(str(copy), label, names[label]))  # an absolute path
        pairs.add(frozenset((original, copy)))
    return replace(images, test=(*images.test, *copies)), pairs


# ---------------------------------------------------------------- suggestions


def measure_suggestions(shots: int, n: int, seeds: list[int]) -> None:
    rows = []
    for name in POCKET_BENCHMARKS:
        images = load_benchmark(name)
        accuracies = [accuracies_of(images, shots, n, seed) for seed in seeds]
        rows.append([name, *(f"{mean(values):.1f}" for values in zip(*accuracies, strict=True))])
    means = [f"{mean(float(row[column]) for row in rows):.1f}" for column in range(1, 4)]
    print_rows(["benchmark", f"{shots} per class", f"+ {n} suggested", f"+ {n} at random"], [*rows, ["mean", *means]])


def accuracies_of(images: Benchmark, shots: int, n: int, seed: int) -> tuple[float, float, float]:
    """Accuracy in percent after few shots, with n more images as suggested, and with n more images at random."""
    sample = few_shot(images, shots, seed).train
    rest = {images.path(item): item for item in images.train if item not in set(sample)}
    few = fitted(images, sample, seed)
    chosen = suggest.suggest_images(few, open_bank(), list(rest), n).chosen
    suggested = [rest[one.image] for one in chosen]
    order = np.random.default_rng(stream_seed(seed, "random images", images.name)).permutation(len(rest))
    at_random = [list(rest.values())[index] for index in order[:n]]
    more = [fitted(images, (*sample, *added), seed) for added in (suggested, at_random)]
    first, second, third = (accuracy(images, classifier) for classifier in (few, *more))
    return first, second, third


def fitted(images: Benchmark, items: Any, seed: int) -> Classifier:
    task = make_task(open_bank(), labelled_images(images, items), seed)
    return Classifier(open_bank().backbone, method="linear-probe").fit_task(task)


def accuracy(images: Benchmark, classifier: Classifier) -> float:
    features = open_bank().features([images.path(item) for item in images.test], decode=images.decode)
    truth = np.array([item.label for item in images.test])
    return 100 * float((classifier.probabilities(features).argmax(1) == truth).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("labels", "duplicates", "suggest"))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.01, 0.05, 0.1], help="shares of wrong labels")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--n", type=int, default=48)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    chosen = parser.parse_args()
    if chosen.what == "labels":
        measure_labels(chosen.shares, chosen.seeds)
    elif chosen.what == "duplicates":
        measure_duplicates(chosen.seeds)
    else:
        measure_suggestions(chosen.shots, chosen.n, chosen.seeds)


if __name__ == "__main__":
    main()
