"""Fit a classifier on a few-shot sample, and score it beside zero-shot on images it was not trained on.

`slimprompt fit` and `slimprompt evaluate` do this between parsing and printing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from slimprompt.calibration import calibration_folds, calibration_of, softmax
from slimprompt.classifier import Classifier, finished_prompt
from slimprompt.continued import FinishedPrompt
from slimprompt.data import Benchmark, Item, few_shot, held_out
from slimprompt.errors import InputError, first_few
from slimprompt.images.bank import FeatureBank
from slimprompt.images.decode import UnreadableImageError
from slimprompt.methods.head import AnyHead
from slimprompt.methods.prompt import context_start, prompt_head
from slimprompt.methods.table import PROMPT, find_method
from slimprompt.methods.task import LabelledImages, Task, make_task
from slimprompt.methods.zero_shot import check_templates, zero_shot_head
from slimprompt.progress import announce
from slimprompt.scores import Scores, Verdict, scores_of, verdict
from slimprompt.text.tokens import prompt_tokens
from slimprompt.training.evaluation import EvalSet, make_eval_set
from slimprompt.training.loop import EpochResult
from slimprompt.training.recipe import make_recipe

#: Titles of the prompt that training started from, and of the one that it ended with.
START, LEARNED = "the prompt it started from", "learned prompt"


@dataclass(frozen=True)
class Scored:
    """One head on labelled images."""

    title: str
    head: AnyHead
    probabilities: np.ndarray
    """(n_images, n_classes)."""
    labels: np.ndarray
    """(n_images,)."""

    @cached_property
    def correct(self) -> np.ndarray:
        """Whether each image is classified correctly, (n_images,)."""
        correct: np.ndarray = self.probabilities.argmax(1) == self.labels
        return correct

    @cached_property
    def scores(self) -> Scores:
        """Accuracy with its interval, and the other scores."""
        return scores_of(self.probabilities, self.labels)

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100.0 * float(self.correct.mean())

    def on(self, rows: np.ndarray) -> Scored:
        """The same head on some of the images."""
        return replace(self, probabilities=self.probabilities[rows], labels=self.labels[rows])


@dataclass(frozen=True)
class Comparison:
    """Several heads evaluated on the same images."""

    images: list[Path]
    eval_set: EvalSet
    results: list[Scored]
    """Zero-shot with all templates, with the first of several, the prompt that training started from if it was a finished one,
    and the fitted classifier."""
    is_training_image: np.ndarray | None = None
    """Whether each image was a training image of the fitted classifier, (n_images,); None if these are not known."""

    @property
    def zero_shot(self) -> Scored:
        """The zero-shot classifier with all templates: the baseline."""
        return self.results[0]

    @property
    def fitted(self) -> Scored:
        """The fitted classifier."""
        return self.results[-1]

    @property
    def n_training_images(self) -> int:
        """Number of images that were training images."""
        return 0 if self.is_training_image is None else int(self.is_training_image.sum())

    def without_training_images(self) -> Comparison | None:
        """The same heads on the images that were not training images; None if there are no others."""
        if not self.n_training_images:
            return self
        others = np.flatnonzero(~self.is_training_image)  # type: ignore[operator]
        if not len(others):
            return None
        features, labels, class_names = self.eval_set
        eval_set = EvalSet(features[others], labels[others], class_names)
        return Comparison([self.images[i] for i in others], eval_set, [one.on(others) for one in self.results])

    @property
    def accuracies(self) -> dict[str, float]:
        """Accuracy of zero-shot, of a warm start, of the fitted model, and of guessing, as fractions."""
        start = [float(one.correct.mean()) for one in self.results if one.title == START]
        return {
            "zero_shot": float(self.zero_shot.correct.mean()),
            **({"start": start[0]} if start else {}),
            "model": float(self.fitted.correct.mean()),
            "chance": 1 / len(self.eval_set.class_names),
        }

    @property
    def verdict(self) -> Verdict | None:
        """Whether the fitted classifier is better than zero-shot; None if it is zero-shot."""
        if self.fitted.title == "zero-shot":
            return None
        return verdict(self.noun, self.fitted.correct, self.zero_shot.correct, chance=self.accuracies["chance"])

    @property
    def noun(self) -> str:
        """The fitted classifier in a sentence: "the learned prompt", "the gda classifier"."""
        return f"the {self.fitted.title}" + ("" if self.fitted.title == LEARNED else " classifier")

    @property
    def classes_without_images(self) -> list[str]:
        """Names of the classes that none of the images shows."""
        present = set(self.eval_set.labels.tolist())
        return [name for label, name in enumerate(self.eval_set.class_names) if label not in present]

    def by_class(self) -> list[tuple[str, int, float, float]]:
        """(class name, number of images, zero-shot accuracy, own accuracy) of each class, as fractions; nan without images."""
        rows = []
        for label, name in enumerate(self.eval_set.class_names):
            mine = self.fitted.labels == label
            before, after = (
                float(one.correct[mine].mean()) if mine.any() else float("nan") for one in (self.zero_shot, self.fitted)
            )
            rows.append((name, int(mine.sum()), before, after))
        return rows


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
    comparison: Comparison | None
    """On the held-out images; None if there are none."""
    inside: tuple[np.ndarray, np.ndarray] | None = None
    """Logits and labels of the training images while they were held out in the folds of the calibration; None without."""
    skipped: list[str] = field(default_factory=list)
    """Messages about unreadable images."""

    @cached_property
    def unseen(self) -> Comparison | None:
        """The comparison on the held-out images that are not copies of training images; None if there are none."""
        return self.comparison.without_training_images() if self.comparison else None


def fit(
    classifier: Classifier,
    bank: FeatureBank,
    images: Benchmark,
    sample: Benchmark,
    *,
    templates: Sequence[str] = (),
    skip_bad: bool = False,
    shots: int | None = None,
    at_most: int | None = None,
    on_epoch: Callable[[EpochResult], object] = lambda row: None,
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
        Zero-shot prompts; default: the first of `images` for methods and losses, and the average of all as the baseline.
    skip_bad
        Skip unreadable images instead of raising an error.
    shots
        Training images per class of a random sample: unreadable ones are replaced by others of their class. Default: they are not.
    at_most
        Number of held-out images to evaluate on, if there are more. Default: all.
    on_epoch
        Called with each row of the learning curve of a prompt as soon as it is known.
    """
    classifier.check_params()  # errors that need no image are raised before any is opened
    check_templates(templates)
    if classifier.method == PROMPT:
        spec = classifier.prompt_spec()
        prompt_tokens(bank.backbone, images.class_names, context_start(bank.backbone, spec)[1], spec.position)
    seed, n_held_out = classifier.seed, len(held_out(images, sample, at_most=at_most))
    announce(work_ahead(classifier, [item.label for item in sample.train], n_held_out))
    skipped: list[str] = []
    if skip_bad and shots is not None:
        images, sample, skipped = _replace_unreadable(bank, images, sample, shots, seed)
    train, unreadable = _readable(bank, images, sample.train)
    left_out = held_out(images, sample, at_most=at_most, seed=seed)
    test, more = _readable(bank, images, left_out)
    if not skip_bad and (messages := [*unreadable, *more]):
        raise UnreadableImageError(*messages)
    _require_classes(images, train, "training images")
    if more and images.test:  # what a sample leaves over may lack classes, a test split may not
        _require_classes(images, test, "held-out images", {item.label for item in left_out})
    task = make_task(bank, labelled_images(images, train), seed, templates, classifier.views)
    classifier.encode_task(task)
    begin = time.perf_counter()
    classifier.fit_task(task, on_epoch)
    trained = time.perf_counter()
    inside = classifier.cross_validate(task) if classifier.calibrate else None
    if inside is not None:
        classifier.calibration_ = calibration_of(*inside)
    calibrated = time.perf_counter() - trained if inside is not None else 0.0
    start = finished_prompt(classifier.continue_from) if classifier.continue_from is not None else None
    comparison = compare_with_zero_shot(classifier, bank, images, test, templates, start=start) if test else None
    counts = (len(train), len(test))
    skipped += [*unreadable, *more]
    return Fit(classifier, task, *counts, trained - begin, calibrated, comparison, inside, skipped)


def labelled_images(images: Benchmark, items: Sequence[Item]) -> LabelledImages:
    """Items of a benchmark as a sample; of its templates, the first is the published one."""
    paths, labels = [images.path(item) for item in items], [item.label for item in items]
    return LabelledImages(paths, labels, images.class_names, images.decode, images.templates)


def _replace_unreadable(
    bank: FeatureBank, images: Benchmark, sample: Benchmark, shots: int, seed: int
) -> tuple[Benchmark, Benchmark, list[str]]:
    """`images` and `sample` without unreadable images that were sampled, and messages about these.

    They are replaced by others of their class, as long as there are some.
    """
    messages: list[str] = []
    while bad := bank.build([images.path(item) for item in sample.train], decode=images.decode, skip_bad=True):
        messages += [str(error) for error in bad.values()]
        unreadable = {sample.train[index] for index in bad}
        images = replace(images, train=tuple(item for item in images.train if item not in unreadable))
        _require_classes(images, images.train, "training images")
        sample = few_shot(images, shots, seed, keep=frozenset(sample.train) - unreadable)
    return images, sample, messages


def work_ahead(classifier: Classifier, labels: Sequence[int], n_held_out: int) -> str:
    """How much a fit has to do, in one line; views that the bank has are not encoded again.

    Parameters
    ----------
    classifier
        Not fitted yet.
    labels
        Class of each training image.
    n_held_out
        Number of images to evaluate on.
    """
    if classifier.method != PROMPT:
        n_views = 1 + classifier.views if find_method(classifier.method).reads == "all views" else 1
        return f"encoding up to {n_views * len(labels) + n_held_out:,} image views"
    recipe = make_recipe(classifier.recipe, len(labels) / len(set(labels)), tower=classifier.tower)
    n_views = sum(1 for number in recipe.all_view_numbers() if number is not None)
    steps = f"{'up to ' if recipe.tolerance else ''}{recipe.steps(len(labels)):,} steps"
    folds = calibration_folds(labels, classifier.seed) if classifier.calibrate else []
    again = sum(recipe.steps(len(kept)) for kept, _ in folds)
    more = f", plus {again:,} for the calibration" if again else ""
    return f"encoding up to {(1 + n_views) * len(labels) + n_held_out:,} image views; training {steps}{more}"


def compare_with_zero_shot(
    classifier: Classifier,
    bank: FeatureBank,
    images: Benchmark,
    items: Sequence[Item],
    templates: Sequence[str] = (),
    *,
    start: FinishedPrompt | None = None,
) -> Comparison:
    """Evaluate a fitted classifier beside the zero-shot prompts.

    Parameters
    ----------
    classifier
        A fitted classifier whose classes are those of `images`, or include them by name.
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
    templates, names, backbone = templates or images.templates, classifier.class_names_, bank.backbone
    paths, labels = [images.path(item) for item in items], [item.label for item in items]
    if names != images.class_names:
        label_of = {name: label for label, name in enumerate(names)}
        labels = [label_of[item.class_name] for item in items]
    eval_set = make_eval_set(bank, paths, labels, names, images.decode)
    heads: dict[str, AnyHead] = {}
    if len(templates) > 1:
        heads[f"zero-shot, {len(templates)} templates averaged"] = zero_shot_head(backbone, names, templates)
    heads[f"zero-shot, “{templates[0]}”"] = zero_shot_head(backbone, names, templates[:1])
    if start is not None:
        heads[START] = prompt_head(backbone, names, start.prompt, start.spec.position)
    results = [scored(title, head, eval_set) for title, head in heads.items()]
    title = LEARNED if classifier.method_ == PROMPT else classifier.method_
    if classifier.backbone_.image_pass.rows is not None:
        adapted = make_eval_set(bank.of(classifier.backbone_), paths, labels, names, images.decode)
    else:
        adapted = eval_set
    results.append(scored(title, classifier.head_, adapted, classifier.calibration_.temperature))
    known = classifier.trained_on(bank, paths, decode=images.decode) if classifier.training_images_ else None
    return Comparison(paths, eval_set, results, known)


def scored(title: str, head: AnyHead, eval_set: EvalSet, temperature: float = 1.0) -> Scored:
    """A head on an eval set with its classes."""
    logits = head.logits(eval_set.features).cpu().numpy()
    return Scored(title, head, softmax(logits, temperature), eval_set.labels.cpu().numpy())


def readable(
    bank: FeatureBank, images: Benchmark, items: Sequence[Item], *, skip_bad: bool
) -> tuple[list[Item], list[str]]:
    """The items whose images can be read, and messages about the others; encodes the eval views on the way.

    Raises
    ------
    UnreadableImageError
        If there are others, unless `skip_bad` is true; its `messages` name all of them.
    InputError
        If no image of a class can be read: without it, the results would be those of another task.
    """
    kept, messages = _readable(bank, images, items)
    if messages and not skip_bad:
        raise UnreadableImageError(*messages)
    if messages:
        _require_classes(images, kept, "images", {item.label for item in items})
    return kept, messages


def _readable(bank: FeatureBank, images: Benchmark, items: Sequence[Item]) -> tuple[list[Item], list[str]]:
    bad = bank.build([images.path(item) for item in items], decode=images.decode, skip_bad=True)
    return [item for index, item in enumerate(items) if index not in bad], [str(error) for error in bad.values()]


def _require_classes(images: Benchmark, items: Sequence[Item], kind: str, labels: set[int] | None = None) -> None:
    """Raise an error if one of the classes has none of the items."""
    wanted = set(range(len(images.class_names))) if labels is None else labels
    if missing := sorted(wanted - {item.label for item in items}):
        raise InputError(
            f"no {kind} of {first_few([repr(images.class_names[label]) for label in missing])} are left: every class needs at "
            "least one readable image. Repair the images or remove the class"
        )
