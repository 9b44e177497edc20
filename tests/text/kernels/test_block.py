"""A block with a hand-written backward pass equals autograd through open_clip's own block."""

import copy

import pytest
import torch
from open_clip.transformer import QuickGELU
from torch import nn

from slimprompt import SharedPrefixTextEncoder
from slimprompt.clip.towers import is_plain
from slimprompt.text.kernels.attention import SequenceGroup, causal_mask
from slimprompt.text.kernels.block import BlockLayout, FrozenBlock, frozen_block, run_block
from slimprompt.text.kernels.rows import RowGather


def prefix_and_one_row(n_rows: int, n_heads: int, like: torch.Tensor) -> BlockLayout:
    """A prefix of n_rows − 1 rows and one sequence of one row."""
    row_index = [torch.arange(n_rows - 1)[None], torch.tensor([[n_rows - 1]])]
    projections, outputs = (RowGather(row_index, n_rows, n_heads, n_parts, torch.device("cpu")) for n_parts in (3, 1))
    last = SequenceGroup(1, like.new_zeros(1, n_rows))
    prefix = SequenceGroup(1, causal_mask(n_rows - 1, 0, like))
    return BlockLayout((last,), prefix, projections, outputs, has_prefix=True)


@pytest.mark.parametrize("activation", [QuickGELU(), nn.GELU(), nn.GELU(approximate="tanh")], ids=str)
def test_output_and_gradient_equal_autograd(tiny, activation):
    block = copy.deepcopy(tiny.text_tower.transformer.resblocks[0]).double()
    block.mlp.gelu = activation
    assert is_plain(block)
    x = torch.randn(2, 6, tiny.text_width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    out, _ = run_block(x, None, FrozenBlock(block), prefix_and_one_row(6, block.attn.num_heads, x))
    expected = block(x, attn_mask=causal_mask(6, 0, x))
    torch.testing.assert_close(out, expected)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(out, x, grad), torch.autograd.grad(expected, x, grad))


def test_second_derivative_raises(tiny):
    context = torch.zeros(4, tiny.text_width, requires_grad=True)
    features = SharedPrefixTextEncoder(tiny, ["cat", "red fox"], 4)(context)
    (grad,) = torch.autograd.grad(features.square().sum(), context, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), context)


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.double(),
        lambda block: torch.nn.init.zeros_(block.ln_2.bias),
        lambda block: setattr(block.mlp, "gelu", nn.GELU(approximate="tanh")),
    ],
    ids=["precision", "in place", "activation"],
)
def test_a_changed_block_has_other_constants(tiny, change):
    block = copy.deepcopy(tiny.text_tower.transformer.resblocks[0])
    before = frozen_block(block)
    change(block)
    assert frozen_block(block) is not before
