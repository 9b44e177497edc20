"""`slimprompt fit`: learn a prompt from a few images per class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.options import (
    DEFAULT_BACKBONE,
    Activation,
    BackboneName,
    DataRoot,
    Device,
    NoCache,
    Overwrite,
    Precision,
    Pretrained,
    SkipBad,
    Templates,
    Verbose,
    options_from,
)
from slimprompt.cli.printing import note, print_table, say
from slimprompt.errors import InputError
from slimprompt.lab.spec import RunSpec
from slimprompt.training.recipe import Recipe, make_recipe

if TYPE_CHECKING:
    from slimprompt.data import Benchmark
    from slimprompt.fitting import Fit, HeadComparison

_PROMPT = {
    "variant": "fixed-B",
    "rank": 4,
    "basis": "orthogonal",
    "n_ctx": 16,
    "words": None,
    "anchored": False,
    "depth": 1,
    "position": "end",
    "seed": 1,
}


@options_from(Recipe, *Recipe.model_fields, into="overrides", panel="Override the recipe")
@options_from(RunSpec, *_PROMPT, into="prompt", panel="Prompt", defaults=_PROMPT)
def fit(
    source: Annotated[
        Path | None,
        typer.Argument(help="photos/<class>/<image>, photos/{train,test}/<class>/<image>, or a CSV of path,label."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the prompt: prompt.safetensors and prompt.json.")
    ] = Path("prompt"),
    shots: Annotated[
        int, typer.Option(min=1, help="Training images per class, sampled at random; the others are held out.")
    ] = 16,
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
    backbone: BackboneName = None,
    pretrained: Pretrained = None,
    activation: Activation = "auto",
    template: Templates = None,
    recipe: Annotated[str, typer.Option(help="How it is trained: fast, or paper for the published protocol.")] = "fast",
    device: Device = "auto",
    precision: Precision = "fp32",
    no_cache: NoCache = False,
    skip_bad_images: SkipBad = False,
    overwrite: Overwrite = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page about the prompt: accuracy per class, confusions, worst mistakes."),
    ] = None,
    verbose: Verbose = False,
    *,
    prompt: dict[str, Any],
    overrides: dict[str, Any],
) -> None:
    """Learn a prompt from a few images per class and save it.

    Shows the accuracy of the zero-shot prompt beside the learned one, on images that were not used for training.

    Example: slimprompt fit photos/ --out my-prompt --shots 4
    """
    from slimprompt.data import apply_manifest, few_shot, read_manifest
    from slimprompt.prompts.variants import check_variant, used_settings

    chosen = make_recipe(recipe, **overrides)
    prompt |= used_settings(prompt["variant"], rank=prompt.get("rank"), basis=prompt["basis"])
    check_variant(prompt["variant"], rank=prompt["rank"], basis=prompt["basis"], n_ctx=prompt["n_ctx"])
    images = _images(source, benchmark, data_root)
    sample = (
        few_shot(images, shots, prompt["seed"]) if manifest is None else apply_manifest(read_manifest(manifest), images)
    )

    # torch is imported from here on: everything above fails fast
    from slimprompt.classifier import PromptClassifier
    from slimprompt.clip.backbone import EMBEDDED, default_pretrained, load_backbone
    from slimprompt.fitting import fit_classifier
    from slimprompt.images.bank import FeatureBank
    from slimprompt.saved_prompt import PROMPT_FILES

    PROMPT_FILES.check_free(out, overwrite=overwrite)
    backbone = backbone or _default_backbone(benchmark)
    pretrained = pretrained or default_pretrained(backbone)
    model = load_backbone(backbone, pretrained, activation=activation, device=device, precision=precision)
    if backbone in EMBEDDED and benchmark is None:
        note(f"{backbone} is a toy model:", "it has only seen rendered shapes; for photographs, leave --backbone out")
    bank = FeatureBank(model, None if no_cache else "default")
    classifier = PromptClassifier(model, recipe=chosen, **prompt)
    templates = template or images.templates
    result = fit_classifier(classifier, bank, images, sample, templates=templates, skip_bad=skip_bad_images)
    facts: dict[str, object] = {"shots": shots if manifest is None else None, "templates": list(templates)}
    if result.comparison:
        facts["held_out"] = {"images": result.n_held_out, **result.comparison.scores}
    saved = classifier.save(out, overwrite=overwrite, **facts)

    _print_fit(result, images, shots if manifest is None else None, manifest)
    if result.comparison:
        print_comparison(result.comparison, verbose=verbose)
    else:
        note("no images are left to evaluate on:", "give fewer --shots, or a test/ folder beside train/")
    n_bytes = sum((saved / name).stat().st_size for name in (PROMPT_FILES.tensors, PROMPT_FILES.description))
    say(f"saved to {saved} ({n_bytes / 1000:.1f} KB)")
    if report is not None and result.comparison:
        from slimprompt.report.fit_page import write_fit_page

        held_out = result.comparison
        page = write_fit_page(
            report,
            classifier,
            held_out.images,
            held_out.eval_set.labels,
            held_out.eval_set.features,
            held_out.zero_shot.weights,
            templates=templates[:1],
        )
        say(f"report: {page}")


def _default_backbone(benchmark: str | None) -> str:
    return "pocket" if benchmark and benchmark.startswith("pocket") else DEFAULT_BACKBONE


def _images(source: Path | None, benchmark: str | None, data_root: Path | None) -> Benchmark:
    from slimprompt.data import check_images, load_benchmark, load_folder

    if benchmark is None and source is not None:
        return load_folder(source)
    if benchmark is None or source is not None:
        raise InputError("which images? Give either a folder (or CSV) of your own or --benchmark NAME")
    images = load_benchmark(benchmark, data_root)
    check_images(images)
    return images


def _print_fit(result: Fit, images: Benchmark, shots: int | None, manifest: Path | None) -> None:
    from slimprompt.data import short_classes
    from slimprompt.prompts.variants import describe_start

    classifier = result.classifier
    where = f"{shots} per class" if shots else f"from {manifest}"
    say(f"{len(images.class_names)} classes, {result.n_train} training images ({where}), {result.n_held_out} held out")
    short = short_classes(images, shots) if shots else {}
    if short:
        few = ", ".join(f"{name} ({count})" for name, count in list(short.items())[:5])
        note(f"fewer than {shots} images, all used:", f"{few}{' …' if len(short) > 5 else ''}")
    note_skipped(result.skipped)
    parts = [classifier.variant]
    if classifier.variant != "dense":
        parts.append(f"rank {classifier.rank}")
    if classifier.variant.startswith("fixed"):
        parts.append(f"{classifier.basis} basis")
    parts += describe_start(words=classifier.words, anchored=classifier.anchored, depth=classifier.depth)
    say(
        f"{classifier.prompt_.trainable_parameters:,} parameters trained ({', '.join(parts)}) "
        f"on {classifier.backbone_.title} in {result.seconds:.1f} s"
    )


def note_skipped(messages: list[str]) -> None:
    """Say how many unreadable images were skipped, with the first message."""
    if messages:
        note(f"{len(messages)} unreadable images skipped:", messages[0])


def print_comparison(comparison: HeadComparison, *, verbose: bool) -> None:
    """Print the accuracy of zero-shot, of the learned prompt and of chance, and with `verbose` that of each class."""
    n_classes = len(comparison.eval_set.class_names)
    rows = [(title, f"{score:.1f} %") for title, score in comparison.accuracies.items()]
    rows.append((f"chance ({n_classes} classes)", f"{100 / n_classes:.1f} %"))
    print_table(("", "accuracy"), rows, right=("accuracy",))
    if verbose:
        detail = [
            (name, count, *(f"{value:.0f} %" if count else "–" for value in scores))
            for name, count, *scores in comparison.by_class()
        ]
        headings = ("class", "images", "zero-shot", "prompt")
        print_table(headings, detail, right=headings[1:])
