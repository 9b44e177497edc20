"""`slimprompt fit`: learn a prompt, or fit another method, from a few images per class."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.fit_results import note_training_images, print_comparison, print_fit, print_methods, write_report
from slimprompt.cli.growing import Origin, read_origin
from slimprompt.cli.options import (
    DEFAULT_BACKBONE,
    Activation,
    BackboneName,
    ClassNames,
    DataRoot,
    Device,
    Imports,
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
from slimprompt.files import check_outputs, sha256
from slimprompt.lab.spec import RunSpec
from slimprompt.methods.table import METHODS, find_method
from slimprompt.own_functions import is_own, own_function
from slimprompt.prompts.spec import (
    VARIANTS,
    bases_without_a_run,
    check_variant,
    check_without_a_run,
    used_settings,
)
from slimprompt.tracking import RunLog, TrackedRun, open_log
from slimprompt.training.recipe import MANY_IMAGES, Recipe, make_recipe

if TYPE_CHECKING:
    from slimprompt.classifiers.fitting import Classifier, Fit
    from slimprompt.clip.backbone import Backbone
    from slimprompt.data import Benchmark
    from slimprompt.saved.files import SavedFiles

_PROMPT = {
    "variant": "fixed-B",
    "rank": 4,
    "basis": None,
    "n_ctx": 16,
    "words": None,
    "anchored": False,
    "depth": 1,
    "position": "end",
    "seed": 1,
}

#: Images that are evaluated on if there is no test split: their encoding should not take longer than the fit.
_HELD_OUT = 2_000

#: What to do if no images are held out.
_HOLD_OUT = "give more images or fewer --shots, or a test/ folder beside train/"


@options_from(Recipe, *Recipe.model_fields, into="overrides", panel="Override the recipe")
@options_from(
    RunSpec,
    *_PROMPT,
    into="prompt",
    panel="Prompt",
    defaults=_PROMPT,
    help_texts={
        "basis": f"where the fixed factor comes from: {', '.join(bases_without_a_run('fixed-B'))}, or your own, module:function; "
        "default: " + ", ".join(f"{row.default_basis} for {name}" for name, row in VARIANTS.items() if row.bases)
    },
)
def fit(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(help="photos/<class>/<image>, photos/{train,test}/<class>/<image>, or a CSV of path,label."),
    ] = None,
    class_names: ClassNames = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the prompt (prompt.safetensors, prompt.json) or head (head.safetensors, head.json). "
            "Default: prompt or head.",
        ),
    ] = None,
    from_model: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Folder of a saved prompt to start from, when images or classes were added: settings, backbone and, unless given, "
            "recipe, seed and shots are taken from it. Heads are fitted again.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"What to fit: prompt, {', '.join(METHODS)}, or your own, module:function.")
    ] = "prompt",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Also fit all methods on image features, and compare them on the held-out images."
        ),
    ] = False,
    shots: Annotated[
        int, typer.Option(min=1, help="Training images per class, sampled at random; the others are held out.")
    ] = 16,
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
            "use. Repeat to average several."
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
    imports: Imports = None,
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
    Example: slimprompt fit photos/ --method gda --out my-head
    Example: slimprompt fit photos/ --from my-prompt --out larger-prompt
    """
    given = given_options(context)
    if manifest is not None and "shots" in given:
        raise InputError("--manifest says which images to train on; leave out --shots")
    origin = None if from_model is None else read_origin(from_model)
    options = {**prompt, **overrides, "method": method, "recipe": recipe, "shots": shots, "template": template}
    options |= {"backbone": backbone, "precision": precision}
    if origin is not None:
        options = origin.options(options, given)
    method, template = options["method"], options["template"]
    sampled: int | None = None if manifest else options["shots"]  # per class
    prompt, overrides = _checked(options, given)
    if origin is None:
        check_without_a_run(prompt["variant"], prompt["basis"])
    of_heads = "fast" if options["recipe"] == "auto" else options["recipe"]  # the recipe whose views other methods use
    views = make_recipe(of_heads, MANY_IMAGES, overrides).views
    out = out or Path("prompt" if method == "prompt" else "head")
    if report is not None:
        if report.resolve() == out.resolve():
            raise InputError(f"{out} is the folder of the model; give the page of --report another name")
        check_outputs(page=report, read=(source, manifest))
        require_extra("lab", "the page of --report")
    images = _images(source, class_names, benchmark, data_root)
    sample = _sample(images, sampled, prompt["seed"], manifest, origin)
    if compare or report is not None:
        _require_held_out(images, sample, "--compare" if compare else "--report")
    if at_most is None and not images.test:
        at_most = _HELD_OUT
    chosen = make_recipe(options["recipe"], len(sample.train) / len(images.class_names), overrides)

    # torch is imported from here on: everything above fails fast
    from slimprompt.classifiers.fitting import DEFAULT_VIEWS, fit_classifier
    from slimprompt.clip.architectures import EMBEDDED
    from slimprompt.comparison import compare_methods
    from slimprompt.data import held_out
    from slimprompt.images.bank import FeatureBank
    from slimprompt.lab.environment import import_modules
    from slimprompt.saved.head import HEAD_FILES
    from slimprompt.saved.prompt import PROMPT_FILES

    import_modules(imports or ())
    for kind, function in (("basis", prompt["basis"]), ("method", method)):
        if is_own(function):
            own_function(kind, function)
    files = PROMPT_FILES if method == "prompt" else HEAD_FILES
    files.check_free(out, overwrite=overwrite)
    tracker = None if log is None else open_log(log)
    name = options["backbone"] or _default_backbone(benchmark)
    model = _load_model(name, pretrained, activation, origin, device=device, precision=options["precision"])
    if name in EMBEDDED and benchmark is None and origin is None:
        note(f"{name} is a toy model:", "it has only seen rendered shapes; for photographs, leave --backbone out")
    bank = FeatureBank(model, None if no_cache else "default")
    templates = tuple(template or images.templates)
    views = DEFAULT_VIEWS if views is None else views
    classifier = _classifier(method, model, prompt, chosen, templates, views, from_model)
    classifier.calibrate = not no_calibration
    with explain_unreadable(skip_bad=skip_bad_images):
        result = fit_classifier(
            classifier,
            bank,
            images,
            sample,
            templates=templates,
            views=views,
            skip_bad=skip_bad_images,
            shots=sampled,
            at_most=at_most,
        )
    facts: dict[str, Any] = {"shots": sampled}
    if method == "prompt":
        facts["templates"] = list(templates)  # a head has its own
    if result.unseen:
        facts["held_out"] = {"images": len(result.unseen.images), **result.unseen.scores}
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
    n_bytes = sum((saved / name).stat().st_size for name in (files.tensors, files.description))
    say(f"saved to {saved} ({n_bytes / 1000:.1f} KB)")
    if origin is not None:
        origin.print_growth(result)
    if tracker is not None:
        _log_fit(tracker, saved, files, result)
    if compare and result.unseen:
        given_images = quote(str(source)) if source is not None else f"--benchmark {benchmark}"
        print_methods(compare_methods(result), method, given_images)
    elif compare:
        note(
            "the methods are not compared:", "no held-out images are left that can be read and are not training images"
        )
    if report is not None and result.comparison:
        say(f"report: {write_report(report, classifier, result.comparison, templates)}")


def _checked(options: dict[str, Any], given: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the prompt and the fields of the recipe that were given, if they can be used together."""
    method: str = options["method"]
    prompt: dict[str, Any] = {name: options.get(name) for name in _PROMPT}
    overrides = {name: options[name] for name in Recipe.model_fields if name in options}
    if method != "prompt":
        find_method(method, also=["prompt"])
        _refuse_prompt_options(method, given)
    used = used_settings(prompt["variant"], rank=prompt["rank"], basis=prompt["basis"])
    if unused := [f"--{name}" for name, value in used.items() if name in given and value != prompt[name]]:
        raise InputError(
            f"{' and '.join(unused)} cannot be used with --variant {prompt['variant']}: a dense prompt has no rank, and only fixed-B "
            f"and fixed-A have a basis. Leave {'it' if len(unused) == 1 else 'them'} out, or choose another --variant"
        )
    prompt |= used
    if prompt["words"] is None:
        check_variant(prompt["variant"], rank=prompt["rank"], basis=prompt["basis"], n_ctx=prompt["n_ctx"])
    return prompt, overrides


def _sample(images: Benchmark, shots: int | None, seed: int, manifest: Path | None, origin: Origin | None) -> Benchmark:
    """The images to train on. What a start was trained on is not held out, because its accuracy there says nothing."""
    from slimprompt.data import apply_manifest, few_shot, read_manifest

    if manifest is not None:
        return apply_manifest(read_manifest(manifest), images)
    assert shots is not None
    return few_shot(images, shots, seed, keep=origin.trained_items(images) if origin else ())


def _require_held_out(images: Benchmark, sample: Benchmark, option: str) -> None:
    from slimprompt.data import held_out

    if not held_out(images, sample):
        raise InputError(f"{option} needs held-out images, and all images are training images: {_HOLD_OUT}")


def _load_model(
    name: str, pretrained: str | None, activation: str, origin: Origin | None, *, device: str, precision: str
) -> Backbone:
    from slimprompt.clip.architectures import default_pretrained
    from slimprompt.clip.backbone import load_backbone

    if origin is not None:
        return origin.load_backbone(pretrained, activation, device=device, precision=precision)
    pretrained = pretrained or default_pretrained(name)
    return load_backbone(name, pretrained, activation=activation, device=device, precision=precision)


def _refuse_prompt_options(method: str, given: Collection[str]) -> None:
    """Options that only a prompt has are an error with another method."""
    own = [name for name in (*_PROMPT, *Recipe.model_fields, "recipe") if name not in ("seed", "views")]
    if unused := [name for name in own if name in given]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise InputError(
            f"{options} can only be used with prompts; --method {method} has fixed settings (docs/methods.md) and takes "
            "--shots, --seed, --template and --views"
        )


def _classifier(
    method: str,
    model: Backbone,
    prompt: dict[str, Any],
    recipe: Recipe,
    templates: tuple[str, ...],
    views: int,
    start_from: Path | None,
) -> Classifier:
    from slimprompt.classifiers.head import HeadClassifier
    from slimprompt.classifiers.prompt import PromptClassifier

    if method == "prompt":
        return PromptClassifier(model, recipe=recipe, start_from=start_from, **prompt)
    return HeadClassifier(method, model, templates=templates, views=views, seed=prompt["seed"])


def _log_fit(log: RunLog, saved: Path, files: SavedFiles, result: Fit) -> None:
    """Write the fit to a tracker, identified by the content of the saved description."""
    from slimprompt.saved.files import describe_backbone

    classifier, comparison = result.classifier, result.unseen
    settings = {name: value for name, value in classifier.get_params(deep=False).items() if name != "backbone"}
    if "recipe" in settings:
        recipe = settings.pop("recipe").model_dump()
        settings |= {f"recipe.{name}": value for name, value in recipe.items()}
    settings |= {f"backbone.{name}": value for name, value in describe_backbone(classifier.backbone_).items()}
    settings |= {"classes": len(classifier.classes_), "training_images": result.n_train}
    metrics = {"temperature": classifier.calibration_.temperature}
    if comparison is not None:
        own = list(comparison.details.values())[-1]
        metrics |= comparison.scores | {"log_loss": own.log_loss, "calibration_error": own.calibration_error}
    curve = [row._asdict() for row in getattr(classifier, "curve_", ())]
    run_id = sha256(saved / files.description)[:16]
    log.write(run_id, lambda: TrackedRun(run_id, saved.resolve().name, settings, metrics, curve))


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
