"""Fit a classifier on labelled images and compare it with zero-shot on images it was not trained on.

This is what `slimprompt fit` and `slimprompt evaluate` do between parsing and printing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slimprompt.calibration import calibration_folds, softmax
from slimprompt.classifiers.head import HeadClassifier
from slimprompt.classifiers.prompt import PromptClassifier
from slimprompt.data import Benchmark, Item, few_shot, held_out
from slimprompt.errors import InputError, first_few
from slimprompt.images.bank import FeatureBank
from slimprompt.methods.head import AnyHead, Head
from slimprompt.methods.prompt import prompt_head
from slimprompt.methods.table import find_method
from slimprompt.methods.task import Task
from slimprompt.methods.zero_shot import check_templates, zero_shot_head
from slimprompt.progress import announce
from slimprompt.prompts.prompt import Prompt
from slimprompt.scores import Scores, scores_of
from slimprompt.text.tokens import prompt_tokens
from slimprompt.training.evaluation import EvalSet, make_eval_set
from slimprompt.training.recipe import make_recipe

#: Any classifier that `fit` can save.
Classifier = PromptClassifier | HeadClassifier

#: Train views of the methods on image features if the recipe samples a new view in each epoch.
DEFAULT_VIEWS = 10

#: Title of the prompt that training started from.
START = "the prompt it started from"


@dataclass(frozen=True)
class HeadComparison:
    """Several classifiers evaluated on the same images."""

    images: list[Path]
    eval_set: EvalSet
    heads: dict[str, AnyHead]
    """By title: zero-shot with all templates, with the first of several, the prompt that training started from if it was a
    finished one, and the fitted classifier, which comes last."""
    kind: str = "prompt"
    """What the last classifier is: "prompt" or "head"."""
    temperature: float = 1.0
    """Temperature of the last classifier."""
    known: np.ndarray | None = None
    """Whether each image was a training image of the last classifier, (n_images,); None if its training images are not known."""

    @property
    def n_known(self) -> int:
        """Number of images that were training images."""
        return 0 if self.known is None else int(self.known.sum())

    def without_training_images(self) -> HeadComparison | None:
        """The same classifiers on the images that were not training images; None if there are no others."""
        if self.known is None or self.known.all():
            return None if self.n_known else self
        others = np.flatnonzero(~self.known)
        features, labels, class_names = self.eval_set
        eval_set = EvalSet(features[others], labels[others], class_names)
        return replace(self, images=[self.images[i] for i in others], eval_set=eval_set, known=self.known[others])

    @property
    def zero_shot(self) -> Head:
        """The zero-shot classifier with all templates: the baseline."""
        head = next(iter(self.heads.values()))
        assert isinstance(head, Head)
        return head

    @property
    def accuracies(self) -> dict[str, float]:
        """Accuracy in percent by title."""
        return {title: 100 * float(head.correct(self.eval_set).double().mean()) for title, head in self.heads.items()}

    @property
    def details(self) -> dict[str, Scores]:
        """All scores by title."""
        labels, last = self.eval_set.labels.cpu().numpy(), list(self.heads)[-1]
        return {
            title: scores_of(
                softmax(head.logits(self.eval_set.features).cpu().numpy(), self.temperature if title == last else 1.0),
                labels,
            )
            for title, head in self.heads.items()
        }

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy in percent of zero-shot, of a warm start, of the prompt or head, and of guessing."""
        found, chance = self.accuracies, 100 / len(self.eval_set.class_names)
        zero_shot, *_, own = found.values()
        start = {"start": found[START]} if START in found else {}
        return {"zero_shot": zero_shot, **start, self.kind: own, "chance": chance}

    @property
    def classes_without_images(self) -> list[str]:
        """Names of the classes that none of the images shows."""
        present = set(self.eval_set.labels.tolist())
        return [name for label, name in enumerate(self.eval_set.class_names) if label not in present]

    def by_class(self) -> list[tuple[str, int, float, float]]:
        """(class name, number of images, zero-shot accuracy, own accuracy) of each class; nan without images."""
        zero_shot, *_, own = (head.correct(self.eval_set).double() for head in self.heads.values())
        members = [self.eval_set.labels.cpu() == label for label in range(len(self.eval_set.class_names))]
        return [
            (name, int(mine.sum()), 100 * float(zero_shot[mine].mean()), 100 * float(own[mine].mean()))
            for name, mine in zip(self.eval_set.class_names, members, strict=True)
        ]


@dataclass(frozen=True)
class Fit:
    """A fitted classifier and what is known about its fit."""

    classifier: Classifier
    task: Task
    n_train: int
    n_held_out: int
    seconds: float
    """Wall time of training, with the image features encoded."""
    calibration_seconds: float
    """Wall time of the trainings for the calibration; 0 without."""
    comparison: HeadComparison | None
    """On the held-out images; None if there are none."""
    skipped: list[str] = field(default_factory=list)
    """Messages about unreadable images."""

    @property
    def unseen(self) -> HeadComparison | None:
        """The comparison on the held-out images that are not copies of training images; None if there are none."""
        return self.comparison.without_training_images() if self.comparison else None


def fit_classifier(
    classifier: Classifier,
    bank: FeatureBank,
    images: Benchmark,
    sample: Benchmark,
    *,
    templates: Sequence[str] = (),
    views: int = DEFAULT_VIEWS,
    skip_bad: bool = False,
    shots: int | None = None,
    at_most: int | None = None,
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
    views
        Train views of each image for the methods on image features.
    skip_bad
        Skip unreadable images instead of raising an error.
    shots
        Training images per class of a random sample: unreadable ones are replaced by others of their class. Default: they are not.
    at_most
        Number of held-out images to evaluate on, if there are more. Default: all.
    """
    templates = tuple(templates) or images.templates
    check_templates(templates)
    classifier.check_settings()  # errors that need no image are raised before any is opened
    if isinstance(classifier, PromptClassifier):
        position: Any = classifier.position
        prompt_tokens(bank.backbone, images.class_names, classifier.start(bank.backbone).n_ctx, position)
    n_held_out = len(held_out(images, sample, at_most=at_most))
    announce(work_ahead(classifier, [item.label for item in sample.train], n_held_out, views))
    replaced: list[str] = []
    if skip_bad and shots is not None:
        images, sample, replaced = _replace_unreadable(bank, images, sample, shots, classifier.seed)
    train, skipped = readable(bank, images, sample.train, skip_bad=skip_bad, kind="training images")
    test, more_skipped = readable(
        bank,
        images,
        held_out(images, sample, at_most=at_most, seed=classifier.seed),
        skip_bad=skip_bad,
        kind="held-out images",
        every_class=bool(images.test),  # what a sample leaves over may lack classes
    )
    names = sorted({item.class_name for item in train})
    if missing := sorted(set(images.class_names) - set(names)):
        raise _no_images(missing, "training images")
    label_of = {name: label for label, name in enumerate(names)}
    paths, labels = [images.path(item) for item in train], [label_of[item.class_name] for item in train]
    task = Task(bank, paths, labels, tuple(names), classifier.seed, images.decode, templates, views)
    seconds = _fit_encoded(classifier, task)
    begin = time.perf_counter()
    if classifier.calibrate:
        classifier.fit_calibration(task)
    calibration_seconds = time.perf_counter() - begin if classifier.calibration_.confidences else 0.0
    start = None
    if isinstance(classifier, PromptClassifier) and classifier.start_from is not None:
        start = classifier.start(bank.backbone)
    comparison = compare_with_zero_shot(classifier, bank, images, test, templates, start=start) if test else None
    counts = (len(train), len(test))
    skipped = replaced + skipped + more_skipped
    return Fit(classifier, task, *counts, seconds, calibration_seconds, comparison, skipped)


def _replace_unreadable(
    bank: FeatureBank, images: Benchmark, sample: Benchmark, shots: int, seed: int
) -> tuple[Benchmark, Benchmark, list[str]]:
    """Replace unreadable images of a sample by others of their class, as long as there are some.

    Returns
    -------
    tuple
        `images` and `sample` without the unreadable images that were sampled, and messages about these.
    """
    messages: list[str] = []
    while bad := bank.build([images.path(item) for item in sample.train], decode=images.decode, skip_bad=True):
        messages += [str(error) for error in bad.values()]
        unreadable = {sample.train[index] for index in bad}
        images = replace(images, train=tuple(item for item in images.train if item not in unreadable))
        if missing := sorted(set(images.class_names) - {item.class_name for item in images.train}):
            raise _no_images(missing, "training images")
        sample = few_shot(images, shots, seed, keep=frozenset(sample.train) - unreadable)
    return images, sample, messages


def work_ahead(classifier: Classifier, labels: Sequence[int], n_held_out: int, views: int) -> str:
    """How much a fit has to do, in one line; views that the bank has are not encoded again.

    Parameters
    ----------
    classifier
        Not fitted yet.
    labels
        Class of each training image.
    n_held_out
        Number of images to evaluate on.
    views
        Train views of each image for the methods on image features.
    """
    if isinstance(classifier, HeadClassifier):
        reads = find_method(classifier.method).reads
        n_views = 1 + views if reads == "all views" else 1
        return f"encoding up to {n_views * len(labels) + n_held_out:,} image views"
    recipe = make_recipe(classifier.recipe, len(labels) / len(set(labels)))
    n_views = sum(1 for number in recipe.all_view_numbers() if number is not None)
    steps = f"{'up to ' if recipe.tolerance else ''}{recipe.steps(len(labels)):,} steps"
    folds = calibration_folds(labels, classifier.seed) if classifier.calibrate else []
    again = sum(recipe.steps(len(kept)) for kept, _ in folds)
    more = f", plus {again:,} for the calibration" if again else ""
    return f"encoding up to {(1 + n_views) * len(labels) + n_held_out:,} image views; training {steps}{more}"


def _fit_encoded(classifier: Classifier, task: Task) -> float:
    """Encode what the classifier trains on, fit it, and return the seconds of fitting alone."""
    if isinstance(classifier, PromptClassifier):
        task.encode(classifier.recipe_for(task))
    else:
        find_method(classifier.method).encode(task)
    begin = time.perf_counter()
    classifier.fit_task(task)
    return time.perf_counter() - begin


def compare_with_zero_shot(
    classifier: Classifier,
    bank: FeatureBank,
    images: Benchmark,
    items: Sequence[Item],
    templates: Sequence[str] = (),
    *,
    start: Prompt | None = None,
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
        Zero-shot prompts; default: those of `images`. Several are averaged, and the first is also evaluated by itself.
    start
        The finished prompt that the training of the classifier started from, to be evaluated too.
    """
    if not items:
        raise InputError("there are no readable images to evaluate on")
    templates = templates or images.templates
    names = list(classifier.class_names_)
    label_of = {name: label for label, name in enumerate(names)}
    paths, labels = [images.path(item) for item in items], [label_of[item.class_name] for item in items]
    eval_set = make_eval_set(bank, paths, labels, names, images.decode)
    backbone = bank.backbone
    heads: dict[str, AnyHead] = {}
    if len(templates) > 1:
        heads[f"zero-shot, {len(templates)} templates averaged"] = zero_shot_head(backbone, names, templates)
    heads[f"zero-shot, “{templates[0]}”"] = zero_shot_head(backbone, names, templates[:1])
    if isinstance(classifier, HeadClassifier):
        heads[classifier.method] = classifier.head_
    else:
        position: Any = classifier.position
        if start is not None:
            heads[START] = prompt_head(backbone, names, start.to(backbone.device), position)
        heads["learned prompt"] = prompt_head(backbone, names, classifier.prompt_, position)
    kind = "head" if isinstance(classifier, HeadClassifier) else "prompt"
    known = classifier.trained_on(bank, paths, decode=images.decode) if classifier.training_images_ else None
    return HeadComparison(paths, eval_set, heads, kind, classifier.calibration_.temperature, known)


def readable(
    bank: FeatureBank,
    images: Benchmark,
    items: Sequence[Item],
    *,
    skip_bad: bool,
    kind: str = "images",
    every_class: bool = True,
) -> tuple[list[Item], list[str]]:
    """The items whose images can be read, and messages about the others; encodes the eval views on the way.

    With `every_class`, a class of which no image can be read is an `InputError`: without it, the results would be those of
    another task.
    """
    bad = bank.build([images.path(item) for item in items], decode=images.decode, skip_bad=skip_bad)
    kept = [item for index, item in enumerate(items) if index not in bad]
    missing = sorted({item.class_name for item in items} - {item.class_name for item in kept})
    if missing and every_class:
        raise _no_images(missing, kind)
    return kept, [str(error) for error in bad.values()]


def _no_images(missing: Sequence[str], kind: str) -> InputError:
    return InputError(
        f"no {kind} of {first_few([repr(name) for name in missing])} are left: every class needs at least one readable image. "
        "Repair the images or remove the class"
    )
