"""Adapt CLIP from a few images with a low-rank text prompt `P = B A`."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from slimprompt.backbone import Backbone, load_backbone
    from slimprompt.bank import FeatureBank
    from slimprompt.classifier import PromptClassifier
    from slimprompt.errors import InputError
    from slimprompt.prompt import Prompt
    from slimprompt.recipe import Recipe
    from slimprompt.start import start_prompt
    from slimprompt.text import SharedPrefixTextEncoder

#: The public names and where they live; loaded on first use, so that `import slimprompt` does not import torch.
_HOMES = {
    "Backbone": "backbone",
    "load_backbone": "backbone",
    "FeatureBank": "bank",
    "PromptClassifier": "classifier",
    "InputError": "errors",
    "Prompt": "prompt",
    "Recipe": "recipe",
    "start_prompt": "start",
    "SharedPrefixTextEncoder": "text",
}

__all__ = [
    "Backbone",
    "FeatureBank",
    "InputError",
    "Prompt",
    "PromptClassifier",
    "Recipe",
    "SharedPrefixTextEncoder",
    "load_backbone",
    "start_prompt",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'slimprompt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"slimprompt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
