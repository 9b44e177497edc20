"""`SharedPrefixTextEncoder`: class features from a learned context, with the shared prefix computed once.

`slimprompt.text.reference` has the same pass in plain PyTorch and explains why it is exact. This
implementation also precomputes constants, pads only in attention, and keeps only the end-of-text rows in the last block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slimprompt.clip.backbone import Backbone
from slimprompt.clip.towers import supports_shared_prefix
from slimprompt.errors import InputError
from slimprompt.text.kernels.block import BlockLayout, FrozenBlock, run_block
from slimprompt.text.layout import block_layouts, default_chunk_size
from slimprompt.text.reference import FullPass, output_dtype, project
from slimprompt.text.tokens import CONTEXT, Position, prompt_tokens, shared_prefix_length


class SharedPrefixTextEncoder:
    """context (…, n_ctx, width) → class features (…, n_classes, embed_dim).

    Features and gradients equal those of open_clip's full pass up to float rounding. A text tower that is not causal, or
    whose blocks are not open_clip's standard ones, is run with the full pass itself.

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
    chunk_size
        Classes per pass. With several chunks, the backward pass recomputes each chunk's forward pass, so memory is
        bounded by one chunk. By default all classes form one chunk unless a step would need more than a few GB.

    Attributes
    ----------
    shared_prefix : bool
        Whether the prefix is shared; False means that the full pass is used.
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
        chunk_size: int | None = None,
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise InputError(f"chunk_size must be at least 1 class, not {chunk_size}")
        self.backbone, self.n_ctx, self.n_classes = backbone, n_ctx, len(class_names)
        self._tower = backbone.text_tower
        sequences = prompt_tokens(backbone, class_names, n_ctx, position)
        n_prefix = shared_prefix_length(sequences)
        self.shared_prefix = n_prefix > 0 and supports_shared_prefix(self._tower)
        if not self.shared_prefix:
            self._full_pass = FullPass(backbone, sequences, chunk_size)
            self.n_tokens, self.n_chunks = self._full_pass.n_tokens, self._full_pass.n_chunks
            return

        # Sorted by length, neighbouring classes need little padding.
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        self._unsort = torch.tensor(order, device=backbone.device).argsort()  # (n_classes,)
        suffixes = [sequences[index][n_prefix:] for index in order]
        n_suffix_tokens = sum(map(len, suffixes))
        size = chunk_size or default_chunk_size(n_suffix_tokens, len(suffixes), backbone.text_width)
        self._blocks = [FrozenBlock(block) for block in self._tower.transformer.resblocks]
        self._n_prefix_ctx = sequences[0][:n_prefix].count(CONTEXT)
        with torch.no_grad():
            self._prefix = self._embed(sequences[0][:n_prefix], 0)  # (n_prefix, width)
            self._chunks = [
                self._make_chunk(suffixes[start : start + size], has_prefix=start == 0)
                for start in range(0, len(suffixes), size)
            ]
        self.n_tokens, self.n_chunks = n_prefix + n_suffix_tokens, len(self._chunks)

    def __call__(self, context: Tensor) -> Tensor:
        """Class features, unnormalised, in fp32 (fp64 if the backbone is in fp64).

        Parameters
        ----------
        context
            One context (n_ctx, width) or a batch of contexts (n_prompts, n_ctx, width).

        Returns
        -------
        Tensor
            (n_classes, embed_dim) or (n_prompts, n_classes, embed_dim).
        """
        if context.shape[-2:] != (self.n_ctx, self.backbone.text_width) or context.ndim not in (2, 3):
            raise InputError(
                f"the context has shape {tuple(context.shape)}; "
                f"this encoder takes ({self.n_ctx}, {self.backbone.text_width}) or a batch of such contexts"
            )
        if not self.shared_prefix:
            return self._full_pass(context)
        if context.ndim == 2:
            return self(context[None])[0]
        context = context.to(self.backbone.device, self.backbone.dtype)
        prefix = self._prefix.expand(len(context), -1, -1)  # (n_prompts, n_prefix, width)
        if self._n_prefix_ctx:
            n_start = prefix.shape[1] - self._n_prefix_ctx  # 1 if there is a start token, else 0
            prefix = torch.cat([prefix[:, :n_start], prefix[:, n_start:] + context[:, : self._n_prefix_ctx]], 1)
        first, *others = self._chunks
        features, prefix_kv = self._run_chunk(first, context, prefix)
        chunk_features = [features]  # (n_prompts, classes of the chunk, embed_dim) each
        for chunk in others:
            chunk_features.append(
                checkpoint(
                    lambda context, *kv, chunk=chunk: self._run_chunk(chunk, context, None, kv)[0],
                    context,
                    *prefix_kv,
                    use_reentrant=False,
                )
            )
        return torch.cat(chunk_features, 1)[:, self._unsort].to(output_dtype(self.backbone))

    def _embed(self, ids: Sequence[int], first_position: int) -> Tensor:
        """Token + position embedding (n, width); context tokens have their position embedding only."""
        dtype = self.backbone.dtype
        tokens = torch.tensor(ids, device=self.backbone.device)  # (n,)
        rows = self._tower.token_embedding(tokens.clamp(min=0)).to(dtype) * (tokens != CONTEXT).to(dtype)[:, None]
        return rows + self._tower.positional_embedding[first_position : first_position + len(ids)].to(dtype)

    def _make_chunk(self, suffixes: list[list[int]], *, has_prefix: bool) -> _Chunk:
        n_prefix, device = len(self._prefix), self.backbone.device
        suffix = torch.cat([self._embed(ids, n_prefix) for ids in suffixes])  # (n_suffix_rows, width)
        tokens = torch.tensor([token for ids in suffixes for token in ids])  # (n_suffix_rows,), on the host
        context_rows = (tokens == CONTEXT).nonzero()[:, 0].to(device)  # (classes · n_suffix_ctx,)
        layouts = block_layouts(
            self._blocks,
            suffix,
            [len(ids) for ids in suffixes],
            n_prefix,
            has_prefix=has_prefix,
            constant_suffix=not len(context_rows),
        )
        context_index = torch.arange(self._n_prefix_ctx, self.n_ctx, device=device).repeat(len(suffixes))
        return _Chunk(suffix, context_rows, context_index, layouts)

    def _run_chunk(
        self, chunk: _Chunk, context: Tensor, prefix: Tensor | None, prefix_kv: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Features of the classes of one chunk, and the keys and values of the prefix in every block.

        The first chunk computes the prefix; the others receive its keys and values.
        """
        x = chunk.suffix.expand(len(context), -1, -1)  # (n_prompts, n_suffix_rows, width)
        if len(chunk.context_rows):
            x = x.index_add(1, chunk.context_rows, context[:, chunk.context_index])
        if prefix is not None:
            x = torch.cat([prefix, x], 1)  # (n_prompts, n_prefix + n_suffix_rows, width)
        computed_kv: list[Tensor] = []
        for depth, (block, layout) in enumerate(zip(self._blocks, chunk.layouts, strict=True)):
            given_kv = (prefix_kv[2 * depth], prefix_kv[2 * depth + 1]) if prefix_kv else None
            x, kv = run_block(x, given_kv, block, layout)
            if prefix is not None and len(self._chunks) > 1:
                computed_kv += kv
        return project(self._tower, self._tower.ln_final(x)), computed_kv


class _Chunk(NamedTuple):
    """Suffixes and block layouts of the classes that are encoded in one pass."""

    suffix: Tensor  # (n_suffix_rows, width), embedded; context tokens have their position embedding only
    context_rows: Tensor  # rows of `suffix` to which a context vector is added
    context_index: Tensor  # index of the context vector that each of them receives
    layouts: list[BlockLayout]  # one per block
