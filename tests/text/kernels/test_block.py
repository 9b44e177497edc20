"""A block with its backward pass by hand, against autograd through open_clip's own block."""

import copy

import pytest
import torch
from torch import nn

from slimprompt import SharedPrefixTextEncoder
from slimprompt.text.kernels.attention import Group, Rows, causal_mask
from slimprompt.text.kernels.block import FrozenBlock, Layout, is_plain, run_block


def one_sequence(n_rows: int, heads: int, like: torch.Tensor) -> Layout:
    """A prefix and nothing else, followed by a sequence of one row."""
    places = [torch.arange(n_rows - 1)[None], torch.tensor([[n_rows - 1]])]
    queries, keys = (Rows(places, n_rows, heads, parts, torch.device("cpu")) for parts in (1, 2))
    last = Group(1, like.new_zeros(1, n_rows))
    return Layout((last,), Group(1, causal_mask(n_rows - 1, like)), queries, keys, queries, has_prefix=True)


@pytest.mark.parametrize("activation", ["quick", "gelu", "tanh"])
def test_gradients_equal_autograd_s(tiny, activation):
    from open_clip.transformer import QuickGELU

    block = copy.deepcopy(tiny.text_tower.transformer.resblocks[0]).double()
    block.mlp.gelu = {"quick": QuickGELU(), "gelu": nn.GELU(), "tanh": nn.GELU(approximate="tanh")}[activation]
    assert is_plain(block)
    x = torch.randn(2, 6, tiny.text_width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    ours, _ = run_block(x, None, FrozenBlock(block), one_sequence(6, block.attn.num_heads, x))
    theirs = block(x, attn_mask=causal_mask(6, x))
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(ours, x, grad), torch.autograd.grad(theirs, x, grad))


def test_another_activation_is_not_plain(tiny):
    block = copy.deepcopy(tiny.text_tower.transformer.resblocks[0])
    block.mlp.gelu = nn.ReLU()
    assert not is_plain(block)


def test_a_second_derivative_is_refused_not_wrong(tiny):
    context = torch.zeros(4, tiny.text_width, requires_grad=True)
    features = SharedPrefixTextEncoder(tiny, ["cat", "red fox"], 4)(context)
    (grad,) = torch.autograd.grad(features.square().sum(), context, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), context)


def test_a_backward_pass_can_be_repeated(tiny):
    context = (0.02 * torch.randn(4, tiny.text_width, generator=torch.Generator().manual_seed(0))).requires_grad_()
    features = SharedPrefixTextEncoder(tiny, ["cat", "red fox", "a long name"], 4)(context)
    first, second = (torch.autograd.grad(features.sum(), context, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
