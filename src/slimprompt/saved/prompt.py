"""Saved prompts: `prompt.safetensors` (B, A and, if the prompt is anchored, W) and `prompt.json`, validated as a whole when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, model_validator
from torch import Tensor

from slimprompt import __version__
from slimprompt.errors import InputError
from slimprompt.files import sha256
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import Trainable, check_variant, check_words
from slimprompt.saved.files import ClassNames, Description, SavedBackbone, SavedFiles, tensor_bytes
from slimprompt.text.tokens import Position
from slimprompt.training.recipe import Recipe

PROMPT_FILES = SavedFiles("prompt", hash_field="factors_sha256")
#: A context vector has the scale of a token embedding, about 0.01 to 1; factors beyond this are damage.
_LARGEST_FACTOR = 1e6


class PromptDescription(Description):
    """The entries of `prompt.json`. A field that is added later has a default, so that older prompts keep loading."""

    FACTS: ClassVar[frozenset[str]] = Description.FACTS | {"templates"}

    class_names: ClassNames
    """The classes it was trained on, in order."""
    backbone: SavedBackbone
    """The weights that it belongs to."""
    variant: str
    basis: str | None
    trains: Trainable
    """The factors that were trained."""
    n_ctx: int = Field(ge=1)
    rank: int = Field(ge=1)
    words: str | None = None
    """The words that the prompt started from; version 0.1 had none of these three."""
    anchored: bool = False
    depth: int = Field(1, ge=1)
    position: Position
    recipe: Recipe | None
    """None if the prompt was trained by other software."""
    seed: int | None = Field(ge=0)
    imported: dict[str, Any] | None = None
    """Origin of a prompt that was trained by other software."""
    factors_sha256: str
    """Hash of `prompt.safetensors`."""
    templates: list[str] = Field(default_factory=list)
    """Zero-shot templates that it was compared with."""
    grown_from: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """`factors_sha256` of the prompt that training started from; None if it started cold."""

    @model_validator(mode="after")
    def _consistent(self) -> PromptDescription:
        dense = self.variant == "dense"
        row = check_variant(self.variant, rank=None if dense else self.rank, basis=self.basis, n_ctx=self.n_ctx)
        check_words(words=self.words is not None, anchored=self.anchored, depth=self.depth)
        if self.trains != row.trainable:
            raise ValueError(f"trains: {self.trains!r} does not belong to the variant {self.variant}")
        if dense and self.rank != self.n_ctx:
            raise ValueError(f"rank: a dense prompt has rank n_ctx = {self.n_ctx}, not {self.rank}")
        if (self.recipe is None) != (self.seed is None):
            raise ValueError("recipe and seed go together: an imported prompt has neither")
        return self


class SavedPrompt(NamedTuple):
    """A saved prompt: its validated description, all entries of `prompt.json`, and the factors."""

    description: PromptDescription
    entries: dict[str, Any]
    prompt: Prompt


def read_prompt(folder: Path) -> SavedPrompt:
    """Read and validate a saved prompt; an `InputError` that names the file and the field if it is damaged."""
    description, entries, factors = PROMPT_FILES.read(folder, PromptDescription)
    n_ctx, rank, depth = description.n_ctx, description.rank, description.depth
    shapes: dict[str, tuple[int | None, ...]] = {
        "B": (n_ctx, rank),
        "A": (rank, None) if depth == 1 else (depth, rank, None),
    }
    if description.anchored:
        shapes["W"] = (n_ctx, None)
    for name, shape in shapes.items():
        reason = _problem(factors.get(name), shape)
        if reason:
            raise PROMPT_FILES.damaged(folder / PROMPT_FILES.tensors, f"{name}: {reason}")
    words = factors["W"] if description.anchored else None
    try:
        prompt = Prompt(factors["B"], factors["A"], description.trains, words)
    except InputError as error:  # W and A have different widths
        raise PROMPT_FILES.damaged(folder / PROMPT_FILES.tensors, str(error)) from None
    return SavedPrompt(description, entries, prompt)


def write_prompt(folder: Path, entries: dict[str, Any], prompt: Prompt, facts: Mapping[str, Any] | None = None) -> None:
    """Write a prompt.

    Parameters
    ----------
    folder
        Where to write; a symbolic link is followed. Other files there are left alone.
    entries
        The entries of `prompt.json`, except for those that are known from the prompt and the program.
    prompt
        The factors.
    facts
        Further entries, under names that the description does not have, or `PromptDescription.FACTS`.
    """
    known = {
        "slimprompt": __version__,
        "trains": prompt.trainable,
        "n_ctx": prompt.n_ctx,
        "rank": prompt.rank,
        "depth": prompt.depth,
    }
    PROMPT_FILES.write(folder, PromptDescription, known | entries, prompt.tensors(), facts)


def factors_sha256(prompt: Prompt) -> str:
    """The hash of a prompt's factors that its description holds as soon as it is saved."""
    return sha256(tensor_bytes(prompt.tensors()))


def _problem(factor: Tensor | None, shape: tuple[int | None, ...]) -> str:
    """What is wrong with a factor; empty if it can be used. None in `shape` is the width, which is not known here."""
    if factor is None:
        return "it is missing"
    if not factor.is_floating_point():
        return f"its numbers are {factor.dtype}"
    if len(factor.shape) != len(shape) or any(
        size not in (None, found) for size, found in zip(shape, factor.shape, strict=True)
    ):
        expected = f"({', '.join('width' if size is None else str(size) for size in shape)})"
        return f"its shape is {tuple(factor.shape)}, but {PROMPT_FILES.description} says {expected}"
    if not factor.isfinite().all():
        return "it holds numbers that are not finite"
    largest = float(factor.abs().max()) if factor.numel() else 0.0
    return f"its largest number is {largest:.1e}" if largest > _LARGEST_FACTOR else ""
