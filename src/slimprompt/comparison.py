"""Every method on the images of one fit, and the one that cross-validation chooses: `slimprompt fit --compare`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from slimprompt.calibration import calibration_of
from slimprompt.errors import InputError
from slimprompt.fit import Fit, scored
from slimprompt.methods.table import METHODS, PROMPT
from slimprompt.progress import progress
from slimprompt.prompts.spec import PromptSpec
from slimprompt.scores import Accuracy, Difference, Verdict, accuracy_of, paired_difference, verdict


@dataclass(frozen=True)
class MethodResult:
    """One method on the same training and held-out images as the others."""

    method: str
    correct: np.ndarray
    """Whether each held-out image is classified correctly, (n_images,)."""
    correct_inside: np.ndarray
    """The same for the training images while they were held out in the folds of a cross-validation; empty if none could be."""
    n_trained: int
    takes_new_names: bool
    fit: Fit | None = None
    """None for a result that was not made by `compare_methods`."""

    @property
    def accuracy(self) -> Accuracy:
        """Accuracy on the held-out images with its interval."""
        return accuracy_of(self.correct)

    @property
    def inside(self) -> float | None:
        """Cross-validated accuracy within the training images, a fraction; None if no image could be held out."""
        return float(self.correct_inside.mean()) if len(self.correct_inside) else None


@dataclass(frozen=True)
class MethodComparison:
    """Methods on the same images, zero-shot among them.

    The held-out images do not take part in the choice, so the accuracy of the chosen method on them is unbiased.
    """

    results: list[MethodResult]

    @cached_property
    def chosen(self) -> MethodResult | None:
        """The method with the highest cross-validated accuracy within the training images; None if no image could be held out.

        Of equals, the one that takes new class names and trains fewest numbers.
        """
        if any(one.inside is None for one in self.results):
            return None
        return max(self.results, key=lambda one: (int(one.correct_inside.sum()), one.takes_new_names, -one.n_trained))

    @property
    def zero_shot(self) -> MethodResult:
        """The baseline."""
        return next(one for one in self.results if one.method == "zero-shot")

    @property
    def best_fit(self) -> Fit:
        """The fit of the chosen method; an `InputError` if none could be chosen."""
        if self.chosen is None or self.chosen.fit is None:
            raise InputError(
                "no method can be chosen with one training image per class, because none can be held out: give more images or "
                "more --shots, or choose one with --method"
            )
        return self.chosen.fit

    def gain(self, one: MethodResult) -> Difference:
        """Accuracy of a method minus that of zero-shot, on the held-out images."""
        return paired_difference(one.correct, self.zero_shot.correct)

    def behind(self, one: MethodResult) -> Difference | None:
        """Accuracy of a method minus that of the chosen one, on the held-out images; None if none was chosen."""
        return paired_difference(one.correct, self.chosen.correct) if self.chosen else None

    @property
    def verdict(self) -> Verdict | None:
        """Whether the chosen method is better than zero-shot; None if none was chosen, or zero-shot was."""
        if self.chosen is None or self.chosen is self.zero_shot:
            return None
        return verdict("it", self.chosen.correct, self.zero_shot.correct, compared=True)

    @property
    def sentence(self) -> str:
        """Which method was chosen, how it compares with zero-shot, and whether another one takes new class names."""
        if self.chosen is None:
            return "No method is chosen: with one training image per class, none can be held out to choose by."
        how = f"the most accurate method in cross-validation within the {len(self.chosen.correct_inside):,} training images"
        if self.verdict is None:
            return f"Use zero-shot: it needs no training and is {how}."
        sentence = f"Use {self.chosen.method}, {how}. {self.verdict.sentence}"
        flexible = [one for one in self.results if one.takes_new_names and not self.chosen.takes_new_names]
        if near := [one.method for one in flexible if (behind := self.behind(one)) and behind.high >= 0]:
            sentence += f" {near[0]} also takes new class names; these images do not show that it is less accurate."
        return sentence


def compare_methods(fit: Fit) -> MethodComparison:
    """The fitted classifier and every method on the same training and held-out images, in the order of the table.

    A method of the user's own that was fitted comes last. Held-out images that are copies of training images are left out: they
    favour the methods that remember these.

    Raises
    ------
    InputError
        If no other images are held out.
    """
    if fit.unseen is None:
        raise InputError(
            "there are no held-out images to compare methods on: give more images or fewer --shots, or a test/ folder beside train/ "
            "with other images"
        )
    fitted, results = fit.classifier.method_, []
    names = list(METHODS) if fitted in METHODS else [PROMPT, *METHODS] if fitted == PROMPT else [*METHODS, fitted]
    fit.task.encode_all()  # so that it is not counted as fitting
    with progress("comparing methods", len(names)) as advance:
        for name in names:
            results.append(_result(fit if name == fitted else fit_method(fit, name)))
            advance()
    return MethodComparison(results)


def fit_method(fit: Fit, method: str) -> Fit:
    """A fit of another method than prompts on the same images."""
    defaults = fit.classifier.parameter_defaults()
    unused = {name: defaults[name] for name in (*PromptSpec.model_fields, "recipe", "continue_from")}
    classifier = fit.classifier.unfitted(method=method, **unused)
    begin = time.perf_counter()
    classifier.fit_task(fit.task)
    fitted = time.perf_counter()
    inside = classifier.cross_validate(fit.task)
    if classifier.calibrate and inside is not None:
        classifier.calibration_ = calibration_of(*inside)
    seconds, comparison = (fitted - begin, time.perf_counter() - fitted), fit.comparison
    if comparison is not None:
        last = scored(method, classifier.head_, comparison.eval_set, classifier.calibration_.temperature)
        baselines = [one for one in comparison.results[:-1] if one.title.startswith("zero-shot,")]
        comparison = replace(comparison, results=[*baselines, last])
    return replace(
        fit,
        classifier=classifier,
        seconds=seconds[0],
        calibration_seconds=seconds[1],
        comparison=comparison,
        inside=inside,
    )


def _result(fit: Fit) -> MethodResult:
    classifier, comparison = fit.classifier, fit.unseen
    assert comparison is not None
    inside = fit.inside or classifier.cross_validate(fit.task)
    correct = np.zeros(0, dtype=bool) if inside is None else inside[0].argmax(1) == inside[1]
    return MethodResult(
        classifier.method_,
        comparison.fitted.correct,
        correct,
        classifier.n_trained_,
        classifier.takes_new_names,
        fit,
    )
