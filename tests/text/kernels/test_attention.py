"""Against attention written out with one big mask over all rows."""

import pytest
import torch

from slimprompt.text.kernels.attention import Group, Heads, Rows, attend, attend_backward, causal_mask

HEADS, WIDTH, PREFIX = 2, 8, 5
LENGTHS = [[3, 3, 4], [6]]  # of the sequences, group by group


def plain(q, k, v, allowed):
    """softmax(q kᵀ / √e + mask) v, head by head; allowed (queries, rows)."""
    heads = []
    for h in range(HEADS):
        part = slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS)
        scores = q[..., part] @ k[..., part].transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        heads.append(scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v[..., part])
    return torch.cat(heads, -1)


def tables():
    """Rows of each sequence behind the prefix, −1 where it is filled up, and the sequence of every row."""
    at, found, owner = PREFIX, [], [-1] * PREFIX
    for lengths in LENGTHS:
        table = torch.full((len(lengths), max(lengths)), -1)
        for index, length in enumerate(lengths):
            table[index, :length] = torch.arange(at, at + length)
            owner += [max(owner) + 1] * length
            at += length
        found.append(table)
    return found, torch.tensor(owner)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("ends_only", [False, True])
def test_equals_plain_attention(stack, ends_only):
    seen, owner = tables()
    n_rows = len(owner)
    allowed = torch.ones(n_rows, n_rows).tril().bool() & ((owner[None] == owner[:, None]) | (owner[None] == -1))
    like = torch.zeros((), dtype=torch.float64)
    ends = torch.tensor([int((owner == s).nonzero().max()) for s in range(int(owner.max()) + 1)])
    asking = ends if ends_only else torch.arange(PREFIX, n_rows)
    q, grad = (random(stack, len(asking), WIDTH, seed=seed) for seed in (1, 2))
    kv = random(stack, n_rows, 2 * WIDTH, seed=3)

    device = torch.device("cpu")
    if ends_only:
        places = list(torch.arange(len(ends))[:, None].split([len(table) for table in seen]))
    else:
        places = [table - PREFIX * (table >= 0) for table in seen]
    queries = Rows(places, len(asking), HEADS, 1, device)
    keys = Rows([torch.arange(PREFIX)[None], *seen], n_rows, HEADS, 2, device)
    groups = []
    for table, lengths in zip(seen, LENGTHS, strict=True):
        mask = torch.cat([like.new_zeros(table.shape[1], PREFIX), causal_mask(table.shape[1], like)], 1)
        rows = mask[torch.tensor(lengths) - 1] if ends_only else mask.repeat(len(table), 1)
        groups.append(Group(len(table), rows))

    shared_k, shared_v, *own = keys.gather(kv, stack)
    heads = [Heads(*part) for part in zip(queries.gather(q, stack), own[::2], own[1::2], strict=True)]
    results = [attend(part, (shared_k, shared_v), group) for part, group in zip(heads, groups, strict=True)]
    out = queries.scatter([result for result, _ in results], stack).view_as(q)

    q_leaf, kv_leaf = q.clone().requires_grad_(), kv.clone().requires_grad_()
    expected = plain(q_leaf, *kv_leaf.chunk(2, -1), allowed[asking])
    torch.testing.assert_close(out, expected.detach())

    expected.backward(grad)
    to_shared = [torch.zeros_like(shared_k), torch.zeros_like(shared_v)]
    to_q, to_kv = [], []
    for to_out, part, (_, weights), group in zip(
        queries.gather_gradient(grad, stack), heads, results, groups, strict=True
    ):
        mine, shared = attend_backward(to_out, part, weights, (shared_k, shared_v), group)
        to_q.append(mine[0])
        to_kv += mine[1:]
        to_shared = [total + extra for total, extra in zip(to_shared, shared, strict=True)]
        assert attend_backward(to_out, part, weights, (shared_k, shared_v), group, own=False)[0] == []
    torch.testing.assert_close(queries.scatter(to_q, stack).view_as(q), q_leaf.grad)
    torch.testing.assert_close(keys.scatter(to_shared + to_kv, stack).view_as(kv), kv_leaf.grad)


def test_without_a_prefix():
    """A sequence that shares nothing, as the prefix itself."""
    heads = Heads(*(random(HEADS, 4, 3, seed=seed) for seed in range(3)))
    out, _ = attend(heads, None, Group(1, causal_mask(4, heads.q)))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    torch.testing.assert_close(out, expected)


def test_rows_go_there_and_back():
    seen, owner = tables()
    rows = Rows([torch.arange(PREFIX)[None], *seen], len(owner), HEADS, 2, torch.device("cpu"))
    matrix = random(3 * len(owner), 2 * WIDTH)
    assert torch.equal(rows.scatter(rows.gather(matrix, 3), 3), matrix)
    filled = rows.gather_gradient(matrix, 3)
    assert torch.equal(rows.scatter(filled, 3), matrix)
    assert sum(float(part.square().sum()) for part in filled) == pytest.approx(float(matrix.square().sum()))
