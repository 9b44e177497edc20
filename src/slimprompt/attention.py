"""Causal attention in which many short sequences share one long prefix.

out_i = Σ_j softmax_j(q_i·k_j / √e) v_j, where j runs over the shared prefix and, up to i, over i's own sequence.
Rows are the prefix's tokens followed by the sequences', sequence after sequence. The prefix is never copied per sequence:
all queries meet it in one product per head; the sequences' own parts are small dense products over groups of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Group(NamedTuple):
    """`n` neighbouring sequences of `length` own tokens each, of which the last `queries` ask."""

    n: int
    queries: int
    length: int


def prefix_attention(
    q: Tensor, kv: Tensor, shared: Tensor | None, n_prefix: int, groups: Sequence[Group], heads: int
) -> Tensor:
    """q (queries, width), kv (rows, 2·width) → (queries, width).

    n_prefix: how many of the rows of `kv` are the prefix (its keys and values stand first); the prefix itself asks too if
    `q` has that many more rows than the groups ask. With n_prefix = 0, `shared` (prefix, 2·width) gives the prefix's keys
    and values instead.
    """
    return _PrefixAttention.apply(q, kv, shared, n_prefix, tuple(groups), heads)


class _PrefixAttention(torch.autograd.Function):
    """Written out by hand: autograd would fill and add a full-size gradient for every slice taken."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, kv: Tensor, shared: Tensor | None, n_prefix: int, groups: tuple[Group, ...], heads: int
    ) -> Tensor:
        parts = _Parts(q, kv, shared, n_prefix, groups, heads)
        own_q = parts.q[:, parts.prefix_queries :]  # (heads, own queries, e)
        n_shared, longest = parts.shared_k.shape[1], max(group.length for group in groups)
        scores = q.new_empty(heads, own_q.shape[1], n_shared + longest)
        scores[..., :n_shared] = own_q @ parts.shared_k.transpose(1, 2)
        scores[..., n_shared:] = float("-inf")
        for queries, keys, group in parts.blocks():
            block = parts.grouped(own_q, queries, group.n) @ parts.grouped(parts.k, keys, group.n).transpose(2, 3)
            if group.queries > 1:
                block += _causal_mask(group, block)
            scores[:, queries, n_shared : n_shared + group.length] = block.flatten(1, 2)
        weights = scores.softmax(-1)
        out = q.new_empty(heads, q.shape[0], parts.q.shape[2])
        torch.bmm(weights[..., :n_shared], parts.shared_v, out=out[:, parts.prefix_queries :])
        own_out = out[:, parts.prefix_queries :]
        for queries, keys, group in parts.blocks():
            own = weights[:, queries, n_shared : n_shared + group.length].unflatten(1, (group.n, group.queries))
            own_out[:, queries] += (own @ parts.grouped(parts.v, keys, group.n)).flatten(1, 2)
        prefix_weights = None
        if parts.prefix_queries:
            prefix_q = parts.q[:, : parts.prefix_queries]
            prefix_scores = prefix_q @ parts.shared_k.transpose(1, 2)
            prefix_weights = (prefix_scores + _causal_mask(Group(1, n_prefix, n_prefix), prefix_scores)).softmax(-1)
            out[:, : parts.prefix_queries] = prefix_weights @ parts.shared_v
        ctx.save_for_backward(q, kv, shared, weights, prefix_weights)
        ctx.layout = (n_prefix, groups, heads)
        return out.transpose(0, 1).flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, shared, weights, prefix_weights = ctx.saved_tensors
        n_prefix, groups, heads = ctx.layout
        parts = _Parts(q, kv, shared, n_prefix, groups, heads)
        grad = grads[0].unflatten(1, (heads, -1)).transpose(0, 1)  # (heads, queries, e)
        grad_q = torch.empty_like(parts.q)
        grad_kv = kv.new_empty(2, heads, kv.shape[0], parts.q.shape[2])
        own_q, own_grad, own_grad_q = (t[:, parts.prefix_queries :] for t in (parts.q, grad, grad_q))
        n_shared = parts.shared_k.shape[1]
        grad_k, grad_v = grad_kv[:, :, n_prefix:]

        # d scores = weights ∘ (d weights − Σ weights ∘ d weights); outside of the groups' blocks weights are zero
        grad_scores = torch.zeros_like(weights)
        grad_scores[..., :n_shared] = own_grad @ parts.shared_v.transpose(1, 2)
        for queries, keys, group in parts.blocks():
            block = parts.grouped(own_grad, queries, group.n) @ parts.grouped(parts.v, keys, group.n).transpose(2, 3)
            grad_scores[:, queries, n_shared : n_shared + group.length] = block.flatten(1, 2)
            own = weights[:, queries, n_shared : n_shared + group.length].unflatten(1, (group.n, group.queries))
            grad_v[:, keys] = (own.transpose(2, 3) @ parts.grouped(own_grad, queries, group.n)).flatten(1, 2)
        _softmax_backward_(grad_scores, weights)
        to_shared = grad_scores[..., :n_shared]
        torch.bmm(to_shared, parts.shared_k, out=own_grad_q)
        grad_shared_k = to_shared.transpose(1, 2) @ own_q
        grad_shared_v = weights[..., :n_shared].transpose(1, 2) @ own_grad
        for queries, keys, group in parts.blocks():
            own = grad_scores[:, queries, n_shared : n_shared + group.length].unflatten(1, (group.n, group.queries))
            own_grad_q[:, queries] += (own @ parts.grouped(parts.k, keys, group.n)).flatten(1, 2)
            grad_k[:, keys] = (own.transpose(2, 3) @ parts.grouped(own_q, queries, group.n)).flatten(1, 2)
        if prefix_weights is not None:
            prefix_q, prefix_grad = parts.q[:, : parts.prefix_queries], grad[:, : parts.prefix_queries]
            grad_prefix = prefix_grad @ parts.shared_v.transpose(1, 2)
            _softmax_backward_(grad_prefix, prefix_weights)
            grad_q[:, : parts.prefix_queries] = grad_prefix @ parts.shared_k
            grad_shared_k += grad_prefix.transpose(1, 2) @ prefix_q
            grad_shared_v += prefix_weights.transpose(1, 2) @ prefix_grad
        grad_shared = None
        if shared is None:
            grad_kv[0, :, :n_prefix], grad_kv[1, :, :n_prefix] = grad_shared_k, grad_shared_v
        else:
            grad_shared = torch.stack([grad_shared_k, grad_shared_v]).permute(2, 0, 1, 3).flatten(1)
        grad_q *= parts.scale
        return grad_q.transpose(0, 1).flatten(1), grad_kv.permute(2, 0, 1, 3).flatten(1), grad_shared, None, None, None


class _Parts:
    """The inputs as (heads, rows, e) views: scaled queries, own keys and values, the prefix's keys and values."""

    def __init__(
        self, q: Tensor, kv: Tensor, shared: Tensor | None, n_prefix: int, groups: tuple[Group, ...], heads: int
    ) -> None:
        self.groups = groups
        self.scale = (q.shape[1] // heads) ** -0.5
        self.q = (q * self.scale).unflatten(1, (heads, -1)).transpose(0, 1)
        k, v = kv.unflatten(1, (2, heads, -1)).permute(1, 2, 0, 3)
        self.k, self.v = k[:, n_prefix:], v[:, n_prefix:]
        if shared is None:
            self.shared_k, self.shared_v = k[:, :n_prefix], v[:, :n_prefix]
        else:
            self.shared_k, self.shared_v = shared.unflatten(1, (2, heads, -1)).permute(1, 2, 0, 3)
        self.prefix_queries = q.shape[0] - sum(group.n * group.queries for group in groups)

    def blocks(self) -> list[tuple[slice, slice, Group]]:
        """Per group: the rows of its queries, the rows of its keys, and the group."""
        q = k = 0
        blocks = []
        for group in self.groups:
            q_end, k_end = q + group.n * group.queries, k + group.n * group.length
            blocks.append((slice(q, q_end), slice(k, k_end), group))
            q, k = q_end, k_end
        return blocks

    @staticmethod
    def grouped(rows: Tensor, where: slice, n: int) -> Tensor:
        """(heads, n · t, e) → (heads, n, t, e)."""
        return rows[:, where].unflatten(1, (n, -1))


def _causal_mask(group: Group, like: Tensor) -> Tensor:
    mask = torch.full((group.queries, group.length), float("-inf"), dtype=like.dtype, device=like.device)
    return mask.triu(1 + group.length - group.queries)


def _softmax_backward_(grad: Tensor, weights: Tensor) -> None:
    """grad ← weights ∘ (grad − Σ weights ∘ grad), in place."""
    grad *= weights
    grad -= weights * grad.sum(-1, keepdim=True)
