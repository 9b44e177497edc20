"""`slimprompt fit`: learn a prompt, or fit another method, from a few images per class."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.continued import Earlier, read_earlier
from slimprompt.cli.fit_results import note_training_images, print_comparison, print_fit, print_methods, write_report
from slimprompt.cli.options import (
    DEFAULT_BACKBONE,
    Activation,
    BackboneName,
    ClassNames,
    DataRoot,
    Device,
    Log,
    NoCache,
    Overwrite,
    Precision,
    Pretrained,
    SkipBad,
    Verbose,
    explain_unreadable,
    given_options,
    names_of_codes,
    note_codes,
    options_from,
)
from slimprompt.cli.printing import note, say
from slimprompt.errors import InputError
from slimprompt.extras import require_extra
from slimprompt.files import check_outputs
from slimprompt.methods.table import METHODS, PROMPT, find_method
from slimprompt.prompts.spec import PromptSpec, make_spec
from slimprompt.tracking import find_tracker, open_log
from slimprompt.training.recipe import MANY_IMAGES, Recipe, make_recipe

if TYPE_CHECKING:
    from slimprompt.classifier import Classifier
    from slimprompt.clip.backbone import Backbone
    from slimprompt.data import Benchmark
    from slimprompt.fit import Fit

#: Images that are evaluated on if there is no test split: their encoding should not take longer than the fit.
_HELD_OUT = 2_000

#: What to do if no images are held out.
_HOLD_OUT = "give more images or fewer --shots, or a test/ folder beside train/"


@options_from(Recipe, *Recipe.model_fields, into="overrides", panel="Override the recipe")
@options_from(PromptSpec, *PromptSpec.model_fields, into="prompt", panel="Prompt")
def fit(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(help="photos/<class>/<image>, photos/{train,test}/<class>/<image>, or a CSV of path,label."),
    ] = None,
    class_names: ClassNames = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Where to save the model: a folder, for model.safetensors in it, or a .safetensors file.",
        ),
    ] = Path("model"),
    continue_from: Annotated[
        Path | None,
        typer.Option(
            "--continue-from",
            help="Saved prompt to continue from, when images or classes were added: settings, backbone and, unless given, "
            "recipe, seed and shots are taken from it. Other methods are fitted again.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"What to fit: {PROMPT}, {', '.join(METHODS)}, or your own, module:function.")
    ] = PROMPT,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Also fit all methods on image features, and compare them on the held-out images."
        ),
    ] = False,
    shots: Annotated[
        int, typer.Option(min=1, help="Training images per class, sampled at random; the others are held out.")
    ] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 1,
    at_most: Annotated[
        int | None,
        typer.Option(
            "--held-out",
            min=1,
            help="Number of held-out images to evaluate on, if there are more, at random. Default: the whole test split, or "
            f"{_HELD_OUT:,} of the images that are left over.",
        ),
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option(help="A benchmark by name instead of your own images (slimprompt data list).")
    ] = None,
    data_root: DataRoot = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            help="Train on exactly the images of this manifest (slimprompt data sample, or a run's manifest.json), without --shots."
        ),
    ] = None,
    backbone: BackboneName = None,
    pretrained: Pretrained = None,
    activation: Activation = "auto",
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Zero-shot template, e.g. 'a photo of a {}.': the baseline, and the text that methods, --anchor and --prograd "
            "keep to. Repeat to average several."
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help="How it is trained: paper, the published protocol; paper-10x, close to it in a tenth of the steps; fast, in fewer "
            "steps; or auto: paper-10x with fewer views of each image, the more images there are per class."
        ),
    ] = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    no_cache: NoCache = False,
    no_calibration: Annotated[
        bool,
        typer.Option(
            "--no-calibration",
            help="Do not fit a temperature of the probabilities, which takes up to three more trainings on parts of the training images.",
        ),
    ] = False,
    skip_bad_images: SkipBad = False,
    overwrite: Overwrite = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page about the result: accuracy per class, confusions, worst mistakes."),
    ] = None,
    log: Log = None,
    verbose: Verbose = False,
    *,
    prompt: dict[str, Any],
    overrides: dict[str, Any],
) -> None:
    """Learn a prompt, or fit another method, from a few images per class, and save it.

    Shows the accuracy of zero-shot classification beside the fitted one, on images that were not used for training.

    Example: slimprompt fit photos/ --out my-prompt --shots 4
    Example: slimprompt fit photos/ --compare --out compared
    Example: slimprompt fit photos/ --method gda --out my-gda
    Example: slimprompt fit photos/ --continue-from my-prompt --out larger-prompt
    """
    given = given_options(context)
    if log is not None:
        find_tracker(log)
    if manifest is not None and "shots" in given:
        raise InputError("--manifest says which images to train on; leave out --shots")
    earlier = None if continue_from is None else read_earlier(continue_from)
    options = {**prompt, **overrides, "method": method, "recipe": recipe, "shots": shots, "template": template}
    options |= {"backbone": backbone, "precision": precision, "seed": seed}
    if earlier is not None:
        options = earlier.options(options, given)
    sampled: int | None = None if manifest else options["shots"]  # per class
    params = _params(options, given, earlier)
    if report is not None:
        if report.resolve() == out.resolve():
            raise InputError(f"{out} is the folder of the model; give the page of --report another name")
        check_outputs(page=report, overwrite=overwrite, read=(source, manifest))
        require_extra("lab", "the page of --report")
    images = _images(source, class_names, benchmark, data_root)
    sample = _sample(images, sampled, options["seed"], manifest, earlier)
    if compare or report is not None:
        _require_held_out(images, sample, "--compare" if compare else "--report")
    if at_most is None and not images.test:
        at_most = _HELD_OUT

    # torch is imported from here on: everything above fails fast
    from slimprompt.classifier import Classifier
    from slimprompt.clip.architectures import EMBEDDED
    from slimprompt.comparison import compare_methods
    from slimprompt.data import held_out
    from slimprompt.fit import fit as fit_and_score
    from slimprompt.images.bank import FeatureBank
    from slimprompt.saved import check_free
    from slimprompt.user_functions import import_user_function

    import_user_function("basis", options.get("basis"))
    import_user_function("method", options["method"])
    check_free(out, overwrite=overwrite)
    name = options["backbone"] or _default_backbone(benchmark)
    model = _load_model(name, pretrained, activation, earlier, device=device, precision=options["precision"])
    if name in EMBEDDED and benchmark is None and earlier is None:
        note(f"{name} is a toy model:", "it has only seen rendered shapes; for photographs, leave --backbone out")
    classifier = Classifier(model, calibrate=not no_calibration, **params)
    settings = _settings(classifier, len(images.class_names), sampled)
    with (
        open_log(log, out.resolve().name.removesuffix(".safetensors"), settings) as run_log,
        explain_unreadable(skip_bad=skip_bad_images),
    ):
        result = fit_and_score(
            classifier,
            FeatureBank(model, None if no_cache else "default"),
            images,
            sample,
            templates=options["template"] or (),
            skip_bad=skip_bad_images,
            shots=sampled,
            at_most=at_most,
            on_epoch=run_log.epoch,
        )
        if log is not None:
            run_log.result(_metrics(result))
    facts: dict[str, Any] = {"shots": sampled}
    if result.unseen:
        facts["held_out"] = {"images": len(result.unseen.images), **result.unseen.accuracies}
    saved = classifier.save(out, overwrite=overwrite, **facts)

    print_fit(result, images, sampled, manifest)
    if at_most is not None and (n_all := len(held_out(images, sample))) > at_most:
        note(
            f"evaluated on {at_most:,} of {n_all:,} held-out images,", "chosen at random; --held-out changes the number"
        )
    if result.comparison:
        print_comparison(result.comparison, verbose=verbose)
        note_training_images(result.comparison)
    else:
        note("no images are left to evaluate on:", _HOLD_OUT)
    say(f"saved to {saved} ({saved.stat().st_size / 1000:.1f} KB)")
    if earlier is not None:
        earlier.print_changes(result)
    if compare and result.unseen:
        given_images = quote(str(source)) if source is not None else f"--benchmark {benchmark}"
        print_methods(compare_methods(result), classifier.method_, given_images)
    elif compare:
        note(
            "the methods are not compared:", "no held-out images are left that can be read and are not training images"
        )
    if report is not None and result.comparison:
        say(f"report: {write_report(report, classifier, result.comparison, classifier.templates_)}")


def _params(options: dict[str, Any], given: Collection[str], earlier: Earlier | None) -> dict[str, Any]:
    """Parameters of the classifier, if the options can be used together."""
    method: str = options["method"]
    params: dict[str, Any] = {"method": method, "seed": options["seed"]}
    if options["template"]:
        params["templates"] = tuple(options["template"])
    overrides = {name: options[name] for name in Recipe.model_fields if name in options}
    if "views" in options and (options["views"] is not None or method != PROMPT):
        params["views"] = options["views"]  # also of the methods of --compare
    if method != PROMPT:
        _refuse_prompt_options(method, given)
        return params
    spec = make_spec(**{name: options[name] for name in PromptSpec.model_fields if name in options})
    if earlier is None:
        spec.check_standalone()
    recipe = make_recipe(options["recipe"], MANY_IMAGES, overrides)
    if options["recipe"] == "auto":
        params["recipe"] = overrides or "auto"
    else:
        params["recipe"] = recipe
    return params | spec.prompt_fields() | {"continue_from": earlier and earlier.model}


def _refuse_prompt_options(method: str, given: Collection[str]) -> None:
    """Options that only a prompt has are an error with another method."""
    find_method(method, also=[PROMPT])
    fields = [*PromptSpec.model_fields, *Recipe.model_fields, "recipe"]
    if unused := [name for name in fields if name in given and name != "views"]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise InputError(
            f"{options} can only be used with prompts; --method {method} has fixed settings (docs/methods.md) and takes "
            "--shots, --seed, --template and --views"
        )


def _sample(
    images: Benchmark, shots: int | None, seed: int, manifest: Path | None, earlier: Earlier | None
) -> Benchmark:
    """The images to train on. What a prompt was trained on before is not held out, because its accuracy there says nothing."""
    from slimprompt.data import apply_manifest, few_shot, read_manifest

    if manifest is not None:
        return apply_manifest(read_manifest(manifest), images)
    assert shots is not None
    return few_shot(images, shots, seed, keep=earlier.trained_items(images) if earlier else ())


def _require_held_out(images: Benchmark, sample: Benchmark, option: str) -> None:
    from slimprompt.data import held_out

    if not held_out(images, sample):
        raise InputError(f"{option} needs held-out images, and all images are training images: {_HOLD_OUT}")


def _load_model(
    name: str, pretrained: str | None, activation: str, earlier: Earlier | None, *, device: str, precision: str
) -> Backbone:
    from slimprompt.clip.architectures import default_pretrained
    from slimprompt.clip.backbone import load_backbone
    from slimprompt.saved import load_backbone_of

    if earlier is not None:
        return load_backbone_of(earlier.saved, None, pretrained, activation, device=device, precision=precision)
    pretrained = pretrained or default_pretrained(name)
    return load_backbone(name, pretrained, activation=activation, device=device, precision=precision)


def _settings(classifier: Classifier, n_classes: int, shots: int | None) -> dict[str, Any]:
    """What a tracker shows of a fit: the parameters of the classifier, with the fields of its recipe and backbone."""
    from slimprompt.saved import describe_backbone

    params = classifier.get_params(deep=False)
    recipe = params.pop("recipe")
    fields = {"recipe": recipe} if isinstance(recipe, str) else dict(recipe)
    backbone = describe_backbone(params.pop("backbone"))
    named = {f"recipe.{name}": value for name, value in fields.items()}
    named |= {f"backbone.{name}": value for name, value in backbone.items()}
    return params | named | {"classes": n_classes, "shots": shots}


def _metrics(result: Fit) -> dict[str, float]:
    metrics = {"temperature": result.classifier.calibration_.temperature}
    if result.unseen is not None:
        scores = result.unseen.fitted.scores
        metrics |= result.unseen.accuracies
        metrics |= {"log_loss": scores.log_loss, "calibration_error": scores.calibration_error}
    return metrics


def _default_backbone(benchmark: str | None) -> str:
    from slimprompt.data.catalogue import benchmark_info

    return "pocket" if benchmark and benchmark_info(benchmark).rendered else DEFAULT_BACKBONE


def _images(source: Path | None, class_names: Path | None, benchmark: str | None, data_root: Path | None) -> Benchmark:
    from slimprompt.data import check_images, load_benchmark, load_folder

    names = names_of_codes(class_names, benchmark)
    if benchmark is None and source is not None:
        own = load_folder(source, names=names)
        note_codes(own.class_names, "--class-names gives their words")
        return own
    if benchmark is None or source is not None:
        raise InputError("which images? Give either a folder (or CSV) of your own or --benchmark NAME")
    images = load_benchmark(benchmark, data_root)
    check_images(images)
    return images
