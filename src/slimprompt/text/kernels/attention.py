"""Causal attention of many short sequences that share one prefix.

out_i = Σ_j softmax_j(q_i·k_j / √e) v_j, where j runs over the prefix and over the rows of i's own sequence up to i.

Scores and weights have shape (b, n · a, p + t): first the prefix, then the query's own sequence. The letters are
explained in `slimprompt.text.kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SequenceGroup(NamedTuple):
    """`n` sequences padded to one length t, each with `a` query rows."""

    n: int
    mask: Tensor
    """Added to the scores, (n · a, p + t): 0 where a query row attends, −inf elsewhere."""


class QKV(NamedTuple):
    """Queries, keys and values of one group."""

    q: Tensor  # (b, n · a, e)
    k: Tensor  # (b, n · t, e)
    v: Tensor  # (b, n · t, e)


def attend(qkv: QKV, prefix_kv: tuple[Tensor, Tensor] | None, group: SequenceGroup) -> tuple[Tensor, Tensor]:
    """Attention of one group to the keys and values of the prefix (b, p, e), if there is one, and to its own sequences.

    Returns the output (b, n · a, e) and the attention weights (b, n · a, p + t), for the backward pass.
    """
    q, k, v = qkv
    b, n = q.size(0), group.n
    scores = _scaled_bmm(_by_sequence(q, n), _by_sequence(k, n).mT, _scale(q)).view(b, q.size(1), -1)  # (b, n · a, t)
    if prefix_kv is not None:
        scores = torch.cat([_scaled_bmm(q, prefix_kv[0].mT, _scale(q)), scores], -1)  # (b, n · a, p + t)
    weights = scores.add_(group.mask).softmax(-1)  # (b, n · a, p + t)
    n_prefix = 0 if prefix_kv is None else prefix_kv[0].shape[1]
    out = torch.bmm(_by_sequence(weights, n)[..., n_prefix:], _by_sequence(v, n)).view_as(q)  # (b, n · a, e)
    if prefix_kv is not None:
        out.baddbmm_(weights[..., :n_prefix], prefix_kv[1])
    return out, weights


def attend_backward(
    grad_out: Tensor,
    qkv: QKV,
    weights: Tensor,
    prefix_kv: tuple[Tensor, Tensor] | None,
    group: SequenceGroup,
    *,
    qkv_needs_grad: bool = True,
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of `attend` from the gradient of its output (b, n · a, e) and the attention weights that it returned.

    Returns those of q, k and v, none if they are constants (not `qkv_needs_grad`), and of the prefix keys and values, none without a
    prefix.
    """
    q, k, v = qkv
    n, scale = group.n, _scale(q)
    n_prefix = 0 if prefix_kv is None else prefix_kv[0].shape[1]
    grad_scores = torch.bmm(_by_sequence(grad_out, n), _by_sequence(v, n).mT).view(q.size(0), q.size(1), -1)
    if prefix_kv is not None:
        grad_scores = torch.cat([torch.bmm(grad_out, prefix_kv[1].mT), grad_scores], -1)  # (b, n · a, p + t)
    grad_scores = torch._softmax_backward_data(grad_scores, weights, -1, weights.dtype)  # (b, n · a, p + t)
    grad_qkv: list[Tensor] = []
    grad_prefix_kv: list[Tensor] = []
    if qkv_needs_grad:
        own_grad_scores = _by_sequence(grad_scores, n)[..., n_prefix:]  # (b · n, a, t)
        own_weights = _by_sequence(weights, n)[..., n_prefix:]  # (b · n, a, t)
        grad_q = _scaled_bmm(own_grad_scores, _by_sequence(k, n), scale).view_as(q)  # (b, n · a, e)
        grad_k = _scaled_bmm(own_grad_scores.mT, _by_sequence(q, n), scale).view_as(k)  # (b, n · t, e)
        grad_v = torch.bmm(own_weights.mT, _by_sequence(grad_out, n)).view_as(v)  # (b, n · t, e)
        if prefix_kv is not None:
            grad_q.baddbmm_(grad_scores[..., :n_prefix], prefix_kv[0], alpha=scale)
        grad_qkv = [grad_q, grad_k, grad_v]
    if prefix_kv is not None:
        grad_prefix_k = _scaled_bmm(grad_scores[..., :n_prefix].mT, q, scale)  # (b, p, e)
        grad_prefix_v = torch.bmm(weights[..., :n_prefix].mT, grad_out)  # (b, p, e)
        grad_prefix_kv = [grad_prefix_k, grad_prefix_v]
    return grad_qkv, grad_prefix_kv


def causal_mask(length: int, n_prefix: int, like: Tensor) -> Tensor:
    """(length, n_prefix + length): row i is 0 for the prefix and for the columns 0 … i after it, −inf elsewhere."""
    mask = torch.full((length, n_prefix + length), float("-inf"), dtype=like.dtype, device=like.device)
    return mask.triu(n_prefix + 1)


def _by_sequence(x: Tensor, n: int) -> Tensor:
    """(b, n · t, …) → (b · n, t, …)."""
    return x.view(x.size(0) * n, -1, x.size(-1))


def _scaled_bmm(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """scale · x y, without a separate multiplication."""
    return torch.baddbmm(x.new_empty(()), x, y, beta=0, alpha=scale)


def _scale(q: Tensor) -> float:
    return q.size(-1) ** -0.5
