"""Saved models: one file, `model.safetensors`, without pickle.

It holds the tensors of the model and, as JSON in its metadata, the description, whose checksum covers both. It is replaced by
one rename: a reader finds the old model or the new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, field_validator

from slimprompt import __version__
from slimprompt.clip.architectures import LOCAL_FOLDER
from slimprompt.clip.backbone import Backbone, load_backbone, read_preprocessing
from slimprompt.errors import InputError, first_few, problems, shown
from slimprompt.files import check_regular, check_writable, write_file
from slimprompt.hub import FILE, model_folder
from slimprompt.methods.head import AnyHead, CacheHead, Head, head_problem
from slimprompt.methods.table import PROMPT, find_method
from slimprompt.prompts.prompt import ImagePrompt, Prompt
from slimprompt.prompts.spec import PromptSpec
from slimprompt.training.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FORMAT = 1
#: Entry of the metadata that holds the description.
_ENTRY = "slimprompt"
#: A context vector has the scale of a token embedding, about 0.01 to 1; factors beyond this are damage.
_LARGEST_FACTOR = 1e6
_HEADS: dict[str, type[Head] | type[CacheHead]] = {"linear": Head, "cache": CacheHead}
#: Fields of the description that whoever saves a model may give.
_FACTS = frozenset({"shots"})


def _readable(entries: dict[str, Any]) -> dict[str, Any]:
    try:
        read_preprocessing(entries)
    except (TypeError, AssertionError) as error:
        raise ValueError(str(error) or "unknown entries") from None
    return entries


class SavedBackbone(BaseModel):
    """The weights that a model belongs to."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    pretrained: str | None
    activation: str
    precision: Literal["fp32", "bf16", "fp16"]
    """That the model was fitted with; it can be used with another one."""
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    preprocess: Annotated[dict[str, Any], AfterValidator(_readable)]
    """Image size, normalisation and resizing, which weights do not tell."""


class Description(BaseModel):
    """What a saved model is, beside its tensors. Further entries are allowed."""

    model_config = ConfigDict(extra="allow", strict=True)

    format: Literal[1]
    """Version of the layout."""
    slimprompt: str
    """Version that wrote it."""
    method: str
    class_names: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """The classes it was fitted on, in order."""
    backbone: SavedBackbone
    prompt: PromptSpec | None
    """What the prompt is; None for the other methods."""
    recipe: Recipe | None
    """How the prompt was trained; None if it was trained by other software."""
    kind: Literal["prompt", "linear", "cache"]
    numbers: dict[str, FiniteFloat]
    """The fields of the head that are numbers."""
    n_trained: int = Field(ge=0)
    """How many numbers come from the training images."""
    settings: dict[str, FiniteFloat]
    """Settings of the method that were chosen by cross-validation, or their fixed values."""
    templates: list[str] = Field(min_length=1)
    """Zero-shot templates that it was fitted with and is compared with."""
    views: int = Field(ge=0)
    """Train views of each image that methods on image features used beside the eval view."""
    seed: int | None = Field(ge=0)
    temperature: float = Field(gt=0, allow_inf_nan=False)
    """Probabilities are softmax(logits / temperature); 1 if the model was not calibrated."""
    confidences: list[Annotated[float, Field(ge=0, le=1)]]
    """Of the training images when they were held out, ascending, or their percentiles."""
    training_images: str = Field(pattern="^([0-9a-f]{16}( [0-9a-f]{16})*)?$")
    """The first 8 bytes of the sha256 of each training image's content, ascending."""
    codes: dict[str, str] = Field(default_factory=dict)
    """Class names by the codes of class folders or labels that it was fitted on; empty without codes."""
    shots: int | None = Field(None, ge=1)
    """Training images per class, if `slimprompt fit` sampled them."""
    imported: dict[str, Any] | None
    """Origin of a prompt that was trained by other software."""
    continued_from: str | None = Field(pattern="^[0-9a-f]{64}$")
    """Hash of the factors that training started from; None if it started cold."""
    checksum: str
    """Of all other entries and the tensors."""

    @field_validator("method")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != PROMPT:
            find_method(name)
        return name


class SavedModel(NamedTuple):
    """A model file: its description, all entries of it as plain data, and the prompt or head."""

    path: Path
    description: Description
    entries: dict[str, Any]
    model: Prompt | AnyHead


def model_file(model: str | Path) -> Path:
    """The file of a saved model: `<folder>/model.safetensors`, or a path that ends in .safetensors.

    `hf:user/name` is downloaded from the Hugging Face hub, unless it is in the cache.
    """
    path = model_folder(model)
    return path if path.suffix == ".safetensors" else path / FILE


def check_free(model: str | Path, *, overwrite: bool) -> Path:
    """The file to write, if a model may and can be written there; an old one is only replaced on request."""
    path = model_file(model)
    check_writable(path)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; choose another name, or add --overwrite (Python: overwrite=True)")
    return path


def write_model(
    path: Path, entries: Mapping[str, Any], model: Prompt | AnyHead, facts: Mapping[str, Any] | None = None
) -> None:
    """Write a model completely or not at all.

    `entries` are those of the description that the model and the program do not tell, `facts` further ones under other names; both are
    plain JSON data.
    """
    facts = dict(facts or {})
    if taken := sorted(facts.keys() & (Description.model_fields.keys() - _FACTS)):
        raise InputError(f"{FILE} has entries of these names already: {first_few(taken)}; choose others")
    kind, numbers, tensors = model_parts(model)
    known = {"format": _FORMAT, "slimprompt": __version__, "kind": kind, "numbers": numbers}
    content = json.loads(json.dumps({**known, **entries, **facts}, default=_plain))
    content["checksum"] = _checksum(content, tensors)
    text = json.dumps(content, ensure_ascii=False)
    try:
        Description.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"this model cannot be saved: {problems(error)[0]}") from None
    from safetensors.torch import save

    write_file(path, save(tensors, metadata={_ENTRY: text}))


def read_model(model: str | Path) -> SavedModel:
    """Read and validate a saved model; an `InputError` that names the file and the field if it is damaged."""
    from safetensors.torch import load

    path = model_file(model)
    if not path.exists():
        raise InputError(f"no saved model at {model}: expected {path}, which `slimprompt fit` writes")
    check_regular(path)
    try:
        data = path.read_bytes()
        tensors, text = load(data), _description_text(data)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None
    except Exception as error:  # safetensors has error types of its own
        raise damaged(path, str(error)) from None
    try:
        description = Description.model_validate_json(text)
    except ValidationError as error:
        raise damaged(path, problems(error)[0]) from None
    entries = json.loads(text)
    if description.checksum != _checksum(entries, tensors):
        raise damaged(path, "checksum: the file was changed after it was saved")
    return SavedModel(path, description, entries, _model(path, description, tensors))


def load_backbone_of(
    saved: SavedModel,
    backbone: Backbone | None = None,
    pretrained: str | Path | None = None,
    activation: str | None = None,
    *,
    device: str | torch.device = "auto",
    precision: str = "fp32",
) -> Backbone:
    """The backbone of a saved model, with its preprocessing; weights other than those it was fitted on are refused.

    `pretrained` names the weights if they are elsewhere now: a tag, a file, or the folder of a `local-dir:` model. The activation is the
    saved one unless another is given.
    """
    expected = saved.description.backbone
    if backbone is None:
        activation = expected.activation if activation in (None, "auto") else activation
        name, weights = expected.name, pretrained or expected.pretrained
        if name.startswith(LOCAL_FOLDER) and weights:  # where the folder is now
            name, weights = LOCAL_FOLDER + str(weights).removeprefix(LOCAL_FOLDER), None
        backbone = load_backbone(name, weights, activation=activation, device=device, precision=precision)
    check_weights(saved.path, expected, backbone)
    return backbone.frozen.with_preprocessing(read_preprocessing(expected.preprocess))


def check_weights(model: Path | str, saved: SavedBackbone, backbone: Backbone) -> None:
    """Raise an error unless the backbone has the weights that a model, named `model` in the message, was fitted on."""
    if backbone.frozen.fingerprint != saved.fingerprint:
        raise InputError(
            f"{model} was fitted on {saved.name} ({saved.pretrained or 'own weights'}, fingerprint {saved.fingerprint[:12]}), "
            f"but {backbone.name} ({backbone.pretrained or 'own weights'}) has fingerprint {backbone.fingerprint[:12]}: "
            "a model only works with the weights it was fitted on"
        )


def describe_backbone(backbone: Backbone) -> dict[str, Any]:
    """The entries of a `SavedBackbone`; files and folders of weights by their absolute paths."""
    backbone = backbone.frozen
    name, pretrained = backbone.location
    further = {name: getattr(backbone, name) for name in ("activation", "precision", "fingerprint")}
    return {"name": name, "pretrained": pretrained, **further, "preprocess": asdict(backbone.preprocess)}


def model_parts(model: Prompt | AnyHead) -> tuple[str, dict[str, float], dict[str, Tensor]]:
    """The kind of a model, its numbers and its tensors on the CPU."""
    values: dict[str, Any]
    if isinstance(model, Prompt):
        kind, values = "prompt", dict(model.tensors())
    else:
        kind = next(kind for kind, of in _HEADS.items() if isinstance(model, of))
        values = {field.name: getattr(model, field.name) for field in fields(model)}
    tensors = {name: value.detach().cpu().contiguous() for name, value in values.items() if hasattr(value, "detach")}
    return kind, {name: value for name, value in values.items() if isinstance(value, float)}, tensors


def tensors_sha256(model: Prompt | AnyHead) -> str:
    """Hash of the tensors of a model."""
    return _checksum({}, model_parts(model)[2])


def damaged(path: Path, reason: str) -> InputError:
    """The error for a file that is not what `write_model` wrote."""
    return InputError(f"{path} is damaged: {' '.join(reason.split())[:300]}. Fit the model again or restore the file")


def _checksum(entries: Mapping[str, Any], tensors: dict[str, Tensor]) -> str:
    from safetensors.torch import save

    content = {name: value for name, value in entries.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    digest.update(save(tensors))
    return digest.hexdigest()


def _description_text(data: bytes) -> str:
    """The description in the header of a safetensors file: 8 bytes of length, then JSON."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    text = header.get("__metadata__", {}).get(_ENTRY)
    if text is None:
        raise ValueError("it holds no description of a slimprompt model")
    return str(text)


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python; an `InputError` for other values that JSON does not have."""
    if isinstance(value, np.generic):
        return value.item()
    raise InputError(
        f"a {type(value).__name__} cannot be saved as an entry (given: {shown(value)}): give plain JSON data"
    )


def _model(path: Path, description: Description, tensors: dict[str, Tensor]) -> Prompt | AnyHead:
    if (description.kind == "prompt") != (description.prompt is not None):
        raise damaged(path, f"kind: {description.kind} does not fit the other entries")
    if description.prompt is not None:
        return _prompt(path, description.prompt, tensors)
    parts: dict[str, Any] = {**tensors, **description.numbers}
    try:
        head = _HEADS[description.kind](class_names=tuple(description.class_names), **parts)
    except TypeError as error:
        raise damaged(path, str(error)) from None
    if reason := head_problem(head):
        raise damaged(path, reason)
    return head


def _prompt(path: Path, spec: PromptSpec, tensors: dict[str, Tensor]) -> Prompt:
    n_ctx = spec.n_ctx or (len(tensors["B"]) if "B" in tensors else 0)
    rank = 0 if spec.tower == "image" else spec.rank or n_ctx
    shapes = {"B": (n_ctx, rank), "A": (spec.depth, rank, -1) if spec.depth > 1 else (rank, -1)}
    if spec.anchored or spec.tower == "image":
        shapes["W"] = (n_ctx, -1)
    if spec.tower != "text":
        n_rows = spec.n_ctx_image or n_ctx
        if spec.image_blocks is None:
            raise damaged(path, "prompt: image_blocks is missing")
        first, end = spec.blocks_of(spec.image_blocks)
        shapes |= {"image.B": (n_rows, spec.rank or n_rows), "image.A": (end - first, spec.rank or n_rows, -1)}
    for name, shape in shapes.items():
        if reason := _factor_problem(tensors.get(name), shape):
            raise damaged(path, f"{name}: {reason}")
    try:
        return prompt_of(spec, tensors)
    except InputError as error:  # W and A have different widths
        raise damaged(path, str(error)) from None


def prompt_of(spec: PromptSpec, tensors: Mapping[str, Tensor]) -> Prompt:
    """The prompt of `Prompt.tensors`."""
    trainable = "none" if spec.tower == "image" else spec.row.trainable
    prompt = Prompt(tensors["B"], tensors["A"], trainable, tensors.get("W"))
    if spec.tower != "text":
        shared = prompt.B if spec.share_basis else None
        first, _ = spec.blocks_of(spec.image_blocks or "")
        prompt.image = ImagePrompt(tensors["image.B"], tensors["image.A"], spec.row.trainable, first, share=shared)
    return prompt


def _factor_problem(factor: Tensor | None, shape: tuple[int, ...]) -> str:
    """What is wrong with a factor; empty if it can be used. -1 in `shape` is the width, which is not known here."""
    if factor is None:
        return "it is missing"
    if not factor.is_floating_point():
        return f"its numbers are {factor.dtype}"
    fits = len(factor.shape) == len(shape) and all(
        size in (-1, found) for size, found in zip(shape, factor.shape, strict=True)
    )
    if not fits:
        expected = f"({', '.join('width' if size == -1 else str(size) for size in shape)})"
        return f"its shape is {tuple(factor.shape)}, but the description says {expected}"
    if not factor.isfinite().all():
        return "it holds numbers that are not finite"
    largest = float(factor.abs().max()) if factor.numel() else 0.0
    return f"its largest number is {largest:.1e}" if largest > _LARGEST_FACTOR else ""
