"""`slimprompt fit`: learn a prompt, or fit another method, from a few images per class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slimprompt.cli.continued import Earlier, read_earlier
from slimprompt.cli.fit_results import print_fit, print_methods, print_scores
from slimprompt.cli.options import (
    DEFAULT_BACKBONE,
    ClassNames,
    DataRoot,
    Log,
    ModelOptions,
    Overwrite,
    RecipeChoice,
    RecipeFields,
    Verbose,
    given_options,
    model_options,
    names_of_codes,
    note_codes,
    note_toy,
    options_from,
    parse_fields,
    read_recipe,
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

_METHOD_NAMES = ", ".join((PROMPT, *METHODS))
_IMAGES, _TRAINING = "Which images", "Training"


@model_options()
@options_from(PromptSpec, *PromptSpec.model_fields, into="prompt", panel="Prompt")
def fit(
    context: typer.Context,
    source: Path | None = typer.Argument(
        None, help="photos/<class>/<image>, photos/{train,test}/<class>/<image>, or a CSV of path,label."
    ),
    out: Path = typer.Option(
        Path("model"),
        "--out",
        "-o",
        help="Where to save the model: a folder, for model.safetensors in it, or a .safetensors file.",
    ),
    shots: int = typer.Option(16, min=1, help="Training images per class, sampled at random; the others are held out."),
    method: str = typer.Option(PROMPT, help=f"What to fit: {_METHOD_NAMES}, or your own, module:function."),
    compare: bool = typer.Option(
        False, "--compare", help="Also fit all methods on image features, and compare them with zero-shot."
    ),
    save_best: bool = typer.Option(
        False, "--save-best", help="Compare, and save the method that cross-validation chooses."
    ),
    report: Path | None = typer.Option(
        None, help="Write an HTML page about the result: accuracy per class, confusions, worst mistakes."
    ),
    class_names: ClassNames = None,
    continue_from: Path | None = typer.Option(
        None,
        help="Saved prompt to continue from, when images or classes were added: settings, backbone and, unless given, "
        "recipe, seed and shots are taken from it. Other methods are fitted again.",
    ),
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    seed: int = typer.Option(1, min=0, help="Seed of everything random.", rich_help_panel=_TRAINING),
    recipe: RecipeChoice = None,
    fields: RecipeFields = None,
    template: list[str] | None = typer.Option(
        None,
        help="Zero-shot template, e.g. 'a photo of a {}.': the baseline, and the text that some methods keep to. Repeat to "
        "average several.",
        rich_help_panel=_TRAINING,
    ),
    no_calibration: bool = typer.Option(
        False,
        "--no-calibration",
        help="Do not fit a temperature of the probabilities, which takes up to three more trainings on parts of the training images.",
        rich_help_panel=_TRAINING,
    ),
    log: Log = None,
    at_most: int | None = typer.Option(
        None,
        "--held-out",
        min=1,
        help="Number of held-out images to evaluate on, if there are more, at random. Default: the whole test split, or "
        f"{_HELD_OUT:,} of the images that are left over.",
        rich_help_panel=_IMAGES,
    ),
    benchmark: str | None = typer.Option(
        None, help="A benchmark by name instead of your own images (slimprompt data list).", rich_help_panel=_IMAGES
    ),
    data_root: DataRoot = None,
    manifest: Path | None = typer.Option(
        None,
        help="Train on exactly the images of this manifest (slimprompt data sample, or a run's manifest.json), without --shots.",
        rich_help_panel=_IMAGES,
    ),
    *,
    prompt: dict[str, Any],
    model_options: ModelOptions,
) -> None:
    """Learn a prompt, or fit another method, from a few images per class, and save it.

    Says whether the result is better than zero-shot classification, on images that were not used for training.

    Example: slimprompt fit photos/ --out my-prompt --shots 4
    Example: slimprompt fit photos/ --compare --out compared
    Example: slimprompt fit photos/ --method gda --out my-gda
    Example: slimprompt fit photos/ --continue-from my-prompt --out larger-prompt
    """
    from slimprompt.data import held_out

    overrides = parse_fields(Recipe, fields)
    given = given_options(context) | set(overrides)
    if log is not None:
        find_tracker(log)
    if manifest is not None and "shots" in given:
        raise InputError("--manifest says which images to train on; leave out --shots")
    earlier = None if continue_from is None else read_earlier(continue_from)
    options = prompt | model_options.model_dump(include={"backbone", "precision"})
    options |= {"method": method, "seed": seed, "shots": shots, "template": template}
    options["recipe"] = read_recipe(recipe or "auto")
    if earlier is not None:
        options = earlier.options(options, given)
    sampled: int | None = None if manifest else options["shots"]  # per class
    params = _params(options, overrides, given, earlier) | {"calibrate": not no_calibration}
    if report is not None:
        if report.resolve() == out.resolve():
            raise InputError(f"{out} is the folder of the model; give the page of --report another name")
        check_outputs(page=report, overwrite=overwrite, read=(source, manifest))
        require_extra("lab", "the page of --report")
    names = names_of_codes(class_names, benchmark)
    images = _images(source, names, benchmark, data_root)
    sample = _sample(images, sampled, options["seed"], manifest, earlier)
    compare = compare or save_best
    if (compare or report is not None) and not held_out(images, sample):
        option = "--report" if not compare else "--save-best" if save_best else "--compare"
        raise InputError(f"{option} needs held-out images, and all images are training images: {_HOLD_OUT}")
    if save_best and len({item.label for item in sample.train}) == len(sample.train):
        raise InputError(
            "--save-best chooses a method by cross-validation, which needs two training images of a class: raise --shots, give more "
            "images, or choose a method with --method"
        )
    if at_most is None and not images.test:
        at_most = _HELD_OUT

    # torch is imported from here on: everything above fails fast
    from slimprompt.classifier import Classifier
    from slimprompt.comparison import compare_methods
    from slimprompt.fit import fit as fit_and_score
    from slimprompt.saved import check_free
    from slimprompt.user_functions import import_user_function

    import_user_function("basis", options.get("basis"))
    import_user_function("method", options["method"])
    check_free(out, overwrite=overwrite)
    model_options = model_options.model_copy(update={name: options[name] for name in ("backbone", "precision")})
    model = _load_backbone(model_options, benchmark, earlier)
    classifier = Classifier(model, **params)
    settings = _settings(classifier, len(images.class_names), sampled)
    with open_log(log, out.resolve().name.removesuffix(".safetensors"), settings) as run_log, model_options.reading():
        result = fit_and_score(
            classifier,
            model_options.bank(model),
            images,
            sample,
            templates=options["template"] or (),
            skip_bad=model_options.skip_bad_images,
            shots=sampled,
            at_most=at_most,
            on_epoch=run_log.epoch,
        )
        if log is not None:
            run_log.result(_metrics(result))
        methods = compare_methods(result) if save_best and result.unseen else None
        if methods is not None:
            result = methods.best_fit
        saved = _save(result, out, sampled, names, overwrite=overwrite)
        if compare and methods is None and result.unseen:
            methods = compare_methods(result)

        print_fit(result, images, sampled, manifest)
        if at_most is not None and (n_all := len(held_out(images, sample))) > at_most:
            note(f"evaluated on {at_most:,} of {n_all:,} held-out images;", "--held-out changes the number")
        if result.comparison:
            print_scores(result.comparison, verbose=verbose)
        else:
            note("no images are left to evaluate on:", _HOLD_OUT)
        if methods is not None:
            print_methods(methods, result.classifier.method_)
        elif compare:
            note(
                "the methods are not compared:",
                "no held-out images are left that can be read and are not training images",
            )
        elif result.unseen and result.unseen.verdict:
            say(result.unseen.verdict.sentence)
        say(f"saved to {saved} ({saved.stat().st_size / 1000:.1f} KB)")
        if earlier is not None:
            earlier.print_changes(result)
        if report is not None and result.comparison:
            from slimprompt.report.fit_page import write_fit_page

            found = result.classifier
            page = write_fit_page(report, found, result.comparison, templates=found.templates_, methods=methods)
            say(f"report: {page}")


def _params(
    options: dict[str, Any], overrides: Mapping[str, Any], given: Collection[str], earlier: Earlier | None
) -> dict[str, Any]:
    """Parameters of the classifier, if the options can be used together."""
    method: str = options["method"]
    params: dict[str, Any] = {"method": method, "seed": options["seed"]}
    if options["template"]:
        params["templates"] = tuple(options["template"])
    views = overrides.get("views", options.get("views"))
    if views is not None or (method != PROMPT and "views" in overrides):
        params["views"] = views  # also of the methods of --compare
    if method != PROMPT:
        _refuse_prompt_options(method, given)
        return params
    spec = make_spec(**{name: options[name] for name in PromptSpec.model_fields if name in options})
    if earlier is None:
        spec.check_standalone()
    recipe = make_recipe(options["recipe"], MANY_IMAGES, overrides)
    if isinstance(options["recipe"], Mapping):  # fields that replace those of "auto"
        params["recipe"] = {**options["recipe"], **overrides}
    elif options["recipe"] == "auto":
        params["recipe"] = dict(overrides) or "auto"
    else:
        params["recipe"] = recipe
    return params | spec.prompt_fields() | {"continue_from": earlier and earlier.model}


def _refuse_prompt_options(method: str, given: Collection[str]) -> None:
    """Options that only a prompt has are an error with another method."""
    find_method(method, also=[PROMPT])
    unused = [f"--{name.replace('_', '-')}" for name in (*PromptSpec.model_fields, "recipe") if name in given]
    unused += [f"--set {name}" for name in Recipe.model_fields if name in given and name != "views"]
    if unused:
        raise InputError(
            f"{', '.join(unused)} can only be used with prompts; --method {method} has fixed settings (docs/methods.md) and takes "
            "--shots, --seed, --template and --set views=N"
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


def _load_backbone(options: ModelOptions, benchmark: str | None, earlier: Earlier | None) -> Backbone:
    if earlier is not None:
        from slimprompt.saved import load_backbone_of

        how = {"device": options.device, "precision": options.precision}
        return load_backbone_of(earlier.saved, None, options.pretrained, options.activation, **how)
    from slimprompt.data.catalogue import benchmark_info

    rendered = benchmark is not None and benchmark_info(benchmark).rendered
    model = options.load_backbone("pocket" if rendered else DEFAULT_BACKBONE)
    if benchmark is None:
        note_toy(model)
    return model


def _save(result: Fit, out: Path, shots: int | None, codes: Mapping[str, str] | None, *, overwrite: bool) -> Path:
    facts: dict[str, Any] = {"shots": shots}
    known = result.classifier.class_names_
    result.classifier.codes_ = {code: name for code, name in (codes or {}).items() if name in known}
    if result.unseen:
        facts["held_out"] = {"images": len(result.unseen.images), **result.unseen.accuracies}
    return result.classifier.save(out, overwrite=overwrite, **facts)


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
        scores = result.unseen.fitted.scores.to_json()
        metrics |= result.unseen.accuracies
        metrics |= {name: scores[name] for name in ("log_loss", "calibration_error")}
    return metrics


def _images(
    source: Path | None, names: dict[str, str] | None, benchmark: str | None, data_root: Path | None
) -> Benchmark:
    from slimprompt.data import check_images, load_benchmark, load_folder

    if benchmark is not None and source is None:
        images = load_benchmark(benchmark, data_root)
        check_images(images)
    elif source is not None and benchmark is None:
        images = load_folder(source, names=names)
        note_codes(images.class_names, "--class-names gives their words")
    else:
        raise InputError("which images? Give either a folder (or CSV) of your own or --benchmark NAME")
    return images
