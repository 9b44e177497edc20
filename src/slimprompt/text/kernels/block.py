"""A frozen transformer block over a shared prefix, as one autograd function."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from open_clip.transformer import LayerScale, QuickGELU
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from slimprompt.clip.products import FrozenLinear
from slimprompt.clip.towers import QUICK_GELU_SCALE
from slimprompt.text.kernels.attention import QKV, SequenceGroup, attend, attend_backward
from slimprompt.text.kernels.rows import RowGather

aten = torch.ops.aten

_FROZEN: WeakKeyDictionary[nn.Module, tuple[object, FrozenBlock]] = WeakKeyDictionary()


def frozen_block(block: Any) -> FrozenBlock:
    """The constants of a block of open_clip. Encoders of one backbone share them, with their packed weights.

    New encoders get new constants if the activation of the block is another one, or if its weights were moved, converted or
    changed, as far as torch counts changes: it does not through `.data`, nor those of weights made in inference mode.
    """
    weights = [
        (each.data_ptr(), each.dtype, None if each.is_inference() else each._version) for each in block.parameters()
    ]
    key = repr(block.mlp.gelu), weights
    known = _FROZEN.get(block)
    if known is None or known[0] != key:
        known = _FROZEN[block] = key, FrozenBlock(block)
    return known[1]


class FrozenBlock:
    """Constants of one block of open_clip that `is_plain`: x ← x + attention(norm_1(x)), then x ← x + mlp(norm_2(x))."""

    def __init__(self, block: Any) -> None:
        attention, mlp = block.attn, block.mlp
        self.n_heads: int = attention.num_heads
        self.norm_1, self.norm_2 = (_Norm.of(norm) for norm in (block.ln_1, block.ln_2))
        self.qkv, self.q, self.kv = (
            FrozenLinear(attention.in_proj_weight[rows], attention.in_proj_bias[rows])
            for rows in (slice(None), slice(None, attention.embed_dim), slice(attention.embed_dim, None))
        )
        self.out = FrozenLinear(*_with_layer_scale(attention.out_proj, block.ls_1))
        # QuickGELU(h) = h σ(s h) = silu(s h) / s. The factor s is part of the layer norm and of the biases, 1/s of the residual sum.
        self._quick_gelu = isinstance(mlp.gelu, QuickGELU)
        self._approximate = getattr(mlp.gelu, "approximate", "none")
        self._s = s = QUICK_GELU_SCALE if self._quick_gelu else 1.0
        self._scaled_norm_2 = self.norm_2._replace(weight=s * self.norm_2.weight, bias=s * self.norm_2.bias)
        self._expand = FrozenLinear(mlp.c_fc.weight, s * mlp.c_fc.bias)
        weight, bias = _with_layer_scale(mlp.c_proj, block.ls_2)
        self._contract = FrozenLinear(weight, s * bias)
        self._packed: ref[FrozenBlock] | None = None  # a weak reference

    def with_packed_weights(self) -> FrozenBlock:
        """The same block with packed weights, for training. Encoders share it; it is released with the last of them."""
        block = self._packed() if self._packed else None
        if block is None:
            block = copy.copy(self)
            for name, layer in vars(self).items():
                if isinstance(layer, FrozenLinear):
                    setattr(block, name, layer.with_packed_weights())
            self._packed = ref(block)
        return block

    def __deepcopy__(self, _: dict[int, Any]) -> FrozenBlock:
        return self  # frozen, and packed weights cannot be copied

    def constant_qkv(self, x: Tensor, row_index: list[Tensor]) -> tuple[QKV, ...]:
        """Queries, keys and values of constant rows x (n_rows, width), one `QKV` per group of `row_index`."""
        y, *_ = _norm(x, self.norm_1)  # (n_rows, width)
        rows = RowGather(row_index, len(x), self.n_heads, 3, x.device)
        return tuple(_triples(rows.gather(self.qkv(y), 1)))

    def project(self, y: Tensor, layout: BlockLayout) -> tuple[list[Tensor], list[Tensor]]:
        """y (n_prompts, n_computed, width) → queries of the query rows; keys and values k, v, k, v, … of all rows.

        The tensors are (b, n · a, e) and (b, n · t, e), for the prefix (if its rows are there) and for each group.
        """
        assert layout.projections is not None
        if layout.query_rows is None:
            parts = layout.projections.gather(self.qkv(y), y.size(0))  # q, k, v, q, k, v, …
            return parts[::3], [part for number, part in enumerate(parts) if number % 3]
        query_y = y.index_select(1, layout.query_rows)  # (n_prompts, n_query_rows, width)
        qs = layout.outputs.gather(self.q(query_y), y.size(0))
        return qs, layout.projections.gather(self.kv(y), y.size(0))

    def project_backward(
        self, grad_qs: list[Tensor], grad_kvs: list[Tensor], n_prompts: int, layout: BlockLayout
    ) -> Tensor:
        """Gradient of `y` (n_prompts, n_computed, width) from the gradients of `project`."""
        assert layout.projections is not None
        if layout.query_rows is None:
            qkvs = [part for qkv in zip(grad_qs, grad_kvs[::2], grad_kvs[1::2], strict=True) for part in qkv]
            # (n_prompts · n_computed, width)
            grad_y = self.qkv.input_gradient(layout.projections.scatter(qkvs, n_prompts))
            return grad_y.view(n_prompts, -1, grad_y.shape[1])
        # (n_prompts · n_computed, width) and (n_prompts · n_query_rows, width)
        grad_y = self.kv.input_gradient(layout.projections.scatter(grad_kvs, n_prompts))
        grad_query_y = self.q.input_gradient(layout.outputs.scatter(grad_qs, n_prompts))
        grad_y, grad_query_y = (part.view(n_prompts, -1, part.shape[1]) for part in (grad_y, grad_query_y))
        return grad_y.index_add_(1, layout.query_rows, grad_query_y)

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (rows, width) → s · expand(norm_2(x)), the input of the activation (rows, mlp_width), with mean and rstd of the norm."""
        y, mean, rstd = _norm(x, self._scaled_norm_2)  # s · norm_2(x), (rows, width)
        return self._expand(y), mean, rstd

    def add_mlp(self, x: Tensor, hidden: Tensor) -> Tensor:
        """x + contract(activation(hidden)), (rows, width)."""
        # (rows, mlp_width)
        active = F.silu(hidden) if self._quick_gelu else F.gelu(hidden, approximate=self._approximate)
        return torch.add(x, self._contract(active), alpha=1 / self._s)

    def mlp_backward(self, grad: Tensor, hidden: Tensor) -> Tensor:
        """Gradient of norm_2(x) (rows, width) from the gradient of `add_mlp`; s cancels."""
        grad_hidden = self._contract.input_gradient(grad)  # (rows, mlp_width)
        if self._quick_gelu:
            aten.silu_backward.grad_input(grad_hidden, hidden, grad_input=grad_hidden)
        else:
            aten.gelu_backward.grad_input(grad_hidden, hidden, approximate=self._approximate, grad_input=grad_hidden)
        return self._expand.input_gradient(grad_hidden)


class _Norm(NamedTuple):
    """Constants of a layer norm: reading them from the module takes about as long as a small layer norm."""

    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    eps: float
    dtype: torch.dtype

    @classmethod
    def of(cls, norm: Any) -> _Norm:
        return cls(norm.normalized_shape, norm.weight, norm.bias, norm.eps, norm.weight.dtype)


def _with_layer_scale(layer: nn.Linear, scale: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear layer followed by a layer scale (or by nothing)."""
    if isinstance(scale, LayerScale):
        gamma = scale.gamma.to(layer.weight.dtype)
        return layer.weight * gamma[:, None], layer.bias * gamma
    return layer.weight, layer.bias


@dataclass
class BlockLayout:
    """Query rows, key rows, and the sequence each row belongs to.

    The rows of a block's input are the prefix (if `has_prefix`), then the sequences one after the other.
    """

    groups: tuple[SequenceGroup, ...]
    """The sequences, in groups padded to one length."""
    prefix_group: SequenceGroup | None
    """The prefix as a sequence of its own; None if its rows are not query rows."""
    projections: RowGather | None
    """Computed rows (prefix, then groups), with queries, keys and values in one matrix, or only keys and values if
    `query_rows` are given; None if no row is computed."""
    outputs: RowGather
    """All query rows, in the same order."""
    has_prefix: bool
    """Whether the input contains the rows of the prefix; if not, its keys and values are passed in."""
    query_rows: Tensor | None = None
    """Numbers of the query rows; None: all rows. The block returns only these rows."""
    n_computed: int | None = None
    """Number of leading rows whose queries, keys and values are computed; None: all rows."""
    constants: tuple[QKV, ...] = ()
    """Queries, keys and values of the groups for one prompt, if they are constants."""

    def __post_init__(self) -> None:
        # The cached function does not refer to this object, so the copies are released with it.
        self.repeated_constants = lru_cache(maxsize=2)(partial(_repeated, self.constants))


def _repeated(constants: Sequence[QKV], n_prompts: int) -> list[QKV]:
    return [QKV(*(part.repeat(n_prompts, 1, 1) for part in qkv)) for qkv in constants]


def run_block(
    x: Tensor, prefix_kv: tuple[Tensor, Tensor] | None, block: FrozenBlock, layout: BlockLayout
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Apply a block to the rows x (n_prompts, n_rows, width) of a batch of prompts.

    Keys and values of the prefix, (b, p, e) each, are given if its rows are not part of `x`. Returns the query rows after the block,
    (n_prompts, n_query_rows, width), and keys and values of the prefix if its rows are part of `x`, otherwise None twice.
    """
    x, k, v = _Block.apply(x, *(prefix_kv or (None, None)), block, layout)
    return x, (k, v)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, given_k: Tensor | None, given_v: Tensor | None, block: FrozenBlock, layout: BlockLayout
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        n_prompts, _, width = x.shape
        computed = x[:, : layout.n_computed]  # (n_prompts, n_computed, width)
        qs: list[Tensor] = []  # (b, n · a, e) each
        kvs: list[Tensor] = []  # k, v, k, v, …: (b, n · t, e) each
        mean = rstd = None
        if layout.projections is not None:
            y, mean, rstd = _norm(computed, block.norm_1)  # (n_prompts, n_computed, width)
            qs, kvs = block.project(y, layout)
        prefix_kv: Any = (kvs.pop(0), kvs.pop(0)) if layout.has_prefix else (given_k, given_v)  # (b, p, e) each
        prefix_qkv = [QKV(qs.pop(0), *prefix_kv)] if layout.prefix_group else []
        group_qkv = layout.repeated_constants(n_prompts) or [
            QKV(*qkv) for qkv in zip(qs, kvs[::2], kvs[1::2], strict=True)
        ]

        attended = [attend(prefix_qkv[0], None, layout.prefix_group)] if layout.prefix_group else []
        attended += [attend(qkv, prefix_kv, group) for qkv, group in zip(group_qkv, layout.groups, strict=True)]
        heads_out = layout.outputs.scatter([out for out, _ in attended], n_prompts)  # (rows, width)

        residual = x if layout.query_rows is None else x.index_select(1, layout.query_rows)
        middle = block.out(heads_out).add_(residual.reshape(-1, width))  # (rows, width)
        hidden, mean_2, rstd_2 = block.hidden(middle)  # (rows, mlp_width)
        out = block.add_mlp(middle, hidden)  # (rows, width), rows = n_prompts · n_query_rows

        ctx.block, ctx.layout, ctx.shape, ctx.n_attended = block, layout, x.shape, len(attended)
        computed_qkv = [part for qkv in (prefix_qkv + ([] if layout.constants else group_qkv)) for part in qkv]
        weights = [weights for _, weights in attended]
        ctx.save_for_backward(computed, mean, rstd, middle, mean_2, rstd_2, hidden, *prefix_kv, *weights, *computed_qkv)
        ctx.set_materialize_grads(False)
        return out.view(n_prompts, -1, width), *(prefix_kv if layout.has_prefix else (None, None))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_k: Tensor | None, grad_v: Tensor | None) -> tuple[Tensor | None, ...]:
        block, layout, (n_prompts, _, width) = ctx.block, ctx.layout, ctx.shape
        computed, mean, rstd, middle, mean_2, rstd_2, hidden, prefix_k, prefix_v, *rest = ctx.saved_tensors
        weights, computed_qkv = rest[: ctx.n_attended], _triples(rest[ctx.n_attended :])

        grad = grad.reshape(-1, width)  # (rows, width)
        grad_y = block.mlp_backward(grad, hidden)  # (rows, width)
        grad_middle = _norm_backward(grad_y, middle, mean_2, rstd_2, block.norm_2).add_(grad)  # (rows, width)
        grad_outs = layout.outputs.gather_gradient(
            block.out.input_gradient(grad_middle), n_prompts
        )  # (b, n · a, e) each

        prefix_kv, grad_prefix_kv = (prefix_k, prefix_v), [grad_k, grad_v]
        grad_qs: list[Tensor] = []
        grad_kvs: list[Tensor | None] = []
        if layout.prefix_group:
            (grad_q, *grad_kv), _ = attend_backward(
                grad_outs.pop(0), computed_qkv.pop(0), weights.pop(0), None, layout.prefix_group
            )
            grad_qs.append(grad_q)
            grad_prefix_kv = _add(grad_prefix_kv, grad_kv)
        group_qkv = layout.repeated_constants(n_prompts) or computed_qkv
        for grad_out, qkv, weight, group in zip(grad_outs, group_qkv, weights, layout.groups, strict=True):
            grad_qkv, grad_kv = attend_backward(
                grad_out, qkv, weight, prefix_kv, group, qkv_needs_grad=not layout.constants
            )
            grad_prefix_kv = _add(grad_prefix_kv, grad_kv)
            grad_qs += grad_qkv[:1]
            grad_kvs += grad_qkv[1:]
        if layout.has_prefix:
            grad_kvs, grad_prefix_kv = grad_prefix_kv + grad_kvs, [None, None]
        if not ctx.needs_input_grad[0]:
            return None, *grad_prefix_kv, None, None

        grad_y = block.project_backward(grad_qs, grad_kvs, n_prompts, layout)  # (n_prompts, n_computed, width)
        grad_computed = _norm_backward(grad_y, computed, mean, rstd, block.norm_1)  # (n_prompts, n_computed, width)
        grad_middle = grad_middle.view(n_prompts, -1, width)  # (n_prompts, n_query_rows, width)
        if layout.query_rows is not None:
            return grad_computed.index_add_(1, layout.query_rows, grad_middle), *grad_prefix_kv, None, None
        grad_middle[:, : layout.n_computed] += grad_computed
        return grad_middle, *grad_prefix_kv, None, None


def _triples(parts: Sequence[Tensor]) -> list[QKV]:
    """q, k, v, q, k, v, … → one `QKV` per group."""
    return [QKV(*parts[first : first + 3]) for first in range(0, len(parts), 3)]


def _norm(x: Tensor, norm: _Norm) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm in the precision of its weights, as in open_clip, with mean and reciprocal standard deviation."""
    y, mean, rstd = torch.native_layer_norm(x.to(norm.dtype), norm.shape, norm.weight, norm.bias, norm.eps)
    return y.to(x.dtype), mean, rstd


def _norm_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, norm: _Norm) -> Tensor:
    grad_x, _, _ = aten.native_layer_norm_backward.default(
        grad.to(norm.dtype), x.to(norm.dtype), norm.shape, mean, rstd, norm.weight, norm.bias, [True, False, False]
    )
    return grad_x.to(x.dtype)


def _add(totals: list[Tensor | None], terms: list[Tensor]) -> list[Tensor | None]:
    """Elementwise sums, where None is zero."""
    return [term if total is None else total + term for total, term in zip(totals, terms, strict=True)]
