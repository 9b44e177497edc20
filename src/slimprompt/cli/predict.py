"""`slimprompt predict`: classify images with a saved prompt or head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from slimprompt.cli.options import Activation, Device, Precision, Pretrained, SkipBad
from slimprompt.cli.printing import print_json, print_table, say
from slimprompt.errors import InputError, choose
from slimprompt.spreadsheet import csv_text


class Prediction(NamedTuple):
    """What is known about one image."""

    image: Path
    answer: str
    """The most likely class, or "none of these" if it is not likely enough."""
    match: float
    """Maximum concept matching: low for an image that is none of the classes."""
    classes: list[tuple[str, float]]
    """The most likely classes with their probabilities, best first."""


def predict(
    prompt: Annotated[Path, typer.Argument(help="Folder of a saved prompt or head, or hf:user/name.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per image.")] = 1,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated other class names: the same prompt on new classes (not for heads, but zero-shot)."
        ),
    ] = None,
    min_confidence: Annotated[
        float | None,
        typer.Option(min=0, max=1, help='Answer "none of these" if the probability of the best class is lower.'),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="The same, with the confidence that this fraction of the training images reached when they were held out.",
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    pretrained: Pretrained = None,
    activation: Activation = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    skip_bad_images: SkipBad = False,
) -> None:
    """Classify images with a saved prompt or head.

    Example: slimprompt predict my-prompt a.jpg b.jpg --top 3
    Example: slimprompt predict my-prompt a.jpg --classes "red panda,otter"
    Example: slimprompt predict my-prompt a.jpg --coverage 0.9
    """
    if min_confidence is not None and coverage is not None:
        raise InputError(
            "--min-confidence and --coverage both set the lowest confidence of an answer: give one of them"
        )
    write = choose("format", format, {"table": _print_predictions, "json": _print_json, "csv": _print_csv})
    from slimprompt.images.files import image_files

    paths = image_files(images)
    names = parse_class_names(classes) if classes is not None else None
    from slimprompt.classifiers.calibration import NONE_OF_THESE
    from slimprompt.classifiers.head import load_classifier

    paths, skipped = _readable(paths) if skip_bad_images else (paths, [])
    classifier = load_classifier(
        prompt, pretrained=pretrained, activation=activation, device=device, precision=precision
    )
    if names is not None:
        classifier = classifier.with_classes(names)
    lowest = classifier.calibration_.threshold(coverage) if coverage is not None else min_confidence or 0.0
    features = classifier.encode(paths)
    predictions = []
    for path, row, match in zip(
        paths, classifier.probabilities(features), classifier.concept_match(features), strict=True
    ):
        best = [(str(classifier.classes_[index]), float(row[index])) for index in row.argsort()[::-1][:top]]
        answer = best[0][0] if best[0][1] >= lowest else NONE_OF_THESE
        predictions.append(Prediction(path, answer, float(match), best))
    write(predictions)
    if skipped:
        say(f"{len(skipped)} unreadable images skipped: {skipped[0]}", err=True)


def parse_class_names(text: str) -> list[str]:
    """Class names from a comma-separated list."""
    names = [name.strip() for name in text.split(",")]
    if any(not name for name in names):
        raise InputError(f'--classes {text!r} holds an empty name; write them as "red panda,otter"')
    return names


def _readable(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The images that can be read, and messages about the others."""
    from slimprompt.images.files import open_image

    good, messages = [], []
    for path in paths:
        try:
            open_image(path)
            good.append(path)
        except InputError as error:
            messages.append(str(error))
    return good, messages


def _print_predictions(predictions: Sequence[Prediction]) -> None:
    rows = []
    for one in predictions:
        for place, (name, value) in enumerate(one.classes):
            shown = name if place or one.answer == name else f"{one.answer} (best: {name})"
            rows.append((one.image if place == 0 else "", shown, f"{100 * value:.1f} %"))
    print_table(("image", "class", "probability"), rows, right=("probability",))


def _print_json(predictions: Sequence[Prediction]) -> None:
    rows = [
        {
            "image": str(one.image),
            "answer": one.answer,
            "concept_match": round(one.match, 6),
            "classes": [{"name": name, "probability": round(value, 6)} for name, value in one.classes],
        }
        for one in predictions
    ]
    print_json(rows)


def _print_csv(predictions: Sequence[Prediction]) -> None:
    rows = [
        (str(one.image), place, name, f"{value:.6f}", one.answer, f"{one.match:.6f}")
        for one in predictions
        for place, (name, value) in enumerate(one.classes, 1)
    ]
    say(csv_text(("image", "rank", "class", "probability", "answer", "concept_match"), rows).rstrip("\n"))
