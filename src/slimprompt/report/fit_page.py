"""The page about one fitted prompt: what it gained, where it errs, and what its context vectors are near to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slimprompt.classifier import PromptClassifier
from slimprompt.clip.backbone import EMBEDDED, Backbone
from slimprompt.errors import InputError
from slimprompt.images.bank import ImageSource
from slimprompt.images.files import open_image
from slimprompt.paper.figures import confusion_matrix, training_curve
from slimprompt.report.drawing import Figure
from slimprompt.report.html import describe_recipe, render, thumbnail, write_page
from slimprompt.report.table import Cell, Column, Row, Table
from slimprompt.training.evaluation import class_scores, per_class_accuracy
from slimprompt.training.recipe import make_recipe

#: How many mistakes are shown, and how many confused pairs.
_MISTAKES, _PAIRS = 24, 30


class Accuracy(NamedTuple):
    """Percentage right, with Wilson's 95 % interval."""

    value: float
    low: float
    high: float


class Mistake(NamedTuple):
    """A picture that the prompt got wrong, with its probabilities of the wrong and of the true class."""

    picture: str
    thumbnail: str
    true: str
    predicted: str
    confidence: float
    of_true: float
    zero_shot: str


class NearWords(NamedTuple):
    """The vocabulary words nearest to one context vector, with their distances."""

    place: int
    norm: float
    words: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FitFindings:
    """Everything that the page shows, as plain data."""

    n_images: int
    n_classes: int
    zero_shot: Accuracy
    prompt: Accuracy
    agreement: dict[str, int]
    """Images by who was right: both, only the prompt, only zero-shot, neither."""
    p_value: float
    """Exact two-sided McNemar test of the two disagreements."""
    classes: Table
    confused: Table
    confusion: Figure
    mistakes: tuple[Mistake, ...]
    n_mistakes: int
    words: tuple[NearWords, ...]
    word_distance: float
    """Median distance of a vocabulary word to its nearest other word, to compare with."""
    word_norm: float


def study_fit(
    classifier: PromptClassifier, pictures: Sequence[ImageSource], labels: Tensor, features: Tensor, zero_shot: Tensor
) -> FitFindings:
    """Compare the learned prompt with the hand-written one on labelled images.

    labels (n,): places in `classifier.classes_`. features (n, embed_dim): unit-length, of the same pictures.
    zero_shot (n_classes, embed_dim): class features of the hand-written templates.
    """
    if not len(labels):
        raise InputError("there are no images to report on: hold some out, with fewer --shots or a test folder")
    from scipy.stats import binomtest

    names = [str(name) for name in classifier.classes_]
    truth = labels.cpu().numpy()
    probabilities = classifier.probabilities(features)  # (n, n_classes)
    said = probabilities.argmax(1)
    before = class_scores(features, zero_shot).argmax(1).cpu().numpy()
    counts = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(counts, (truth, said), 1)
    right, was_right = said == truth, before == truth
    gained, lost = int((right & ~was_right).sum()), int((~right & was_right).sum())
    agreement = {
        "both right": int((right & was_right).sum()),
        "only the learned prompt": gained,
        "only zero-shot": lost,
        "both wrong": int((~right & ~was_right).sum()),
    }
    wrong = np.flatnonzero(~right)
    worst = wrong[np.argsort(-probabilities[wrong, said[wrong]], kind="stable")][:_MISTAKES]
    context = classifier.prompt_().detach()
    words, distance, norm = nearest_words(classifier.backbone_, context)
    return FitFindings(
        n_images=len(truth),
        n_classes=len(names),
        zero_shot=_accuracy(was_right),
        prompt=_accuracy(right),
        agreement=agreement,
        p_value=float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
        classes=_class_table(names, features, zero_shot, classifier.class_features_, labels),
        confused=_confused_table(names, counts),
        confusion=confusion_matrix(names, counts),
        mistakes=tuple(_mistake(pictures[i], names, truth[i], said[i], before[i], probabilities[i]) for i in worst),
        n_mistakes=len(wrong),
        words=words,
        word_distance=distance,
        word_norm=norm,
    )


def _accuracy(right: np.ndarray) -> Accuracy:
    from scipy.stats import binomtest

    hits, n = int(right.sum()), len(right)
    interval = binomtest(hits, n).proportion_ci(method="wilson")
    return Accuracy(100.0 * hits / n, 100.0 * interval.low, 100.0 * interval.high)


def _class_table(names: Sequence[str], features: Tensor, zero_shot: Tensor, prompt: Tensor, labels: Tensor) -> Table:
    rows = []
    before, after = (per_class_accuracy(features, text, labels) for text in (zero_shot, prompt))
    for name, (was, count), (now, _) in zip(names, before, after, strict=True):
        if count:
            cells = (
                Cell(float(was), decimals=0),
                Cell(float(now), decimals=0),
                Cell(float(now - was), decimals=0, signed=True),
            )
        else:
            cells = (Cell(), Cell(), Cell())
        rows.append(Row((name, str(count)), cells))
    columns = (Column("Zero-shot (%)"), Column("Learned prompt (%)"), Column("Change (points)"))
    return Table("classes", "Accuracy per class", ("Class", "Images"), columns, tuple(rows))


def _confused_table(names: Sequence[str], counts: np.ndarray) -> Table:
    pairs = [(int(counts[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j and counts[i, j]]
    rows = []
    for count, i, j in sorted(pairs, key=lambda one: (-one[0], one[1], one[2]))[:_PAIRS]:
        share = 100.0 * count / int(counts[i].sum())
        rows.append(Row((names[i], names[j]), (Cell(float(count), decimals=0), Cell(share, decimals=0))))
    left = len(pairs) - len(rows)
    notes = (f"{left} rarer pairs are left out.",) if left > 0 else ()
    columns = (Column("Images"), Column("% of the true class"))
    return Table("confused", "Most confused pairs", ("True class", "Taken for"), columns, tuple(rows), notes)


def _mistake(
    picture: ImageSource, names: Sequence[str], truth: int, said: int, before: int, row: np.ndarray
) -> Mistake:
    return Mistake(
        "/".join(Path(picture).parts[-2:]) if isinstance(picture, str | Path) else "picture",
        thumbnail(open_image(picture)),
        names[truth],
        names[said],
        100.0 * float(row[said]),
        100.0 * float(row[truth]),
        names[before],
    )


def nearest_words(backbone: Backbone, context: Tensor, n_words: int = 4) -> tuple[tuple[NearWords, ...], float, float]:
    """Vocabulary words nearest to each context vector (n_ctx, width), by Euclidean distance ‖context − embedding‖.

    Also the median distance of a word to its nearest other word, and the median norm of a word.
    """
    with torch.inference_mode():
        table = backbone.text_tower.token_embedding.weight.detach().float()  # (vocabulary, width)
        distances = torch.cdist(context.float().to(table.device), table)  # (n_ctx, vocabulary)
        nearest = distances.topk(min(n_words, len(table)), largest=False)
        sample = table[:: max(1, len(table) // 256)]
        to_others = torch.cdist(sample, table).kthvalue(2, dim=1).values  # the nearest of all is the word itself
        found = tuple(
            NearWords(
                place + 1,
                float(context[place].norm()),
                tuple(
                    (_word(backbone, int(token)), float(distance))
                    for token, distance in zip(nearest.indices[place], nearest.values[place], strict=True)
                ),
            )
            for place in range(len(context))
        )
        return found, float(to_others.median()), float(table.norm(dim=1).median())


def _word(backbone: Backbone, token: int) -> str:
    decode = getattr(backbone.tokenizer, "decode", None) or backbone.tokenizer.tokenizer.decode
    text = str(decode([token])).strip()
    return text or f"token {token}"


# ---------------------------------------------------------------- the page


def render_fit_page(
    classifier: PromptClassifier,
    findings: FitFindings,
    *,
    templates: Sequence[str],
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """The page as text; `facts` are further lines such as ("Training images", "16 per class")."""
    backbone, prompt = classifier.backbone_, classifier.prompt_
    recipe = make_recipe(classifier.recipe)
    variant = "dense" if classifier.variant == "dense" else f"{classifier.variant}, rank {prompt.rank}"
    if classifier.variant.startswith("fixed"):
        variant += f", {classifier.basis} basis"
    about = [
        (
            "Prompt",
            f"{variant}: {prompt.trainable_parameters:,} trained numbers, {prompt.n_ctx} context tokens, class name at the {classifier.position}",
        ),
        (
            "Model",
            f"{backbone.name}{f' ({backbone.pretrained})' if backbone.pretrained else ''}, weights {backbone.fingerprint[:12]}",
        ),
        ("Hand-written prompt", "; ".join(templates)),
        ("Training", f"{describe_recipe(recipe)}, seed {classifier.seed}"),
        *facts,
    ]
    curve = getattr(classifier, "curve_", None)
    contents = [
        ("summary", "Summary"),
        ("classes", "Classes"),
        ("confusion", "Confusion"),
        ("mistakes", "Mistakes"),
        ("words", "Context words"),
    ]
    return render(
        "fit.html.j2",
        {
            "title": f"A prompt for {findings.n_classes} classes",
            "contents": contents,
            "findings": findings,
            "about": about,
            "curve": training_curve([(epoch.loss, epoch.accuracy) for epoch in curve]) if curve else None,
            "pocket": backbone.name in EMBEDDED,
        },
    )


def write_fit_page(
    path: str | Path,
    classifier: PromptClassifier,
    pictures: Sequence[ImageSource],
    labels: Tensor,
    features: Tensor,
    zero_shot: Tensor,
    *,
    templates: Sequence[str],
    facts: Sequence[tuple[str, str]] = (),
) -> Path:
    """Study the fitted prompt on labelled held-out images and write the page; see `study_fit` for the arguments."""
    findings = study_fit(classifier, pictures, labels, features, zero_shot)
    return write_page(Path(path), render_fit_page(classifier, findings, templates=templates, facts=facts))
