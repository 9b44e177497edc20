"""`slimprompt suggest`: the unlabelled images most worth labelling."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slimprompt.cli.options import Model, ModelOptions, OutputFormat, OverwriteTable, model_options
from slimprompt.cli.printing import Format, emit, note, say
from slimprompt.errors import count
from slimprompt.files import check_outputs, path_seen_from

if TYPE_CHECKING:
    from slimprompt.curation.suggest import Suggestions


@model_options(without=("backbone",))
def suggest(
    model: Model,
    images: list[Path] = typer.Argument(..., help="Unlabelled image files, or folders of them."),
    n: int = typer.Option(50, min=1, help="Number of images to suggest."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write the suggestions to this .csv file."),
    overwrite: OverwriteTable = False,
    report: Path | None = typer.Option(None, help="Write a page on which the images can be labelled, a .html file."),
    labelled: Path | None = typer.Option(
        None, help="Labelled images, a folder or CSV file, that the CSV file of the page should also have."
    ),
    format: OutputFormat = Format.table,
    *,
    model_options: ModelOptions,
) -> None:
    """Suggest which images to label next.

    Among the images with the smallest margin between the two most likely classes, those that differ most from each other are
    chosen; near-duplicates are not suggested twice, and training images of the model not at all.

    Example: slimprompt suggest my-prompt unlabelled/ --n 50 --report suggestions.html --labelled photos/
    """
    from slimprompt.data import load_folder
    from slimprompt.images.decode import image_files

    paths = image_files(images)
    known = load_folder(labelled) if labelled is not None else None
    check_outputs(table=out, page=report, overwrite=overwrite, read=(labelled,))
    from slimprompt.curation.suggest import suggest_images

    classifier = model_options.load_classifier(model)
    with model_options.reading():
        found = suggest_images(classifier, model_options.bank(classifier.backbone_), paths, n)
    if out is not None:
        emit(_rows(found, out.parent), Format.csv, out)
    if report is not None:
        from slimprompt.report.curation_pages import write_suggestions_page

        write_suggestions_page(report, found, model=str(model), classifier=classifier, labelled=known)
    if format is Format.table:
        _print_suggestions(found)
        for name, target in (("suggestions", out), ("page to label the images", report)):
            if target is not None:
                say(f"{name}: {target}")
    else:
        facts = {
            "images": found.n_images,
            "near_duplicates": found.n_duplicates,
            "training_images": found.n_trained,
            "unreadable": found.unreadable,
        }
        emit(_rows(found, Path()), format, facts=facts, key="suggestions")
    end_with_unreadable(found.unreadable, skip=model_options.skip_bad_images)


def _rows(found: Suggestions, folder: Path) -> list[dict[str, Any]]:
    """One row per suggestion, with paths as they are seen from a folder.

    `label` is empty, to be filled in: a CSV file of these rows is one of path,label, which `fit` takes.
    """
    return [
        {
            "rank": rank,
            "path": path_seen_from(folder, one.image),
            "label": None,
            "class": one.best,
            "probability": round(one.probability, 6),
            "second_class": one.second,
            "second_probability": round(one.second_probability, 6),
            "margin": round(one.margin, 6),
            "similarity": None if one.similarity is None else round(one.similarity, 6),
        }
        for rank, one in enumerate(found.chosen, start=1)
    ]


def _print_suggestions(found: Suggestions) -> None:
    from slimprompt.calibration import probability_text

    folder, names = told_apart([one.image for one in found.chosen])
    say(f"{len(found.chosen)} of {count(found.n_images, 'image')} to label next{folder and f', in {folder}'}")
    if found.n_trained:
        note(f"{count(found.n_trained, 'training image')} of the model left out:", "they have labels already")
    rows = [{**row, "path": name} for row, name in zip(_rows(found, Path()), names, strict=True)]
    columns: dict[str, Callable[[Any], str]] = {
        **dict.fromkeys(("path", "class"), str),
        "probability": probability_text,
        "second_class": str,
    }
    emit(rows, columns=columns)
    if found.n_duplicates:
        say(f"{count(found.n_duplicates, 'near-duplicate')} of these or of other uncertain images left out")


def told_apart(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """The folder that all paths have in common, and what tells them apart in it.

    >>> told_apart([Path("photos/a/1.jpg"), Path("photos/b/1.jpg")])
    ('photos', ['a/1.jpg', 'b/1.jpg'])
    """
    try:
        folder = os.path.commonpath([path.parent for path in paths])
    except ValueError:  # no paths, or relative and absolute ones
        folder = ""
    return folder, [str(path.relative_to(folder)) for path in paths]


def end_with_unreadable(messages: Sequence[str], *, skip: bool) -> None:
    """Name every image that could not be read, and end with exit code 1; with code 0 if such images are to be skipped."""
    if not messages:
        return
    note(f"{count(len(messages), 'unreadable image')} left out:", err=True)
    for message in messages:
        say(f"  {message}", err=True)
    if not skip:
        say("--skip-bad-images accepts that: the exit code is then 0", err=True)
        raise typer.Exit(1)
