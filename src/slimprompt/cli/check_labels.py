"""`slimprompt check-labels`: suspected label errors and near-duplicates in labelled images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slimprompt.cli.options import ModelOptions, OutputFormat, OverwriteTable, model_options, note_toy
from slimprompt.cli.printing import Format, emit, note, percent, say
from slimprompt.cli.suggest import end_with_unreadable, told_apart
from slimprompt.errors import count, first_few
from slimprompt.files import check_outputs, path_seen_from

if TYPE_CHECKING:
    from slimprompt.curation.labels import LabelCheck, LabelledImage

#: Findings of each kind that are printed.
_SHOWN = 20
#: Columns of a file of findings.
_LABEL = ("score", "probability", "suggested_class", "suggested_probability")
_PAIR = ("other_path", "other_split", "other_class", "similarity", "pixel_correlation")
_COLUMNS = ("finding", "path", "split", "class", *_LABEL, *_PAIR)


@model_options()
def check_labels(
    source: Path = typer.Argument(
        ..., help="photos/<class>/<image>, photos/{train,test}/<class>/<image>, or a CSV of path,label."
    ),
    max_score: float | None = typer.Option(
        None, help="Suspect labels with a lower score, above 0 and at most 1; default: 0.1."
    ),
    similarity: float | None = typer.Option(
        None, help="Smallest cosine similarity of the features of near-duplicates, at most 1; default: 0.97."
    ),
    out: Path | None = typer.Option(None, "--out", "-o", help="Write all findings to this .csv file."),
    overwrite: OverwriteTable = False,
    report: Path | None = typer.Option(None, help="Write a page on which the labels can be corrected, a .html file."),
    format: OutputFormat = Format.table,
    *,
    model_options: ModelOptions,
) -> None:
    """Find labels that may be wrong, and near-duplicates across classes or between train and test.

    The score of a label is its cross-validated probability, divided by the mean of this probability over the images with the same
    label. Nothing is changed: look at the images and decide, for instance on the page of --report.

    Example: slimprompt check-labels photos/ --out findings.csv --report findings.html
    """
    from slimprompt.data import load_folder

    images = load_folder(source)
    check_outputs(table=out, page=report, overwrite=overwrite, read=(source,))
    from slimprompt.curation import labels
    from slimprompt.curation.duplicates import SIMILARITY, check_similarity

    similarity = check_similarity(SIMILARITY if similarity is None else similarity)
    max_score = labels.check_max_score(labels.MAX_SCORE if max_score is None else max_score)
    model = model_options.load_backbone()
    with model_options.reading():
        found = labels.check_labels(model_options.bank(model), images, max_score=max_score, similarity=similarity)
    if out is not None:
        emit(_rows(found, out.parent), Format.csv, out, names=_COLUMNS)
    if report is not None:
        from slimprompt.report.curation_pages import write_labels_page

        write_labels_page(report, found, source=str(source), backbone=model, max_score=max_score, similarity=similarity)
    if format is Format.table:
        note_toy(model)
        _print_findings(found, max_score)
        for kind, target in (("findings", out), ("page to correct the labels", report)):
            if target is not None:
                say(f"{kind}: {target}")
    else:
        facts = {
            "images": len(found.images),
            "classes": len(found.class_names),
            "accuracy": found.accuracy,
            "unchecked": found.unchecked,
            "unreadable": found.unreadable,
        }
        emit(_rows(found, Path()), format, facts=facts, names=_COLUMNS, key="findings")
    end_with_unreadable(found.unreadable, skip=model_options.skip_bad_images)


def _rows(found: LabelCheck, folder: Path) -> list[dict[str, Any]]:
    """One row per finding, with paths as they are seen from a folder: suspected labels, then pairs of duplicates."""

    def described(image: LabelledImage, prefix: str = "") -> dict[str, Any]:
        path = path_seen_from(folder, image.path)
        return {f"{prefix}path": path, f"{prefix}split": image.split, f"{prefix}class": image.class_name}

    empty, no_pair = dict.fromkeys(_LABEL), dict.fromkeys(_PAIR)
    suspects = [
        {
            "finding": "label",
            **described(one.image),
            "score": round(one.score, 6),
            "probability": round(one.probability, 6),
            "suggested_class": one.suggested,
            "suggested_probability": round(one.suggested_probability, 6),
            **no_pair,
        }
        for one in found.suspects
    ]
    duplicates = [
        {
            "finding": f"{'exact' if pair.exact else 'near'} duplicate {pair.kind}",
            **described(pair.first),
            **empty,
            **described(pair.second, "other_"),
            "similarity": round(pair.similarity, 6),
            "pixel_correlation": round(pair.pixels, 6),
        }
        for pair in found.duplicates
    ]
    return [*suspects, *duplicates]


def _print_findings(found: LabelCheck, max_score: float) -> None:
    folder, names = told_apart([image.path for image in found.images])
    name_of = {path_seen_from(Path(), image.path): name for image, name in zip(found.images, names, strict=True)}
    rows = [
        row | {key: name_of[row[key]] for key in ("path", "other_path") if row[key]} for row in _rows(found, Path())
    ]
    say(f"{count(len(found.images), 'image')} of {len(found.class_names)} classes{folder and f', in {folder}'}")
    if found.unchecked:
        few = first_few([f"{name} ({number})" for name, number in found.unchecked.items()])
        note("classes with too few images to check their labels:", few)
    from slimprompt.curation.labels import nothing_suspected

    if found.accuracy is not None:
        say(
            f"cross-validated accuracy {percent(found.accuracy)} of the given labels; "
            f"{count(len(found.suspects), 'suspected label error')} (score below {max_score:g})"
        )
        if nothing := nothing_suspected(found, max_score):
            say(nothing)
    suspects, pairs = rows[: len(found.suspects)], rows[len(found.suspects) :]
    columns: dict[str, Callable[[Any], str]] = {
        **dict.fromkeys(("path", "class"), str),
        "score": "{:.3f}".format,
        "suggested_class": str,
    }
    emit(suspects[:_SHOWN], columns=columns)
    _print_more(len(suspects))
    say(f"{count(len(pairs), 'pair')} of near-duplicates across classes or splits")
    emit(pairs[:_SHOWN], columns=dict.fromkeys(("finding", "path", "other_path"), str))
    _print_more(len(pairs))


def _print_more(n_found: int) -> None:
    if n_found > _SHOWN:
        say(f"… and {n_found - _SHOWN:,} more (--out and --report show all)")
