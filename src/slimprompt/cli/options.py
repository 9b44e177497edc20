"""Options that several commands share, and options derived from the fields of a pydantic model.

A field of `ModelOptions`, `PromptSpec`, `Grid` or `Limits` becomes an option by itself: its description is the help text.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from slimprompt.cli.printing import Format, note, say
from slimprompt.errors import InputError, choose, first_few, unknown
from slimprompt.names import are_codes, read_class_names
from slimprompt.tracking import describe_targets
from slimprompt.training.recipe import RECIPES

if TYPE_CHECKING:
    from slimprompt.classifier import Classifier
    from slimprompt.clip.backbone import Backbone
    from slimprompt.images.bank import FeatureBank

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BACKBONE = "ViT-B-16"
#: Unreadable images whose messages are printed.
_LISTED = 50

OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the result.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help="Use only runs with field=value[,value…], such as shots=1,4 or recipe.epochs=50. Repeat it for several conditions.",
    ),
]
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
        help="CSV file with the columns label and name, if the class folders or labels are codes, such as n01440764. The model "
        "keeps these names.",
    ),
]
OtherClasses = Annotated[
    str | None,
    typer.Option(
        "--classes",
        help="Other class names for the same prompt (prompts and zero-shot only): comma-separated, or a text file with one name "
        "per line.",
    ),
]
Model = Annotated[Path, typer.Argument(help="Folder of a saved prompt or head, or hf:user/name.")]
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="TRACKER[:TARGET]",
        help=f"Also write curves and metrics to a tracker: {describe_targets()}.",
        rich_help_panel="Training",
    ),
]
Templates = Annotated[
    list[str] | None,
    typer.Option("--template", help="Zero-shot template, e.g. 'a photo of a {}.'; repeat to average several."),
]
RecipeChoice = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME|FILE",
        help="How prompts are trained: paper, the published protocol; paper-10x, close to it in a tenth of the steps; fast, in fewer "
        "steps; or a YAML file of fields. Default of fit: auto, which is paper-10x with fewer augmented copies (train views) of "
        "each image, the more images there are per class.",
        rich_help_panel="Training",
    ),
]
RecipeFields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field of the recipe, such as epochs=50 or lr=0.002; repeat it. docs/notes/recipes.md lists the fields.",
        rich_help_panel="Training",
    ),
]


class ModelOptions(BaseModel):
    """The model that encodes images, and how it reads them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str | None = Field(
        None,
        description="model: an open_clip name (ViT-B-16, RN50, …), hf-hub:…, local-dir:…, or pocket, an embedded toy; default: "
        f"{DEFAULT_BACKBONE}, or pocket for the pocket benchmarks",
    )
    pretrained: str | None = Field(
        None,
        description="weights of the model: an open_clip tag, a weight file, the folder of a CLIPModel of transformers, or random:0 "
        "to try things out; default: those that a saved model was fitted on, otherwise openai, where OpenAI published some",
    )
    activation: str = Field(
        "auto",
        description="activation of the model: gelu, quickgelu, or auto: the one that the weights were trained with",
    )
    device: str = Field("auto", description="where to compute: auto, cpu, cuda or mps")
    precision: str = Field(
        "fp32",
        description="precision of the frozen model: fp32; bf16 or fp16, faster on GPUs. The prompt is always fp32",
    )
    cache: bool = Field(True, description="neither read nor write image features on disk")
    skip_bad_images: bool = Field(False, description="leave out unreadable images instead of stopping")
    max_megapixels: float | None = Field(
        None, gt=0, description="largest image to read, in millions of pixels; default: Pillow's limit, 89"
    )

    def load_backbone(self, default: str = DEFAULT_BACKBONE) -> Backbone:
        """The model that was named, or the default one."""
        from slimprompt.clip.backbone import load_backbone

        return load_backbone(
            self.backbone or default,
            self.pretrained,
            activation=self.activation,
            device=self.device,
            precision=self.precision,
        )

    def load_classifier(self, model: Path) -> Classifier:
        """A saved model."""
        from slimprompt.classifier import load_classifier

        fields = {name: getattr(self, name) for name in ("pretrained", "activation", "device", "precision")}
        return load_classifier(model, **fields)

    def bank(self, backbone: Backbone) -> FeatureBank:
        """A bank of image features, on disk unless that is turned off."""
        from slimprompt.images.bank import FeatureBank

        return FeatureBank(backbone, "default" if self.cache else None)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read images up to the largest size; of unreadable ones, print all messages and name the option that leaves them out."""
        from slimprompt.images.decode import UnreadableImageError, largest_image

        with largest_image(self.max_megapixels):
            try:
                yield
            except UnreadableImageError as error:
                if self.skip_bad_images:
                    raise
                raise InputError(f"{_listed(error.messages)}; --skip-bad-images leaves such images out") from None


def _listed(messages: Sequence[str]) -> str:
    """A message about unreadable images; of several, each has a line of its own above."""
    if len(messages) == 1:
        return messages[0]
    for message in messages[:_LISTED]:
        say(message, err=True)
    n, shown = len(messages), min(len(messages), _LISTED)
    return f"{n:,} images cannot be read: they are listed above" + (f", the first {shown}" if shown < n else "")


def model_options(*names: str, without: Sequence[str] = (), **defaults: Any) -> Callable[[F], F]:
    """Give a command options of `ModelOptions`, by default all of them, and pass them on as its argument `model_options`."""
    chosen = [name for name in names or ModelOptions.model_fields if name not in without]
    fields = ModelOptions().model_dump() | defaults
    known = {name: fields[name] for name in chosen}
    return options_from(
        ModelOptions,
        *chosen,
        into="model_options",
        panel="Model and images",
        defaults=known,
        make=lambda values: ModelOptions(**{**known, **values}),
    )


def note_toy(model: Backbone) -> None:
    """Say that an embedded model is not made for photographs."""
    from slimprompt.clip.architectures import EMBEDDED

    if model.name in EMBEDDED:
        note(f"{model.name} is a toy model:", "it has only seen rendered shapes; for photographs, leave --backbone out")


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


def parse_class_names(text: str) -> list[str]:
    """The class names of `--classes`: comma-separated, or in a text file with one per line."""
    from slimprompt.files import read_text

    if text.lower().endswith(".txt"):
        names = [line.strip() for line in read_text(Path(text)).splitlines() if line.strip()]
        advice = "write one name per line"
    else:
        names = [name.strip() for name in text.split(",")]
        advice = 'give comma-separated names, such as "red panda,otter", or a .txt file with one per line'
    if not all(names):
        raise InputError(f"--classes {text!r} holds an empty name; {advice}")
    if len(names) < 2:
        found = "one class name" if names else "no class"
        raise InputError(f"--classes {text!r} holds {found}, and a classifier needs at least two: {advice}")
    return names


def parse_fields(model: type[BaseModel], given: Sequence[str] | None, option: str = "--set") -> dict[str, Any]:
    """The fields of a model in texts such as `epochs=50`; the values are not checked yet, but the names are."""
    fields: dict[str, Any] = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign:
            raise InputError(f"{option} {text} sets nothing: write FIELD=VALUE, such as epochs=50")
        if name not in model.model_fields:
            raise unknown(f"{model.__name__.lower()} field", name, model.model_fields)
        fields[name] = _parse(f"{option} {name}", value.strip(), model.model_fields[name])
    return fields


def read_recipe(given: str) -> str | dict[str, Any]:
    """The recipe of `--recipe`: a name, or the fields in a file."""
    if given.lower().endswith((".yaml", ".yml")):
        from slimprompt.lab.grid import read_recipe_file

        return read_recipe_file(Path(given))
    choose("recipe", given, {"auto": None, **RECIPES}, next_step="Fields of your own go into a YAML file, or --set.")
    return given


def options_from(
    model: type[BaseModel],
    *names: str,
    into: str,
    panel: str,
    defaults: dict[str, Any] | None = None,
    make: Callable[[dict[str, Any]], Any] = dict,
) -> Callable[[F], F]:
    """Give a command one option per field of a model, with the field's description as help and `defaults` to show and to pass on.

    The command's parameter `into` receives what `make` makes of the values by name; those not given and without a default are left out.
    """
    defaults = defaults or {}

    def decorate(command: F) -> F:
        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != into]
        derived = [_option(name, model.model_fields[name], panel, defaults.get(name)) for name in names]

        @wraps(command)
        def wrapper(**given: Any) -> Any:
            values = {name: given.pop(name, None) for name in names}
            fields = {
                name: _parse(_flag(name), value, model.model_fields[name])
                for name, value in values.items()
                if value is not None
            }
            return command(**given, **{into: make(fields)})

        parameters = [*own, *derived]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return typing.cast(F, wrapper)

    return decorate


def given_options(context: typer.Context) -> set[str]:
    """Names of the options that the user has given; the others have their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _option(name: str, field: FieldInfo, panel: str, default: Any) -> inspect.Parameter:
    help_text = (field.description or "").strip()
    if default is not None:  # it is shown
        help_text = help_text.partition("; default:")[0]
    if _is_list(field):
        help_text += "; comma-separated"
    kind: Any = str if _is_number_or_none(field) else _plain_type(field)
    flags = _flag(name)
    if kind is bool and default is True:
        flags = f" /--no-{name.replace('_', '-')}"  # it is on, so only turning it off is offered
    help_text = help_text[:1].upper() + help_text[1:] + "."
    option = typer.Option(flags, help=help_text, rich_help_panel=panel, show_default=kind is not bool)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_list(field: FieldInfo) -> bool:
    return typing.get_origin(_without_none(field.annotation)) is tuple


def _is_number_or_none(field: FieldInfo) -> bool:
    return _plain_type(field) is int and type(None) in typing.get_args(field.annotation)


def _plain_type(field: FieldInfo) -> type:
    """The type of an option's value; text for literals and lists."""
    kind = _without_none(field.annotation)
    return kind if kind in (int, float, bool) else str


def _without_none(annotation: Any) -> Any:
    """The first member of a union that is not None; the annotation itself if it is no union."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return next(kind for kind in typing.get_args(annotation) if kind is not type(None))
    return annotation


def _parse(option: str, value: Any, field: FieldInfo) -> Any:
    """The value of an option as the field takes it: lists are split at commas, and "none" is None."""
    if _is_list(field):
        return [part.strip() for part in value.split(",") if part.strip()]
    if _is_number_or_none(field):
        if value == "none":
            return None
        try:
            return int(value)
        except ValueError:
            raise InputError(f"{option} takes a whole number or none (given: {value!r})") from None
    return value
