"""`slimprompt fit`, `evaluate`, `predict`, `backbones`: the tool for one's own images."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from slimprompt.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from torch import Tensor

    from slimprompt.classifier import PromptClassifier
    from slimprompt.clip.backbone import Backbone
    from slimprompt.data import Benchmark, Item
    from slimprompt.images.bank import FeatureBank

BackboneName = Annotated[
    str,
    typer.Option(
        "--backbone", help="Model: pocket (embedded), an open_clip name (ViT-B-16, RN50, …), hf-hub:… or local-dir:…"
    ),
]
Pretrained = Annotated[
    str | None,
    typer.Option(
        "--pretrained",
        help="Its weights: an open_clip tag such as openai, a checkpoint file, or random:0 to try things out.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
Precision = Annotated[
    str, typer.Option("--precision", help="Of the frozen model: fp32, bf16 or fp16. The prompt is always fp32.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write image features on disk.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad-images", help="Leave unreadable images out and count them, instead of stopping.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line per class.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of the benchmarks; default: $SLIMPROMPT_DATA.")
]


def fit(
    source: Annotated[
        Path | None,
        typer.Argument(help="photos/<class>/<image>, photos/{train,test}/<class>/<image>, or a CSV of path,label."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the prompt: prompt.safetensors and prompt.json.")
    ] = Path("prompt"),
    shots: Annotated[
        int,
        typer.Option(min=1, help="Training images per class, drawn at random; the others are held out to measure on."),
    ] = 16,
    variant: Annotated[
        str,
        typer.Option(help="fixed-B (train A over a fixed basis), dense (CoOp), joint (train both), fixed-A (control)."),
    ] = "fixed-B",
    rank: Annotated[int, typer.Option(help="Rank r of P = B A; not used by dense.")] = 4,
    basis: Annotated[str, typer.Option(help="Fixed basis: orthogonal, gaussian or svd.")] = "orthogonal",
    n_ctx: Annotated[int, typer.Option(min=1, help="Context tokens m.")] = 16,
    position: Annotated[str, typer.Option(help="Place of the class name: end, middle or front.")] = "end",
    benchmark: Annotated[
        str | None, typer.Option(help="A benchmark by name instead of your own images (slimprompt data list).")
    ] = None,
    data_root: DataRoot = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            help="Train on exactly the images of this manifest (slimprompt data sample, or a run's manifest.json)."
        ),
    ] = None,
    backbone: BackboneName = "pocket",
    pretrained: Pretrained = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help="Zero-shot prompt to compare with, e.g. 'a photo of a {}.'; several are averaged."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="How it is trained: fast, or paper for the published protocol.")] = "fast",
    epochs: Annotated[int | None, typer.Option(help="Override the recipe: passes over the images.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Override the recipe: images per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Override the recipe: learning rate.")] = None,
    warmup_epochs: Annotated[
        int | None, typer.Option(help="Override the recipe: epochs at the warm-up learning rate.")
    ] = None,
    warmup_lr: Annotated[float | None, typer.Option(help="Override the recipe: learning rate of the warm-up.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Override the recipe: SGD momentum.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Override the recipe: weight decay.")] = None,
    views: Annotated[
        int | None,
        typer.Option(
            min=0, help="Override the recipe: random views per image, taken in turn; 0 trains on the plain view."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw, the start, the order and the views.")] = 1,
    device: Device = "auto",
    precision: Precision = "fp32",
    no_cache: NoCache = False,
    skip_bad_images: SkipBad = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a prompt that is already at --out.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page about the prompt here: per-class accuracy, confusions, worst mistakes."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Learn a prompt from a few images per class and save it.

    Shows the accuracy of the hand-written prompt ("zero-shot") beside the learned one, on images it has not seen.

    Example: slimprompt fit photos/ --out my-prompt --shots 4
    """
    from rich.console import Console

    from slimprompt.data import apply_manifest, few_shot, held_out, read_manifest, short_classes

    console = Console(highlight=False)
    given = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "warmup_epochs": warmup_epochs, "warmup_lr": warmup_lr,
             "momentum": momentum, "weight_decay": weight_decay, "views": views}  # fmt: skip
    from slimprompt.training.recipe import make_recipe

    chosen = make_recipe(recipe, **{name: value for name, value in given.items() if value is not None})
    if variant != "dense" and not 1 <= rank <= n_ctx:
        raise InputError(
            f"rank {rank} does not fit: it must be between 1 and the number of context tokens, n_ctx={n_ctx}"
        )
    images = _images(source, benchmark, data_root)
    draw = few_shot(images, shots, seed) if manifest is None else apply_manifest(read_manifest(manifest), images)
    test: Sequence[Item] = held_out(images, draw)

    # torch starts here: everything above fails fast
    from slimprompt.classifier import PromptClassifier, check_free
    from slimprompt.methods.zero_shot import check_templates
    from slimprompt.text.tokens import prompt_tokens

    check_free(out, overwrite=overwrite)
    check_templates(template or [])
    model = _load(backbone, pretrained, device, precision)
    classifier = PromptClassifier(
        model,
        variant=variant,
        rank=rank,
        basis=basis,
        n_ctx=n_ctx,
        position=position,
        recipe=chosen,
        seed=seed,
        cache=not no_cache,
    )
    classifier.start(model)  # whatever cannot work is said before any image is opened
    prompt_tokens(model, images.class_names, n_ctx, position)  # type: ignore[arg-type]
    bank = _bank(model, no_cache)
    train, left_out = _readable(bank, images, draw.train, skip_bad_images)
    test, more_left_out = _readable(bank, images, test, skip_bad_images)
    started = time.perf_counter()
    classifier.fit([images.path(item) for item in train], [item.class_name for item in train])
    seconds = time.perf_counter() - started
    prompt = classifier.prompt_

    short = {} if manifest is not None else short_classes(images, shots)
    console.print(
        f"{len(images.class_names)} classes, {len(train)} training images "
        f"({f'{shots} per class' if manifest is None else f'of {manifest}'}), {len(test)} held out"
    )
    if short:
        few = ", ".join(f"{name} ({count})" for name, count in list(short.items())[:5])
        console.print(
            f"[yellow]fewer than {shots} images, all used:[/] {few}{' …' if len(short) > 5 else ''}", soft_wrap=True
        )
    if left_out or more_left_out:
        console.print(
            f"[yellow]{len(left_out) + len(more_left_out)} unreadable images left out:[/] {(left_out + more_left_out)[0]}",
            soft_wrap=True,
        )
    what = (
        "dense"
        if variant == "dense"
        else f"{variant}, rank {rank}{f', {basis} basis' if variant.startswith('fixed') else ''}"
    )
    console.print(f"{prompt.trainable_parameters:,} parameters trained ({what}) on {model.name} in {seconds:.1f} s")

    templates = template or images.templates
    facts: dict[str, object] = {"shots": shots if manifest is None else None, "templates": list(templates)}
    if test:
        held = _held_out(classifier, bank, images, test, templates)
        facts["held_out"] = {"images": len(test), **_compare(console, list(classifier.classes_), held, verbose)}
    else:
        console.print(
            "[yellow]no images are left to measure on:[/] give fewer --shots, or a test/ folder beside train/"
        )
    saved = classifier.save(out, overwrite=overwrite, **facts)
    size = sum(file.stat().st_size for file in saved.iterdir())
    console.print(f"saved to [bold]{saved}[/] ({size / 1000:.1f} KB)")
    if report is not None and test:
        from slimprompt.report.fit_page import write_fit_page

        page = write_fit_page(
            report, classifier, held.pictures, held.labels, held.features, held.rows[0][1], templates=templates[:1]
        )
        console.print(f"page about it: [bold]{page}[/]")


def evaluate(
    prompt: Annotated[Path, typer.Argument(help="Folder of a saved prompt.")],
    source: Annotated[
        Path | None, typer.Argument(help="Labelled images: <class>/<image>, {train,test}/<class>/<image>, or a CSV.")
    ] = None,
    benchmark: Annotated[str | None, typer.Option(help="The test images of a benchmark instead.")] = None,
    data_root: DataRoot = None,
    template: Annotated[
        list[str] | None, typer.Option(help="Zero-shot prompt to compare with; several are averaged.")
    ] = None,
    pretrained: Pretrained = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    no_cache: NoCache = False,
    skip_bad_images: SkipBad = False,
    verbose: Verbose = False,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Measure a saved prompt on labelled images, beside the zero-shot accuracy.

    Classes that the prompt was not trained on are fine: if the folder's classes differ from the prompt's, the prompt is used
    on the folder's names.

    Example: slimprompt evaluate my-prompt photos/test
    """
    import json

    from rich.console import Console

    from slimprompt.data import load_benchmark, load_folder, load_test_folder

    _check_format(format, ("table", "json"))
    if (source is None) == (benchmark is None):
        raise InputError("what to measure on? Give either a folder (or CSV) of labelled images or --benchmark NAME")
    from slimprompt.classifier import PromptClassifier, saved_description

    description = saved_description(prompt)
    if benchmark is not None:
        images = load_benchmark(benchmark, data_root)
    else:
        assert source is not None
        try:
            images = load_test_folder(source, description["class_names"])
        except InputError:
            images = load_folder(source)  # other classes than the prompt was trained on
    items: Sequence[Item] = images.test or images.train
    classifier = PromptClassifier.load(prompt, pretrained=pretrained, device=device, precision=precision)
    if list(images.class_names) != list(classifier.classes_):
        classifier = classifier.with_classes(images.class_names)
    bank = _bank(classifier.backbone_, no_cache)
    items, left_out = _readable(bank, images, items, skip_bad_images)
    console = Console(highlight=False, quiet=format == "json")
    new = sorted(set(images.class_names) - set(description["class_names"]))
    console.print(
        f"{len(items)} images of {len(images.class_names)} classes"
        + (f", {len(new)} of them new to the prompt" if new else "")
    )
    if left_out:
        console.print(f"[yellow]{len(left_out)} unreadable images left out:[/] {left_out[0]}", soft_wrap=True)
    templates = template or description.get("templates") or images.templates
    held = _held_out(classifier, bank, images, items, templates)
    scores = _compare(console, list(classifier.classes_), held, verbose)
    if format == "json":
        typer.echo(
            json.dumps(
                {
                    "images": len(items),
                    "classes": len(images.class_names),
                    "new_classes": len(new),
                    "left_out": len(left_out),
                    **scores,
                }
            )
        )


def predict(
    prompt: Annotated[Path, typer.Argument(help="Folder of a saved prompt.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show per image.")] = 1,
    classes: Annotated[
        str | None, typer.Option(help="Other class names, separated by commas: the same prompt on new classes.")
    ] = None,
    format: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    pretrained: Pretrained = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    skip_bad_images: SkipBad = False,
) -> None:
    """Classify images with a saved prompt.

    Example: slimprompt predict my-prompt a.jpg b.jpg --top 3
    Example: slimprompt predict my-prompt a.jpg --classes "red panda,otter"
    """
    _check_format(format, ("table", "json", "csv"))
    paths = _image_files(images)
    names = None
    if classes is not None:
        names = [name.strip() for name in classes.split(",")]
        if any(not name for name in names):
            raise InputError(f'--classes {classes!r} holds an empty name; write them as "red panda,otter"')
    from slimprompt.classifier import PromptClassifier
    from slimprompt.images.files import open_image

    left_out: list[str] = []
    if skip_bad_images:
        good = []
        for path in paths:
            try:
                open_image(path)
                good.append(path)
            except InputError as error:
                left_out.append(str(error))
        paths = good
    classifier = PromptClassifier.load(prompt, pretrained=pretrained, device=device, precision=precision)
    if names is not None:
        classifier = classifier.with_classes(names)
    probabilities = classifier.predict_proba(paths)
    top = min(top, len(classifier.classes_))
    ranked = [
        (path, [(str(classifier.classes_[index]), float(row[index])) for index in row.argsort()[::-1][:top]])
        for path, row in zip(paths, probabilities, strict=True)
    ]
    _print_predictions(ranked, format)
    if left_out:
        typer.echo(f"{len(left_out)} unreadable images left out: {left_out[0]}", err=True)


def import_coop(
    checkpoint: Annotated[Path, typer.Argument(help="A CoOp checkpoint, prompt_learner/model.pth.tar-N.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the prompt.")] = Path("prompt"),
    backbone: BackboneName = "ViT-B-16",
    pretrained: Pretrained = "openai",
    classes: Annotated[
        str | None,
        typer.Option(help="Class names in the order of training, separated by commas; default: read from the file."),
    ] = None,
    position: Annotated[str, typer.Option(help="Place of the class name in training: end, middle or front.")] = "end",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a prompt that is already at --out.")] = False,
) -> None:
    """Turn a checkpoint of the original CoOp code into a saved prompt.

    Only the context is taken; nothing in the file is executed.

    Example: slimprompt import-coop output/prompt_learner/model.pth.tar-50 --out my-prompt
    """
    from slimprompt.classifier import check_free
    from slimprompt.clip.backbone import EMBEDDED
    from slimprompt.coop import import_coop as take_over
    from slimprompt.coop import read_coop_checkpoint

    check_free(out, overwrite=overwrite)
    found = read_coop_checkpoint(checkpoint)
    names = [name.strip() for name in classes.split(",")] if classes is not None else None
    model = _load(backbone, None if backbone in EMBEDDED and pretrained == "openai" else pretrained, "auto", "fp32")
    classifier = take_over(checkpoint, model, names, position)  # type: ignore[arg-type]
    saved = classifier.save(out, overwrite=overwrite, imported_from=checkpoint.name, imported_epoch=found.epoch)
    typer.echo(
        f"{len(found.context)} context vectors for {len(classifier.classes_)} classes on {model.name}; saved to {saved}"
    )


def backbones(
    search: Annotated[str, typer.Argument(help="Show only names that contain this.")] = "",
) -> None:
    """List the models that can be adapted and the tags of their published weights."""
    from open_clip import list_models
    from open_clip.pretrained import list_pretrained_tags_by_model
    from rich.console import Console
    from rich.table import Table

    from slimprompt.clip.backbone import EMBEDDED

    table = Table("backbone", "weights (--pretrained)", box=None)
    rows = [(name, "embedded, nothing to give") for name in EMBEDDED]
    rows += [
        (name, ", ".join(list_pretrained_tags_by_model(name)) or "[dim]none published[/]")
        for name in list_models()
        if name not in EMBEDDED
    ]
    for name, tags in rows:
        if search.lower() in name.lower():
            table.add_row(name, tags)
    if not table.row_count:
        raise InputError(f"no backbone has {search!r} in its name; `slimprompt backbones` lists all")
    Console().print(table)


# -- parts ---------------------------------------------------------------------------------------------------------------


def _images(source: Path | None, benchmark: str | None, data_root: Path | None) -> Benchmark:
    from slimprompt.data import check_images, load_benchmark, load_folder

    if (source is None) == (benchmark is None):
        raise InputError("which images? Give either a folder (or CSV) of your own or --benchmark NAME")
    if benchmark is None:
        assert source is not None
        return load_folder(source)
    images = load_benchmark(benchmark, data_root)
    check_images(images)
    return images


def _load(backbone: str, pretrained: str | None, device: str, precision: str) -> Backbone:
    from slimprompt.clip.backbone import load_backbone

    return load_backbone(backbone, pretrained, device=device, precision=precision)


def _bank(backbone: Backbone, no_cache: bool) -> FeatureBank:
    from slimprompt.images.bank import FeatureBank

    return FeatureBank(backbone, None if no_cache else "default")


def _readable(
    bank: FeatureBank, images: Benchmark, items: Sequence[Item], skip_bad: bool
) -> tuple[Sequence[Item], list[str]]:
    """The items whose pictures can be read (encoding their test views on the way), and the messages about the others."""
    bad = bank.build([images.path(item) for item in items], skip_bad=skip_bad)
    kept = [item for index, item in enumerate(items) if index not in bad]
    return kept, [str(error) for error in bad.values()]


class _HeldOut(NamedTuple):
    """Labelled images to measure on, and the class features of each way to classify them (the learned prompt last)."""

    pictures: list[Path]
    labels: Tensor
    features: Tensor
    rows: list[tuple[str, Tensor]]


def _held_out(
    classifier: PromptClassifier, bank: FeatureBank, images: Benchmark, items: Sequence[Item], templates: Sequence[str]
) -> _HeldOut:
    import torch

    from slimprompt.methods.zero_shot import zero_shot_features

    if not items:
        raise InputError("there are no readable images to measure on")
    names = list(classifier.classes_)
    pictures = [images.path(item) for item in items]
    labels = torch.tensor([names.index(item.class_name) for item in items])
    rows = [(f"zero-shot, “{templates[0]}”", zero_shot_features(bank.backbone, names, templates[:1]))]
    if len(templates) > 1:
        rows.append(
            (f"zero-shot, {len(templates)} templates averaged", zero_shot_features(bank.backbone, names, templates))
        )
    rows.append(("learned prompt", classifier.class_features_))
    return _HeldOut(pictures, labels, bank.features(pictures), rows)


def _compare(console: Console, names: Sequence[str], held_out: _HeldOut, verbose: bool) -> dict[str, float]:
    """Print and return the accuracy of the zero-shot prompt and of the learned one on the same images."""
    from rich.table import Table

    from slimprompt.training.evaluation import accuracy, per_class_accuracy

    _, labels, features, rows = held_out
    scores = [accuracy(features, text, labels) for _, text in rows]
    table = Table("", box=None, pad_edge=False)
    table.add_column("accuracy", justify="right")
    for (title, _), score in zip(rows, scores, strict=True):
        table.add_row(title, f"{score:.1f} %")
    table.add_row(f"[dim]chance ({len(names)} classes)[/]", f"[dim]{100 / len(names):.1f} %[/]")
    console.print(table)
    if verbose:
        detail = Table("class", box=None, pad_edge=False)
        for heading in ("images", "zero-shot", "prompt"):
            detail.add_column(heading, justify="right")
        by_class = [per_class_accuracy(features, text, labels) for _, text in (rows[0], rows[-1])]
        for name, (before, count), (after, _) in zip(names, *by_class, strict=True):
            detail.add_row(str(name), str(count), *(f"{value:.0f} %" if count else "–" for value in (before, after)))
        console.print(detail)
    return {"zero_shot": scores[0], "prompt": scores[-1], "chance": 100 / len(names)}


def _image_files(given: Sequence[Path]) -> list[Path]:
    from slimprompt.images.files import IMAGE_SUFFIXES

    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
            if not found:
                raise InputError(f"no images under {path} (looked for {', '.join(sorted(IMAGE_SUFFIXES))})")
            paths += found
        elif not path.exists():
            raise InputError(f"no such image: {path}")
        else:
            paths.append(path)
    return paths


def _check_format(given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise unknown("format", given, allowed)


def _print_predictions(ranked: list[tuple[Path, list[tuple[str, float]]]], format: str) -> None:
    if format == "json":
        import json

        rows = [
            {"image": str(path), "classes": [{"name": name, "probability": round(value, 6)} for name, value in best]}
            for path, best in ranked
        ]
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=1))
    elif format == "csv":
        import csv
        import sys

        writer = csv.writer(sys.stdout)
        writer.writerow(["image", "rank", "class", "probability"])
        for path, best in ranked:
            writer.writerows([str(path), place, name, f"{value:.6f}"] for place, (name, value) in enumerate(best, 1))
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table("image", "class", box=None)
        table.add_column("probability", justify="right")
        for path, best in ranked:
            for place, (name, value) in enumerate(best):
                table.add_row(escape(str(path)) if place == 0 else "", escape(name), f"{100 * value:.1f} %")
        Console(highlight=False).print(table)
