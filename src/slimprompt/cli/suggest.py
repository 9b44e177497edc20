"""`slimprompt suggest`: the unlabelled images most worth labelling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimprompt.cli.fit_results import note_skipped
from slimprompt.cli.options import Model, ModelOptions, OverwriteTable, all_but, model_options
from slimprompt.cli.printing import note, print_json, print_table, say
from slimprompt.errors import choose
from slimprompt.files import check_outputs, path_seen_from, write_file
from slimprompt.spreadsheet import csv_text

if TYPE_CHECKING:
    from slimprompt.curation.suggest import Suggestions


@model_options(*all_but("backbone"))
def suggest(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Unlabelled image files, or folders of them.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Number of images to suggest.")] = 50,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the suggestions to this .csv file.")] = None,
    overwrite: OverwriteTable = False,
    report: Annotated[Path | None, typer.Option(help="Write a page with thumbnails, a .html file.")] = None,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    *,
    model_options: ModelOptions,
) -> None:
    """Suggest which images to label next.

    Among the images with the smallest margin between the two most likely classes, those that differ most from each other are
    chosen; near-duplicates are not suggested twice, and training images of the model not at all.

    Example: slimprompt suggest my-prompt unlabelled/ --n 50 --out suggestions.csv --report suggestions.html
    """
    choose("format", format, {"table": None, "json": None})
    from slimprompt.images.decode import image_files

    paths = image_files(images)
    check_outputs(table=out, page=report, overwrite=overwrite)
    from slimprompt.curation.suggest import suggest_images

    classifier = model_options.load_classifier(model)
    bank = model_options.bank(classifier.backbone_)
    with model_options.reading():
        found = suggest_images(classifier, bank, paths, n, skip_bad=model_options.skip_bad_images)
    if out is not None:
        write_file(out, csv_text(_COLUMNS, _csv_rows(found, out.parent)))
    if report is not None:
        from slimprompt.report.curation_pages import write_suggestions_page

        write_suggestions_page(report, found, model=str(model), backbone=classifier.backbone_)
    if format == "json":
        _print_json(found)
        return
    _print_suggestions(found)
    for name, target in (("suggestions", out), ("report", report)):
        if target is not None:
            say(f"{name}: {target}")


#: `label` is empty, to be filled in: the file is then one of path,label, which `fit` takes.
_COLUMNS = (
    "rank",
    "path",
    "label",
    "class",
    "probability",
    "second_class",
    "second_probability",
    "margin",
    "similarity",
)


def _csv_rows(found: Suggestions, folder: Path) -> list[tuple[object, ...]]:
    """Rows of a file in `folder`."""
    rows: list[tuple[object, ...]] = []
    for rank, one in enumerate(found.chosen, start=1):
        image, best, probability, second, second_probability, margin, similarity = one
        shown = "" if similarity is None else f"{similarity:.6f}"
        numbers = (f"{probability:.6f}", second, f"{second_probability:.6f}", f"{margin:.6f}", shown)
        rows.append((rank, path_seen_from(folder, image), "", best, *numbers))
    return rows


def _print_json(found: Suggestions) -> None:
    rows = [
        {
            "image": str(one.image),
            "classes": [
                {"name": one.best, "probability": round(one.probability, 6)},
                {"name": one.second, "probability": round(one.second_probability, 6)},
            ],
            "margin": round(one.margin, 6),
            "similarity": None if one.similarity is None else round(one.similarity, 6),
        }
        for one in found.chosen
    ]
    counts = {"images": found.n_images, "near_duplicates": found.n_duplicates, "training_images": found.n_trained}
    print_json({**counts, "left_out": len(found.skipped), "suggestions": rows})


def _print_suggestions(found: Suggestions) -> None:
    from slimprompt.calibration import probability_text

    say(f"{len(found.chosen)} of {found.n_images:,} images to label next")
    note_skipped(found.skipped)
    if found.n_trained:
        note(f"{found.n_trained:,} training images of the model left out:", "they have labels already")
    rows = [
        (
            one.image,
            one.best,
            probability_text(one.probability),
            one.second,
            probability_text(one.second_probability),
            f"{100 * one.margin:.1f}",
            "–" if one.similarity is None else f"{one.similarity:.3f}",
        )
        for one in found.chosen
    ]
    headings = ("image", "class", "probability", "second class", "its probability", "margin", "similarity")
    print_table(headings, rows, right=("probability", "its probability", "margin", "similarity"))
    if found.n_duplicates:
        say(f"{found.n_duplicates:,} near-duplicates of these or of other uncertain images left out")
