"""Image features of a frozen vision transformer with less work, equal to open_clip's up to float rounding.

CLIP reads the feature at the class token, so in the last block only that row is needed beyond its keys and values. QuickGELU,
`u · sigmoid(s u)` with s = 1.702, is `silu(s u) / s`: one pass over the widest activations instead of three, with both
factors inside the neighbouring matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from open_clip.transformer import QuickGELU, VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.towers import QUICK_GELU_SCALE, is_plain


def torch_attention(block: Any, queries: Tensor, keys: Tensor) -> Tensor:
    """Query rows (n, n_queries, width) and key rows (n, n_keys, width) → (n, n_queries, width), by the module of a block."""
    return block.attention(queries, keys, keys)


def image_features(
    tower: Any, pixels: Tensor, attention: Callable[[Any, Tensor, Tensor], Tensor] = torch_attention
) -> Tensor:
    """Pixels (n, 3, height, width) → features (n, embed_dim), not normalised, for inference.

    `attention` computes the attention of the blocks of a vision transformer.
    """
    if not reads_class_token(tower):
        return tower(pixels)
    x = tower._embeds(pixels)  # (n, n_tokens, width)
    *blocks, last = tower.transformer.resblocks
    for block in blocks:
        y = block.ln_1(x)
        x = _add_mlp(x + block.ls_1(attention(block, y, y)), block)
    y = last.ln_1(x)
    x = _add_mlp(x[:, :1] + last.ls_1(attention(last, y[:, :1], y)), last)  # (n, 1, width)
    return tower.ln_post(x[:, 0]) @ tower.proj


def reads_class_token(tower: Any) -> bool:
    """Whether the tower is open_clip's vision transformer of standard blocks, whose feature is read at the class token."""
    return (
        isinstance(tower, VisionTransformer)
        and tower.pool_type == "tok"
        and tower.attn_pool is None
        and tower.proj is not None
        and not tower.output_tokens
        and hasattr(tower, "_embeds")
        and tower.transformer.batch_first
        and all(is_plain(block) for block in tower.transformer.resblocks)
    )


def _add_mlp(x: Tensor, block: Any) -> Tensor:
    """x + mlp(norm(x)) of a block, (n, rows, width)."""
    y = block.ln_2(x)
    if not isinstance(block.mlp.gelu, QuickGELU):
        return x + block.ls_2(block.mlp(y))
    s, expand, contract = QUICK_GELU_SCALE, block.mlp.c_fc, block.mlp.c_proj
    hidden = torch.addmm(expand.bias, y.flatten(0, 1), expand.weight.t(), beta=s, alpha=s)  # (n · rows, mlp_width)
    hidden = F.silu(hidden, inplace=True)
    out = torch.addmm(contract.bias, hidden, contract.weight.t(), alpha=1 / s)  # (n · rows, width)
    return x + block.ls_2(out.view_as(x))
