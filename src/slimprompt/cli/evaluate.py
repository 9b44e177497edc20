"""`slimprompt evaluate`: measure a saved prompt or head on labelled images."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from slimprompt.cli.fit import note_skipped, print_comparison
from slimprompt.cli.options import (
    Activation,
    DataRoot,
    Device,
    NoCache,
    Precision,
    Pretrained,
    SkipBad,
    Templates,
    Verbose,
)
from slimprompt.cli.printing import print_json, say
from slimprompt.errors import InputError, choose


def evaluate(
    prompt: Annotated[Path, typer.Argument(help="Folder of a saved prompt or head.")],
    source: Annotated[
        Path | None, typer.Argument(help="Labelled images: <class>/<image>, {train,test}/<class>/<image>, or a CSV.")
    ] = None,
    benchmark: Annotated[str | None, typer.Option(help="Evaluate on the test images of a benchmark.")] = None,
    data_root: DataRoot = None,
    template: Templates = None,
    pretrained: Pretrained = None,
    activation: Activation = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    no_cache: NoCache = False,
    skip_bad_images: SkipBad = False,
    verbose: Verbose = False,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Measure a saved prompt or head on labelled images, beside the zero-shot accuracy.

    The folder's classes are the prompt's, or all of them are new: then the prompt is used on the folder's class names. Of the
    heads, only zero-shot takes new class names.

    Example: slimprompt evaluate my-prompt photos/test
    """
    choose("format", format, {"table": None, "json": None})
    if (source is None) == (benchmark is None):
        raise InputError("evaluate on what? Give either a folder (or CSV) of labelled images or --benchmark NAME")
    if source is not None and not source.exists():
        raise InputError(f"no such folder or CSV file: {source}")
    from slimprompt.classifiers.fitting import compare_with_zero_shot, readable
    from slimprompt.classifiers.head import HeadClassifier, load_classifier
    from slimprompt.data import load_benchmark
    from slimprompt.data.folder import load_eval_folder
    from slimprompt.images.bank import FeatureBank
    from slimprompt.saved.prompt import read_prompt
    from slimprompt.text.tokens import name_tokens

    classifier = load_classifier(
        prompt, pretrained=pretrained, activation=activation, device=device, precision=precision
    )
    known = [str(name) for name in classifier.classes_]
    # Two spellings with equal tokens are one class: names read from a CoOp checkpoint have lost their spelling.
    tokens = cache(partial(name_tokens, classifier.backbone_))
    images = load_eval_folder(source, known, tokens) if source else load_benchmark(str(benchmark), data_root)
    n_new = len({tokens(name) for name in images.class_names} - {tokens(name) for name in known})
    names = list(dict.fromkeys(images.class_names))  # ImageNet has two names twice: each is one class of a prompt
    if names != known:
        classifier = classifier.with_classes(names)
    bank = FeatureBank(classifier.backbone_, None if no_cache else "default")
    items, skipped = readable(bank, images, images.test or images.train, skip_bad=skip_bad_images)
    own = classifier.templates if isinstance(classifier, HeadClassifier) else read_prompt(prompt).description.templates
    templates = template or own or images.templates
    comparison = compare_with_zero_shot(classifier, bank, images, items, templates)

    counts = {"images": len(items), "classes": len(names), "new_classes": n_new, "left_out": len(skipped)}
    if format == "json":
        print_json({**counts, **comparison.scores}, indent=None)
        return
    new = f", {n_new} of them new to the {comparison.kind}" if n_new else ""
    say(f"{len(items)} images of {len(names)} classes{new}")
    note_skipped(skipped)
    print_comparison(comparison, verbose=verbose)
