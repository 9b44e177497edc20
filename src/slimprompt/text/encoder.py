"""`SharedPrefixTextEncoder`: class features from a learned context, with the shared prefix computed once.

`slimprompt.text.reference` has the same pass in plain PyTorch and explains why it is exact. This
implementation also precomputes constants, pads only in attention, and keeps only the end-of-text rows in the last block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from slimprompt.clip.backbone import Backbone
from slimprompt.clip.towers import supports_shared_prefix
from slimprompt.errors import InputError
from slimprompt.text.kernels.block import BlockLayout, FrozenBlock, frozen_block, run_block
from slimprompt.text.layout import block_layouts, default_chunk_size
from slimprompt.text.reference import FullPass, check_depth, output_dtype, project
from slimprompt.text.tokens import CONTEXT, Position, prompt_tokens, shared_prefix_length

#: Texts that `encode_texts` prepares at once, which bounds its memory.
_TEXTS = 1000


class SequenceEncoder:
    """context (…, n_ctx, width) → features (…, n_sequences, embed_dim) of token sequences that begin with the same tokens.

    A context of depth > 1 is (…, depth, n_ctx, width): before layer l, the rows of the context are replaced by its l-th
    context. Features and gradients equal those of open_clip's full pass up to float rounding. A text tower that is not causal, or
    whose blocks are not open_clip's standard ones, is run with the full pass itself (`shared_prefix` is False then).

    All `sequences` begin with the same `n_prefix` tokens; `CONTEXT` stands where a context vector is put.
    """

    def __init__(
        self,
        backbone: Backbone,
        sequences: list[list[int]],
        n_prefix: int,
        n_ctx: int = 0,
        *,
        depth: int = 1,
        chunk_size: int | None = None,
    ) -> None:
        self.backbone, self.n_ctx, self.depth = backbone, n_ctx, depth
        self._tower = backbone.text_tower
        self.shared_prefix = n_prefix > 0 and supports_shared_prefix(self._tower)
        if not self.shared_prefix:
            self._full_pass = FullPass(backbone, sequences, self.depth, chunk_size)
            self.n_tokens, self.n_chunks = self._full_pass.n_tokens, self._full_pass.n_chunks
            return

        # Sorted by length, neighbouring sequences need little padding.
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        self._unsort = torch.tensor(order, device=backbone.device).argsort()  # (n_sequences,)
        suffixes = [sequences[index][n_prefix:] for index in order]
        n_suffix_tokens = sum(map(len, suffixes))
        size = chunk_size or default_chunk_size(n_suffix_tokens, len(suffixes), backbone.text_width)
        self._blocks = [frozen_block(block) for block in self._tower.transformer.resblocks]
        self._packed_blocks: list[FrozenBlock] | None = None
        with torch.no_grad():
            self._chunks = [
                self._make_chunk(sequences[0][:n_prefix], suffixes[start : start + size], has_prefix=start == 0)
                for start in range(0, len(suffixes), size)
            ]
        self.n_tokens, self.n_chunks = n_prefix + n_suffix_tokens, len(self._chunks)

    def __call__(self, context: Tensor) -> Tensor:
        """Features of the sequences, unnormalised, in fp32 (fp64 if the backbone is in fp64), of one context or a batch of them."""
        one = (self.depth, self.n_ctx, self.backbone.text_width)[0 if self.depth > 1 else 1 :]  # shape of one context
        if context.shape[-len(one) :] != one or context.ndim not in (len(one), len(one) + 1):
            raise InputError(
                f"the context has shape {tuple(context.shape)}; this encoder takes {one} or a batch of such contexts"
            )
        if not self.shared_prefix:
            return self._full_pass(context)
        if context.ndim == len(one):
            return self(context[None])[0]
        context = context.to(self.backbone.device, self.backbone.dtype)
        context = context.view(len(context), self.depth, *one[-2:])  # (n_prompts, depth, n_ctx, width)
        blocks = self._blocks
        if context.requires_grad and torch.is_grad_enabled():
            # Passes with gradients always use packed weights, other passes never: results do not depend on earlier passes.
            blocks = self._packed_blocks = self._packed_blocks or [block.with_packed_weights() for block in blocks]
        first, *others = self._chunks
        features, prefix_kv = self._run_chunk(first, blocks, context)
        chunk_features = [features]  # (n_prompts, classes of the chunk, embed_dim) each
        for chunk in others:  # recomputed in the backward pass, which bounds the memory of a step
            run = partial(self._run_later_chunk, chunk, blocks)
            chunk_features.append(checkpoint(run, context, *prefix_kv, use_reentrant=False))
        return torch.cat(chunk_features, 1)[:, self._unsort].to(output_dtype(self.backbone))

    def _embed(self, ids: Sequence[int], first_position: int) -> Tensor:
        """Token + position embedding (n, width); context tokens have their position embedding only."""
        dtype = self.backbone.dtype
        tokens = torch.tensor(ids, device=self.backbone.device)  # (n,)
        rows = self._tower.token_embedding(tokens.clamp(min=0)).to(dtype) * (tokens != CONTEXT).to(dtype)[:, None]
        return rows + self._tower.positional_embedding[first_position : first_position + len(ids)].to(dtype)

    def _make_chunk(self, prefix: list[int], suffixes: list[list[int]], *, has_prefix: bool) -> _Chunk:
        n_prefix, n_prefix_ctx = len(prefix), prefix.count(CONTEXT)
        suffix = torch.cat([self._embed(ids, n_prefix) for ids in suffixes])  # (n_suffix_rows, width)
        layouts = block_layouts(
            self._blocks,
            suffix,
            [len(ids) for ids in suffixes],
            n_prefix,
            has_prefix=has_prefix,
            constant_suffix=n_prefix_ctx == self.n_ctx,
        )
        first = [prefix] if has_prefix else []
        tokens = torch.tensor([token for ids in (*first, *suffixes) for token in ids])  # (n_rows,), on the host
        context_index = [*range(n_prefix_ctx)] if has_prefix else []
        context_index += [*range(n_prefix_ctx, self.n_ctx)] * len(suffixes)
        device = self.backbone.device
        return _Chunk(
            torch.cat([self._embed(prefix, 0), suffix]) if has_prefix else suffix,
            (tokens == CONTEXT).nonzero()[:, 0].to(device),
            torch.tensor(context_index, dtype=torch.long, device=device),
            layouts,
        )

    def _run_chunk(
        self, chunk: _Chunk, blocks: list[FrozenBlock], context: Tensor, prefix_kv: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Features of the classes of one chunk, and the keys and values of the prefix in every block.

        The first chunk computes the prefix; the others receive its keys and values.
        """
        x = chunk.rows.expand(len(context), -1, -1)  # (n_prompts, n_rows, width)
        computed_kv: list[Tensor] = []
        for layer, (block, layout) in enumerate(zip(blocks, chunk.layouts, strict=True)):
            if layer < self.depth and len(chunk.context_rows):
                vectors = context[:, layer].index_select(1, chunk.context_index)  # (n_prompts, context rows, width)
                # In the first layer a vector is added to its position embedding; in the others it replaces the row.
                put = x.index_add if layer == 0 else x.index_copy
                x = put(1, chunk.context_rows, vectors)
            given_kv = (prefix_kv[2 * layer], prefix_kv[2 * layer + 1]) if prefix_kv else None
            x, kv = run_block(x, given_kv, block, layout)
            if layout.has_prefix and len(self._chunks) > 1:
                computed_kv += kv
        return project(self._tower, self._tower.ln_final(x)), computed_kv

    def _run_later_chunk(self, chunk: _Chunk, blocks: list[FrozenBlock], context: Tensor, *prefix_kv: Tensor) -> Tensor:
        """Features of the classes of a chunk after the first."""
        return self._run_chunk(chunk, blocks, context, prefix_kv)[0]


class SharedPrefixTextEncoder(SequenceEncoder):
    """context (…, n_ctx, width) → class features (…, n_classes, embed_dim).

    The sequence of a class has its name and the context; `SequenceEncoder` says how its feature is computed.

    Parameters
    ----------
    backbone
        The frozen CLIP model.
    class_names
        Class names, in the order of the features.
    n_ctx
        Number of context vectors.
    position
        Position of the class name among the context vectors: "end", "middle" or "front".
    depth
        Number of layers of the text tower that receive a context of their own.
    chunk_size
        Classes per pass. By default all classes form one chunk unless a step would need more than a few GB. All chunks but the first
        compute their forward pass again in the backward pass, which takes less memory and up to 1.5 times the time.

    Attributes
    ----------
    shared_prefix : bool
        Whether the prefix is shared; False means that the full pass is used.
    n_classes : int
        Number of classes.
    n_tokens : int
        Tokens computed per pass and prompt.
    n_chunks : int
        Number of chunks.
    """

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        n_ctx: int,
        position: Position = "end",
        *,
        depth: int = 1,
        chunk_size: int | None = None,
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise InputError(f"chunk_size must be at least 1 class, not {chunk_size}")
        check_depth(backbone, depth)
        self.n_classes = len(class_names)
        sequences = prompt_tokens(backbone, class_names, n_ctx, position)
        n_prefix = shared_prefix_length(sequences)
        super().__init__(backbone, sequences, n_prefix, n_ctx, depth=depth, chunk_size=chunk_size)


class _Chunk(NamedTuple):
    """Rows and block layouts of the classes that are encoded in one pass."""

    rows: Tensor  # (n_rows, width), embedded: the prefix (first chunk only), then the suffixes
    context_rows: Tensor  # rows that receive a context vector; before that, they have their position embedding only
    context_index: Tensor  # index of the context vector that each of them receives
    layouts: list[BlockLayout]  # one per block


@torch.inference_mode()
def encode_texts(backbone: Backbone, texts: Sequence[str], *, unit_length: bool = True) -> Tensor:
    """Texts → features (n, embed_dim), fp32, equal to `Backbone.encode_texts` up to float rounding, and faster.

    The tokens with which all texts begin are computed once, and padding is left out. Towers that cannot share a prefix take open_clip's
    own pass. A text that is longer than the context length is an error.
    """
    sequences = [backbone.tokenize_within_limit(text) for text in texts]
    if not supports_shared_prefix(backbone.text_tower) or len({sequence[0] for sequence in sequences}) != 1:
        return backbone.encode_texts(texts, unit_length=unit_length)
    no_context = torch.zeros(0, backbone.text_width, device=backbone.device)
    features = torch.cat(
        [
            SequenceEncoder(backbone, part, _common_beginning(part))(no_context).float()
            for part in (sequences[start : start + _TEXTS] for start in range(0, len(sequences), _TEXTS))
        ]
    )
    return F.normalize(features, dim=-1) if unit_length else features


def _common_beginning(sequences: list[list[int]]) -> int:
    """Number of leading tokens that all sequences share, without the last token of any of them."""
    shortest = min(map(len, sequences))
    return next((n for n in range(shortest - 1) if len({ids[n] for ids in sequences}) > 1), shortest - 1)
