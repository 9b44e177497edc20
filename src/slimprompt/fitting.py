"""Fit a classifier on labelled images and compare it with zero-shot on images that it was not trained on.

This is what `slimprompt fit` and `slimprompt evaluate` do between parsing and printing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from slimprompt.classifier import PromptClassifier
from slimprompt.data import Benchmark, Item, held_out
from slimprompt.errors import InputError
from slimprompt.images.bank import FeatureBank
from slimprompt.methods.task import Task
from slimprompt.methods.zero_shot import check_templates, zero_shot_features
from slimprompt.text.tokens import prompt_tokens
from slimprompt.training.evaluation import EvalSet, accuracy, make_eval_set, per_class_accuracy


@dataclass(frozen=True)
class Comparison:
    """Several class features (n_classes, embed_dim) evaluated on the same images."""

    images: list[Path]
    eval_set: EvalSet
    class_features: dict[str, Tensor]
    """By title: zero-shot with one template, with several, and the learned prompt, which comes last."""

    @property
    def zero_shot(self) -> Tensor:
        """Class features of the first zero-shot prompt."""
        return next(iter(self.class_features.values()))

    @property
    def accuracies(self) -> dict[str, float]:
        """Accuracy in percent by title."""
        return {
            title: accuracy(self.eval_set.features, features, self.eval_set.labels)
            for title, features in self.class_features.items()
        }

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy in percent of zero-shot, of the prompt, and of guessing."""
        found = list(self.accuracies.values())
        return {"zero_shot": found[0], "prompt": found[-1], "chance": 100 / len(self.eval_set.class_names)}

    def by_class(self) -> list[tuple[str, int, float, float]]:
        """(class name, number of images, zero-shot accuracy, prompt accuracy) of each class."""
        zero_shot, *_, prompt = (
            per_class_accuracy(self.eval_set.features, features, self.eval_set.labels)
            for features in self.class_features.values()
        )
        return [
            (name, count, before, after)
            for name, (before, count), (after, _) in zip(self.eval_set.class_names, zero_shot, prompt, strict=True)
        ]


@dataclass(frozen=True)
class Fit:
    """A fitted classifier and what is known about its fit."""

    classifier: PromptClassifier
    n_train: int
    n_held_out: int
    seconds: float
    """Wall time of training."""
    comparison: Comparison | None
    """On the held-out images; None if there are none."""
    skipped: list[str] = field(default_factory=list)
    """Messages about unreadable images."""


def fit_classifier(
    classifier: PromptClassifier,
    bank: FeatureBank,
    images: Benchmark,
    sample: Benchmark,
    *,
    templates: Sequence[str] = (),
    skip_bad: bool = False,
) -> Fit:
    """Train on the few-shot sample and compare with zero-shot on the images that are held out.

    Parameters
    ----------
    classifier
        Not fitted yet; its backbone is that of the bank.
    bank
        The one feature bank: every view of an image is encoded once.
    images
        All labelled images.
    sample
        The part of `images` to train on, from `few_shot` or a manifest.
    templates
        Zero-shot prompts; default: those of `images`.
    skip_bad
        Skip unreadable images instead of raising an error.
    """
    check_templates(templates)
    classifier.start(bank.backbone)  # errors that need no image are raised before any is opened
    prompt_tokens(bank.backbone, images.class_names, classifier.n_ctx, classifier.position)  # type: ignore[arg-type]
    train, skipped = readable(bank, images, sample.train, skip_bad=skip_bad)
    test, more_skipped = readable(bank, images, held_out(images, sample), skip_bad=skip_bad)
    names = sorted({item.class_name for item in train})
    paths, labels = [images.path(item) for item in train], [names.index(item.class_name) for item in train]
    begin = time.perf_counter()
    classifier.fit_task(Task(bank, paths, labels, tuple(names), classifier.seed, images.decode))
    seconds = time.perf_counter() - begin
    comparison = compare_with_zero_shot(classifier, bank, images, test, templates) if test else None
    return Fit(classifier, len(train), len(test), seconds, comparison, skipped + more_skipped)


def compare_with_zero_shot(
    classifier: PromptClassifier,
    bank: FeatureBank,
    images: Benchmark,
    items: Sequence[Item],
    templates: Sequence[str] = (),
) -> Comparison:
    """Evaluate a fitted classifier beside the zero-shot prompts.

    Parameters
    ----------
    classifier
        A fitted classifier whose classes include those of the items.
    bank
        Encodes the images.
    images
        The dataset of the items.
    items
        Labelled images to evaluate on.
    templates
        Zero-shot prompts; default: those of `images`. With several, the first is also shown by itself.
    """
    if not items:
        raise InputError("there are no readable images to evaluate on")
    templates = templates or images.templates
    names = [str(name) for name in classifier.classes_]
    paths = [images.path(item) for item in items]
    eval_set = make_eval_set(bank, paths, [names.index(item.class_name) for item in items], names, images.decode)
    features = {f"zero-shot, “{templates[0]}”": zero_shot_features(bank.backbone, names, templates[:1])}
    if len(templates) > 1:
        features[f"zero-shot, {len(templates)} templates averaged"] = zero_shot_features(
            bank.backbone, names, templates
        )
    features["learned prompt"] = classifier.class_features_
    return Comparison(paths, eval_set, features)


def readable(
    bank: FeatureBank, images: Benchmark, items: Sequence[Item], *, skip_bad: bool
) -> tuple[list[Item], list[str]]:
    """The items whose images can be read, and messages about the others; encodes the eval views on the way."""
    bad = bank.build([images.path(item) for item in items], decode=images.decode, skip_bad=skip_bad)
    kept = [item for index, item in enumerate(items) if index not in bad]
    return kept, [str(error) for error in bad.values()]
