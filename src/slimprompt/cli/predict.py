"""`slimprompt predict`: classify images with a saved model, a few or a large collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slimprompt.cli.fit_results import note_skipped
from slimprompt.cli.options import Model, ModelOptions, OtherClasses, OutputFormat, model_options, parse_class_names
from slimprompt.cli.printing import Format, emit, note, percent, say
from slimprompt.cli.stopping import resumable
from slimprompt.errors import InputError, choose, count

if TYPE_CHECKING:
    from slimprompt.collections.predict import PartPredictor, Summary
    from slimprompt.collections.rows import Prediction

_EXECUTORS = {"local": "this process", "ray": "Ray, on this machine or a cluster"}
_EXECUTOR_HELP = "; ".join(f"{name}: {what}" for name, what in _EXECUTORS.items()) + "."
_LARGE = "Large collections (with --out)"
#: Answers shown in the summary.
_MOST_ANSWERS = 20


@model_options(without=("backbone", "cache"))
def predict(
    model: Model,
    images: list[Path] = typer.Argument(
        ...,
        help="Image files, or folders of them. With --out also CSV and Parquet files with a column of paths or images, "
        "and WebDataset shards (shards/{000..009}.tar).",
    ),
    top: int = typer.Option(1, min=1, help="Number of classes to show per image."),
    classes: OtherClasses = None,
    min_confidence: float | None = typer.Option(
        None, min=0, max=1, help='Answer "none of these" if the probability of the best class is lower.'
    ),
    coverage: float | None = typer.Option(
        None,
        min=0,
        max=1,
        help='Answer "none of these" below the confidence that this fraction of the training images reached when held out.',
    ),
    format: OutputFormat = Format.table,
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        help="Instead of printing, write rows to this folder, as Parquet files of 1,024 images each, which is resumed if it was "
        "stopped; or to one .csv, .jsonl or .parquet file. Unreadable images are rows with an error.",
        rich_help_panel=_LARGE,
    ),
    overwrite: bool = typer.Option(
        False,
        "--overwrite",
        help="Overwrite the file, or discard the rows of another command in the folder.",
        rich_help_panel=_LARGE,
    ),
    column: str | None = typer.Option(
        None,
        help="Column of the tables with the paths or contents of the images; default: path or image.",
        rich_help_panel=_LARGE,
    ),
    batch_size: int | None = typer.Option(
        None,
        min=1,
        help="Images that are encoded together; more may be faster on a GPU. Changes results by float rounding. Default: 32.",
        rich_help_panel=_LARGE,
    ),
    executor: str = typer.Option("local", help=_EXECUTOR_HELP, rich_help_panel=_LARGE),
    address: str | None = typer.Option(
        None, help="ray: a running cluster, auto or host:port; default: this machine.", rich_help_panel=_LARGE
    ),
    cpus: int | None = typer.Option(
        None,
        min=1,
        help="ray: CPUs per worker; default: those of a machine divided by its GPUs, or 1.",
        rich_help_panel=_LARGE,
    ),
    gpus: float | None = typer.Option(
        None,
        min=0.0,
        help="ray: GPUs per worker, such as 0.25; default: 1 if the cluster has GPUs.",
        rich_help_panel=_LARGE,
    ),
    *,
    model_options: ModelOptions,
) -> None:
    """Classify images with a saved model.

    Answers for a few images are printed. With --out, those for any number of images are written to a folder: stop it at any time, and
    re-run the same command to resume. Images that cannot be read are named, and the others are answered; the exit code is then 1, with
    --out only if no image could be read.

    Example: slimprompt predict my-prompt a.jpg b.jpg --top 3
    Example: slimprompt predict my-prompt a.jpg --classes "red panda,otter"
    Example: slimprompt predict my-prompt a.jpg --coverage 0.9
    Example: slimprompt predict my-prompt photos/ --out predictions
    Example: slimprompt predict my-prompt "shards/{000..009}.tar" --out predictions --executor ray
    """
    choose("executor", executor, _EXECUTORS)
    if executor != "ray" and (address, cpus, gpus) != (None, None, None):
        raise InputError("--address, --cpus and --gpus are for the Ray executor: add --executor ray")
    if out is None and (overwrite or column is not None or batch_size is not None or executor != "local"):
        raise InputError("--overwrite, --column, --batch-size and --executor are for large collections: add --out")
    if out is not None and (format is not Format.table or model_options.skip_bad_images):
        raise InputError(
            "--format and --skip-bad-images are not for --out: its name says the format, and unreadable images are rows with an error"
        )
    answering: dict[str, Any] = {
        "top": top,
        "classes": None if classes is None else tuple(parse_class_names(classes)),
        "min_confidence": min_confidence,
        "coverage": coverage,
        **model_options.model_dump(include={"pretrained", "activation", "device", "precision"}),
        **({} if batch_size is None else {"batch_size": batch_size}),
    }
    if out is None:
        _predict_few(model, images, answering, model_options, format)
        return
    if executor == "ray" and model_options.max_megapixels is not None:
        raise InputError("--max-megapixels is for images that this process reads; Ray's workers have Pillow's limit")
    from slimprompt.collections.inputs import open_collection
    from slimprompt.collections.output import writer_of

    writer_of(out)  # an unknown suffix is an error before anything is read
    collection = open_collection(images, column)
    from slimprompt.collections.predict import LocalPredictor, PredictionSpec, predict_collection

    spec = PredictionSpec(model.as_posix(), **answering)  # hf:user/name also on Windows
    make: Callable[[], PartPredictor] = partial(LocalPredictor, spec)
    if executor == "ray":
        from slimprompt.collections.ray import RayPredictor

        make = partial(RayPredictor, spec, address=address, cpus=cpus, gpus=gpus)
    left = "nothing half-written is left"
    if not out.suffix:
        left = f"finished parts are in {out}; re-run the same command to resume"
    with model_options.reading(), resumable(left):
        summary = predict_collection(collection, out, make, overwrite=overwrite)
    _print_summary(summary, out)


# --- a few images ----------------------------------------------------------------------------------------------------


def _predict_few(
    model: Path, images: Sequence[Path], answering: dict[str, Any], options: ModelOptions, format: Format
) -> None:
    from slimprompt.collections.inputs import Item, is_list
    from slimprompt.images.decode import image_files

    if lists := [str(given) for given in images if is_list(given.as_posix())]:
        raise InputError(
            f"{lists[0]} is not an image file or a folder of images: tables, shards and patterns need --out, such as "
            "--out predictions.csv"
        )
    paths = image_files(images)
    from slimprompt.collections.parts import Part
    from slimprompt.collections.places import File
    from slimprompt.collections.predict import LocalPredictor, PredictionSpec
    from slimprompt.images.encoding import BATCH
    from slimprompt.progress import progress

    predictor = LocalPredictor(PredictionSpec(model.as_posix(), **answering, batch_size=min(len(paths), BATCH)))
    part = Part(0, [Item(str(path), File(str(path))) for path in paths])
    with options.reading(), progress("encoding images", len(paths), "images") as advance:
        (finished,) = predictor.predict_parts([part], advance)
    _print_predictions([one for one in finished.predictions if one.error is None], format)
    errors = [one.error for one in finished.predictions if one.error is not None]
    if options.skip_bad_images:
        note_skipped(errors, err=True)
    elif errors:
        for message in errors:
            say(message, err=True)
        note(f"{count(len(errors), 'image')} of {len(paths):,} could not be read", "", err=True)
        raise typer.Exit(1)


def _print_predictions(predictions: Sequence[Prediction], format: Format) -> None:
    """A table of probabilities; JSON with one object per image; or CSV with one row per image and class."""
    from slimprompt.calibration import probability_text
    from slimprompt.collections.rows import COLUMNS, six_digits

    if format is Format.json:
        emit([one.as_json() for one in predictions], format)
        return
    if format is Format.csv:
        cells = [six_digits(row) for one in predictions for row in one.cells()]
        emit([dict(zip(COLUMNS, row, strict=True)) for row in cells], format)
        return
    rows = []
    for one in predictions:
        for place, (name, value) in enumerate(one.classes):
            shown = name if place or one.answer == name else f"{one.answer} (best: {name})"
            rows.append({"image": "" if place else one.image, "class": shown, "probability": value})
    emit(rows, columns={"image": str, "class": str, "probability": probability_text})


# --- a collection ----------------------------------------------------------------------------------------------------


def _print_summary(summary: Summary, out: Path) -> None:
    images, errors = summary.answers.total(), summary.answers[None]
    say(f"{count(images, 'image')} in {out}{f', {errors:,} of them unreadable (column error)' if errors else ''}")
    readable = images - errors
    answers = [(answer, n) for answer, n in summary.answers.most_common() if answer is not None]
    listed = answers[:_MOST_ANSWERS]
    rows = [{"answer": answer, "images": n, "share": n / readable} for answer, n in listed]
    emit(rows, columns={"answer": str, "images": "{:,}".format, "share": percent})
    if len(answers) > len(listed):
        say(f"and {len(answers) - len(listed):,} more answers")
    done = summary.predicted + summary.failed
    failed = f", {summary.failed:,} failed" if summary.failed else ""
    finished = f"; {images - done:,} were finished before" if done < images else ""
    say(f"{count(summary.predicted, 'image')} predicted{failed}, {done / summary.seconds:,.1f} images/s{finished}")
    if not readable:
        note(f"none of the {count(images, 'image')} could be read:", "see the column error")
        raise typer.Exit(1)
