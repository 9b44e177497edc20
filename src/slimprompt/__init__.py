"""Adapt CLIP from a few images with a low-rank text prompt `P = B A`."""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from slimprompt.classifier import Classifier, PromptClassifier, load_classifier
    from slimprompt.clip.backbone import Backbone, load_backbone
    from slimprompt.errors import InputError
    from slimprompt.images.bank import FeatureBank
    from slimprompt.prompts.prompt import Prompt
    from slimprompt.prompts.start import start_prompt
    from slimprompt.text.encoder import SharedPrefixTextEncoder
    from slimprompt.training.recipe import Recipe

#: The public names and where they live; loaded on first use, so that `import slimprompt` does not import torch.
_HOMES = {
    "Backbone": "clip.backbone",
    "load_backbone": "clip.backbone",
    "FeatureBank": "images.bank",
    "Classifier": "classifier",
    "PromptClassifier": "classifier",
    "load_classifier": "classifier",
    "InputError": "errors",
    "Prompt": "prompts.prompt",
    "Recipe": "training.recipe",
    "start_prompt": "prompts.start",
    "SharedPrefixTextEncoder": "text.encoder",
}

__all__ = [
    "Backbone",
    "Classifier",
    "FeatureBank",
    "InputError",
    "Prompt",
    "PromptClassifier",
    "Recipe",
    "SharedPrefixTextEncoder",
    "load_backbone",
    "load_classifier",
    "start_prompt",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'slimprompt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"slimprompt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
