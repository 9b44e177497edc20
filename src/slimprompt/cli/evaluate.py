"""`slimprompt evaluate`: measure a saved prompt or head on labelled images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slimprompt.cli.fit_results import note_missing_classes, note_skipped, note_training_images, print_classes
from slimprompt.cli.options import (
    ClassNames,
    DataRoot,
    Model,
    ModelOptions,
    OutputFormat,
    Templates,
    Verbose,
    model_options,
    names_of_codes,
    note_codes,
)
from slimprompt.cli.printing import Format, emit, note, percent, print_json, say
from slimprompt.errors import InputError, count, did_you_mean
from slimprompt.extras import require_extra
from slimprompt.files import check_outputs
from slimprompt.names import name_key

if TYPE_CHECKING:
    from slimprompt.data import Benchmark
    from slimprompt.fit import Comparison, Scored

#: Similarity from which a new class name may be a misspelt known one; as difflib measures it, from 0 to 1.
_CLOSE = 0.75


@model_options(without=("backbone",))
def evaluate(
    model: Model,
    source: Path | None = typer.Argument(
        None, help="Labelled images: <class>/<image>, {train,test}/<class>/<image>, of which test is used, or a CSV."
    ),
    class_names: ClassNames = None,
    benchmark: str | None = typer.Option(None, help="Evaluate on the test images of a benchmark."),
    data_root: DataRoot = None,
    template: Templates = None,
    report: Path | None = typer.Option(
        None, help="Write an HTML page: accuracy per class, calibration, confusions, worst mistakes."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Overwrite the page of --report."),
    verbose: Verbose = False,
    format: OutputFormat = Format.table,
    *,
    model_options: ModelOptions,
) -> None:
    """Measure a saved model on labelled images, beside zero-shot: accuracy, balanced scores, log loss, calibration.

    The folder's classes are those of the model, or all of them are new: then a prompt, or zero-shot, is used on the folder's class
    names. JSON and CSV give shares as fractions between 0 and 1; CSV has one row per class.

    Example: slimprompt evaluate my-prompt photos/test
    """
    if (source is None) == (benchmark is None):
        raise InputError("evaluate on what? Give either a folder (or CSV) of labelled images or --benchmark NAME")
    names_by_label = names_of_codes(class_names, benchmark)
    if source is not None and not source.exists():
        raise InputError(f"no such folder or CSV file: {source}")
    if report is not None:
        check_outputs(page=report, overwrite=overwrite, read=(source,))
        require_extra("lab", "the page of --report")
    from slimprompt.data.folder import load_eval_folder
    from slimprompt.fit import compare_with_zero_shot, readable
    from slimprompt.text.tokens import name_tokens

    classifier = model_options.load_classifier(model)
    known = [str(name) for name in classifier.classes_]
    # Two spellings with equal tokens are one class: names read from a CoOp checkpoint have lost their spelling.
    tokens = cache(partial(name_tokens, classifier.backbone_))
    if source is None:
        images = _test_images(str(benchmark), data_root)
    else:
        images = load_eval_folder(source, known, tokens, names=names_by_label, codes=classifier.codes_)
        note_codes(images.class_names, "--class-names gives their words")
    n_new = len({tokens(name) for name in images.class_names} - {tokens(name) for name in known})
    names = list(images.class_names)
    if names != known:
        classifier = classifier.with_classes(names, distinct=source is not None)
    bank = model_options.bank(classifier.backbone_.frozen)
    with model_options.reading():
        items, skipped = readable(bank, images, images.test, skip_bad=model_options.skip_bad_images)
        templates = template or classifier.templates_
        comparison = compare_with_zero_shot(classifier, bank, images, items, templates)
        if report is not None:
            from slimprompt.report.fit_page import write_fit_page

            write_fit_page(report, classifier, comparison, templates=templates)

    if format is Format.json:
        _print_json(comparison, {"images": len(items), "new_classes": n_new, "left_out": len(skipped)})
        return
    if format is Format.csv:
        emit(_class_rows(comparison), format)
        return
    new = f", {n_new} of them new to the model" if n_new else ""
    n_present = len(names) - len(comparison.classes_without_images)
    which = f"{n_present} of the {len(names)}" if n_present < len(names) else f"{len(names)}"
    say(f"{count(len(items), 'image')} of {which} classes{new}")
    if n_new == len(names):
        question = _closest_question(names, known)
        note(
            f"none of these names is a class of the model{f' ({question})' if question else ''}:",
            "it is evaluated on the new names",
        )
    note_skipped(skipped)
    _print_scores(comparison)
    note_missing_classes(comparison, "images")
    note_training_images(comparison)
    if verbose:
        print_classes(comparison)
    others = comparison.without_training_images()
    if others is not None and others.verdict is not None:
        say(others.verdict.sentence)
    if report is not None:
        say(f"report: {report}")


def _closest_question(names: Sequence[str], known: Sequence[str]) -> str:
    """A question that suggests a known name for the first name that is close to one; empty if none is."""
    by_key = {name_key(name): name for name in known}
    for name in names:
        close = get_close_matches(name_key(name), by_key, n=1, cutoff=_CLOSE)
        if question := did_you_mean(name, [by_key[key] for key in close]):
            return question
    return ""


def _test_images(benchmark: str, data_root: Path | None) -> Benchmark:
    from slimprompt.data import check_images, load_benchmark

    images = replace(load_benchmark(benchmark, data_root), train=(), val=())
    check_images(images)
    return images


def _class_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The accuracy of each class, as fractions; None without images."""
    return [
        {"name": name, "images": n, "zero_shot": before if n else None, "model": after if n else None}
        for name, n, before, after in comparison.by_class()
    ]


def _print_json(comparison: Comparison, counts: dict[str, int]) -> None:
    """Print counts, accuracies, all scores and the accuracy of each class; the scores without training images if there are some."""
    known, others = comparison.is_training_image, comparison.without_training_images()
    content: dict[str, Any] = {
        **counts,
        "classes": len(comparison.eval_set.class_names),
        "classes_without_images": comparison.classes_without_images,
        "training_images": None if known is None else comparison.n_training_images,
    }
    if comparison.n_training_images:
        content["without_training_images"] = others.fitted.scores.to_json() if others else None
    gain = others.verdict.gain if others and others.verdict else None
    content |= comparison.accuracies
    content["gain_over_zero_shot"] = gain and {name: value / 100 for name, value in gain._asdict().items()}
    content["metrics"] = {
        "zero_shot": comparison.zero_shot.scores.to_json(),
        "model": comparison.fitted.scores.to_json(),
    }
    print_json(content | {"per_class": _class_rows(comparison)}, indent=None)


def _print_scores(comparison: Comparison) -> None:
    """Print one line of scores per classifier, and chance."""
    n_classes = len(comparison.eval_set.class_names)
    rows = [_score_row(one) for one in comparison.results]
    rows.append({"": f"chance ({n_classes} classes)", "accuracy": 1 / n_classes})
    texts: dict[str, Callable[[Any], str]] = dict.fromkeys(rows[0], percent)
    texts |= {"": str, "95 % interval": str, "log loss": "{:.3f}".format}
    emit(rows, columns=texts)


def _score_row(one: Scored) -> dict[str, Any]:
    scores = one.scores.to_json()
    low, high = (100 * value for value in scores["interval"])
    return {
        "": one.title,
        "accuracy": scores["accuracy"],
        "95 % interval": f"{low:.1f}–{high:.1f}",
        "balanced": scores["balanced_accuracy"],
        "macro F1": scores["macro_f1"],
        "log loss": scores["log_loss"],
        "calibration error": scores["calibration_error"],
    }
