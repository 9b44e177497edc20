"""A frozen transformer block over a shared prefix, with its backward pass by hand.

The weights are constants, so a backward pass needs only the products with them. Written out, each residual sum and each scaling goes
into the matrix product beside it, rows are taken head by head once instead of per slice, and nothing is kept but what
the backward pass reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from open_clip.transformer import LayerScale, QuickGELU, ResidualAttentionBlock
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from slimprompt.text.kernels.attention import Group, Heads, Rows, attend, attend_backward

aten = torch.ops.aten


def is_plain(block: Any) -> bool:
    """Whether `FrozenBlock` computes what this block of open_clip does."""
    return (
        type(block) is ResidualAttentionBlock
        and block.attn.in_proj_weight is not None
        and not hasattr(block, "ln_1_kv")
        and isinstance(block.mlp.gelu, QuickGELU | nn.GELU)
    )


class FrozenBlock:
    """The constants of one block: x ← x + attention(norm(x)), x ← x + mlp(norm(x))."""

    def __init__(self, block: Any) -> None:
        attention, mlp = block.attn, block.mlp
        width = attention.embed_dim
        self.q, self.kv = (
            (attention.in_proj_weight[rows], attention.in_proj_bias[rows])
            for rows in (slice(None, width), slice(width, None))
        )
        self.out = _scaled(attention.out_proj, block.ls_1)
        self.expand, self.contract = (mlp.c_fc.weight, mlp.c_fc.bias), _scaled(mlp.c_proj, block.ls_2)
        self.norm_1, self.norm_2 = block.ln_1, block.ln_2
        # QuickGELU(h) = h σ(s h) = silu(s h) / s, and s goes into the matrix products.
        self._s = 1.702 if isinstance(mlp.gelu, QuickGELU) else None
        self._approximate = getattr(mlp.gelu, "approximate", "none")

    def heads(self, x: Tensor, groups: list[Tensor], heads: int) -> tuple[Heads, ...]:
        """Queries, keys and values of constant rows x (1, rows, width), group by group."""
        y, *_ = _norm(x, self.norm_1)
        q, k, v = (
            Rows(groups, x.shape[1], heads, 1, x.device).gather(part.contiguous(), 1)
            for part in (_linear(y, self.q), *_linear(y, self.kv).chunk(2, -1))
        )
        return tuple(Heads(*part) for part in zip(q, k, v, strict=True))

    def hidden(self, y: Tensor) -> Tensor:
        """y (n, width) → what the activation takes, times s."""
        weight, bias = self.expand
        return torch.addmm(bias, y, weight.t(), beta=self._s or 1, alpha=self._s or 1)

    def add_mlp(self, x: Tensor, hidden: Tensor) -> Tensor:
        """x + contract(activation(hidden))."""
        weight, bias = self.contract
        active = F.silu(hidden) if self._s else F.gelu(hidden, approximate=self._approximate)
        return (x + bias).addmm_(active, weight.t(), alpha=1 / (self._s or 1))

    def mlp_backward(self, grad: Tensor, hidden: Tensor) -> Tensor:
        """The gradient at `y` from that at the sum; s cancels."""
        through = grad @ self.contract[0]
        if self._s:
            aten.silu_backward.grad_input(through, hidden, grad_input=through)
        else:
            aten.gelu_backward.grad_input(through, hidden, approximate=self._approximate, grad_input=through)
        return through @ self.expand[0]


def _scaled(linear: nn.Linear, scale: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear map, with the layer scale behind it."""
    if isinstance(scale, LayerScale):
        gamma = scale.gamma.to(linear.weight.dtype)
        return linear.weight * gamma[:, None], linear.bias * gamma
    return linear.weight, linear.bias


@dataclass
class Layout:
    """Which rows of a block's input ask, are looked at, and belong together.

    Rows are the prefix's, if it goes along, then the sequences'.
    """

    groups: tuple[Group, ...]
    """The sequences."""
    prefix: Group | None
    """The prefix's own attention, if its rows ask."""
    queries: Rows | None
    """The asking rows among those computed: the prefix's, then each group's."""
    keys: Rows | None
    """The rows looked at, likewise, keys and values."""
    out: Rows
    """All asking rows."""
    has_prefix: bool
    """Whether the prefix's rows are there; else its keys and values are given."""
    asking: Tensor | None = None
    """Numbers of the rows that go further than keys and values; None: all."""
    computed: int | None = None
    """How many rows, from the first, need their queries, keys and values computed; None: all."""
    constants: tuple[Heads, ...] = ()
    """Queries, keys and values of the groups, if they are not computed; of one problem."""

    def __post_init__(self) -> None:
        self.stacked_constants = lru_cache(maxsize=2)(
            lambda stack: [Heads(*(part.repeat(stack, 1, 1) for part in heads)) for heads in self.constants]
        )


def run_block(
    x: Tensor, shared: tuple[Tensor, Tensor] | None, block: FrozenBlock, layout: Layout
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """x (stack, rows, width) → the rows that ask, after the block, and the prefix's keys and values (stack · heads, prefix, e).

    shared: those keys and values, where the prefix's rows are not among `x`.
    """
    k, v = shared or (None, None)
    x, k, v = _Block.apply(x, k, v, block, layout)
    return x, (k, v)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, given_k: Tensor | None, given_v: Tensor | None, block: FrozenBlock, layout: Layout
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        stack, _, width = x.shape
        rows = x[:, : layout.computed]
        qs: list[Tensor] = []
        kvs: list[Tensor] = []
        mean = rstd = None
        if layout.queries is not None and layout.keys is not None:
            y, mean, rstd = _norm(rows, block.norm_1)
            asked = y if layout.asking is None else y.index_select(1, layout.asking)
            qs = layout.queries.gather(_linear(asked, block.q), stack)
            kvs = layout.keys.gather(_linear(y, block.kv), stack)
        shared: Any = (kvs.pop(0), kvs.pop(0)) if layout.has_prefix else (given_k, given_v)
        prefix = [Heads(qs.pop(0), *shared)] if layout.prefix else []
        own = layout.stacked_constants(stack) or [Heads(*part) for part in zip(qs, kvs[::2], kvs[1::2], strict=True)]

        parts = [attend(prefix[0], None, layout.prefix)] if layout.prefix else []
        parts += [attend(heads, shared, group) for heads, group in zip(own, layout.groups, strict=True)]
        attended = layout.out.scatter([out for out, _ in parts], stack)  # (stack · asking, width)

        residual = (x if layout.asking is None else x.index_select(1, layout.asking)).reshape(-1, width)
        weight, bias = block.out
        middle = (residual + bias).addmm_(attended, weight.t())
        y, *stats = _norm(middle, block.norm_2)
        hidden = block.hidden(y)
        out = block.add_mlp(middle, hidden)

        ctx.block, ctx.layout, ctx.shape = block, layout, x.shape
        ctx.n_parts = len(parts)
        heads = [part for heads in (prefix + ([] if layout.constants else own)) for part in heads]
        ctx.save_for_backward(rows, mean, rstd, middle, *stats, hidden, *shared, *(w for _, w in parts), *heads)
        ctx.set_materialize_grads(False)
        return out.view(stack, -1, width), *(shared if layout.has_prefix else (None, None))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_k: Tensor | None, grad_v: Tensor | None) -> tuple[Tensor | None, ...]:
        block, layout, (stack, n_rows, width) = ctx.block, ctx.layout, ctx.shape
        rows, mean, rstd, middle, mean_2, rstd_2, hidden, shared_k, shared_v, *rest = ctx.saved_tensors
        weights, flat = rest[: ctx.n_parts], rest[ctx.n_parts :]
        saved = [Heads(*flat[at : at + 3]) for at in range(0, len(flat), 3)]

        grad = grad.reshape(-1, width)
        to_middle = _norm_backward(block.mlp_backward(grad, hidden), middle, mean_2, rstd_2, block.norm_2).add_(grad)
        to_outs = layout.out.gather_gradient(to_middle @ block.out[0], stack)

        shared, to_shared = (shared_k, shared_v), [grad_k, grad_v]
        to_qs: list[Tensor] = []
        to_kvs: list[Tensor | None] = []
        if layout.prefix:
            (to_q, *parts), _ = attend_backward(to_outs.pop(0), saved.pop(0), weights.pop(0), None, layout.prefix)
            to_qs.append(to_q)
            to_shared = _sums(to_shared, parts)
        own = layout.stacked_constants(stack) or saved
        for to_out, heads, weight, group in zip(to_outs, own, weights, layout.groups, strict=True):
            to_own, parts = attend_backward(to_out, heads, weight, shared, group, own=not layout.constants)
            to_shared = _sums(to_shared, parts)
            to_qs += to_own[:1]
            to_kvs += to_own[1:]
        if layout.has_prefix:
            to_kvs, to_shared = to_shared + to_kvs, [None, None]
        if not ctx.needs_input_grad[0]:
            return None, *to_shared, None, None

        to_y = layout.keys.scatter(to_kvs, stack) @ block.kv[0]
        to_q = layout.queries.scatter(to_qs, stack)
        if layout.asking is None:
            to_y.addmm_(to_q, block.q[0])
            to_rows = _norm_backward(to_y.view(rows.shape), rows, mean, rstd, block.norm_1)
            to_x = to_middle.view(stack, n_rows, width)
            to_x[:, : layout.computed] += to_rows
        else:
            to_y = to_y.view(rows.shape).index_add_(1, layout.asking, (to_q @ block.q[0]).view(stack, -1, width))
            to_x = _norm_backward(to_y, rows, mean, rstd, block.norm_1)
            to_x.index_add_(1, layout.asking, to_middle.view(stack, -1, width))
        return to_x, *to_shared, None, None


def _linear(x: Tensor, weight_and_bias: tuple[Tensor, Tensor]) -> Tensor:
    return F.linear(x, *weight_and_bias)


def _norm(x: Tensor, norm: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm in the precision of its weights, as open_clip does it, with its statistics."""
    y, mean, rstd = torch.native_layer_norm(
        x.to(norm.weight.dtype), norm.normalized_shape, norm.weight, norm.bias, norm.eps
    )
    return y.to(x.dtype), mean, rstd


def _norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, norm: Any) -> Tensor:
    grad, x_like = grad.to(norm.weight.dtype), x.to(norm.weight.dtype)
    to_x, _, _ = aten.native_layer_norm_backward(
        grad, x_like, norm.normalized_shape, mean, rstd, norm.weight, norm.bias, [True, False, False]
    )
    return to_x.to(x.dtype)


def _sums(totals: list[Tensor | None], parts: list[Tensor]) -> list[Tensor | None]:
    return [part if total is None else total + part for total, part in zip(totals, parts, strict=True)]
