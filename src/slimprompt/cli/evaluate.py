"""`slimprompt evaluate`: measure a saved prompt on labelled images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimprompt.cli.fit import note_skipped, print_comparison
from slimprompt.cli.options import DataRoot, Device, NoCache, Precision, Pretrained, SkipBad, Templates, Verbose
from slimprompt.errors import InputError, choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slimprompt.data import Benchmark


def evaluate(
    prompt: Annotated[Path, typer.Argument(help="Folder of a saved prompt.")],
    source: Annotated[
        Path | None, typer.Argument(help="Labelled images: <class>/<image>, {train,test}/<class>/<image>, or a CSV.")
    ] = None,
    benchmark: Annotated[str | None, typer.Option(help="Evaluate on the test images of a benchmark.")] = None,
    data_root: DataRoot = None,
    template: Templates = None,
    pretrained: Pretrained = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    no_cache: NoCache = False,
    skip_bad_images: SkipBad = False,
    verbose: Verbose = False,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Measure a saved prompt on labelled images, beside the zero-shot accuracy.

    The folder's classes are the prompt's, or all of them are new: then the prompt is used on the folder's class names.

    Example: slimprompt evaluate my-prompt photos/test
    """
    choose("format", format, {"table": None, "json": None})
    from slimprompt.classifier import PromptClassifier, saved_description
    from slimprompt.fitting import compare_with_zero_shot, readable
    from slimprompt.images.bank import FeatureBank

    description = saved_description(prompt)
    images = _images(source, benchmark, data_root, description["class_names"])
    classifier = PromptClassifier.load(prompt, pretrained=pretrained, device=device, precision=precision)
    if list(images.class_names) != list(classifier.classes_):
        classifier = classifier.with_classes(images.class_names)
    bank = FeatureBank(classifier.backbone_, None if no_cache else "default")
    items, skipped = readable(bank, images, images.test or images.train, skip_bad=skip_bad_images)
    templates = template or description.get("templates") or images.templates
    comparison = compare_with_zero_shot(classifier, bank, images, items, templates)

    n_new = len(set(images.class_names) - set(description["class_names"]))
    counts = {"images": len(items), "classes": len(images.class_names), "new_classes": n_new, "left_out": len(skipped)}
    if format == "json":
        typer.echo(json.dumps({**counts, **comparison.scores}))
        return
    new = f", {n_new} of them new to the prompt" if n_new else ""
    typer.echo(f"{len(items)} images of {len(images.class_names)} classes{new}")
    note_skipped(skipped)
    print_comparison(comparison, verbose=verbose)


def _images(source: Path | None, benchmark: str | None, data_root: Path | None, names: Sequence[str]) -> Benchmark:
    from slimprompt.data import load_benchmark
    from slimprompt.data.folder import load_eval_folder

    if benchmark is None and source is not None:
        return load_eval_folder(source, names)
    if benchmark is None or source is not None:
        raise InputError("evaluate on what? Give either a folder (or CSV) of labelled images or --benchmark NAME")
    return load_benchmark(benchmark, data_root)
