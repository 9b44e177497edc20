"""The page about one fitted classifier: accuracy against zero-shot, calibration, errors, and the words nearest to a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slimprompt.calibration import reliability_bins
from slimprompt.classifier import Classifier
from slimprompt.clip.architectures import EMBEDDED
from slimprompt.clip.backbone import Backbone
from slimprompt.files import write_file
from slimprompt.fit import Comparison
from slimprompt.images.decode import ImageSource, open_image
from slimprompt.report.fit_figures import confusion_matrix, reliability_diagram, training_curve
from slimprompt.report.html import render, thumbnail
from slimprompt.report.plotting import Figure
from slimprompt.report.table import Cell, Column, Row, Table
from slimprompt.scores import Accuracy, Scores, mcnemar

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


class NearWords(NamedTuple):
    """The vocabulary words nearest to one context vector, with their distances."""

    position: int
    norm: float
    words: tuple[tuple[str, float], ...]


class NearestWords(NamedTuple):
    """The vocabulary words nearest to each context vector, and for comparison how far words are from each other."""

    by_vector: tuple[NearWords, ...]
    distance: float
    """Median distance of a vocabulary word to its nearest other word."""
    norm: float
    """Median norm of a vocabulary word."""


@dataclass(frozen=True)
class FitFindings:
    """The content of the page as plain data."""

    n_images: int
    n_classes: int
    title: str
    """What the classifier is called: "learned prompt", or its method."""
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
    p_value: float
    """Exact two-sided McNemar test."""
    classes: Table
    confused: Table
    confusion: Figure
    mistakes: tuple[Mistake, ...]
    n_mistakes: int
    words: NearestWords | None
    """Of a prompt."""


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
    words = None
    if classifier.prompt_ is not None:
        context = classifier.prompt_().detach()
        first = context if context.ndim == 2 else context[0]  # only the first layer of the text tower reads words
        words = nearest_words(classifier.backbone_, first)
    others = comparison.without_training_images() if comparison.n_training_images else None
    return FitFindings(
        n_images=len(truth),
        n_classes=len(names),
        title=title,
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
        p_value=mcnemar(right, was_right),
        classes=_class_table(names, title, truth, was_right, right),
        confused=_confused_table(names, counts),
        confusion=confusion_matrix(names, counts),
        mistakes=tuple(
            _mistake(comparison.images[i], names, truth[i], predicted[i], before[i], probabilities[i]) for i in worst
        ),
        n_mistakes=len(wrong),
        words=words,
    )


def _with_article(title: str) -> str:
    return "the learned prompt" if title == "learned prompt" else title


def _class_table(
    names: Sequence[str], title: str, truth: np.ndarray, was_right: np.ndarray, right: np.ndarray
) -> Table:
    rows = []
    for label, name in enumerate(names):
        mine = truth == label
        count = int(mine.sum())
        cells = (Cell(),) * 3
        if count:
            was, now = 100 * was_right[mine].mean(), 100 * right[mine].mean()
            change = Cell(float(now - was), decimals=0, signed=True)
            cells = (Cell(float(was), decimals=0), Cell(float(now), decimals=0), change)
        rows.append(Row((name, str(count)), cells))
    columns = (Column("Zero-shot (%)"), Column(f"{title[:1].upper()}{title[1:]} (%)"), Column("Change (points)"))
    return Table("classes", "Accuracy per class", ("Class", "Images"), columns, tuple(rows))


def _confused_table(names: Sequence[str], counts: np.ndarray) -> Table:
    pairs = [(int(counts[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j and counts[i, j]]
    rows = []
    for count, i, j in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:]))[:_PAIRS]:
        share = 100.0 * count / int(counts[i].sum())
        rows.append(Row((names[i], names[j]), (Cell(float(count), decimals=0), Cell(share, decimals=0))))
    omitted = len(pairs) - len(rows)
    notes = (f"{omitted} less frequent pairs are not shown.",) if omitted > 0 else ()
    columns = (Column("Images"), Column("% of the true class"))
    return Table("confused", "Most confused pairs", ("True class", "Predicted class"), columns, tuple(rows), notes)


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


def nearest_words(backbone: Backbone, context: Tensor, n_words: int = 4) -> NearestWords:
    """Vocabulary words nearest to each context vector by Euclidean distance ‖context − embedding‖.

    Parameters
    ----------
    backbone
        The model whose token embeddings are compared.
    context
        Context vectors, (n_ctx, width).
    n_words
        Words per context vector.
    """
    with torch.inference_mode():
        table = backbone.text_tower.token_embedding.weight.detach().float()  # (vocabulary, width)
        distances = torch.cdist(context.float().to(table.device), table)  # (n_ctx, vocabulary)
        nearest = distances.topk(min(n_words, len(table)), largest=False)
        sample = table[:: max(1, len(table) // 256)]
        to_others = torch.cdist(sample, table).kthvalue(2, dim=1).values  # the smallest is the word itself
        found = tuple(
            NearWords(
                position,
                float(vector.norm()),
                tuple((_word(backbone, int(token)), float(far)) for token, far in zip(tokens, values, strict=True)),
            )
            for position, (vector, tokens, values) in enumerate(
                zip(context, nearest.indices, nearest.values, strict=True), start=1
            )
        )
        return NearestWords(found, float(to_others.median()), float(table.norm(dim=1).median()))


def _word(backbone: Backbone, token: int) -> str:
    decode = getattr(backbone.tokenizer, "decode", None) or backbone.tokenizer.tokenizer.decode
    text = str(decode([token])).strip()
    return text or f"token {token}"


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
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """The HTML page.

    Parameters
    ----------
    classifier
        The fitted classifier.
    findings
        Result of `measure_fit`.
    templates
        Hand-written prompts of the zero-shot classifier.
    facts
        Further (label, value) lines, such as ("Training images", "16 per class").
    """
    backbone = classifier.backbone_
    weights = f" ({backbone.pretrained})" if backbone.pretrained else ""
    about = [
        *_about(classifier),
        ("Model", f"{backbone.name}{weights}, weights {backbone.fingerprint[:12]}"),
        ("Hand-written prompt", "; ".join(templates) + (" (averaged)" if len(templates) > 1 else "")),
        ("Temperature of the probabilities", f"{classifier.calibration_.temperature:.2f}"),
        *facts,
    ]
    curve = classifier.curve_
    contents = {
        "summary": "Summary",
        "classes": "Classes",
        "calibration": "Calibration",
        "confusion": "Confusion",
        "mistakes": "Mistakes",
        **({"words": "Context words"} if findings.words else {}),
    }
    kind = "prompt" if classifier.prompt_ is not None else f"{classifier.method_} classifier"
    return render(
        "fit.html.j2",
        {
            "title": f"A {kind} for {findings.n_classes} classes",
            "contents": list(contents.items()),
            "findings": findings,
            "about": about,
            "curve": training_curve([(epoch.loss, epoch.accuracy) for epoch in curve]) if curve else None,
            "pocket": backbone.name in EMBEDDED,
        },
    )


def write_fit_page(
    path: Path,
    classifier: Classifier,
    comparison: Comparison,
    *,
    templates: Sequence[str],
    facts: Sequence[tuple[str, str]] = (),
) -> Path:
    """Measure a fitted classifier on labelled images and write the page to `path`."""
    findings = measure_fit(classifier, comparison)
    return write_file(path, render_fit_page(classifier, findings, templates=templates, facts=facts))
