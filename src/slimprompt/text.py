"""Class features from a learned context, without computing anything twice.

CLIP's text tower is causal and reads its feature at the end-of-text token. With the class name at the end, `SOS + context`
is the same prefix for every class and nothing after the end-of-text token matters. So the prefix is run once; each class
runs only its own tokens (name, ".", EOT), whose queries attend to the prefix's keys and values and, causally, to their own;
and in the last layer only the end-of-text rows go further than keys and values. Features and gradients are those of the
full pass up to float rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, get_args

import torch
from open_clip.transformer import QuickGELU, ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from slimprompt.attention import Group, prefix_attention
from slimprompt.backbone import Backbone, _end_of_text
from slimprompt.errors import InputError, unknown

Position = Literal["end", "middle", "front"]

_CONTEXT = -1  # marks a place in a token sequence that a context vector takes


def prompt_tokens(
    backbone: Backbone, class_names: Sequence[str], n_ctx: int, position: Position = "end"
) -> list[list[int]]:
    """One token sequence per class, `SOS context name . EOT`, with -1 where a context vector goes.

    position "middle" puts the second half of the context after the name, "front" all of it.
    """
    if position not in get_args(Position):
        raise unknown("position", position, get_args(Position))
    if not class_names:
        raise InputError("no class names were given: at least one is needed")
    # A tokenizer with a start token gives it to every text.
    has_start = backbone.tokenize("a")[0] == backbone.tokenize("the")[0]
    sequences = []
    for class_name in class_names:
        name = " ".join(class_name.replace("_", " ").split())
        if not name:
            raise InputError(f"an empty class name was given among {list(class_names)[:5]}…: every class needs a name")
        tokens = backbone.tokenize(f"{name}.")
        start, rest = (tokens[:1], tokens[1:]) if has_start else ([], tokens)
        name_length = len(backbone.tokenize(name)) - len(start) - 1  # without the end token
        before = {"end": n_ctx, "middle": n_ctx // 2, "front": 0}[position]
        after = 0 if position == "end" else name_length
        sequence = [*start, *[_CONTEXT] * before, *rest[:after], *[_CONTEXT] * (n_ctx - before), *rest[after:]]
        if len(sequence) > backbone.context_length:
            raise InputError(
                f"the class name {class_name!r} does not fit: with {n_ctx} context tokens it makes {len(sequence)} tokens and "
                f"{backbone.name} reads at most {backbone.context_length}. Shorten the name or lower n_ctx."
            )
        sequences.append(sequence)
    return sequences


class SharedPrefixTextEncoder:
    """context (n_ctx, width) → class features (n_classes, embed_dim), unnormalised, fp32 (fp64 if the backbone is).

    chunk_size: classes per pass. With it memory is bounded by one chunk (its forward pass is run again in the backward
    pass); without it all classes go at once, which is fastest.
    A tower that is not causal, or whose blocks are not the plain ones, takes open_clip's full pass; `shared_prefix` says which.
    """

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        n_ctx: int,
        position: Position = "end",
        *,
        chunk_size: int | None = None,
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise InputError(f"chunk_size must be at least 1 class, not {chunk_size}")
        tower = backbone.text_tower
        self.backbone, self.n_ctx, self.n_classes = backbone, n_ctx, len(class_names)
        self._tower, self._device, self._dtype = tower, backbone.device, backbone.dtype
        self._output_dtype = torch.promote_types(backbone.dtype, torch.float32)
        sequences = prompt_tokens(backbone, class_names, n_ctx, position)
        self.shared_prefix = _is_causal(tower) and all(_is_plain(block) for block in tower.transformer.resblocks)
        if not self.shared_prefix:
            self._full = _full_batches(backbone, sequences, chunk_size)
            self.n_tokens = sum(batch.ids.numel() for batch in self._full)
            return

        # What all classes begin with: the start token and the context before the name.
        prefix = _prefix_length(sequences[0])
        self._prefix_ids = sequences[0][:prefix]
        # Classes of equal length stand together, so that their tokens are a dense block.
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        inverse = sorted(range(len(order)), key=order.__getitem__)
        self._unsort = torch.tensor(inverse, device=self._device)
        own = [sequences[index][prefix:] for index in order]
        size = chunk_size or len(own)
        with torch.no_grad():
            self._prefix = self._embed(
                self._prefix_ids, 0
            )  # (prefix, width), zero where context goes, but for its position
            self._chunks = [self._chunk(own[start : start + size], prefix) for start in range(0, len(own), size)]
        self._in_prefix = self._prefix_ids.count(_CONTEXT)
        self.n_tokens = prefix + sum(len(chunk.own) for chunk in self._chunks)

    def __call__(self, context: Tensor) -> Tensor:
        """Features (n_classes, embed_dim) of all classes for this context."""
        if context.shape != (self.n_ctx, self.backbone.text_width):
            raise InputError(
                f"the context has shape {tuple(context.shape)}; this encoder takes ({self.n_ctx}, {self.backbone.text_width})"
            )
        context = context.to(self._device, self._dtype)
        if not self.shared_prefix:
            passes = [_checkpointed(batch, context) if len(self._full) > 1 else batch(context) for batch in self._full]
            return torch.cat(passes).to(self._output_dtype)

        rows = self._prefix  # (prefix, width)
        if self._in_prefix:
            rows = torch.cat([rows[: -self._in_prefix], rows[-self._in_prefix :] + context[: self._in_prefix]])
        first, *others = self._chunks
        features, prefix_kv = self._pass(first, context, rows)
        passes = [features]
        for chunk in others:
            passes.append(
                _checkpointed(lambda ctx, *kv, chunk=chunk: self._pass(chunk, ctx, None, kv)[0], context, *prefix_kv)
            )
        return torch.cat(passes)[self._unsort].to(self._output_dtype)

    # -- layout ---------------------------------------------------------------------------------------------------------

    def _embed(self, ids: Sequence[int], first_position: int) -> Tensor:
        """Token + position embedding of consecutive tokens; a context place gets its position only."""
        tokens = torch.tensor(ids, device=self._device)
        rows = self._tower.token_embedding(tokens.clamp(min=0)).to(self._dtype) * (tokens >= 0).to(self._dtype)[:, None]
        return rows + self._tower.positional_embedding[first_position : first_position + len(ids)].to(self._dtype)

    def _chunk(self, own: list[list[int]], prefix: int) -> _Chunk:
        rows = torch.cat([self._embed(ids, prefix) for ids in own])
        places = [place for place, token in enumerate(token for ids in own for token in ids) if token == _CONTEXT]
        in_own = self.n_ctx - self._prefix_ids.count(_CONTEXT)
        context_rows = list(range(self.n_ctx - in_own, self.n_ctx)) * len(own)
        ends = torch.tensor([len(ids) for ids in own], device=self._device).cumsum(0) - 1
        groups = [(len(list(same)), length) for length, same in groupby(len(ids) for ids in own)]
        chunk = _Chunk(
            rows,
            groups,
            ends,
            torch.tensor(places, device=self._device, dtype=torch.long),
            torch.tensor(context_rows, device=self._device),
        )
        if not places:  # the first layer's projections of constant rows are constant
            block = self._tower.transformer.resblocks[0]
            y = block.ln_1(rows)
            chunk.first_q, chunk.first_kv = _queries(block, y), _keys_values(block, y)
        return chunk

    # -- the pass -------------------------------------------------------------------------------------------------------

    def _pass(
        self, chunk: _Chunk, context: Tensor, prefix_rows: Tensor | None, prefix_kv: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Features of one chunk's classes, and every layer's keys and values of the prefix (from its rows, or as given)."""
        own = chunk.own
        if len(chunk.places):
            own = own.index_add(0, chunk.places, context[chunk.context_rows])
        n_prefix = 0 if prefix_rows is None else len(prefix_rows)
        x = own if prefix_rows is None else torch.cat([prefix_rows, own])  # (prefix + own tokens, width)
        ends = n_prefix + chunk.ends
        blocks = self._tower.transformer.resblocks
        all_kv: list[Tensor] = []
        for depth, block in enumerate(blocks):
            is_last = depth == len(blocks) - 1
            if depth == 0 and chunk.first_q is not None and chunk.first_kv is not None:
                q, kv = chunk.first_q, chunk.first_kv
                if prefix_rows is not None:
                    y = block.ln_1(prefix_rows)
                    q, kv = torch.cat([_queries(block, y), q]), torch.cat([_keys_values(block, y), kv])
                q = q[ends] if is_last else q
            else:
                y = block.ln_1(x)
                q, kv = _queries(block, y[ends] if is_last else y), _keys_values(block, y)
            groups = [Group(n, 1 if is_last else length, length) for n, length in chunk.groups]
            shared = None if prefix_kv is None else prefix_kv[depth]
            if len(self._chunks) > 1:
                all_kv.append(kv[:n_prefix])
            attended = prefix_attention(q, kv, shared, n_prefix, groups, block.attn.num_heads)
            if is_last:  # nothing but the feature is read any more
                x = x[ends]
            x = x + block.ls_1(block.attn.out_proj(attended))
            x = x + block.ls_2(_mlp(block, block.ln_2(x)))
        return _project(self._tower, self._tower.ln_final(x)), all_kv


@dataclass
class _Chunk:
    """The tokens of some classes that are not in the prefix, class after class, shorter classes first."""

    own: Tensor  # (own tokens, width), embedded; context places hold their position embedding only
    groups: list[tuple[int, int]]  # (number of classes, tokens of each), in order
    ends: Tensor  # (n_classes,) row of each class's end-of-text token
    places: Tensor  # rows of `own` to which a context vector is added …
    context_rows: Tensor  # … and which one
    first_q: Tensor | None = None
    first_kv: Tensor | None = None


def _queries(block: Any, y: Tensor) -> Tensor:
    width = y.shape[1]
    return F.linear(y, block.attn.in_proj_weight[:width], block.attn.in_proj_bias[:width])


def _keys_values(block: Any, y: Tensor) -> Tensor:
    width = y.shape[1]
    return F.linear(y, block.attn.in_proj_weight[width:], block.attn.in_proj_bias[width:])


def _mlp(block: Any, x: Tensor) -> Tensor:
    fc, activation, projection = block.mlp.c_fc, block.mlp.gelu, block.mlp.c_proj
    if not isinstance(activation, QuickGELU):
        return block.mlp(x)
    # QuickGELU(h) = h σ(s h) = silu(s h) / s: one fused pass over the widest matrix instead of three, and s goes into
    # the matrix products.
    s = 1.702
    hidden = F.silu(torch.addmm(fc.bias, x, fc.weight.t(), beta=s, alpha=s))
    return torch.add(projection.bias, hidden @ projection.weight.t(), alpha=1 / s)


def _project(tower: Any, x: Tensor) -> Tensor:
    projection = tower.text_projection
    if projection is None:
        return x
    return projection(x) if isinstance(projection, nn.Linear) else x @ projection


def full_pass_encoder(
    backbone: Backbone,
    class_names: Sequence[str],
    n_ctx: int,
    position: Position = "end",
    *,
    chunk_size: int | None = None,
) -> Callable[[Tensor], Tensor]:
    """The same function by open_clip's own pass over the whole context length: slow, and differentiable twice."""
    batches = _full_batches(backbone, prompt_tokens(backbone, class_names, n_ctx, position), chunk_size)
    return lambda context: _run_full(batches, context.to(backbone.device, backbone.dtype))


def _full_batches(backbone: Backbone, sequences: list[list[int]], chunk_size: int | None) -> list[_FullBatch]:
    size = chunk_size or len(sequences)
    return [_FullBatch(backbone, sequences[start : start + size]) for start in range(0, len(sequences), size)]


def _run_full(batches: list[_FullBatch], context: Tensor) -> Tensor:
    return torch.cat(
        [_checkpointed(batch, context) if len(batches) > 1 else batch(context) for batch in batches]
    ).float()


class _FullBatch:
    """open_clip's own pass over the whole context length for some classes."""

    def __init__(self, backbone: Backbone, sequences: list[list[int]]) -> None:
        self._tower, self._dtype = backbone.text_tower, backbone.dtype
        pad = int(backbone.tokenizer(["a"], context_length=backbone.context_length)[0, -1])
        length = backbone.context_length
        padded = torch.tensor([ids + [pad] * (length - len(ids)) for ids in sequences])
        self.ids = padded.clamp(min=0).to(backbone.device)
        self._places = (padded == _CONTEXT).to(backbone.device)
        pooled = [_pooled_position(self._tower, ids, length) for ids in sequences]
        self._pooled = torch.tensor(pooled, device=backbone.device)

    def __call__(self, context: Tensor) -> Tensor:
        tower = self._tower
        x = tower.token_embedding(self.ids).to(self._dtype)  # (n, length, width)
        x = x.masked_scatter(self._places[..., None], context.expand(len(x), -1, -1))
        x = x + tower.positional_embedding.to(self._dtype)
        x = tower.transformer(x, attn_mask=tower.attn_mask)
        x = tower.ln_final(x)[torch.arange(len(x), device=x.device), self._pooled]
        return _project(tower, x)


def _pooled_position(tower: Any, ids: list[int], length: int) -> int:
    end = _end_of_text(tower, ids)
    if end is not None:
        return end
    pool = getattr(tower, "text_pool_type", None) or tower.pool_type
    return 0 if pool == "first" else length - 1


def _checkpointed(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    return checkpoint(function, *tensors, use_reentrant=False)


def _prefix_length(sequence: list[int]) -> int:
    """Tokens before the first of the class's own: the start token, if any, and the context in front."""
    length = 0 if sequence[0] == _CONTEXT else 1
    while sequence[length] == _CONTEXT:
        length += 1
    return length


def _is_causal(tower: Any) -> bool:
    mask = getattr(tower, "attn_mask", None)
    if mask is None or getattr(tower, "use_pad_mask", False):
        return False
    pool = getattr(tower, "text_pool_type", None) or tower.pool_type
    return pool in ("argmax", "eos")


def _is_plain(block: Any) -> bool:
    return (
        type(block) is ResidualAttentionBlock
        and block.attn.in_proj_weight is not None
        and not hasattr(block, "ln_1_kv")
    )
