"""Against attention written out with one big mask over all rows."""

import pytest
import torch

from slimprompt.attention import Group, Layout, causal_mask, prefix_attention

HEADS, WIDTH, PREFIX = 2, 8, 5
SHAPES = [(2, 3), (1, 4), (3, 6)]  # (sequences, rows of each)


def plain(q, kv, allowed):
    """softmax(q kᵀ / √e + mask) v, head by head; allowed (queries, rows)."""
    k, v = kv.chunk(2, -1)
    heads = []
    for h in range(HEADS):
        part = slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS)
        scores = q[..., part] @ k[..., part].transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        heads.append(scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v[..., part])
    return torch.cat(heads, -1)


def allowed_rows():
    """Which rows every row may look at: the prefix, and its own sequence up to itself."""
    sequence = [-1] * PREFIX
    for n, length in SHAPES:
        for _ in range(n):
            sequence += [max(sequence) + 1] * length
    owner = torch.tensor(sequence)
    causal = torch.ones(len(owner), len(owner)).tril().bool()
    return causal & ((owner[None] == owner[:, None]) | (owner[None] == -1)), owner


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("prefix_is_given", [False, True])
@pytest.mark.parametrize("last_only", [False, True])
def test_equals_plain_attention(stack, prefix_is_given, last_only):
    generator = torch.Generator().manual_seed(0)
    allowed, owner = allowed_rows()
    rows = len(owner)
    like = torch.zeros(())
    if last_only:  # one query per sequence, its last row
        asking = torch.tensor([int((owner == s).nonzero().max()) for s in range(int(owner.max()) + 1)])
        groups = tuple(Group(n, 1, length, torch.zeros(1, length)) for n, length in SHAPES)
    else:
        asking = torch.arange(PREFIX if prefix_is_given else 0, rows)
        groups = tuple(Group(n, length, length, causal_mask(length, like)) for n, length in SHAPES)
    q = torch.randn(stack, len(asking), WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
    kv = torch.randn(stack, rows, 2 * WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
    prefix_asks = not prefix_is_given and not last_only
    layout = Layout(HEADS, 0 if prefix_is_given else PREFIX, causal_mask(PREFIX, like) if prefix_asks else None, groups)
    ours = (
        prefix_attention(q, kv[:, PREFIX:], kv[:, :PREFIX], layout)
        if prefix_is_given
        else prefix_attention(q, kv, None, layout)
    )
    theirs = plain(q, kv, allowed[asking])
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn(theirs.shape, generator=generator, dtype=torch.float64)
    for mine, reference in zip(
        torch.autograd.grad(ours, (q, kv), grad), torch.autograd.grad(theirs, (q, kv), grad), strict=True
    ):
        torch.testing.assert_close(mine, reference)


def test_gradients_numerically():
    generator = torch.Generator().manual_seed(1)
    layout = Layout(1, 2, causal_mask(2, torch.zeros(())), (Group(2, 2, 2, causal_mask(2, torch.zeros(()))),))
    q = torch.randn(1, 6, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    kv = torch.randn(1, 6, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q, kv: prefix_attention(q, kv, None, layout), (q, kv))


def test_a_second_derivative_is_refused_not_wrong():
    layout = Layout(1, 1, None, (Group(1, 1, 1, torch.zeros(1, 1)),))
    q = torch.randn(1, 1, 2, requires_grad=True)
    kv = torch.randn(1, 2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(prefix_attention(q, kv, None, layout).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), kv)
