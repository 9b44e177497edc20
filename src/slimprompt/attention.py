"""Causal attention in which many short sequences share one long prefix.

out_i = Σ_j softmax_j(q_i·k_j / √e) v_j, where j runs over the shared prefix and, up to i, over i's own sequence.
Rows are the prefix's tokens followed by the sequences', sequence after sequence. The prefix is never copied per
sequence: all queries meet it in one product per head; the sequences' own parts are small dense products over groups of
equal length. All of it works on a stack of such problems at once (the leading dimension).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Group(NamedTuple):
    """`n` neighbouring sequences of `length` rows each, of which `queries` per sequence ask."""

    n: int
    queries: int
    length: int
    mask: Tensor
    """Added to the scores (…, queries, length): −inf where a query may not look."""


class Layout(NamedTuple):
    """What stands in which row."""

    heads: int
    n_prefix: int
    """Rows of the keys and values that are the prefix's; 0 if those are given separately."""
    prefix_mask: Tensor | None
    """Causal mask of the prefix's own queries, which then come first; None if the prefix does not ask."""
    groups: tuple[Group, ...]


def causal_mask(size: int, like: Tensor) -> Tensor:
    """(size, size): 0 on and below the diagonal, −inf above."""
    return torch.full((size, size), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


def prefix_attention(q: Tensor, kv: Tensor, shared: Tensor | None, layout: Layout) -> Tensor:
    """q (stack, queries, width), kv (stack, rows, 2·width) → (stack, queries, width).

    shared (stack, prefix, 2·width): the prefix's keys and values, if they are not the first rows of `kv`.
    """
    return _PrefixAttention.apply(q, kv, shared, layout)


class _PrefixAttention(torch.autograd.Function):
    """Written out by hand: autograd would fill and add a full-size gradient for every slice taken."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, shared: Tensor | None, layout: Layout) -> Tensor:
        parts = _Parts(q, kv, shared, layout)
        n_shared, asked = parts.shared_k.shape[1], parts.prefix_queries
        out = torch.empty_like(parts.q)
        own_q, own_out = parts.q[:, asked:], out[:, asked:]

        scores = q.new_empty(*own_q.shape[:2], n_shared + parts.longest)
        scores[..., :n_shared] = own_q @ parts.shared_k.transpose(1, 2)
        if len(layout.groups) > 1:
            scores[..., n_shared:] = float("-inf")
        for queries, keys, group in parts.blocks:
            block = _split(own_q[:, queries], group.n) @ _split(parts.k[:, keys], group.n).transpose(2, 3)
            scores[:, queries, n_shared : n_shared + group.length] = (block + group.mask).flatten(1, 2)
        weights = scores.softmax(-1)
        own_out[:] = weights[..., :n_shared] @ parts.shared_v
        for queries, keys, group in parts.blocks:
            own = _split(weights[:, queries, n_shared : n_shared + group.length], group.n)
            own_out[:, queries] += (own @ _split(parts.v[:, keys], group.n)).flatten(1, 2)

        prefix_weights = None
        if layout.prefix_mask is not None:
            prefix_scores = parts.q[:, :asked] @ parts.shared_k.transpose(1, 2)
            prefix_weights = (prefix_scores + layout.prefix_mask).softmax(-1)
            out[:, :asked] = prefix_weights @ parts.shared_v
        ctx.save_for_backward(q, kv, shared, weights, prefix_weights)
        ctx.layout = layout
        return _rows_first(out, layout.heads)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, shared, weights, prefix_weights = ctx.saved_tensors
        layout = ctx.layout
        parts = _Parts(q, kv, shared, layout)
        n_prefix, n_shared, asked = layout.n_prefix, parts.shared_k.shape[1], parts.prefix_queries
        grad = _heads_first(grads[0], layout.heads)
        grad_q = torch.empty_like(parts.q)
        grad_k, grad_v = (parts.q.new_empty(len(parts.q), kv.shape[1], parts.q.shape[2]) for _ in "kv")
        own_q, own_grad, own_grad_q = parts.q[:, asked:], grad[:, asked:], grad_q[:, asked:]
        own_grad_k, own_grad_v = grad_k[:, n_prefix:], grad_v[:, n_prefix:]

        # d scores = weights ∘ (d weights − Σ weights ∘ d weights); outside of a group's block the weights are zero
        grad_scores = weights.new_empty(weights.shape) if len(layout.groups) == 1 else torch.zeros_like(weights)
        grad_scores[..., :n_shared] = own_grad @ parts.shared_v.transpose(1, 2)
        for queries, keys, group in parts.blocks:
            asking = _split(own_grad[:, queries], group.n)
            block = asking @ _split(parts.v[:, keys], group.n).transpose(2, 3)
            grad_scores[:, queries, n_shared : n_shared + group.length] = block.flatten(1, 2)
            own = _split(weights[:, queries, n_shared : n_shared + group.length], group.n)
            own_grad_v[:, keys] = (own.transpose(2, 3) @ asking).flatten(1, 2)
        _softmax_backward_(grad_scores, weights)
        to_shared = grad_scores[..., :n_shared]
        own_grad_q[:] = to_shared @ parts.shared_k
        grad_shared_k = to_shared.transpose(1, 2) @ own_q
        grad_shared_v = weights[..., :n_shared].transpose(1, 2) @ own_grad
        for queries, keys, group in parts.blocks:
            own = _split(grad_scores[:, queries, n_shared : n_shared + group.length], group.n)
            own_grad_q[:, queries] += (own @ _split(parts.k[:, keys], group.n)).flatten(1, 2)
            own_grad_k[:, keys] = (own.transpose(2, 3) @ _split(own_q[:, queries], group.n)).flatten(1, 2)
        if prefix_weights is not None:
            prefix_grad = grad[:, :asked]
            grad_prefix = prefix_grad @ parts.shared_v.transpose(1, 2)
            _softmax_backward_(grad_prefix, prefix_weights)
            grad_q[:, :asked] = grad_prefix @ parts.shared_k
            grad_shared_k += grad_prefix.transpose(1, 2) @ parts.q[:, :asked]
            grad_shared_v += prefix_weights.transpose(1, 2) @ prefix_grad
        grad_shared = None
        if shared is None:
            grad_k[:, :n_prefix], grad_v[:, :n_prefix] = grad_shared_k, grad_shared_v
        else:
            grad_shared = torch.cat([_rows_first(part, layout.heads) for part in (grad_shared_k, grad_shared_v)], -1)
        grad_q *= parts.scale
        grad_kv = torch.cat([_rows_first(part, layout.heads) for part in (grad_k, grad_v)], -1)
        return _rows_first(grad_q, layout.heads), grad_kv, grad_shared, None


class _Parts:
    """The inputs head by head, (stack · heads, rows, e): scaled queries, own keys and values, and the prefix's."""

    def __init__(self, q: Tensor, kv: Tensor, shared: Tensor | None, layout: Layout) -> None:
        heads, n_prefix = layout.heads, layout.n_prefix
        self.scale = (q.shape[-1] // heads) ** -0.5
        self.q = _heads_first(q, heads) * self.scale
        k, v = (_heads_first(part, heads).contiguous() for part in kv.chunk(2, -1))
        self.k, self.v = k[:, n_prefix:], v[:, n_prefix:]
        self.shared_k, self.shared_v = (
            (k[:, :n_prefix], v[:, :n_prefix])
            if shared is None
            else (_heads_first(part, heads) for part in shared.chunk(2, -1))
        )
        self.prefix_queries = 0 if layout.prefix_mask is None else len(layout.prefix_mask)
        self.longest = max(group.length for group in layout.groups)
        #: Per group: the rows of its queries among the own ones, the rows of its keys, and the group.
        self.blocks: list[tuple[slice, slice, Group]] = []
        at_q = at_k = 0
        for group in layout.groups:
            end_q, end_k = at_q + group.n * group.queries, at_k + group.n * group.length
            self.blocks.append((slice(at_q, end_q), slice(at_k, end_k), group))
            at_q, at_k = end_q, end_k


def _heads_first(x: Tensor, heads: int) -> Tensor:
    """(stack, rows, heads · e) → (stack · heads, rows, e)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)


def _rows_first(x: Tensor, heads: int) -> Tensor:
    """(stack · heads, rows, e) → (stack, rows, heads · e)."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)


def _split(rows: Tensor, n: int) -> Tensor:
    """(stack · heads, n · t, …) → (stack · heads, n, t, …)."""
    return rows.unflatten(1, (n, -1))


def _softmax_backward_(grad: Tensor, weights: Tensor) -> None:
    """grad ← weights ∘ (grad − Σ weights ∘ grad), in place."""
    grad *= weights
    grad -= weights * grad.sum(-1, keepdim=True)
