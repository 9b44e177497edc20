"""Names of models, their configurations, and how prompts run through the text towers that these describe."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import open_clip
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_models_by_tag

from slimprompt.errors import InputError

MODELS = Path(__file__).parent / "models"
EMBEDDED = tuple(sorted(path.stem for path in MODELS.glob("*.safetensors")))
"""Models whose weights are part of this package."""
LOCAL_FOLDER = "local-dir:"
"""Begins the name of a model that is a folder, with its configuration and weights."""
HUB = "hf-hub:"
"""Begins the name of a model of the Hugging Face hub in open_clip's format."""
ACTIVATIONS = {"gelu": "GELU", "quickgelu": "QuickGELU"}
"""Activations of CLIP's towers and their titles."""
TOKENIZER_EXTRA = "hf"
"""Extra of this package that contains the tokenizers of Hugging Face."""


def model_config(name: str) -> dict[str, Any] | None:
    """Open_clip's configuration of an embedded model or an architecture; None for hub ids, folders and unknown names."""
    if name in EMBEDDED:
        return json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return open_clip.get_model_config(name) if name in open_clip.list_models() else None


def default_pretrained(name: str) -> str | None:
    """OpenAI's tag for an architecture that OpenAI published weights of, else None.

    >>> default_pretrained("ViT-B/16"), default_pretrained("pocket")
    ('openai', None)
    """
    return "openai" if get_pretrained_cfg(name.replace("/", "-"), "openai") else None


def absolute_weights(pretrained: str) -> str:
    """The absolute path of a weight file or of a folder; a tag as it is, even if there is a file or folder of that name."""
    is_path = not list_pretrained_models_by_tag(pretrained) and Path(pretrained).exists()
    return str(Path(pretrained).absolute()) if is_path else pretrained


class PromptSupport(NamedTuple):
    """Whether and how prompts can be trained through a text tower."""

    text_pass: Literal["shared prefix", "full pass", "none"]
    """"shared prefix": fast, each class computes only its own tokens. "full pass": slower, each class computes the whole
    context length. "none": prompts are not supported."""
    reason: str = ""
    """Why it is not the shared prefix."""
    missing: str = ""
    """Package that the tokenizer needs and that is not installed."""

    def require(self, name: str) -> None:
        """Raise an `InputError` if the model of this name cannot be used with prompts on this machine."""
        if self.text_pass == "none":
            raise InputError(
                f"prompts do not work with {name} ({self.reason}); `slimprompt backbones` shows which models can be used"
            )
        if self.missing:
            raise InputError(
                f"the tokenizer of {name} needs the package {self.missing}: pip install 'slimprompt[{TOKENIZER_EXTRA}]'"
            )


def prompt_support(config: Mapping[str, Any]) -> PromptSupport:
    """How prompts run through the text tower that an open_clip configuration describes, before it is built.

    `towers.supports_shared_prefix` decides from the modules of a loaded tower which pass an encoder takes.
    """
    text = config["text_cfg"]
    pool_type = text.get("pool_type", "argmax")
    needs_package = text.get("hf_tokenizer_name") and importlib.util.find_spec("transformers") is None
    missing = "transformers" if needs_package else ""
    if text.get("hf_model_name"):
        return PromptSupport("none", "Hugging Face text tower")
    if text.get("embed_cls"):
        return PromptSupport("none", "text feature read from an appended class token (CoCa)", missing)
    if text.get("no_causal_mask"):
        return PromptSupport("full pass", "not causal", missing)
    if pool_type not in ("argmax", "eos"):
        return PromptSupport("full pass", f"feature read at the {pool_type} token", missing)
    return PromptSupport("shared prefix", "", missing)


def takes_image_prompts(config: Mapping[str, Any]) -> bool:
    """Whether the image tower that an open_clip configuration describes takes prompts, before it is built.

    `image_tower.reads_class_token` decides it from the modules of a loaded tower.
    """
    vision = config.get("vision_cfg", {})
    blocks_are_plain = not any(vision.get(name) for name in ("block_type", "qk_norm", "scaled_cosine_attn"))
    return (
        "timm_model_name" not in vision
        and isinstance(vision.get("layers", 12), int)
        and vision.get("pool_type", "tok") == "tok"
        and not vision.get("attentional_pool")
        and not vision.get("output_tokens")
        and blocks_are_plain
    )
