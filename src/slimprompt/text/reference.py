"""Reference text passes in plain PyTorch with autograd.

`full_pass_encoder` is open_clip's own pass over the whole context length. `shared_prefix_reference` computes the same
features with less work: CLIP's text tower is causal and reads its feature at the end-of-text token, so the prefix
`SOS + context` has the same activations for every class, and tokens after the end-of-text token have no effect. The
prefix is computed once; each class computes only its own tokens (its suffix, `name . EOT`), which attend to the keys and
values of the prefix and causally to each other.

A deep context (depth, n_ctx, width) has one context per layer: before layer l = 1 … depth − 1, the rows of the context
are replaced by its l-th context, so what the layers before made of these rows is only seen through the other rows. All
classes receive the same rows, so the prefix is still shared.

The kernels behind `SharedPrefixTextEncoder` are tested against this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from slimprompt.clip.backbone import Backbone
from slimprompt.clip.towers import end_of_text, pool_type, supports_shared_prefix
from slimprompt.errors import InputError
from slimprompt.text.tokens import CONTEXT, Position, prompt_tokens, shared_prefix_length


def full_pass_encoder(
    backbone: Backbone,
    class_names: Sequence[str],
    n_ctx: int,
    position: Position = "end",
    *,
    depth: int = 1,
    chunk_size: int | None = None,
) -> FullPass:
    """Open_clip's own pass over the whole context length; takes the arguments of `SharedPrefixTextEncoder`."""
    return FullPass(backbone, prompt_tokens(backbone, class_names, n_ctx, position), depth, chunk_size)


class FullPass:
    """context (…, n_ctx, width) → class features (…, n_classes, embed_dim) by open_clip's own pass, for any text tower.

    A context of depth > 1 is (…, depth, n_ctx, width). With several chunks of classes, the backward pass recomputes each chunk's forward
    pass to save memory.
    """

    def __init__(
        self, backbone: Backbone, sequences: list[list[int]], depth: int = 1, chunk_size: int | None = None
    ) -> None:
        check_depth(backbone, depth)
        size = chunk_size or len(sequences)
        self._backbone, self._depth = backbone, depth
        self._chunks = [_FullPassChunk(backbone, sequences[i : i + size]) for i in range(0, len(sequences), size)]
        self.n_chunks = len(self._chunks)
        self.n_tokens = len(sequences) * backbone.context_length

    def __call__(self, context: Tensor) -> Tensor:
        """Class features, unnormalised, in at least fp32."""
        if context.ndim == (3 if self._depth == 1 else 4):
            return torch.stack([self(one) for one in context])
        context = context.to(self._backbone.device, self._backbone.dtype)
        context = context if self._depth > 1 else context[None]  # (depth, n_ctx, width)
        if self.n_chunks == 1:
            features = self._chunks[0](context)  # (n_classes, embed_dim)
        else:
            features = torch.cat([checkpoint(chunk, context, use_reentrant=False) for chunk in self._chunks])
        return features.to(output_dtype(self._backbone))


class _FullPassChunk:
    def __init__(self, backbone: Backbone, sequences: list[list[int]]) -> None:
        self._tower = backbone.text_tower
        self._embedding = _PromptEmbedding(backbone, sequences, backbone.context_length)
        pooled = [_pooled_position(self._tower, ids, backbone.context_length) for ids in sequences]
        self._pooled = torch.tensor(pooled, device=backbone.device)

    def __call__(self, context: Tensor) -> Tensor:
        x = self._embedding(context[:1])[0]  # (n_classes, length, width)
        if len(context) == 1:
            x = self._tower.transformer(x, attn_mask=self._tower.attn_mask)
        else:
            x = self._run_layers(x, context)
        x = self._tower.ln_final(x)[torch.arange(len(x), device=x.device), self._pooled]  # (n_classes, width)
        return project(self._tower, x)

    def _run_layers(self, x: Tensor, context: Tensor) -> Tensor:
        """Open_clip's blocks one by one; before each of the layers 1 … depth − 1 the context rows are replaced."""
        batch_first = getattr(self._tower.transformer, "batch_first", True)
        for layer, block in enumerate(self._tower.transformer.resblocks):
            if 0 < layer < len(context):
                x = _replace_rows(x[None], self._embedding.is_context, context[layer : layer + 1])[0]
            x = x if batch_first else x.transpose(0, 1)
            x = block(x, attn_mask=self._tower.attn_mask)
            x = x if batch_first else x.transpose(0, 1)
        return x


def _pooled_position(tower: Any, ids: list[int], length: int) -> int:
    end = end_of_text(tower, ids)
    if end is not None:
        return end
    return 0 if pool_type(tower) == "first" else length - 1


def shared_prefix_reference(
    backbone: Backbone, class_names: Sequence[str], n_ctx: int, position: Position = "end", *, depth: int = 1
) -> Callable[[Tensor], Tensor]:
    """context (…, n_ctx, width) → class features (…, n_classes, embed_dim), with the shared prefix computed once.

    A context of depth > 1 is (…, depth, n_ctx, width). The suffixes are padded to the longest one: padding comes after the end-of-text
    token, so the causal mask hides it from every token that counts. The text tower must fulfil `supports_shared_prefix`.
    """
    check_depth(backbone, depth)
    tower = backbone.text_tower
    sequences = prompt_tokens(backbone, class_names, n_ctx, position)
    n_prefix = shared_prefix_length(sequences)
    if not n_prefix or not supports_shared_prefix(tower):
        raise InputError(f"the text tower of {backbone.name} cannot share a prefix; use full_pass_encoder")
    embedding = _PromptEmbedding(backbone, sequences, max(map(len, sequences)))
    classes = torch.arange(len(sequences), device=backbone.device)
    ends = torch.tensor([len(ids) - n_prefix - 1 for ids in sequences], device=backbone.device)  # end-of-text tokens

    in_prefix, in_suffix = embedding.is_context[:1, :n_prefix], embedding.is_context[:, n_prefix:]
    n_before = sequences[0][:n_prefix].count(CONTEXT)  # context vectors in the prefix

    def encode(context: Tensor) -> Tensor:
        if context.ndim == (2 if depth == 1 else 3):
            return encode(context[None])[0]
        context = context.to(backbone.device, backbone.dtype).reshape(-1, depth, n_ctx, backbone.text_width)
        x = embedding(context[:, 0])  # (n_prompts, n_classes, length, width)
        prefix = x[:, 0, :n_prefix]  # (n_prompts, n_prefix, width)
        suffix = x[:, :, n_prefix:]  # (n_prompts, n_classes, n_suffix, width)
        for layer, block in enumerate(tower.transformer.resblocks):
            if 0 < layer < depth:
                prefix = _replace_rows(prefix[:, None], in_prefix, context[:, layer, :n_before])[:, 0]
                suffix = _replace_rows(suffix, in_suffix, context[:, layer, n_before:])
            prefix, suffix = _run_block(block, prefix, suffix)
        x = tower.ln_final(suffix[:, classes, ends])  # (n_prompts, n_classes, width)
        return project(tower, x).to(output_dtype(backbone))

    return encode


def _run_block(block: Any, prefix: Tensor, suffix: Tensor) -> tuple[Tensor, Tensor]:
    """One residual attention block on the prefix and on the suffixes of all classes; the shapes stay the same."""
    n_classes, n_suffix, n_prefix = suffix.shape[1], suffix.shape[2], prefix.shape[1]
    prefix_q, prefix_k, prefix_v = _queries_keys_values(block, prefix)  # (n_prompts, n_heads, n_prefix, head_dim)
    q, k, v = _queries_keys_values(block, suffix)  # (n_prompts, n_classes, n_heads, n_suffix, head_dim)
    k, v = (
        torch.cat([shared[:, None].expand(-1, n_classes, -1, -1, -1), own], -2)
        for shared, own in ((prefix_k, k), (prefix_v, v))
    )  # (n_prompts, n_classes, n_heads, n_prefix + n_suffix, head_dim)
    # Suffix token i attends to the whole prefix and to the suffix tokens 0 … i.
    mask = torch.ones(n_suffix, n_prefix + n_suffix, dtype=torch.bool, device=suffix.device).tril(n_prefix)
    prefix_out = F.scaled_dot_product_attention(prefix_q, prefix_k, prefix_v, is_causal=True)
    suffix_out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return _add_attention_and_mlp(block, prefix, prefix_out), _add_attention_and_mlp(block, suffix, suffix_out)


def _queries_keys_values(block: Any, x: Tensor) -> tuple[Tensor, ...]:
    """x (…, n, width) → queries, keys and values, each (…, n_heads, n, head_dim)."""
    attention = block.attn
    qkv = F.linear(block.ln_1(x), attention.in_proj_weight, attention.in_proj_bias)  # (…, n, 3 · width)
    return qkv.unflatten(-1, (3, attention.num_heads, -1)).transpose(-2, -4).unbind(-3)


def _add_attention_and_mlp(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """x (…, n, width), attended (…, n_heads, n, head_dim) → output of the block (…, n, width)."""
    x = x + block.ls_1(block.attn.out_proj(attended.transpose(-2, -3).flatten(-2)))
    return x + block.ls_2(block.mlp(block.ln_2(x)))


class _PromptEmbedding:
    """Context (n_prompts, n_ctx, width) → token + position embeddings (n_prompts, n_classes, length, width), padded."""

    def __init__(self, backbone: Backbone, sequences: list[list[int]], length: int) -> None:
        self._tower, self._dtype = backbone.text_tower, backbone.dtype
        pad = int(backbone.tokenizer(["a"], context_length=backbone.context_length)[0, -1])
        padded = torch.tensor([ids + [pad] * (length - len(ids)) for ids in sequences])  # (n_classes, length)
        self._ids = padded.clamp(min=0).to(backbone.device)
        self.is_context = (padded == CONTEXT)[..., None].to(backbone.device)  # (n_classes, length, 1)

    def __call__(self, context: Tensor) -> Tensor:
        tokens = self._tower.token_embedding(self._ids).to(self._dtype)  # (n_classes, length, width)
        x = _replace_rows(tokens.expand(len(context), -1, -1, -1), self.is_context, context)
        return x + self._tower.positional_embedding[: x.shape[2]].to(self._dtype)


def _replace_rows(x: Tensor, is_context: Tensor, context: Tensor) -> Tensor:
    """Put vectors (n_prompts, n, width) in the n rows of every class of x (n_prompts, n_classes, length, width) that are context.

    `is_context` is (n_classes, length, 1).
    """
    return x.masked_scatter(is_context, context[:, None].expand(-1, x.shape[1], -1, -1))


def check_depth(backbone: Backbone, depth: int) -> None:
    """A context has at least one layer and at most as many as the text tower."""
    n_layers = len(backbone.text_tower.transformer.resblocks)
    if not 1 <= depth <= n_layers:
        raise InputError(
            f"depth {depth} does not fit: it must be between 1 and the number of layers of the text tower of "
            f"{backbone.name}, {n_layers}"
        )


def project(tower: Any, x: Tensor) -> Tensor:
    """Text projection, x (…, width) → (…, embed_dim); a matrix, a linear layer or none."""
    projection = tower.text_projection
    if projection is None:
        return x
    return projection(x) if isinstance(projection, nn.Linear) else x @ projection


def output_dtype(backbone: Backbone) -> torch.dtype:
    """Precision of the class features: fp32, or fp64 if the backbone is in fp64."""
    return torch.promote_types(backbone.dtype, torch.float32)
