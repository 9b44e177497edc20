"""`slimprompt check-labels`: suspected label errors and near-duplicates in labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.fit_results import note_skipped
from slimprompt.cli.options import ModelOptions, OverwriteTable, model_options
from slimprompt.cli.printing import count, note, print_json, print_table, say
from slimprompt.errors import choose, first_few
from slimprompt.files import check_outputs, path_seen_from, write_file
from slimprompt.spreadsheet import csv_text

if TYPE_CHECKING:
    from slimprompt.curation.labels import DuplicatePair, LabelCheck, LabelledImage, SuspectedLabel

#: Findings of each kind that are printed.
_SHOWN = 20


@model_options()
def check_labels(
    source: Annotated[
        Path,
        typer.Argument(help="photos/<class>/<image>, photos/{train,test}/<class>/<image>, or a CSV of path,label."),
    ],
    max_score: Annotated[
        float | None,
        typer.Option(help="Suspect labels with a lower score, above 0 and at most 1; default: 0.1."),
    ] = None,
    similarity: Annotated[
        float | None,
        typer.Option(help="Smallest cosine similarity of the features of near-duplicates, at most 1; default: 0.97."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write all findings to this .csv file.")] = None,
    overwrite: OverwriteTable = False,
    report: Annotated[Path | None, typer.Option(help="Write a page with thumbnails, a .html file.")] = None,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    *,
    model_options: ModelOptions,
) -> None:
    """Find labels that may be wrong, and near-duplicates across classes or between train and test.

    The score of a label is its cross-validated probability, divided by the mean of this probability over the images with the same
    label. Nothing is changed: look at the images and decide.

    Example: slimprompt check-labels photos/ --out findings.csv --report findings.html
    """
    choose("format", format, {"table": None, "json": None})
    from slimprompt.data import load_folder

    images = load_folder(source)
    check_outputs(table=out, page=report, overwrite=overwrite, read=(source,))
    from slimprompt.clip.architectures import EMBEDDED
    from slimprompt.curation import labels
    from slimprompt.curation.duplicates import SIMILARITY, check_similarity

    similarity = check_similarity(SIMILARITY if similarity is None else similarity)
    max_score = labels.check_max_score(labels.MAX_SCORE if max_score is None else max_score)
    model = model_options.load_backbone()
    bank, skip_bad = model_options.bank(model), model_options.skip_bad_images
    with model_options.reading():
        found = labels.check_labels(bank, images, max_score=max_score, similarity=similarity, skip_bad=skip_bad)
    if out is not None:
        write_file(out, csv_text(_COLUMNS, _csv_rows(found, out.parent)))
    if report is not None:
        from slimprompt.report.curation_pages import write_labels_page

        write_labels_page(report, found, source=str(source), backbone=model, max_score=max_score, similarity=similarity)
    if format == "json":
        _print_json(found)
        return
    if model.name in EMBEDDED:
        note(f"{model.name} is a toy model:", "it has only seen rendered shapes; for photographs, leave --backbone out")
    _print_findings(found, max_score)
    for kind, target in (("findings", out), ("report", report)):
        if target is not None:
            say(f"{kind}: {target}")


_COLUMNS = (
    "finding",
    "path",
    "split",
    "class",
    "score",
    "probability",
    "suggested_class",
    "suggested_probability",
    "other_path",
    "other_split",
    "other_class",
    "similarity",
    "pixel_correlation",
)


def _csv_rows(found: LabelCheck, folder: Path) -> list[tuple[object, ...]]:
    """Rows of a file in `folder`."""

    def described(image: LabelledImage) -> tuple[str, str, str]:
        return path_seen_from(folder, image.path), image.split, image.class_name

    rows: list[tuple[object, ...]] = []
    for image, score, probability, suggested, its_probability in found.suspects:
        numbers = (f"{score:.6f}", f"{probability:.6f}", suggested, f"{its_probability:.6f}")
        rows.append(("label", *described(image), *numbers, "", "", "", "", ""))
    for pair in found.duplicates:
        one, other = described(pair.first), described(pair.second)
        rows.append((_kind(pair), *one, "", "", "", "", *other, f"{pair.similarity:.6f}", f"{pair.pixels:.6f}"))
    return rows


def _kind(pair: DuplicatePair) -> str:
    return f"{'exact' if pair.exact else 'near'} duplicate {pair.kind}"


def _print_json(found: LabelCheck) -> None:
    def described(image: LabelledImage) -> dict[str, str]:
        return {"image": str(image.path), "split": image.split, "class": image.class_name}

    def suspect(one: SuspectedLabel) -> dict[str, Any]:
        numbers = {"score": round(one.score, 6), "probability": round(one.probability, 6)}
        suggested = {"name": one.suggested, "probability": round(one.suggested_probability, 6)}
        return {**described(one.image), **numbers, "suggested": suggested}

    def duplicate(pair: DuplicatePair) -> dict[str, Any]:
        images = [described(pair.first), described(pair.second)]
        numbers = {"similarity": round(pair.similarity, 6), "pixel_correlation": round(pair.pixels, 6)}
        return {"finding": _kind(pair), "images": images, **numbers}

    print_json(
        {
            "images": found.n_images,
            "classes": found.n_classes,
            "accuracy": None if found.accuracy is None else 100 * found.accuracy,
            "labels": [suspect(one) for one in found.suspects],
            "duplicates": [duplicate(pair) for pair in found.duplicates],
            "unchecked": found.unchecked,
            "left_out": len(found.skipped),
        }
    )


def _print_findings(found: LabelCheck, max_score: float) -> None:
    say(f"{found.n_images:,} images of {found.n_classes} classes")
    note_skipped(found.skipped)
    if found.unchecked:
        few = first_few([f"{name} ({number})" for name, number in found.unchecked.items()])
        note("classes with too few images to check their labels:", few)
    if found.accuracy is not None:
        say(
            f"cross-validated accuracy {100 * found.accuracy:.1f} % of the given labels; "
            f"{count(len(found.suspects), 'suspected label error')} (score below {max_score:g})"
        )
    _print_suspects(found.suspects)
    say(f"{count(len(found.duplicates), 'pair')} of near-duplicates across classes or splits")
    _print_duplicates(found.duplicates)


def _print_suspects(suspects: Sequence[SuspectedLabel]) -> None:
    from slimprompt.calibration import probability_text

    if not suspects:
        return
    rows = [
        (
            one.image.path,
            one.image.class_name,
            f"{one.score:.3f}",
            one.suggested,
            probability_text(one.suggested_probability),
        )
        for one in suspects[:_SHOWN]
    ]
    headings = ("image", "label", "score", "more likely", "probability")
    print_table(headings, rows, right=("score", "probability"))
    _print_more(len(suspects))


def _print_duplicates(pairs: Sequence[DuplicatePair]) -> None:
    if not pairs:
        return
    rows = [
        (_kind(pair), pair.first.path, pair.second.path, f"{pair.similarity:.4f}", f"{pair.pixels:.4f}")
        for pair in pairs[:_SHOWN]
    ]
    headings = ("finding", "image", "other image", "similarity", "pixels")
    print_table(headings, rows, right=headings[3:])
    _print_more(len(pairs))


def _print_more(n_found: int) -> None:
    if n_found > _SHOWN:
        say(f"… and {n_found - _SHOWN:,} more (--out and --report show all)")
