"""`slimprompt evaluate`: measure a saved prompt or head on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.fit_results import (
    note_missing_classes,
    note_skipped,
    note_training_images,
    print_classes,
    write_report,
)
from slimprompt.cli.options import (
    Activation,
    ClassNames,
    DataRoot,
    Device,
    Model,
    NoCache,
    Precision,
    Pretrained,
    SkipBad,
    Templates,
    Verbose,
    explain_unreadable,
    names_of_codes,
    note_codes,
)
from slimprompt.cli.printing import count, note, print_json, print_table, say
from slimprompt.errors import InputError, choose, did_you_mean
from slimprompt.extras import require_extra
from slimprompt.files import check_outputs
from slimprompt.names import name_key

if TYPE_CHECKING:
    from slimprompt.classifiers.fitting import HeadComparison
    from slimprompt.data import Benchmark

#: Similarity from which a new class name may be a misspelt known one; as difflib measures it, from 0 to 1.
_CLOSE = 0.75


def evaluate(
    model: Model,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="Labelled images: <class>/<image>, {train,test}/<class>/<image>, of which test is used, or a CSV."
        ),
    ] = None,
    class_names: ClassNames = None,
    benchmark: Annotated[str | None, typer.Option(help="Evaluate on the test images of a benchmark.")] = None,
    data_root: DataRoot = None,
    template: Templates = None,
    pretrained: Pretrained = None,
    activation: Activation = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    no_cache: NoCache = False,
    skip_bad_images: SkipBad = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page: accuracy per class, calibration, confusions, worst mistakes."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the page of --report.")] = False,
    verbose: Verbose = False,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Measure a saved prompt or head on labelled images, beside zero-shot: accuracy, balanced scores, log loss, calibration.

    The folder's classes are the prompt's, or all of them are new: then the prompt is used on the folder's class names. Of the
    heads, only zero-shot takes new class names.

    Example: slimprompt evaluate my-prompt photos/test
    """
    choose("format", format, {"table": None, "json": None})
    if (source is None) == (benchmark is None):
        raise InputError("evaluate on what? Give either a folder (or CSV) of labelled images or --benchmark NAME")
    names_by_label = names_of_codes(class_names, benchmark)
    if source is not None and not source.exists():
        raise InputError(f"no such folder or CSV file: {source}")
    if report is not None:
        check_outputs(page=report, overwrite=overwrite, read=(source,))
        require_extra("lab", "the page of --report")
    from slimprompt.classifiers.fitting import compare_with_zero_shot, readable
    from slimprompt.classifiers.head import load_classifier
    from slimprompt.data.folder import load_eval_folder
    from slimprompt.hub import model_folder
    from slimprompt.images.bank import FeatureBank
    from slimprompt.saved.models import read_description
    from slimprompt.text.tokens import name_tokens

    model = model_folder(model)
    classifier = load_classifier(
        model, pretrained=pretrained, activation=activation, device=device, precision=precision
    )
    known = [str(name) for name in classifier.classes_]
    # Two spellings with equal tokens are one class: names read from a CoOp checkpoint have lost their spelling.
    tokens = cache(partial(name_tokens, classifier.backbone_))
    images = (
        load_eval_folder(source, known, tokens, names=names_by_label)
        if source
        else _test_images(str(benchmark), data_root)
    )
    if source:
        note_codes(images.class_names, "--class-names gives their words")
    n_new = len({tokens(name) for name in images.class_names} - {tokens(name) for name in known})
    names = list(dict.fromkeys(images.class_names))  # ImageNet has two names twice: each is one class of a prompt
    if names != known:
        classifier = classifier.with_classes(names)
    bank = FeatureBank(classifier.backbone_, None if no_cache else "default")
    with explain_unreadable(skip_bad=skip_bad_images):
        items, skipped = readable(bank, images, images.test, skip_bad=skip_bad_images)
    templates = template or read_description(model).templates or images.templates
    comparison = compare_with_zero_shot(classifier, bank, images, items, templates)

    counts = {"images": len(items), "classes": len(names), "new_classes": n_new, "left_out": len(skipped)}
    page = None if report is None else write_report(report, classifier, comparison, templates)
    if format == "json":
        _print_json(comparison, counts)
        return
    new = f", {n_new} of them new to the {comparison.kind}" if n_new else ""
    n_present = len(names) - len(comparison.classes_without_images)
    which = f"{n_present} of the {len(names)}" if n_present < len(names) else f"{len(names)}"
    say(f"{count(len(items), 'image')} of {which} classes{new}")
    if n_new == len(names):
        question = _closest_question(names, known)
        note(
            f"none of these names is a class of the {comparison.kind}{f' ({question})' if question else ''}:",
            "it is evaluated on the new names",
        )
    note_skipped(skipped)
    _print_scores(comparison)
    note_missing_classes(comparison, "images")
    note_training_images(comparison)
    if verbose:
        print_classes(comparison)
    if page is not None:
        say(f"report: {page}")


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


def _print_json(comparison: HeadComparison, counts: dict[str, int]) -> None:
    """Print counts, accuracies, all scores and the accuracy of each class; the scores without training images if there are some."""
    zero_shot, *_, own = (found.to_json() for found in comparison.details.values())
    training: dict[str, Any] = {"training_images": None if comparison.known is None else comparison.n_known}
    if comparison.n_known:
        others = comparison.without_training_images()
        training["without_training_images"] = list(others.details.values())[-1].to_json() if others else None
    metrics = {"zero_shot": zero_shot, comparison.kind: own}
    per_class = [
        {"name": name, "images": n, "zero_shot": before if n else None, comparison.kind: after if n else None}
        for name, n, before, after in comparison.by_class()
    ]
    missing = {"classes_without_images": comparison.classes_without_images}
    entries = {**counts, **missing, **training, **comparison.scores, "metrics": metrics, "per_class": per_class}
    print_json(entries, indent=None)


def _print_scores(comparison: HeadComparison) -> None:
    """Print one line of scores per classifier, and chance."""
    rows = [
        (
            title,
            f"{found.accuracy.value:.1f} %",
            f"{found.accuracy.low:.1f}–{found.accuracy.high:.1f}",
            *(f"{value:.1f} %" for value in (found.balanced_accuracy, found.macro_f1)),
            f"{found.log_loss:.3f}",
            f"{found.calibration_error:.1f} %",
        )
        for title, found in comparison.details.items()
    ]
    n_classes = len(comparison.eval_set.class_names)
    rows.append((f"chance ({n_classes} classes)", f"{100 / n_classes:.1f} %", *("–",) * 5))
    headings = ("", "accuracy", "95 % interval", "balanced", "macro F1", "log loss", "calibration error")
    print_table(headings, rows, right=headings[1:])
