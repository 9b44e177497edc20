"""Warm starts: training that begins at the factors of a finished prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slimprompt.clip.backbone import Backbone
from slimprompt.data import Benchmark, Item
from slimprompt.errors import InputError, shown
from slimprompt.images.decode import file_sha256
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import used_settings
from slimprompt.saved.files import SavedBackbone, describe_backbone
from slimprompt.saved.prompt import PROMPT_FILES, PromptDescription, factors_sha256, read_prompt

if TYPE_CHECKING:
    from slimprompt.classifiers.prompt import PromptClassifier

#: Settings that a prompt keeps when it grows: they decide what its factors are.
PROMPT_SETTINGS = ("variant", "rank", "basis", "n_ctx", "words", "anchored", "depth", "position")


class WarmStart(NamedTuple):
    """The finished prompt that training starts from."""

    name: str
    """For messages."""
    prompt: Prompt
    settings: dict[str, Any]
    """The values of `PROMPT_SETTINGS`."""
    backbone: SavedBackbone
    training_images: frozenset[str]
    """Short hashes; empty if they are not known."""
    sha256: str
    """Of its factors."""

    def check_settings(self, classifier: PromptClassifier) -> None:
        """Raise an error unless a classifier has the settings of this prompt; those that its variant does not use are free."""
        used = used_settings(classifier.variant, rank=classifier.rank, basis=classifier.basis)
        given = {name: getattr(classifier, name) for name in PROMPT_SETTINGS} | used
        if classifier.words is not None:  # the number of their tokens, which the backbone knows
            given["n_ctx"] = self.settings["n_ctx"]
        for name, value in given.items():
            if value != self.settings[name]:
                raise InputError(
                    f"{name}={shown(value)} does not fit the prompt to start from, {self.name}, which has "
                    f"{name}={shown(self.settings[name])}: a prompt keeps its settings when it grows. Give the same value, or fit "
                    "without start_from"
                )

    def trained_items(self, images: Benchmark) -> frozenset[Item]:
        """The train items whose images this prompt was trained on, by their content. Unreadable images are not among them."""
        return frozenset(item for item in images.train if self._trained_on(images.path(item)))

    def _trained_on(self, image: Path) -> bool:
        try:
            return bool(self.training_images) and file_sha256(image)[:16] in self.training_images
        except InputError:
            return False

    def prompt_for(self, backbone: Backbone) -> Prompt:
        """A copy of the prompt to train; weights other than those it was trained on are an error."""
        PROMPT_FILES.check_weights(self.name, self.backbone, backbone)
        tensors = self.prompt.tensors()
        return Prompt(tensors["B"], tensors["A"], self.prompt.trainable, tensors.get("W"))


def read_start(start_from: str | Path | PromptClassifier) -> WarmStart:
    """The prompt to start from, of a folder that holds a saved prompt or of a fitted `PromptClassifier`."""
    if isinstance(start_from, str | Path):
        description, _, prompt = read_prompt(Path(start_from))
        images = frozenset(description.training_images.split())
        settings = settings_of(description)
        return WarmStart(str(start_from), prompt, settings, description.backbone, images, description.factors_sha256)
    if not hasattr(start_from, "class_features_"):
        raise InputError(
            f"start_from must be the folder of a saved prompt or a fitted PromptClassifier (given: {shown(start_from)}); clone of "
            "scikit-learn removes what a classifier has learned, so give it a folder"
        )
    prompt = start_from.prompt_
    settings = {name: start_from.fitted_params_[name] for name in PROMPT_SETTINGS}
    settings |= used_settings(settings["variant"], rank=settings["rank"], basis=settings["basis"])
    settings["n_ctx"] = prompt.n_ctx
    backbone = SavedBackbone(**describe_backbone(start_from.backbone_))
    name = "the given PromptClassifier"
    return WarmStart(name, prompt, settings, backbone, start_from.training_images_, factors_sha256(prompt))


def settings_of(description: PromptDescription) -> dict[str, Any]:
    """The settings of a saved prompt, by the names of `PROMPT_SETTINGS`; a dense prompt has no rank."""
    settings = {name: getattr(description, name) for name in PROMPT_SETTINGS}
    return settings | ({"rank": None} if description.variant == "dense" else {})
