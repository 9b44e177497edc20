"""`slimprompt predict`: classify images with a saved prompt or head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slimprompt.cli.options import Activation, Device, Precision, Pretrained, SkipBad
from slimprompt.cli.printing import print_json, print_table, say
from slimprompt.errors import InputError, choose
from slimprompt.spreadsheet import csv_text

#: An image and its most likely classes with their probabilities, best first.
Prediction = tuple[Path, list[tuple[str, float]]]


def predict(
    prompt: Annotated[Path, typer.Argument(help="Folder of a saved prompt or head.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per image.")] = 1,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated other class names: the same prompt on new classes (not for heads, but zero-shot)."
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
    """
    write = choose("format", format, {"table": _print_predictions, "json": _print_json, "csv": _print_csv})
    from slimprompt.images.files import image_files

    paths = image_files(images)
    names = parse_class_names(classes) if classes is not None else None
    from slimprompt.classifiers.head import load_classifier

    paths, skipped = _readable(paths) if skip_bad_images else (paths, [])
    classifier = load_classifier(
        prompt, pretrained=pretrained, activation=activation, device=device, precision=precision
    )
    if names is not None:
        classifier = classifier.with_classes(names)
    probabilities = classifier.predict_proba(paths)
    write(
        [
            (path, [(str(classifier.classes_[index]), float(row[index])) for index in row.argsort()[::-1][:top]])
            for path, row in zip(paths, probabilities, strict=True)
        ]
    )
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
    rows = [
        (path if place == 0 else "", name, f"{100 * value:.1f} %")
        for path, best in predictions
        for place, (name, value) in enumerate(best)
    ]
    print_table(("image", "class", "probability"), rows, right=("probability",))


def _print_json(predictions: Sequence[Prediction]) -> None:
    rows = [
        {"image": str(path), "classes": [{"name": name, "probability": round(value, 6)} for name, value in best]}
        for path, best in predictions
    ]
    print_json(rows)


def _print_csv(predictions: Sequence[Prediction]) -> None:
    rows = [
        (str(path), place, name, f"{value:.6f}")
        for path, best in predictions
        for place, (name, value) in enumerate(best, 1)
    ]
    say(csv_text(("image", "rank", "class", "probability"), rows).rstrip("\n"))
