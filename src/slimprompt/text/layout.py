"""Chunks of classes, and the layout of their rows in each transformer block.

One row is one token. The rows of a chunk are those of the shared prefix (first chunk only), then the suffixes of its
classes one after the other, shorter ones first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slimprompt.text.kernels.attention import SequenceGroup, causal_mask
from slimprompt.text.kernels.block import BlockLayout, FrozenBlock
from slimprompt.text.kernels.rows import PADDING, RowGather


def block_layouts(
    blocks: Sequence[FrozenBlock],
    suffix: Tensor,
    suffix_lengths: Sequence[int],
    n_prefix: int,
    *,
    has_prefix: bool,
    constant_suffix: bool,
) -> list[BlockLayout]:
    """Layout of each block for one chunk of classes.

    All blocks but the last return all rows; the last one returns the end-of-text row of each class. `suffix` (n_suffix_rows, width) are
    the embedded suffixes of the classes, in ascending order of length. With `constant_suffix` they contain no context vectors, so their
    queries, keys and values in the first block are constants. Without `has_prefix`, keys and values of the prefix are passed in.
    """
    rows = _ChunkRows(suffix, suffix_lengths, n_prefix, blocks[0].n_heads, has_prefix)
    inner = rows.inner_layout()
    first = rows.first_layout(inner, blocks[0]) if constant_suffix and len(blocks) > 1 else inner
    return [first, *[inner] * (len(blocks) - 2), rows.last_layout()][-len(blocks) :]


class _ChunkRows:
    """Row numbers of the prefix and of the suffixes of one chunk, the suffixes in groups of similar length."""

    def __init__(
        self, suffix: Tensor, suffix_lengths: Sequence[int], n_prefix: int, n_heads: int, has_prefix: bool
    ) -> None:
        self.suffix, self.n_prefix, self.n_heads, self.has_prefix = suffix, n_prefix, n_heads, has_prefix
        self.first_row = n_prefix if has_prefix else 0  # of the suffixes
        self.sizes = group_sizes(suffix_lengths, suffix.shape[1])
        lengths = torch.tensor(suffix_lengths)  # (n_classes,)
        self.last_rows = self.first_row + lengths.cumsum(0) - 1  # (n_classes,), the end-of-text rows
        self.lengths = lengths.split(self.sizes)  # (n,) per group
        self.prefix_index = [torch.arange(n_prefix)[None]] if has_prefix else []  # (1, n_prefix)
        last_rows = self.last_rows.split(self.sizes)
        # One row index (n, t) and one mask (t, n_prefix + t) per group.
        self.suffix_index = [_row_index(*group) for group in zip(self.lengths, last_rows, strict=True)]
        self.masks = [causal_mask(index.shape[1], n_prefix, suffix) for index in self.suffix_index]

    def inner_layout(self) -> BlockLayout:
        """All rows are query rows and key rows."""
        return BlockLayout(
            groups=tuple(
                SequenceGroup(len(lengths), mask.repeat(len(lengths), 1))
                for lengths, mask in zip(self.lengths, self.masks, strict=True)
            ),
            prefix_group=SequenceGroup(1, causal_mask(self.n_prefix, 0, self.suffix)) if self.has_prefix else None,
            projections=self._gather_all(3),
            outputs=self._gather_all(1),
            has_prefix=self.has_prefix,
        )

    def last_layout(self) -> BlockLayout:
        """Only the end-of-text rows are query rows."""
        device, n_classes = self.suffix.device, len(self.last_rows)
        return BlockLayout(
            groups=tuple(
                SequenceGroup(len(lengths), mask[lengths.to(device) - 1])
                for lengths, mask in zip(self.lengths, self.masks, strict=True)
            ),
            prefix_group=None,
            projections=self._gather_all(2),
            outputs=self._gather(torch.arange(n_classes)[:, None].split(self.sizes), n_classes, 1),
            has_prefix=self.has_prefix,
            query_rows=self.last_rows.to(device),
        )

    def first_layout(self, inner: BlockLayout, block: FrozenBlock) -> BlockLayout:
        """Only the rows of the prefix are computed; queries, keys and values of the suffixes are constants."""
        index = [torch.where(rows == PADDING, PADDING, rows - self.first_row) for rows in self.suffix_index]
        return replace(
            inner,
            projections=self._gather(self.prefix_index, self.n_prefix, 3) if self.has_prefix else None,
            n_computed=self.first_row,
            constants=block.constant_qkv(self.suffix, index),
        )

    def _gather_all(self, n_parts: int) -> RowGather:
        return self._gather(self.prefix_index + self.suffix_index, self.first_row + len(self.suffix), n_parts)

    def _gather(self, row_index: Sequence[Tensor], n_rows: int, n_parts: int) -> RowGather:
        return RowGather(row_index, n_rows, self.n_heads, n_parts, self.suffix.device)


def _row_index(lengths: Tensor, last_rows: Tensor) -> Tensor:
    """Row numbers (n, t) of sequences with these lengths (n,) and last rows (n,), padded to the longest."""
    columns = torch.arange(int(lengths.max()))  # (t,)
    rows = (last_rows - lengths + 1)[:, None] + columns  # (n, t)
    return torch.where(columns < lengths[:, None], rows, PADDING)


def default_chunk_size(n_tokens: int, n_classes: int, width: int) -> int:
    """Classes per chunk: all of them up to 2²² numbers per layer (2.5 GB at CLIP's 12 layers), else equal chunks."""
    n_chunks = math.ceil(n_tokens * width / 2**22)
    return math.ceil(n_classes / n_chunks)


def group_sizes(lengths: Sequence[int], width: int) -> list[int]:
    """Sizes of the groups into which sequences of ascending lengths are divided for attention, at the lowest estimated cost.

    The sequences of a group are padded to one length. A group costs a fixed time per layer; padding costs time per row.
    Dynamic programming over the distinct lengths finds the optimum.
    """
    group_cost = 5e4 / width  # in padding rows; measured: 0.2 ms per group and layer, 2 µs per row of width 512
    distinct = sorted(set(lengths))
    count = [lengths.count(length) for length in distinct]
    best: list[tuple[float, list[int]]] = [(0.0, [])]  # cost and sizes for the shortest 0, 1, … distinct lengths
    for end in range(1, len(distinct) + 1):
        options = []
        for start in range(end):
            padding = sum(
                n * (distinct[end - 1] - length)
                for n, length in zip(count[start:end], distinct[start:end], strict=True)
            )
            cost, sizes = best[start]
            options.append((cost + group_cost + padding, [*sizes, sum(count[start:end])]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]
