"""Saved models: a folder with `<name>.json`, which describes the model, and `<name>.safetensors`, its tensors.

The description holds the hash of the tensors and a checksum of itself, so it covers both files. A save replaces them one by
one by renames, through a pending description `<name>.json.new`:

    write <name>.json.new  →  replace <name>.safetensors  →  rename <name>.json.new to <name>.json

A reader takes the description whose hash is that of the tensors. It finds the old model or the new one, wherever a save was
killed. Other files in the folder are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from slimprompt.clip.architectures import LOCAL_FOLDER
from slimprompt.clip.backbone import Backbone, load_backbone, read_preprocessing
from slimprompt.clip.weights import ACTIVATIONS, UnknownActivationError
from slimprompt.errors import InputError, first_few, problems, shown
from slimprompt.files import (
    cannot_write,
    check_writable,
    draft_folder,
    json_checksum,
    json_text,
    publish,
    sha256,
    write_file,
)
from slimprompt.names import check_class_names

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Description(BaseModel):
    """What every description holds; a kind of model adds its own fields. Further entries are allowed."""

    model_config = ConfigDict(extra="allow", strict=True)

    FACTS: ClassVar[frozenset[str]] = frozenset({"shots"})
    """Fields that are not known to the classifier: whoever saves it may give them."""

    format: int
    """Version of the layout."""
    slimprompt: str
    """Version that wrote it."""
    checksum: str | None = None
    """Of all other entries; version 0.1 wrote none."""
    temperature: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Probabilities are softmax(logits / temperature); 1 if the model was not calibrated."""
    confidences: list[Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=list)
    """Of the training images when they were held out, ascending, or their percentiles."""
    training_images: str = Field("", pattern="^([0-9a-f]{16}( [0-9a-f]{16})*)?$")
    """The first 8 bytes of the sha256 of each training image's content, ascending."""
    shots: int | None = Field(None, ge=1)
    """Training images per class, if `slimprompt fit` sampled them."""


def _readable(entries: dict[str, Any]) -> dict[str, Any]:
    try:
        read_preprocessing(entries)
    except (TypeError, AssertionError) as error:
        raise ValueError(str(error) or "unknown entries") from None
    return entries


class SavedBackbone(BaseModel):
    """The weights that a model belongs to."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str = Field(min_length=1)
    pretrained: str | None
    activation: str | None = None
    """Version 0.1 did not store it."""
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    """That the model was fitted with; it can be used with another one. Earlier versions did not store it."""
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    preprocess: Annotated[dict[str, Any], AfterValidator(_readable)] | None = None
    """Image size, normalisation and resizing, which a weight file does not tell. Earlier versions did not store it."""


def describe_backbone(backbone: Backbone) -> dict[str, Any]:
    """The entries of a `SavedBackbone`; files and folders of weights by their absolute paths."""
    name, pretrained = backbone.location
    further = {name: getattr(backbone, name) for name in ("activation", "precision", "fingerprint")}
    return {"name": name, "pretrained": pretrained, **further, "preprocess": asdict(backbone.preprocess)}


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a tensor file; equal tensors give equal bytes."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python; an `InputError` for other values that JSON does not have."""
    if isinstance(value, np.generic):
        return value.item()
    raise InputError(
        f"a {type(value).__name__} cannot be saved as an entry (given: {shown(value)}): give plain JSON data"
    )


def _usable(names: list[str]) -> list[str]:
    check_class_names(names)
    return names


#: A list of class names that can be used in prompts, no two of them the same words.
ClassNames = Annotated[list[str], Field(min_length=1), AfterValidator(_usable)]
Schema = TypeVar("Schema", bound=Description)


@dataclass(frozen=True)
class SavedFiles:
    """The two files of one kind of model.

    Attributes
    ----------
    name
        The kind, which is the name of the files: "prompt".
    format
        Version of the layout that is written and read.
    hash_field
        Entry of the description that holds the hash of the tensors.
    """

    name: str
    format: int = 1
    hash_field: str = "tensors_sha256"

    @property
    def description(self) -> str:
        """Name of the description file."""
        return f"{self.name}.json"

    @property
    def tensors(self) -> str:
        """Name of the tensor file."""
        return f"{self.name}.safetensors"

    @property
    def _pending(self) -> str:
        return f"{self.description}.new"

    def check_free(self, folder: Path, *, overwrite: bool) -> None:
        """Raise an error unless a model may and can be written to `folder`.

        An old model is only replaced on request, and a folder of other files is never used.
        """
        check_writable(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; choose another name for the folder of the {self.name}")
        if self.is_saved(folder):
            if not overwrite:
                raise InputError(
                    f"{folder} already holds a saved {self.name}; choose another name, or add --overwrite (Python: overwrite=True)"
                )
        elif folder.exists() and any(not self._is_leftover(path) for path in folder.iterdir()):
            raise InputError(
                f"{folder} exists and is not a saved {self.name}, so it is left alone; choose another name"
            )

    def write(
        self,
        folder: Path,
        schema: type[Description],
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write both files; a new folder appears completely or not at all.

        Parameters
        ----------
        folder
            Where to write; a symbolic link is followed.
        schema
            What the description is read with.
        description
            Entries of the description, as plain JSON data.
        tensors
            Tensors by name.
        facts
            Further entries of the description, under names that it does not have, or `schema.FACTS`.

        Raises
        ------
        InputError
            If what would be written could not be read again, or a fact would replace another entry.
        """
        facts = facts or {}
        if taken := sorted(facts.keys() & (schema.model_fields.keys() - schema.FACTS)):
            raise InputError(
                f"{self.description} has entries of these names already: {first_few(taken)}; choose others"
            )
        data = tensor_bytes(tensors)
        entries = {"format": self.format, **description, **facts, self.hash_field: sha256(data)}
        content = json.loads(json.dumps(entries, default=_plain))
        try:
            schema.model_validate(content)
        except ValidationError as error:
            raise InputError(f"this {self.name} cannot be saved: {problems(error)[0]}") from None
        text = json_text({**content, "checksum": json_checksum(content)})
        folder = folder.resolve()
        if not folder.exists():
            with draft_folder(folder) as draft:
                write_file(draft / self.tensors, data)
                write_file(draft / self.description, text)
                publish(draft, folder)
            return
        pending = write_file(folder / self._pending, text)
        try:
            write_file(folder / self.tensors, data)
        except InputError:
            pending.unlink(missing_ok=True)
            raise
        try:
            pending.replace(folder / self.description)
        except OSError as error:
            raise cannot_write(folder / self.description, error) from None

    def read(self, folder: Path, schema: type[Schema]) -> tuple[Schema, dict[str, Any], dict[str, Tensor]]:
        """The validated description, its entries as plain data, and the tensors.

        Raises
        ------
        InputError
            If there is no such model, or a file is damaged: the message names the file and the field.
        """
        from safetensors.torch import load

        if not self.is_saved(folder):
            raise InputError(f"no saved {self.name} at {folder}: expected {self.description} and {self.tensors}")
        try:
            data = (folder / self.tensors).read_bytes()
        except OSError as error:
            raise self.damaged(folder / self.tensors, error.strerror or str(error)) from None
        path, content = self._description_of(folder, sha256(data))
        if isinstance(content.get("format"), int) and content["format"] > self.format:
            raise InputError(
                f"{path} has {self.name} format {content['format']}; this slimprompt reads format {self.format}: update it"
            )
        try:
            described = schema.model_validate(content)
        except ValidationError as error:
            raise self.damaged(path, problems(error)[0]) from None
        if described.format != self.format:
            raise self.damaged(path, f"format: {described.format} is unknown")
        stored = {name: value for name, value in content.items() if name != "checksum"}
        if described.checksum not in (None, json_checksum(stored)):
            raise self.damaged(path, "checksum: the file was changed after it was saved")
        if content.get(self.hash_field) != sha256(data):
            raise self.damaged(folder / self.tensors, f"its content is not what {self.hash_field} of {path.name} says")
        try:
            return described, stored, load(data)
        except Exception as error:  # safetensors has error types of its own
            raise self.damaged(folder / self.tensors, str(error)) from None

    def load_backbone(
        self,
        folder: Path,
        saved: SavedBackbone,
        backbone: Backbone | None = None,
        pretrained: str | Path | None = None,
        activation: str | None = None,
        *,
        device: str | torch.device = "auto",
        precision: str = "fp32",
    ) -> Backbone:
        """The backbone of a saved model, with its preprocessing; weights other than those it was fitted on are refused.

        Parameters
        ----------
        folder
            Folder of the model, for the message.
        saved
            The backbone that its description names.
        backbone
            A loaded backbone to use.
        pretrained
            Tag or file of the weights, if it differs from when the model was saved; the folder of a `local-dir:` model.
        activation
            Activation of the backbone; None or "auto": the one that was saved.
        device, precision
            Passed to `load_backbone`.
        """
        if backbone is None:
            activation = saved.activation if activation in (None, "auto") else activation
            name, weights = saved.name, pretrained or saved.pretrained
            if name.startswith(LOCAL_FOLDER) and weights:  # where the folder is now
                name, weights = LOCAL_FOLDER + str(weights).removeprefix(LOCAL_FOLDER), None
            load_with = partial(load_backbone, name, weights, device=device, precision=precision)
            try:
                backbone = load_with(activation=activation)
            except UnknownActivationError:  # version 0.1 did not store it: the fingerprint tells
                candidates = [load_with(activation=activation) for activation in ACTIVATIONS]
                matching = (one for one in candidates if one.fingerprint == saved.fingerprint)
                backbone = next(matching, candidates[0])
        self.check_weights(folder, saved, backbone)
        return backbone.with_preprocessing(read_preprocessing(saved.preprocess)) if saved.preprocess else backbone

    def check_weights(self, model: Path | str, saved: SavedBackbone, backbone: Backbone) -> None:
        """Raise an error unless the backbone has the weights that a model, named `model` in the message, was fitted on."""
        if backbone.fingerprint != saved.fingerprint:
            raise InputError(
                f"{model} was trained on {saved.name} ({saved.pretrained or 'own weights'}, fingerprint {saved.fingerprint[:12]}), "
                f"but {backbone.name} ({backbone.pretrained or 'own weights'}) has fingerprint {backbone.fingerprint[:12]}: "
                f"a {self.name} only works with the weights it was trained on"
            )

    def damaged(self, path: Path, reason: str) -> InputError:
        """The error for a file that is not what `write` wrote."""
        return InputError(
            f"{path} is damaged: {' '.join(reason.split())[:300]}. Fit the {self.name} again or restore the file"
        )

    def is_saved(self, folder: Path) -> bool:
        """Whether `folder` holds a model, or what a save that was killed before its last rename leaves of one."""
        if (folder / self.description).is_file():
            return True
        return (folder / self._pending).is_file() and (folder / self.tensors).is_file()

    def _is_leftover(self, path: Path) -> bool:
        """Whether a file is what a killed save leaves in an empty folder."""
        return path.name == self._pending or (path.name.startswith(".") and path.suffix == ".tmp")

    def _description_of(self, folder: Path, tensors_sha256: str) -> tuple[Path, dict[str, Any]]:
        """The description that belongs to the tensors: the pending one if a save was killed before its last rename."""
        path, pending = folder / self.description, folder / self._pending
        if pending.is_file():
            try:
                content = self._parse(pending)
            except InputError:  # of no use; the description itself decides
                content = {}
            if content.get(self.hash_field) == tensors_sha256:
                return pending, content
        return path, self._parse(path)

    def _parse(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self.damaged(path, str(error)) from None
        if not isinstance(content, dict):
            raise self.damaged(path, f"expected an object of named entries, found {type(content).__name__}")
        return content
