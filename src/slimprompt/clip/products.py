"""Products with frozen weights, by oneDNN on x86 processors.

For fp32, torch's own functions call MKL. On an AMD processor with AVX-512, oneDNN, which is part of torch as well, is more than twice
as fast (`benchmarks/products.py`). torch has no public function for an fp32 product by oneDNN; the operators used here are those that
`torch.compile` calls for frozen models.
"""

from __future__ import annotations

import platform
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, without gradients: x (…, inner), W (columns, inner), b (columns,) → (…, columns).

    W may be a transposed view, so `linear(x, weight.t())` is x W, or `packed`. Equals `torch.nn.functional.linear` up to float
    rounding, which may depend on the order in which W is stored.
    """
    if not uses_onednn(x.device, x.dtype):
        return F.linear(x, weight, bias)
    return _onednn_linear(x, weight, bias)


def differentiable_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` with the gradient of x; the weight and the bias are frozen."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return linear(x, weight, bias)
    return _FrozenProduct.apply(x, weight, bias)


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return linear(grads[0], ctx.weight.t()), None, None


class FrozenLinear:
    """x Wᵀ + b of a frozen layer, W (columns, inner) and b (columns,), and the gradient of its input.

    With `pack`, it keeps a packed copy of W for each of the two products, made when it is first needed: more memory, less time.
    """

    def __init__(self, weight: Tensor, bias: Tensor, *, pack: bool = False) -> None:
        self._plain, self._bias, self._pack = weight, bias, pack

    def __call__(self, x: Tensor) -> Tensor:
        """x (…, inner) → (…, columns)."""
        return linear(x, self._weight, self._bias)

    def input_gradient(self, grad: Tensor) -> Tensor:
        """Gradient of the output (…, columns) → gradient of x (…, inner)."""
        return linear(grad, self._transposed)

    def with_packed_weights(self) -> FrozenLinear:
        """The same layer, with `pack`."""
        return FrozenLinear(self._plain, self._bias, pack=True)

    @cached_property
    def _weight(self) -> Tensor:
        return packed(self._plain) if self._pack else self._plain

    @cached_property
    def _transposed(self) -> Tensor:
        return packed(self._plain.t()) if self._pack else self._plain.t()


def packed(weight: Tensor) -> Tensor:
    """A copy of a weight in the order in which oneDNN reads it, for `linear`; the weight itself where `linear` does not call oneDNN."""
    if uses_onednn(weight.device, weight.dtype):
        return _reordered(weight)
    return weight


@cache
def uses_onednn(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `linear` calls oneDNN: for fp32 on an x86 processor with AVX2, if this build of torch has the operator."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and torch.backends.mkldnn.is_available()
        and _operator_works()
    )


def _operator_works() -> bool:
    """Whether the operator exists and computes what `linear` promises, also for a transposed weight."""
    x, weight, bias = (
        torch.tensor(rows, dtype=torch.float32, device="cpu")  # whatever torch's defaults are
        for rows in ([[1, 2], [3, 4]], [[1, 2], [3, 4], [5, 6]], [5, 6, 7])
    )
    try:
        views = (weight, weight.t().contiguous().t())
        products = [_onednn_linear(x, each, bias) for each in (*views, *map(_reordered, views))]
    except (AttributeError, RuntimeError):  # another build or version of torch
        return False
    return all(torch.equal(product, F.linear(x, weight, bias)) for product in products)


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.contiguous()  # the operator ignores the stride of a bias
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")


def _reordered(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight.default(weight)
