"""Continued training: from the factors of a finished prompt, when images or classes were added."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, shown
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import PromptSpec
from slimprompt.saved import SavedBackbone, check_weights, prompt_of, read_model, tensors_sha256


class FinishedPrompt(NamedTuple):
    """The prompt whose training continues."""

    name: str
    """For messages."""
    prompt: Prompt
    spec: PromptSpec
    backbone: SavedBackbone
    training_images: frozenset[str]
    """Short hashes; empty if they are not known."""
    sha256: str
    """Of its factors."""

    def check_spec(self, spec: PromptSpec) -> None:
        """Raise an error unless the prompt to train is of the same kind."""
        for name in PromptSpec.model_fields:
            given, own = getattr(spec, name), getattr(self.spec, name)
            if given != own and not (name == "image_blocks" and given is None):
                raise InputError(
                    f"{name}={shown(given)} does not fit the prompt to continue from, {self.name}, which has {name}={shown(own)}: "
                    "continued training keeps the prompt's settings. Give the same value, or train a new prompt"
                )

    def prompt_for(self, backbone: Backbone) -> Prompt:
        """A copy of the prompt to train; weights other than those it was trained on are an error."""
        check_weights(self.name, self.backbone, backbone)
        return prompt_of(self.spec, self.prompt.tensors())


def read_finished_prompt(model: str | Path) -> FinishedPrompt:
    """The prompt of a saved model."""
    saved = read_model(model)
    described, prompt = saved.description, saved.model
    if not isinstance(prompt, Prompt) or described.prompt is None:
        raise InputError(f"{model} holds a head of {described.method}: only the training of a prompt can continue")
    images = frozenset(described.training_images.split())
    return FinishedPrompt(str(model), prompt, described.prompt, described.backbone, images, tensors_sha256(prompt))
