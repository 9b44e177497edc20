"""Continued training: from the factors of a finished prompt, when images or classes were added."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, shown
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import PromptSpec
from slimprompt.saved import SavedBackbone, SavedModel, check_weights, describe_backbone, read_model, tensors_sha256

if TYPE_CHECKING:
    from slimprompt.classifier import Classifier


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
            if given != own:
                raise InputError(
                    f"{name}={shown(given)} does not fit the prompt to continue from, {self.name}, which has {name}={shown(own)}: "
                    "continued training keeps the prompt's settings. Give the same value, or train a new prompt"
                )

    def prompt_for(self, backbone: Backbone) -> Prompt:
        """A copy of the prompt to train; weights other than those it was trained on are an error."""
        check_weights(self.name, self.backbone, backbone)
        tensors = self.prompt.tensors()
        return Prompt(tensors["B"], tensors["A"], self.prompt.trainable, tensors.get("W"))


def finished_prompt(continue_from: str | Path | Classifier) -> FinishedPrompt:
    """The prompt of a saved model or of a fitted classifier."""
    if isinstance(continue_from, str | Path):
        return saved_prompt(str(continue_from), read_model(continue_from))
    if getattr(continue_from, "prompt_", None) is None or continue_from.spec_ is None:
        raise InputError(
            f"continue_from must be a saved prompt or a classifier with a fitted prompt (given: {shown(continue_from)}); clone of "
            "scikit-learn removes what a classifier has learned, so give it a saved one"
        )
    prompt, backbone = continue_from.prompt_, SavedBackbone(**describe_backbone(continue_from.backbone_))
    images = continue_from.training_images_
    return FinishedPrompt("the given classifier", prompt, continue_from.spec_, backbone, images, tensors_sha256(prompt))


def saved_prompt(name: str, saved: SavedModel) -> FinishedPrompt:
    """The prompt of a model file."""
    described, prompt = saved.description, saved.model
    if not isinstance(prompt, Prompt) or described.prompt is None:
        raise InputError(f"{name} holds a head of {described.method}: only the training of a prompt can continue")
    images = frozenset(described.training_images.split())
    return FinishedPrompt(name, prompt, described.prompt, described.backbone, images, tensors_sha256(prompt))
