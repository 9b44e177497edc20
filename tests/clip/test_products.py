"""Products with frozen weights against torch's own function."""

from __future__ import annotations

import platform

import pytest
import torch
from torch.nn import functional as F

from slimprompt.clip import products
from slimprompt.clip.products import FrozenLinear, linear, packed, uses_onednn

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decides anew which library is called, within the test."""
    monkeypatch.setattr(products, "uses_onednn", uses_onednn.__wrapped__)


@pytest.mark.parametrize("shape", [(0, 24), (1, 24), (2, 24), (37, 24), (3, 5, 24), (1, 1, 24), (24,)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_equals_torch(shape: tuple[int, ...], has_bias: bool) -> None:
    x, weight = random(*shape), random(40, 24, seed=1)
    bias = random(40, seed=2) if has_bias else None
    expected = F.linear(x, weight, bias)
    for view in (weight, weight.t().contiguous().t(), packed(weight), packed(weight.t().contiguous().t())):
        torch.testing.assert_close(linear(x, view, bias), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pack", [False, True])
def test_gradient_of_the_input(dtype: torch.dtype, pack: bool) -> None:
    x, weight, bias = (random(*shape, dtype=dtype) for shape in ((7, 24), (40, 24), (40,)))
    layer, grad = FrozenLinear(weight, bias, pack=pack), random(7, 40, seed=3, dtype=dtype)
    leaf = x.requires_grad_()
    expected = F.linear(leaf, weight, bias)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer.input_gradient(grad), torch.autograd.grad(expected, leaf, grad)[0])


def test_the_results_of_a_layer_do_not_depend_on_the_order_of_calls() -> None:
    """A layer and its packed copy stay what they are; weights are packed only when they are needed."""
    x, grad = random(1, 64), random(1, 192, seed=3)
    plain = FrozenLinear(random(192, 64, seed=1), random(192, seed=2))
    packed_layer = plain.with_packed_weights()
    first = plain(x), packed_layer(x)
    assert "_transposed" not in vars(packed_layer)
    packed_layer.input_gradient(grad), plain.input_gradient(grad)
    assert torch.equal(plain(x), first[0])
    assert torch.equal(packed_layer(x), first[1])
    torch.testing.assert_close(*first)


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize("missing", ["operator", "wrong result", "AVX2", "x86"])
def test_torchs_own_function_elsewhere(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> torch.Tensor:
        raise AttributeError("no such operator")

    if missing == "operator":
        monkeypatch.setattr(products, "_onednn_linear", absent)
    elif missing == "wrong result":  # for example of a transposed weight
        monkeypatch.setattr(products, "_onednn_linear", lambda x, weight, bias: x.new_zeros(len(x), len(weight)))
    elif missing == "AVX2":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    else:
        monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert not products.uses_onednn(CPU, torch.float32)
    x, weight, bias = random(3, 24), random(40, 24, seed=1), random(40, seed=2)
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))
    assert packed(weight) is weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions_use_torchs_own_function(dtype: torch.dtype) -> None:
    assert not uses_onednn(CPU, dtype)
    x, weight = random(3, 24).to(dtype), random(40, 24, seed=1).to(dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_a_bias_with_a_stride() -> None:
    x, weight, bias = random(3, 24), random(40, 24, seed=1), random(80, seed=2)[::2]
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))


def test_rows_of_a_larger_matrix() -> None:
    """Inputs that are not contiguous, as slices of a batch are."""
    x, weight, bias = random(6, 9, 24)[:, :1], random(3 * 24, 24, seed=1), random(3 * 24, seed=2)
    torch.testing.assert_close(linear(x, weight[24:], bias[24:]), F.linear(x, weight[24:], bias[24:]))


@pytest.mark.skipif(not uses_onednn(CPU, torch.float32), reason="needs oneDNN on an x86 processor with AVX2")
def test_onednn_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    real = products._onednn_linear
    monkeypatch.setattr(products, "_onednn_linear", lambda *arguments: called.append(1) or real(*arguments))
    linear(random(3, 24), random(40, 24))
    assert called
