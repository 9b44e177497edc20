"""Class features from a learned context, without computing anything twice.

CLIP's text tower is causal and reads its feature at the end-of-text token. With the class name at the end, `SOS + context`
is the same prefix for every class and nothing after the end-of-text token matters. So the prefix is run once; each class
runs only its own tokens (name, ".", EOT), whose queries attend to the prefix's keys and values and, causally, to their own;
and in the last layer only the end-of-text rows go further than keys and values. Features and gradients are those of the
full pass up to float rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from slimprompt.clip.backbone import Backbone, end_of_text
from slimprompt.errors import InputError
from slimprompt.text.kernels.attention import Group, Rows, causal_mask
from slimprompt.text.kernels.block import FrozenBlock, Layout, is_plain, run_block
from slimprompt.text.tokens import CONTEXT, Position, prompt_tokens


class SharedPrefixTextEncoder:
    """context (n_ctx, width) → class features (n_classes, embed_dim), unnormalised, fp32 (fp64 if the backbone is).

    chunk_size: classes per pass. Memory is bounded by one chunk, whose forward pass is run again in the backward pass. By
    default all classes go at once, which is fastest, unless there are so many that a step would take more than a few GB.
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
        self.shared_prefix = _is_causal(tower) and all(is_plain(block) for block in tower.transformer.resblocks)
        if not self.shared_prefix:
            self._full = _full_batches(backbone, sequences, chunk_size)
            self.n_tokens = sum(batch.ids.numel() for batch in self._full)
            return

        # What all classes begin with: the start token and the context before the name.
        prefix = _prefix_length(sequences[0])
        self._prefix_ids = sequences[0][:prefix]
        self._in_prefix = self._prefix_ids.count(CONTEXT)
        # Classes of similar length stand together, so that they can be filled up to one length where need be.
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        self._unsort = torch.tensor(sorted(range(len(order)), key=order.__getitem__), device=self._device)
        own = [sequences[index][prefix:] for index in order]
        size = chunk_size or _chunk_size(sum(map(len, own)), len(own), backbone.text_width)
        self._blocks = [FrozenBlock(block) for block in tower.transformer.resblocks]
        with torch.no_grad():
            self._prefix = self._embed(self._prefix_ids, 0)  # (prefix, width), context places hold their position only
            self._chunks = [
                self._chunk(own[start : start + size], prefix, with_prefix=start == 0)
                for start in range(0, len(own), size)
            ]
        self.n_tokens = prefix + sum(len(chunk.own) for chunk in self._chunks)

    @property
    def n_chunks(self) -> int:
        """In how many passes the classes go."""
        return len(self._chunks if self.shared_prefix else self._full)

    def __call__(self, context: Tensor) -> Tensor:
        """Features of all classes for this context; a stack of contexts (…, n_ctx, width) gives a stack of features."""
        if context.shape[-2:] != (self.n_ctx, self.backbone.text_width) or context.ndim not in (2, 3):
            raise InputError(
                f"the context has shape {tuple(context.shape)}; "
                f"this encoder takes ({self.n_ctx}, {self.backbone.text_width}) or a stack of such"
            )
        if context.ndim == 2:
            return self(context[None])[0]
        context = context.to(self._device, self._dtype)  # (stack, n_ctx, width)
        if not self.shared_prefix:
            return torch.stack([_run_full(self._full, one) for one in context])

        rows = self._prefix.expand(len(context), -1, -1)  # (stack, prefix, width)
        if self._in_prefix:
            start = len(self._prefix_ids) - self._in_prefix
            rows = torch.cat([rows[:, :start], rows[:, start:] + context[:, : self._in_prefix]], 1)
        first, *others = self._chunks
        features, prefix_kv = self._pass(first, context, rows)
        passes = [features]
        for chunk in others:
            passes.append(
                _checkpointed(lambda ctx, *kv, chunk=chunk: self._pass(chunk, ctx, None, kv)[0], context, *prefix_kv)
            )
        return torch.cat(passes, 1)[:, self._unsort].to(self._output_dtype)

    # -- layout ---------------------------------------------------------------------------------------------------------

    def _embed(self, ids: Sequence[int], first_position: int) -> Tensor:
        """Token + position embedding of consecutive tokens; a context place gets its position only."""
        tokens = torch.tensor(ids, device=self._device)
        rows = self._tower.token_embedding(tokens.clamp(min=0)).to(self._dtype) * (tokens >= 0).to(self._dtype)[:, None]
        return rows + self._tower.positional_embedding[first_position : first_position + len(ids)].to(self._dtype)

    def _chunk(self, own: list[list[int]], prefix: int, *, with_prefix: bool) -> _Chunk:
        heads, device = self._tower.transformer.resblocks[0].attn.num_heads, self._device
        n_prefix = prefix if with_prefix else 0
        rows = torch.cat([self._embed(ids, prefix) for ids in own])
        tokens = [token for ids in own for token in ids]
        places = [place for place, token in enumerate(tokens) if token == CONTEXT]

        # Row numbers of each class, −1 where it is filled up; what a class may look at.
        seen: list[Tensor] = []
        inner: list[Group] = []
        last: list[Group] = []
        at, first = n_prefix, 0
        ends: list[int] = []
        for n in _group_sizes([len(ids) for ids in own], self.backbone.text_width):
            lengths = [len(ids) for ids in own[first : first + n]]
            longest = max(lengths)
            table = torch.full((n, longest), -1)
            for index, length in enumerate(lengths):
                table[index, :length] = torch.arange(at, at + length)
                at += length
                ends.append(at - 1)
            causal = torch.cat([self._prefix.new_zeros(longest, prefix), causal_mask(longest, self._prefix)], 1)
            seen.append(table)
            inner.append(Group(n, causal.repeat(n, 1)))
            last.append(Group(n, causal[torch.tensor(lengths, device=device) - 1]))
            first += n
        of_prefix = [torch.arange(prefix)[None]] if with_prefix else []
        asks_prefix = Group(1, causal_mask(prefix, self._prefix)) if with_prefix else None
        at_ends = list(torch.arange(len(own))[:, None].split([group.n for group in inner]))

        def rows_of(groups: list[Tensor], n_rows: int, parts: int) -> Rows:
            return Rows(groups, n_rows, heads, parts, device)

        n_rows = n_prefix + len(rows)
        queries, keys = rows_of(of_prefix + seen, n_rows, 1), rows_of(of_prefix + seen, n_rows, 2)
        ends_only = rows_of(at_ends, len(own), 1)
        asking = torch.tensor(ends, device=device)
        middle = Layout(tuple(inner), asks_prefix, queries, keys, queries, with_prefix)
        chunk = _Chunk(
            rows,
            torch.tensor(places, device=device, dtype=torch.long),
            torch.tensor(list(range(self._in_prefix, self.n_ctx)) * len(own), device=device, dtype=torch.long),
            middle,
            middle,
            Layout(tuple(last), None, ends_only, keys, ends_only, with_prefix, asking=asking),
        )
        # The first block's queries, keys and values of constant rows are constant.
        if not places and len(self._blocks) > 1:
            constants = self._blocks[0].heads(rows[None], [table - n_prefix * (table >= 0) for table in seen], heads)
            computed = [rows_of(of_prefix, prefix, parts) if with_prefix else None for parts in (1, 2)]
            chunk.first = replace(middle, queries=computed[0], keys=computed[1], computed=n_prefix, constants=constants)
        return chunk

    # -- the pass -----------------------------------------------------------------------------------------------------

    def _pass(
        self, chunk: _Chunk, context: Tensor, prefix_rows: Tensor | None, prefix_kv: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Features of one chunk's classes, and every block's keys and values of the prefix if other chunks need them.

        The prefix's rows go through with the first chunk; the other chunks are given its keys and values.
        """
        x = chunk.own.expand(len(context), -1, -1)  # (stack, own tokens, width)
        if len(chunk.places):
            x = x.index_add(1, chunk.places, context[:, chunk.context_rows])
        if prefix_rows is not None:
            x = torch.cat([prefix_rows, x], 1)
        all_kv: list[Tensor] = []
        layouts = [chunk.first, *[chunk.inner] * (len(self._blocks) - 2), chunk.last][-len(self._blocks) :]
        for depth, (block, layout) in enumerate(zip(self._blocks, layouts, strict=True)):
            given = (prefix_kv[2 * depth], prefix_kv[2 * depth + 1]) if prefix_kv else None
            x, kv = run_block(x, given, block, layout)
            if len(self._chunks) > 1 and prefix_rows is not None:
                all_kv += kv
        return _project(self._tower, self._tower.ln_final(x)), all_kv


@dataclass
class _Chunk:
    """The tokens of some classes that are not in the prefix, class after class, shorter classes first."""

    own: Tensor  # (own tokens, width), embedded; context places hold their position embedding only
    places: Tensor  # rows of `own` to which a context vector is added …
    context_rows: Tensor  # … and which one
    first: Layout
    inner: Layout
    last: Layout


def _chunk_size(n_tokens: int, n_classes: int, width: int) -> int:
    """Classes per pass, all chunks alike: all of them up to 2²² numbers per layer and row, 2.5 GB at CLIP's 12 layers."""
    n_chunks = math.ceil(n_tokens * width / 2**22)
    return math.ceil(n_classes / n_chunks)


def _group_sizes(lengths: list[int], width: int) -> list[int]:
    """How many neighbours (sorted by length) to fill up to one length each in the attention, at the least total cost.

    A group costs a fixed time per layer, a filled-up row a few copies of its width.
    """
    group_cost = 5e4 / width  # in rows; from 0.2 ms per group and layer, and 2 µs per row of width 512
    distinct = sorted(set(lengths))
    count = [lengths.count(length) for length in distinct]
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for end in range(1, len(distinct) + 1):
        options = []
        for start in range(end):
            filled = sum(
                n * (distinct[end - 1] - length)
                for n, length in zip(count[start:end], distinct[start:end], strict=True)
            )
            cost, sizes = best[start]
            options.append((cost + group_cost + filled, [*sizes, sum(count[start:end])]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


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
    passes = [_checkpointed(batch, context) if len(batches) > 1 else batch(context) for batch in batches]
    return torch.cat(passes).to(torch.promote_types(context.dtype, torch.float32))


class _FullBatch:
    """open_clip's own pass over the whole context length for some classes."""

    def __init__(self, backbone: Backbone, sequences: list[list[int]]) -> None:
        self._tower, self._dtype = backbone.text_tower, backbone.dtype
        pad = int(backbone.tokenizer(["a"], context_length=backbone.context_length)[0, -1])
        length = backbone.context_length
        padded = torch.tensor([ids + [pad] * (length - len(ids)) for ids in sequences])
        self.ids = padded.clamp(min=0).to(backbone.device)
        self._places = (padded == CONTEXT).to(backbone.device)
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
    end = end_of_text(tower, ids)
    if end is not None:
        return end
    pool = getattr(tower, "text_pool_type", None) or tower.pool_type
    return 0 if pool == "first" else length - 1


def _checkpointed(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    return checkpoint(function, *tensors, use_reentrant=False)


def _prefix_length(sequence: list[int]) -> int:
    """Tokens before the first of the class's own: the start token, if any, and the context in front."""
    length = 0 if sequence[0] == CONTEXT else 1
    while sequence[length] == CONTEXT:
        length += 1
    return length


def _is_causal(tower: Any) -> bool:
    mask = getattr(tower, "attn_mask", None)
    if mask is None or getattr(tower, "use_pad_mask", False):
        return False
    pool = getattr(tower, "text_pool_type", None) or tower.pool_type
    return pool in ("argmax", "eos")
