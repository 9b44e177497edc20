"""Causal attention in which many short sequences share one long prefix.

out_i = Σ_j softmax_j(q_i·k_j / √e) v_j, where j runs over the shared prefix and, up to i, over i's own sequence.
The prefix is never copied per sequence: all queries meet it in one product per head. The sequences' own parts are small
products over groups filled up to one length. Rows are taken from the tower's dense matrices straight into these groups, head by
head, in one pass, and put back the same way, so that the matrices themselves hold no filling. All of it works on a stack of
such problems at once. Forward and backward are plain functions: autograd would copy and fill where nothing is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten


class Group(NamedTuple):
    """`n` sequences side by side, filled up to one length t, of each of which `a` rows ask."""

    n: int
    mask: Tensor
    """Added to the scores (n · a, shared + t): −inf where a query may not look."""


class Heads(NamedTuple):
    """What one group's attention works on, head by head: q (b, n·a, e), k and v (b, n·t, e), b = stack · heads."""

    q: Tensor
    k: Tensor
    v: Tensor


def attend(heads: Heads, shared: tuple[Tensor, Tensor] | None, group: Group) -> tuple[Tensor, Tensor]:
    """Attention of one group → (out (b, n·a, e), weights (b, n·a, shared + t)). shared: the prefix's k and v (b, shared, e)."""
    q, k, v = heads
    b, n = len(q), group.n
    scores = _product(_apart(q, n), _apart(k, n).mT, _scale(q)).view(b, q.shape[1], -1)
    if shared is not None:
        scores = torch.cat([_product(q, shared[0].mT, _scale(q)), scores], -1)
    weights = scores.add_(group.mask).softmax(-1)
    n_shared = 0 if shared is None else shared[0].shape[1]
    out = torch.bmm(_apart(weights, n)[..., n_shared:], _apart(v, n)).view_as(q)
    if shared is not None:
        out.baddbmm_(weights[..., :n_shared], shared[1])
    return out, weights


def attend_backward(
    grad: Tensor, heads: Heads, weights: Tensor, shared: tuple[Tensor, Tensor] | None, group: Group, *, own: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of `heads` (none if not `own`: they are constants) and of `shared`, given that of `out`."""
    q, k, v = heads
    n, scale = group.n, _scale(q)
    n_shared = 0 if shared is None else shared[0].shape[1]
    to_scores = torch.bmm(_apart(grad, n), _apart(v, n).mT).view(len(q), q.shape[1], -1)
    if shared is not None:
        to_scores = torch.cat([torch.bmm(grad, shared[1].mT), to_scores], -1)
    to_scores = aten._softmax_backward_data(to_scores, weights, -1, weights.dtype)
    to_heads: list[Tensor] = []
    to_shared: list[Tensor] = []
    if own:
        mine, seen = _apart(to_scores, n)[..., n_shared:], _apart(weights, n)[..., n_shared:]
        to_q = _product(mine, _apart(k, n), scale).view_as(q)
        to_k = _product(mine.mT, _apart(q, n), scale).view_as(k)
        to_v = torch.bmm(seen.mT, _apart(grad, n)).view_as(v)
        if shared is not None:
            to_q.baddbmm_(to_scores[..., :n_shared], shared[0], alpha=scale)
        to_heads = [to_q, to_k, to_v]
    if shared is not None:
        to_shared = [_product(to_scores[..., :n_shared].mT, q, scale), torch.bmm(weights[..., :n_shared].mT, grad)]
    return to_heads, to_shared


class Rows:
    """How the rows of a matrix (stack · rows, parts · heads · e) and the groups of `attend` come from each other.

    places: row numbers of each group, (n, t); −1 fills up.
    """

    def __init__(self, places: Sequence[Tensor], n_rows: int, heads: int, parts: int, device: torch.device) -> None:
        self._places, self._n_rows, self._heads, self._parts, self._device = places, n_rows, heads, parts, device
        self._maps = lru_cache(maxsize=8)(self._make_maps)

    def gather(self, matrix: Tensor, stack: int) -> list[Tensor]:
        """Group by group, part by part: (stack · heads, n · t, e)."""
        index = self._maps(stack)[0]
        return self._cut(
            matrix.view(stack * self._n_rows * self._parts * self._heads, -1).index_select(0, index), stack
        )

    def gather_gradient(self, matrix: Tensor, stack: int) -> list[Tensor]:
        """The same, with zeros at the places that fill up."""
        index, _, filling = self._maps(stack)
        flat = matrix.view(stack * self._n_rows * self._parts * self._heads, -1).index_select(0, index)
        if len(filling):
            flat.index_fill_(0, filling, 0)
        return self._cut(flat, stack)

    def scatter(self, groups: Sequence[Tensor], stack: int) -> Tensor:
        """The matrix (stack · rows, parts · heads · e) from what `gather` gives; what fills up is dropped."""
        e = groups[0].shape[-1]
        flat = torch.cat([group.view(-1, e) for group in groups]) if len(groups) > 1 else groups[0].view(-1, e)
        return flat.index_select(0, self._maps(stack)[1]).view(stack * self._n_rows, -1)

    def _cut(self, flat: Tensor, stack: int) -> list[Tensor]:
        b, e = stack * self._heads, flat.shape[-1]
        sizes = [b * places.numel() for places in self._places for _ in range(self._parts)]
        return [part.view(b, -1, e) for part in flat.split(sizes)]

    def _make_maps(self, stack: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where each place of the groups comes from, where each row goes to, and which places fill up."""
        sources, fills = [], []
        for places in self._places:
            rows = places.flatten()
            filled = torch.where(places < 0, places.amax(1, keepdim=True), places).flatten()  # any row would do
            for part in range(self._parts):
                stacked = torch.arange(stack)[:, None, None] * self._n_rows + filled  # (stack, 1, n · t)
                heads = torch.arange(self._heads)[:, None]
                sources.append(((stacked * self._parts + part) * self._heads + heads).flatten())
                fills.append((rows < 0).expand(stack, self._heads, -1).flatten())
        source, fill = torch.cat(sources), torch.cat(fills)
        target = torch.zeros(stack * self._n_rows * self._parts * self._heads, dtype=torch.long)
        target[source[~fill]] = torch.arange(len(source))[~fill]
        return source.to(self._device), target.to(self._device), fill.nonzero()[:, 0].to(self._device)


def causal_mask(size: int, like: Tensor) -> Tensor:
    """(size, size): 0 on and below the diagonal, −inf above."""
    return torch.full((size, size), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


def _apart(x: Tensor, n: int) -> Tensor:
    """(b, n · t, …) → (b · n, t, …)."""
    return x.view(len(x) * n, -1, x.shape[-1])


def _product(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """scale · x y, in one pass."""
    return torch.baddbmm(x.new_empty(()), x, y, beta=0, alpha=scale)


def _scale(q: Tensor) -> float:
    return q.shape[-1] ** -0.5
