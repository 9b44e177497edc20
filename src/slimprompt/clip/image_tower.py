"""Image features of a vision transformer with less work, equal to open_clip's up to float rounding.

CLIP reads the feature at the class token, so in the last block only that row is needed beyond its keys and values. QuickGELU,
`u · sigmoid(s u)` with s = 1.702, is `silu(s u) / s`: one pass over the widest activations instead of three; both factors are
applied to narrower rows, before and after. Products with weights are those of `slimprompt.clip.products`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from open_clip.transformer import QuickGELU, VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from slimprompt.clip.products import linear
from slimprompt.clip.towers import QUICK_GELU_SCALE, is_plain

#: Rows of the products of one part of a batch on a CPU. More rows are not faster; some numbers, such as 32 · 257 of a ViT-L/14, are much
#: slower.
_ROWS = 5000
#: x, weight, bias → x Wᵀ + b.
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def image_features(tower: Any, pixels: Tensor, linear: Linear = linear) -> Tensor:
    """Pixels (n, 3, height, width) → features (n, embed_dim), not normalised.

    `linear` computes the products with the weights of the blocks of a vision transformer.
    """
    if not reads_class_token(tower):
        return tower(pixels)
    return features_from_block(tower, tower._embeds(pixels), linear=linear)


def input_of_block(tower: Any, pixels: Tensor, first: int, linear: Linear = linear) -> Tensor:
    """Pixels (n, 3, height, width) → input of block `first`, (n, n_tokens, width)."""
    x = tower._embeds(pixels)  # (n, n_tokens, width)
    for block in tower.transformer.resblocks[:first]:
        x = _run_block(block, x, x.shape[1], linear)
    return x


def features_from_block(
    tower: Any, x: Tensor, first: int = 0, rows: Tensor | None = None, linear: Linear = linear
) -> Tensor:
    """Input of block `first`, (n, n_tokens, width), → features (n, embed_dim), not normalised.

    `rows` (n_blocks, n_ctx, width) are prompts of the tower: before each of the next n_blocks blocks, its n_ctx rows are put after the
    tokens in the place of the rows of the block before; the last ones stay. What a block would make of rows that are replaced is not
    computed.
    """
    blocks, n_tokens = tower.transformer.resblocks, x.shape[1]
    last_with_rows = first - 1 if rows is None else first + len(rows) - 1
    for index in range(first, len(blocks)):
        if rows is not None and index <= last_with_rows:
            x = torch.cat([x[:, :n_tokens], rows[index - first].expand(len(x), -1, -1)], 1)
        kept = n_tokens if index < last_with_rows else x.shape[1]
        x = _run_block(blocks[index], x, 1 if index == len(blocks) - 1 else kept, linear)
    return tower.ln_post(x[:, 0]) @ tower.proj


def image_features_in_parts(
    tower: Any, pixels: Tensor, compute: Callable[[Any, Tensor], Tensor] = image_features
) -> Tensor:
    """`compute`, on a CPU in parts of nearly equal size, of a few thousand rows or one image."""
    if pixels.device.type != "cpu" or not reads_class_token(tower):
        return compute(tower, pixels)
    n_rows = len(pixels) * len(tower.positional_embedding)
    n_parts = max(1, min(len(pixels), math.ceil(n_rows / _ROWS)))
    return torch.cat([compute(tower, part) for part in pixels.tensor_split(n_parts)])


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


def _run_block(block: Any, x: Tensor, n_rows: int, linear: Linear) -> Tensor:
    """The first `n_rows` rows of the output of a block, (n, n_rows, width), for its input x (n, n_tokens, width)."""
    y = block.ln_1(x)
    queries = y if n_rows == y.shape[1] else y[:, :n_rows]
    return _add_mlp(x[:, :n_rows] + block.ls_1(_attention(block.attn, queries, y, linear)), block, linear)


def _attention(module: Any, queries: Tensor, keys: Tensor, linear: Linear) -> Tensor:
    """Query rows (n, n_queries, width) and key rows (n, n_keys, width) → (n, n_queries, width).

    torch's module would call its own products, and makes more operators of an exported network.
    """
    weight, bias, width = module.in_proj_weight, module.in_proj_bias, queries.shape[-1]

    def heads(rows: Tensor) -> Tensor:  # (n, n_heads, n_rows, width of a head)
        return rows.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)

    if queries is keys:
        q, k, v = linear(keys, weight, bias).chunk(3, dim=-1)
    else:
        q = linear(queries, weight[:width], bias[:width])
        k, v = linear(keys, weight[width:], bias[width:]).chunk(2, dim=-1)
    mixed = F.scaled_dot_product_attention(heads(q), heads(k), heads(v))
    return linear(mixed.transpose(1, 2).flatten(2), module.out_proj.weight, module.out_proj.bias)


def _add_mlp(x: Tensor, block: Any, linear: Linear) -> Tensor:
    """x + mlp(norm(x)) of a block, (n, rows, width)."""
    expand, activation, contract = block.mlp.c_fc, block.mlp.gelu, block.mlp.c_proj
    y = block.ln_2(x)
    if not isinstance(activation, QuickGELU):
        hidden = activation(linear(y, expand.weight, expand.bias))  # (n, rows, mlp_width)
        return x + block.ls_2(linear(hidden, contract.weight, contract.bias))
    s = QUICK_GELU_SCALE
    hidden = linear(s * y, expand.weight, s * expand.bias)  # (n, rows, mlp_width)
    hidden = F.silu(hidden, inplace=not hidden.requires_grad)
    return torch.add(x, block.ls_2(linear(hidden, contract.weight, s * contract.bias)), alpha=1 / s)
