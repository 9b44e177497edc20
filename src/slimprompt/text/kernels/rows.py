"""Gathering rows of a matrix into padded groups of sequences, and scattering them back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

PADDING = -1
"""Marks padding in a row index."""


class RowGather:
    """Map between a matrix (n_prompts · n_rows, n_parts · n_heads · e) and groups of sequences, split into heads.

    Both directions are a single `index_select`. `row_index` has the row numbers (n, t) of each group, with `PADDING` after the end of
    shorter sequences; all groups together contain every row of a prompt exactly once. `n_parts` is 1 for queries or attention
    outputs, 2 for keys and values, 3 for queries, keys and values in one matrix.
    """

    def __init__(
        self, row_index: Sequence[Tensor], n_rows: int, n_heads: int, n_parts: int, device: torch.device
    ) -> None:
        self._n_rows, self._n_head_rows = n_rows, n_rows * n_parts * n_heads
        # The cached function does not refer to this object, so the maps are released with it.
        self._index_maps = lru_cache(maxsize=8)(partial(_index_maps, row_index, n_rows, n_heads, n_parts, device))

    def gather(self, matrix: Tensor, n_prompts: int) -> list[Tensor]:
        """One tensor (b, n · t, e) per group and part, parts of a group in succession; padding contains arbitrary rows."""
        maps = self._index_maps(n_prompts)
        return self._split(self._head_rows(matrix, n_prompts).index_select(0, maps.source), maps)

    def gather_gradient(self, matrix: Tensor, n_prompts: int) -> list[Tensor]:
        """Like `gather`, with zeros for padding."""
        maps = self._index_maps(n_prompts)
        flat = self._head_rows(matrix, n_prompts).index_select(0, maps.source)  # (positions, e)
        if maps.padding.numel():
            flat.index_fill_(0, maps.padding, 0)
        return self._split(flat, maps)

    def scatter(self, groups: Sequence[Tensor], n_prompts: int) -> Tensor:
        """Inverse of `gather`: the matrix (n_prompts · n_rows, n_parts · n_heads · e), without the padding."""
        e = groups[0].size(-1)
        flat = torch.cat([group.view(-1, e) for group in groups]) if len(groups) > 1 else groups[0].view(-1, e)
        return flat.index_select(0, self._index_maps(n_prompts).target).view(n_prompts * self._n_rows, -1)

    def _head_rows(self, matrix: Tensor, n_prompts: int) -> Tensor:
        """Matrix → (n_prompts · n_rows · n_parts · n_heads, e)."""
        return matrix.view(n_prompts * self._n_head_rows, -1)

    def _split(self, flat: Tensor, maps: _IndexMaps) -> list[Tensor]:
        """(positions, e) → one tensor (b, n · t, e) per group and part."""
        e = flat.size(-1)
        return [part.view(maps.b, -1, e) for part in flat.split_with_sizes(maps.sizes)]


class _IndexMaps(NamedTuple):
    """Index maps between head rows (one row, part and head of the matrix) and positions in the concatenated groups."""

    b: int  # n_prompts · n_heads
    sizes: list[int]  # positions of each group and part
    source: Tensor  # head row of each position
    target: Tensor  # position of each head row
    padding: Tensor  # positions that are padding


def _index_maps(
    row_index: Sequence[Tensor], n_rows: int, n_heads: int, n_parts: int, device: torch.device, n_prompts: int
) -> _IndexMaps:
    prompts = torch.arange(n_prompts)[:, None, None]
    heads = torch.arange(n_heads)[:, None]
    parts = torch.arange(n_parts)[:, None, None, None]
    sources, paddings = [], []
    for index in row_index:  # (n, t)
        padding = (index == PADDING).flatten()  # (n · t,)
        rows = torch.where(index == PADDING, index.amax(1, keepdim=True), index).flatten()  # any row would do
        source = ((prompts * n_rows + rows) * n_parts + parts) * n_heads + heads  # (n_parts, n_prompts, n_heads, n · t)
        sources.append(source.flatten())
        paddings.append(padding.expand_as(source).flatten())
    source, is_padding = torch.cat(sources), torch.cat(paddings)
    target = torch.zeros(n_prompts * n_rows * n_parts * n_heads, dtype=torch.long)
    target[source[~is_padding]] = torch.arange(len(source))[~is_padding]
    b = n_prompts * n_heads
    sizes = [b * index.numel() for index in row_index for _ in range(n_parts)]
    return _IndexMaps(b, sizes, *(part.to(device) for part in (source, target, is_padding.nonzero()[:, 0])))
