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
from typing import Any, Literal, get_args

import torch
from open_clip.transformer import QuickGELU, ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from slimprompt.attention import Group, Layout, causal_mask, prefix_attention
from slimprompt.backbone import Backbone, end_of_text
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
        self._in_prefix = self._prefix_ids.count(_CONTEXT)
        # Classes of similar length stand together, filled up to one length, so that their tokens are a dense block.
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        self._unsort = torch.tensor(sorted(range(len(order)), key=order.__getitem__), device=self._device)
        own = [sequences[index][prefix:] for index in order]
        size = chunk_size or len(own)
        with torch.no_grad():
            self._prefix = self._embed(self._prefix_ids, 0)  # (prefix, width), context places hold their position only
            self._chunks = [
                self._chunk(own[start : start + size], prefix, with_prefix=start == 0)
                for start in range(0, len(own), size)
            ]
        self.n_tokens = prefix + sum(len(chunk.own) for chunk in self._chunks)

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
        lengths = [len(ids) for ids in own]
        group_sizes = _group_sizes(lengths, self.backbone.text_width)
        rows, ends, inner, last = [], [], [], []
        first = n_rows = 0
        for n in group_sizes:
            group = own[first : first + n]
            longest = len(group[-1])
            for ids in group:
                ends.append(n_rows + len(ids) - 1)
                # What stands after the end-of-text token is never looked at, so anything may fill the place.
                rows.append(self._embed(ids + ids[-1:] * (longest - len(ids)), prefix))
                n_rows += longest
            causal = causal_mask(longest, self._prefix)
            inner.append(Group(n, longest, longest, causal))
            last.append(Group(n, 1, longest, torch.stack([causal[len(ids) - 1 : len(ids)] for ids in group])))
            first += n
        heads = self._tower.transformer.resblocks[0].attn.num_heads
        n_prefix = prefix if with_prefix else 0
        filled = [token for n, ids in zip(_repeated(inner), own, strict=True) for token in ids + [0] * (n - len(ids))]
        places = [place for place, token in enumerate(filled) if token == _CONTEXT]
        chunk = _Chunk(
            torch.cat(rows),
            torch.tensor(ends, device=self._device) + n_prefix,
            torch.tensor(places, device=self._device, dtype=torch.long),
            torch.tensor(list(range(self._in_prefix, self.n_ctx)) * len(own), device=self._device, dtype=torch.long),
            Layout(heads, n_prefix, causal_mask(prefix, self._prefix) if with_prefix else None, tuple(inner)),
            Layout(heads, n_prefix, None, tuple(last)),
        )
        if not places:  # the first layer's projections of constant rows are constant
            block = self._tower.transformer.resblocks[0]
            y = block.ln_1(chunk.own)
            chunk.first_q, chunk.first_kv = _queries(block, y), _keys_values(block, y)
        return chunk

    # -- the pass -----------------------------------------------------------------------------------------------------

    def _pass(
        self, chunk: _Chunk, context: Tensor, prefix_rows: Tensor | None, prefix_kv: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Features of one chunk's classes, and every layer's keys and values of the prefix if other chunks need them.

        The prefix's rows go through with the first chunk; the other chunks are given its keys and values.
        """
        stack = len(context)
        own = chunk.own.expand(stack, -1, -1)
        if len(chunk.places):
            own = own.index_add(1, chunk.places, context[:, chunk.context_rows])
        x = own if prefix_rows is None else torch.cat([prefix_rows, own], 1)  # (stack, prefix + own tokens, width)
        blocks = self._tower.transformer.resblocks
        all_kv: list[Tensor] = []
        for depth, block in enumerate(blocks):
            is_last = depth == len(blocks) - 1
            if depth == 0 and chunk.first_q is not None and chunk.first_kv is not None:
                q, kv = (part.expand(stack, -1, -1) for part in (chunk.first_q, chunk.first_kv))
                if prefix_rows is not None:
                    y = block.ln_1(prefix_rows)
                    q, kv = torch.cat([_queries(block, y), q], 1), torch.cat([_keys_values(block, y), kv], 1)
                q = q[:, chunk.ends] if is_last else q
            else:
                y = block.ln_1(x)
                q, kv = _queries(block, y[:, chunk.ends] if is_last else y), _keys_values(block, y)
            if prefix_rows is not None and len(self._chunks) > 1:
                all_kv.append(kv[:, : prefix_rows.shape[1]])
            shared = None if prefix_kv is None else prefix_kv[depth]
            attended = prefix_attention(q, kv, shared, chunk.last if is_last else chunk.inner)
            if is_last:  # nothing but the feature is read any more
                x = x[:, chunk.ends]
            x = x + block.ls_1(block.attn.out_proj(attended))
            x = x + block.ls_2(_mlp(block, block.ln_2(x)))
        return _project(self._tower, self._tower.ln_final(x)), all_kv


@dataclass
class _Chunk:
    """The tokens of some classes that are not in the prefix, class after class, shorter classes first."""

    own: Tensor  # (own tokens, width), embedded; context places hold their position embedding only
    ends: Tensor  # (n_classes,) row of each class's end-of-text token, counted with the prefix if that goes along
    places: Tensor  # rows of `own` to which a context vector is added …
    context_rows: Tensor  # … and which one
    inner: Layout
    last: Layout
    first_q: Tensor | None = None
    first_kv: Tensor | None = None


def _group_sizes(lengths: list[int], width: int) -> list[int]:
    """How many neighbours (sorted by length) to fill up to one length each, at the least total cost.

    A group costs some fixed time per layer, a filled-up token its multiplications, 12·width²: on a wide tower groups are
    cut finely, on a narrow one hardly at all.
    """
    group_cost = 8e5 / width**2  # in tokens; from half a millisecond per group and layer at 60 Gflop/s
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


def _repeated(groups: list[Group]) -> list[int]:
    """The filled-up length of each class."""
    return [group.length for group in groups for _ in range(group.n)]


def _queries(block: Any, y: Tensor) -> Tensor:
    width = y.shape[-1]
    return F.linear(y, block.attn.in_proj_weight[:width], block.attn.in_proj_bias[:width])


def _keys_values(block: Any, y: Tensor) -> Tensor:
    width = y.shape[-1]
    return F.linear(y, block.attn.in_proj_weight[width:], block.attn.in_proj_bias[width:])


def _mlp(block: Any, x: Tensor) -> Tensor:
    fc, activation, projection = block.mlp.c_fc, block.mlp.gelu, block.mlp.c_proj
    if not isinstance(activation, QuickGELU):
        return block.mlp(x)
    # QuickGELU(h) = h σ(s h) = silu(s h) / s: one fused pass over the widest matrix instead of three, and s goes into
    # the matrix products.
    s = 1.702
    hidden = F.silu(torch.addmm(fc.bias, x.flatten(0, -2), fc.weight.t(), beta=s, alpha=s))
    return torch.add(projection.bias, hidden @ projection.weight.t(), alpha=1 / s).unflatten(0, x.shape[:-1])


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
    end = end_of_text(tower, ids)
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
