"""The page about one fitted classifier: accuracy against zero-shot, per class, calibration, confusions and misclassified images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slimprompt.calibration import reliability_bins
from slimprompt.classifier import Classifier
from slimprompt.clip.architectures import EMBEDDED
from slimprompt.comparison import MethodComparison
from slimprompt.files import write_file
from slimprompt.fit import Comparison
from slimprompt.images.decode import ImageSource, open_image
from slimprompt.report.fit_figures import confusion_matrix, reliability_diagram, training_curve
from slimprompt.report.html import render, thumbnail, weights_of
from slimprompt.report.plotting import Figure
from slimprompt.report.table import Cell, Column, Table, make_table
from slimprompt.scores import Accuracy, Difference, Scores

#: Number of misclassified images and of confused class pairs that the page shows.
_MISTAKES, _PAIRS = 24, 30


class Mistake(NamedTuple):
    """A misclassified image, with the probabilities of the predicted and of the true class."""

    image: str
    thumbnail: str
    true: str
    predicted: str
    confidence: float
    of_true: float
    zero_shot: str


@dataclass(frozen=True)
class FitFindings:
    """The content of the page as plain data."""

    n_images: int
    n_classes: int
    title: str
    """What the classifier is called: "learned prompt", or its method."""
    noun: str
    """The classifier in a sentence."""
    n_known: int | None
    """Number of images that were training images; None if the training images are not known."""
    unseen: Accuracy | None
    """Accuracy on the other images; None if there are none or all are."""
    zero_shot: Accuracy
    scores: Scores
    """Of the classifier."""
    reliability: Figure
    agreement: dict[str, int]
    """Number of images that both, only the classifier, only zero-shot or neither classified correctly."""
    verdict: str
    """Whether the classifier is better than zero-shot on images that it was not trained on; empty if it is zero-shot."""
    classes: Table
    confused: Table
    confusion: Figure
    mistakes: tuple[Mistake, ...]
    n_mistakes: int


def measure_fit(classifier: Classifier, comparison: Comparison) -> FitFindings:
    """Compare a fitted classifier with zero-shot on labelled images."""
    fitted, zero_shot, names = comparison.fitted, comparison.zero_shot, comparison.eval_set.class_names
    truth, probabilities, title = fitted.labels, fitted.probabilities, fitted.title
    predicted, before = probabilities.argmax(1), zero_shot.probabilities.argmax(1)
    counts = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(counts, (truth, predicted), 1)
    right, was_right, scores = fitted.correct, zero_shot.correct, fitted.scores
    gained, lost = int((right & ~was_right).sum()), int((~right & was_right).sum())
    wrong = np.flatnonzero(~right)
    worst = wrong[np.argsort(-probabilities[wrong, predicted[wrong]], kind="stable")][:_MISTAKES]
    unseen = comparison.without_training_images()
    others = unseen if comparison.n_training_images else None
    return FitFindings(
        n_images=len(truth),
        n_classes=len(names),
        title=title,
        noun=comparison.noun,
        n_known=None if comparison.is_training_image is None else comparison.n_training_images,
        unseen=others.fitted.scores.accuracy if others else None,
        zero_shot=zero_shot.scores.accuracy,
        scores=scores,
        reliability=reliability_diagram(reliability_bins(probabilities.max(1), right), scores.calibration_error),
        agreement={
            "both right": int((right & was_right).sum()),
            f"only {_with_article(title)}": gained,
            "only zero-shot": lost,
            "both wrong": int((~right & ~was_right).sum()),
        },
        verdict=unseen.verdict.sentence if unseen and unseen.verdict else "",
        classes=_class_table(names, title, truth, was_right, right),
        confused=_confused_table(names, counts),
        confusion=confusion_matrix(names, counts),
        mistakes=tuple(
            _mistake(comparison.images[i], names, truth[i], predicted[i], before[i], probabilities[i]) for i in worst
        ),
        n_mistakes=len(wrong),
    )


def _with_article(title: str) -> str:
    return "the learned prompt" if title == "learned prompt" else title


def _class_table(
    names: Sequence[str], title: str, truth: np.ndarray, was_right: np.ndarray, right: np.ndarray
) -> Table:
    rows = []
    for label, name in enumerate(names):
        in_class = truth == label
        count = int(in_class.sum())
        cells = (Cell(),) * 3
        if count:
            was, now = 100 * was_right[in_class].mean(), 100 * right[in_class].mean()
            change = Cell(float(now - was), decimals=0, signed=True)
            cells = (Cell(float(was), decimals=0), Cell(float(now), decimals=0), change)
        rows.append(((name, str(count)), cells))
    columns = (Column("Zero-shot (%)"), Column(f"{title[:1].upper()}{title[1:]} (%)"), Column("Change (points)"))
    return make_table("classes", "Accuracy per class", ("Class", "Images"), columns, rows)


def _methods_table(methods: MethodComparison) -> Table:
    """All methods on the same held-out images, with paired intervals of their differences."""

    def difference(value: Difference | None) -> tuple[Cell, Cell]:
        if value is None:
            return Cell(), Cell()
        low, high = (f"{number:+.1f}".replace("-", "−") for number in (value.low, value.high))
        return Cell(value.value, decimals=1, signed=True), Cell(f"{low} to {high}")

    rows = []
    for one in methods.results:
        gain = None if one is methods.zero_shot else methods.gain(one)
        behind = None if one is methods.chosen else methods.behind(one)
        inside = Cell() if one.inside is None else Cell(100 * one.inside, decimals=1, bold=one is methods.chosen)
        accuracy = Cell(one.accuracy.value, decimals=1, bold=one is methods.chosen)
        facts = Cell(f"{one.n_trained:,}"), Cell("yes" if one.takes_new_names else "no")
        rows.append(((one.method,), (accuracy, inside, *difference(gain), *difference(behind), *facts)))
    heads = (
        "Held out (%)",
        "Cross-validated (%)",
        "− zero-shot (points)",
        "95 % interval",
        "− chosen (points)",
        "its interval",
    )
    columns = [Column(name) for name in (*heads, "Trained numbers", "New class names")]
    note = "The chosen method is bold: the best in cross-validation, in which the held-out images take no part."
    return make_table("methods", "Methods", ("Method",), columns, rows, (note,))


def _confused_table(names: Sequence[str], counts: np.ndarray) -> Table:
    pairs = [(int(counts[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j and counts[i, j]]
    rows = []
    for count, i, j in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:]))[:_PAIRS]:
        share = 100.0 * count / int(counts[i].sum())
        rows.append(((names[i], names[j]), (Cell(float(count), decimals=0), Cell(share, decimals=0))))
    omitted = len(pairs) - len(rows)
    notes = (f"Less frequent pairs that are not shown: {omitted}.",) if omitted > 0 else ()
    columns = (Column("Images"), Column("% of the true class"))
    return make_table("confused", "Most confused pairs", ("True class", "Predicted class"), columns, rows, notes)


def _mistake(
    image: ImageSource, names: Sequence[str], truth: int, predicted: int, before: int, probabilities: np.ndarray
) -> Mistake:
    return Mistake(
        "/".join(Path(image).parts[-2:]) if isinstance(image, str | Path) else "image",
        thumbnail(open_image(image)),
        names[truth],
        names[predicted],
        float(probabilities[predicted]),
        float(probabilities[truth]),
        names[before],
    )


# ---------------------------------------------------------------- the page


def _about(classifier: Classifier) -> list[tuple[str, str]]:
    """(label, value) lines on what was trained, and how."""
    spec, prompt, recipe = classifier.spec_, classifier.prompt_, classifier.recipe_
    if spec is None or prompt is None:
        settings = "".join(f", {name} {value:g}" for name, value in classifier.settings_.items())
        return [
            ("Method", f"{classifier.method_}{settings}: {classifier.n_trained_:,} trained numbers"),
            ("Training", f"the eval view and {classifier.views_} train views of each image, seed {classifier.seed_}"),
        ]
    rank, basis = (spec.rank and f"rank {spec.rank}"), (spec.basis and f"{spec.basis} basis")
    variant = ", ".join(part for part in (spec.variant, rank, basis, *spec.start) if part)
    size = f"{classifier.n_trained_:,} trainable parameters, {prompt.n_ctx} context tokens"
    return [
        ("Prompt", f"{variant}: {size}, class name at the {spec.position}"),
        ("Training", f"{recipe.describe()}, seed {classifier.seed_}" if recipe else "by other software"),
    ]


def render_fit_page(
    classifier: Classifier,
    findings: FitFindings,
    *,
    templates: Sequence[str],
    methods: MethodComparison | None = None,
) -> str:
    """The HTML page; `templates` are the hand-written prompts of the zero-shot classifier, `methods` all methods on the same images."""
    backbone, curve = classifier.backbone_, classifier.curve_
    about = [
        *_about(classifier),
        ("Model", weights_of(backbone)),
        ("Hand-written prompt", "; ".join(templates) + (" (averaged)" if len(templates) > 1 else "")),
        ("Temperature of the probabilities", f"{classifier.calibration_.temperature:.2f}"),
    ]
    kind = "prompt" if classifier.prompt_ is not None else f"{classifier.method_} classifier"
    sections = ("Summary", *(["Methods"] if methods else []), "Classes", "Calibration", "Confusion", "Mistakes")
    values = {
        "title": f"A {kind} for {findings.n_classes} classes",
        "kind": "learned text prompt" if classifier.prompt_ is not None else kind,
        "contents": [(name.lower(), name) for name in sections],
        "findings": findings,
        "methods": methods and _methods_table(methods),
        "methods_verdict": methods and methods.sentence,
        "about": about,
        "curve": training_curve([(epoch.loss, epoch.accuracy) for epoch in curve]) if curve else None,
        "pocket": backbone.name in EMBEDDED,
    }
    return render("fit.html.j2", values)


def write_fit_page(
    path: Path,
    classifier: Classifier,
    comparison: Comparison,
    *,
    templates: Sequence[str],
    methods: MethodComparison | None = None,
) -> Path:
    """Measure a fitted classifier on labelled images and write the page to `path`."""
    findings = measure_fit(classifier, comparison)
    return write_file(path, render_fit_page(classifier, findings, templates=templates, methods=methods))
