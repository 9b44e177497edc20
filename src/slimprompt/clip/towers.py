"""What a text tower of open_clip supports: prompts with the shared prefix, with the full pass, or none.

`prompt_support` is the one rule. It reads the modules of a tower, and `config_support` applies it to a configuration, whose
tower is built with one layer and without memory for its weights.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import open_clip
import torch
from open_clip.transformer import QuickGELU, ResidualAttentionBlock
from torch import nn

from slimprompt.errors import InputError

#: Optional dependencies of this package that contain the tokenizers of Hugging Face.
TOKENIZER_EXTRA = "hf"

#: The factor s of open_clip's activation QuickGELU(u) = u · sigmoid(s u).
QUICK_GELU_SCALE = 1.702

_HUGGING_FACE = "Hugging Face text tower"


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


def prompt_support(tower: Any) -> PromptSupport:
    """How prompts run through a text tower.

    The prefix can be shared if the tower is causal, reads its feature at the end-of-text token and has plain blocks
    (`is_plain`). All other towers with a token embedding take the full pass, except those with a class token.

    Parameters
    ----------
    tower
        The module with `token_embedding`, `transformer`, `ln_final` and `text_projection`.
    """
    if not hasattr(tower, "token_embedding"):
        return PromptSupport("none", _HUGGING_FACE)
    if getattr(tower, "cls_emb", None) is not None:
        return PromptSupport("none", "text feature read from an appended class token (CoCa)")
    if getattr(tower, "attn_mask", None) is None:
        return PromptSupport("full pass", "not causal")
    if getattr(tower, "use_pad_mask", False):
        return PromptSupport("full pass", "padding is masked")
    if pool_type(tower) not in ("argmax", "eos"):
        return PromptSupport("full pass", f"feature read at the {pool_type(tower)} token")
    if not all(is_plain(block) for block in tower.transformer.resblocks):
        return PromptSupport("full pass", "blocks other than open_clip's standard ones")
    return PromptSupport("shared prefix")


def config_support(config: Mapping[str, Any]) -> PromptSupport:
    """`prompt_support` of the text tower that an open_clip configuration describes, and what its tokenizer lacks here."""
    text = dict(config["text_cfg"])
    if text.get("hf_model_name"):
        return PromptSupport("none", _HUGGING_FACE)
    lacks = text.get("hf_tokenizer_name") and importlib.util.find_spec("transformers") is None
    small = text | {"layers": 1, "vocab_size": 64, "width": 8 * text.get("heads", 8)}  # sizes do not matter
    support = _tower_support(json.dumps(small, sort_keys=True), custom=bool(config.get("custom_text")))
    return support._replace(missing="transformers" if lacks else "")


@lru_cache(maxsize=256)  # most architectures of open_clip differ in sizes only
def _tower_support(text_config: str, *, custom: bool) -> PromptSupport:
    """`prompt_support` of the tower with this configuration, given as JSON."""
    kind = open_clip.CustomTextCLIP if custom else open_clip.CLIP
    image = {"image_size": 16, "patch_size": 16, "layers": 1, "width": 64}
    with torch.random.fork_rng(devices=[]):
        model = kind(embed_dim=8, vision_cfg=image, text_cfg=json.loads(text_config))
    return prompt_support(getattr(model, "text", model))


def supports_shared_prefix(tower: Any) -> bool:
    """Whether all classes can share the prefix `SOS + context`."""
    return prompt_support(tower).text_pass == "shared prefix"


def is_plain(block: Any) -> bool:
    """Whether the block is open_clip's standard self-attention block with a GELU or QuickGELU activation."""
    return (
        type(block) is ResidualAttentionBlock
        and block.attn.in_proj_weight is not None
        and not hasattr(block, "ln_1_kv")
        and isinstance(block.mlp.gelu, QuickGELU | nn.GELU)
    )


def pool_type(tower: Any) -> str:
    """Rule by which a text tower selects the token of its feature: "argmax", "eos", "first" or "last"."""
    return getattr(tower, "text_pool_type", None) or tower.pool_type


def end_of_text(tower: Any, ids: Sequence[int]) -> int | None:
    """Index of the end-of-text token, found by the tower's own rule; None if the tower reads another token."""
    if pool_type(tower) == "argmax":
        return max(range(len(ids)), key=ids.__getitem__)
    if pool_type(tower) == "eos":
        eos = getattr(tower, "text_eos_id", None) or tower.eos_id
        return ids.index(eos)
    return None
