"""What the modules of a text tower say about the passes that it allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from open_clip.transformer import QuickGELU, ResidualAttentionBlock
from torch import nn

#: The factor s of open_clip's activation QuickGELU(u) = u · sigmoid(s u).
QUICK_GELU_SCALE = 1.702


def supports_shared_prefix(tower: Any) -> bool:
    """Whether all classes can share the prefix `SOS + context`.

    They can if the tower is causal, reads its feature at the end-of-text token and has plain blocks.
    """
    return (
        getattr(tower, "attn_mask", None) is not None
        and not getattr(tower, "use_pad_mask", False)
        and pool_type(tower) in ("argmax", "eos")
        and all(is_plain(block) for block in tower.transformer.resblocks)
    )


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
