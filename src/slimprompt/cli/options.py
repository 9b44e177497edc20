"""Command-line options that several commands share, and options derived from the fields of a pydantic model.

A new field of `Recipe`, `RunSpec` or `Grid` becomes an option by itself: its description is the help text.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slimprompt.cli.printing import Format, note
from slimprompt.errors import InputError, first_few
from slimprompt.names import are_codes, read_class_names
from slimprompt.tracking import describe_targets

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BACKBONE = "ViT-B-16"
BackboneName = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        help="Model: an open_clip name (ViT-B-16, RN50, …), hf-hub:…, local-dir:…, or pocket, an embedded toy. Default: "
        f"{DEFAULT_BACKBONE}; pocket for the pocket benchmarks.",
    ),
]
Pretrained = Annotated[
    str | None,
    typer.Option(
        "--pretrained",
        help="Weights of the model: an open_clip tag, a weight file, the folder of a CLIPModel of transformers, or random:0 to try "
        "things out. Default: for a saved prompt or head, the weights it was fitted on; otherwise openai, where OpenAI published "
        "weights of the model. For a saved model on local-dir:…, the folder, if it was moved.",
    ),
]
Activation = Annotated[
    str,
    typer.Option(
        "--activation",
        help="gelu, quickgelu, or auto: the one that the weights were trained with, if that is known; for a saved model, "
        "the one it was fitted with.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="Precision of the frozen model: fp32; bf16, faster on GPUs and on processors with bf16 instructions; or fp16, for GPUs. "
        "The prompt is always fp32.",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write image features on disk.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad-images", help="Skip unreadable images and count them, instead of stopping.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help="Use only runs with field=value[,value…], such as shots=1,4 or recipe.epochs=50. Repeat it for several conditions.",
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the result.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the accuracy of each class.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Overwrite a saved model at --out, and the page of --report.")
]
OverwriteTable = Annotated[bool, typer.Option("--overwrite", help="Overwrite the files of --out and --report.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of the benchmarks; default: $SLIMPROMPT_DATA.")
]
ClassNames = Annotated[
    Path | None,
    typer.Option(
        "--class-names",
        help="CSV file with the columns label and name, if the class folders or labels are codes, such as n01440764.",
    ),
]
Model = Annotated[Path, typer.Argument(help="Folder of a saved prompt or head, or hf:user/name.")]
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="TRACKER[:TARGET]",
        help=f"Also write curves and metrics to a tracker: {describe_targets()}.",
    ),
]
Templates = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        help="Zero-shot template, e.g. 'a photo of a {}.'; repeat to average several.",
    ),
]


def names_of_codes(class_names: Path | None, benchmark: str | None) -> dict[str, str] | None:
    """Class names by label, from the file of `ClassNames`; None without it. A benchmark has its own."""
    if class_names is None:
        return None
    if benchmark is not None:
        raise InputError("--class-names is for images of your own; a benchmark has its class names")
    return read_class_names(class_names)


def note_codes(class_names: Sequence[str], remedy: str) -> None:
    """Say that class names look like codes, and what to do about it; nothing if they do not."""
    if are_codes(class_names):
        note(
            f"the class names look like codes ({first_few(class_names)}):",
            f"CLIP reads class names; {remedy}",
            err=True,
        )


@contextmanager
def explain_unreadable(*, skip_bad: bool) -> Iterator[None]:
    """Name the option `SkipBad` in the error for an unreadable image, unless it was given."""
    from slimprompt.images.decode import UnreadableImageError

    try:
        yield
    except UnreadableImageError as error:
        if skip_bad:
            raise
        raise InputError(f"{error}; --skip-bad-images leaves such images out") from None


def options_from(
    model: type[BaseModel],
    *names: str,
    into: str,
    panel: str,
    defaults: dict[str, Any] | None = None,
    help_texts: dict[str, str] | None = None,
) -> Callable[[F], F]:
    """Give a command one option per field of a model.

    The command receives the values as one dictionary, without those that were not given and have no default.

    Parameters
    ----------
    model
        A pydantic model; the description of a field is the help of its option.
    names
        The fields to offer.
    into
        Name of the command's parameter that receives the dictionary.
    panel
        Heading of the options in `--help`.
    defaults
        Default values to show and to pass on.
    help_texts
        Help of options for which the description of the field says too much or too little.
    """
    defaults, help_texts = defaults or {}, help_texts or {}

    def decorate(command: F) -> F:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != into]
        derived = [
            _option(name, model.model_fields[name], help_texts.get(name), panel, defaults.get(name)) for name in names
        ]

        @wraps(command)
        def wrapper(**given: Any) -> Any:
            values = {name: given.pop(name) for name in names}
            fields = {
                name: _parse(name, value, model.model_fields[name])
                for name, value in values.items()
                if value is not None
            }
            return command(**given, **{into: fields})

        parameters = [*own, *derived]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return typing.cast(F, wrapper)

    return decorate


def given_options(context: typer.Context) -> set[str]:
    """Names of the options that the user has given; the others have their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _option(name: str, field: FieldInfo, help_text: str | None, panel: str, default: Any) -> inspect.Parameter:
    help_text = (help_text or field.description or "").strip()
    if _is_list(field):
        help_text += "; comma-separated"
    kind: Any = _plain_type(field.annotation)
    if _may_be_none(field) and kind is int:
        kind = str  # a number, or "none"
    flag = name.replace("_", "-")
    flags = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"  # a recipe may have either value
    option = typer.Option(flags, help=help_text[:1].upper() + help_text[1:] + ".", rich_help_panel=panel)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_list(field: FieldInfo) -> bool:
    return typing.get_origin(_without_none(field.annotation)) is tuple


def _plain_type(annotation: Any) -> type:
    """The type of an option's value; text for literals and lists."""
    annotation = _without_none(annotation)
    return annotation if annotation in (int, float, bool) else str


def _without_none(annotation: Any) -> Any:
    """The first member of a union that is not None; the annotation itself if it is no union."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return next(kind for kind in typing.get_args(annotation) if kind is not type(None))
    return annotation


def _may_be_none(field: FieldInfo) -> bool:
    return type(None) in typing.get_args(field.annotation)


def _parse(name: str, value: Any, field: FieldInfo) -> Any:
    """The value of an option as the field takes it: lists are split at commas, and "none" is None."""
    if _is_list(field):
        return [part.strip() for part in value.split(",") if part.strip()]
    if _may_be_none(field) and _plain_type(field.annotation) is int:
        if value == "none":
            return None
        try:
            return int(value)
        except ValueError:
            raise InputError(f"--{name.replace('_', '-')} takes a whole number or none (given: {value!r})") from None
    return value
