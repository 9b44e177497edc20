"""Fit a classifier on labelled images and compare it with zero-shot on images that it was not trained on.

This is what `slimprompt fit` and `slimprompt evaluate` do between parsing and printing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slimprompt.classifier import PromptClassifier
from slimprompt.data import Benchmark, Item, held_out
from slimprompt.errors import InputError, first_few
from slimprompt.images.bank import FeatureBank
from slimprompt.methods.head import Head
from slimprompt.methods.prompt_learning import prompt_head
from slimprompt.methods.task import Task
from slimprompt.methods.zero_shot import check_templates, zero_shot_head
from slimprompt.text.tokens import prompt_tokens
from slimprompt.training.evaluation import EvalSet, make_eval_set


@dataclass(frozen=True)
class HeadComparison:
    """Several classifiers evaluated on the same images."""

    images: list[Path]
    eval_set: EvalSet
    heads: dict[str, Head]
    """By title: zero-shot with one template, with several, and the learned prompt, which comes last."""

    @property
    def zero_shot(self) -> Head:
        """The first zero-shot classifier."""
        return next(iter(self.heads.values()))

    @property
    def accuracies(self) -> dict[str, float]:
        """Accuracy in percent by title."""
        return {title: 100 * float(head.correct(self.eval_set).double().mean()) for title, head in self.heads.items()}

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy in percent of zero-shot, of the prompt, and of guessing."""
        found = list(self.accuracies.values())
        return {"zero_shot": found[0], "prompt": found[-1], "chance": 100 / len(self.eval_set.class_names)}

    def by_class(self) -> list[tuple[str, int, float, float]]:
        """(class name, number of images, zero-shot accuracy, prompt accuracy) of each class; nan without images."""
        zero_shot, *_, prompt = (head.correct(self.eval_set).double() for head in self.heads.values())
        members = [self.eval_set.labels.cpu() == label for label in range(len(self.eval_set.class_names))]
        return [
            (name, int(mine.sum()), 100 * float(zero_shot[mine].mean()), 100 * float(prompt[mine].mean()))
            for name, mine in zip(self.eval_set.class_names, members, strict=True)
        ]


@dataclass(frozen=True)
class Fit:
    """A fitted classifier and what is known about its fit."""

    classifier: PromptClassifier
    n_train: int
    n_held_out: int
    seconds: float
    """Wall time of training."""
    comparison: HeadComparison | None
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
    train, skipped = readable(bank, images, sample.train, skip_bad=skip_bad, what="training images")
    test, more_skipped = readable(bank, images, held_out(images, sample), skip_bad=skip_bad)
    names = sorted({item.class_name for item in train})
    if missing := sorted(set(images.class_names) - set(names)):
        raise _no_images(missing, "training images")
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
) -> HeadComparison:
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
    backbone = bank.backbone
    heads = {f"zero-shot, “{templates[0]}”": zero_shot_head(backbone, names, templates[:1])}
    if len(templates) > 1:
        heads[f"zero-shot, {len(templates)} templates averaged"] = zero_shot_head(backbone, names, templates)
    position: Any = classifier.position
    heads["learned prompt"] = prompt_head(backbone, names, classifier.prompt_, position)
    return HeadComparison(paths, eval_set, heads)


def readable(
    bank: FeatureBank, images: Benchmark, items: Sequence[Item], *, skip_bad: bool, what: str = "images"
) -> tuple[list[Item], list[str]]:
    """The items whose images can be read, and messages about the others; encodes the eval views on the way.

    A class of which no image can be read is an `InputError`: without it, the results would be those of another task.
    """
    bad = bank.build([images.path(item) for item in items], decode=images.decode, skip_bad=skip_bad)
    kept = [item for index, item in enumerate(items) if index not in bad]
    if missing := sorted({item.class_name for item in items} - {item.class_name for item in kept}):
        raise _no_images(missing, what)
    return kept, [str(error) for error in bad.values()]


def _no_images(missing: Sequence[str], what: str) -> InputError:
    return InputError(
        f"no {what} of {first_few([repr(name) for name in missing])} are left ({len(missing)} classes): every class needs at "
        "least one readable image among the training images and among those held out. Repair the images or remove the class"
    )
