"""Forward and backward equal autograd through dense attention with one mask over all rows."""

import pytest
import torch

from slimprompt.text.kernels.attention import QKV, SequenceGroup, attend, attend_backward, causal_mask
from slimprompt.text.kernels.rows import PADDING, RowGather

N_HEADS, WIDTH, N_PREFIX = 2, 8, 5
LENGTHS = [[3, 3, 4], [6]]  # of the sequences in each group


def dense_attention(q, k, v, allowed):
    """softmax(q kᵀ / √e + mask) v for each head; allowed (n_queries, n_rows)."""
    heads = []
    for h in range(N_HEADS):
        part = slice(h * WIDTH // N_HEADS, (h + 1) * WIDTH // N_HEADS)
        scores = q[..., part] @ k[..., part].transpose(-1, -2) / (WIDTH // N_HEADS) ** 0.5
        heads.append(scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v[..., part])
    return torch.cat(heads, -1)


def row_index_and_sequences():
    """Row index of each group after the prefix, and the sequence of every row (−1 for the prefix)."""
    row, indices, sequence = N_PREFIX, [], [-1] * N_PREFIX
    for lengths in LENGTHS:
        index = torch.full((len(lengths), max(lengths)), PADDING)
        for i, length in enumerate(lengths):
            index[i, :length] = torch.arange(row, row + length)
            sequence += [max(sequence) + 1] * length
            row += length
        indices.append(index)
    return indices, torch.tensor(sequence)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n_prompts", [1, 3])
@pytest.mark.parametrize("ends_only", [False, True])
def test_equals_dense_attention(n_prompts, ends_only):
    row_index, sequence = row_index_and_sequences()
    n_rows = len(sequence)
    same = (sequence[None] == sequence[:, None]) | (sequence[None] == -1)
    allowed = torch.ones(n_rows, n_rows).tril().bool() & same
    ends = torch.tensor([int((sequence == s).nonzero().max()) for s in range(int(sequence.max()) + 1)])
    query_rows = ends if ends_only else torch.arange(N_PREFIX, n_rows)
    q, grad = (random(n_prompts, len(query_rows), WIDTH, seed=seed) for seed in (1, 2))
    kv = random(n_prompts, n_rows, 2 * WIDTH, seed=3)

    if ends_only:
        query_index = list(torch.arange(len(ends))[:, None].split([len(index) for index in row_index]))
    else:
        query_index = [torch.where(index == PADDING, PADDING, index - N_PREFIX) for index in row_index]
    queries = RowGather(query_index, len(query_rows), N_HEADS, 1, torch.device("cpu"))
    keys = RowGather([torch.arange(N_PREFIX)[None], *row_index], n_rows, N_HEADS, 2, torch.device("cpu"))
    groups = []
    for index, lengths in zip(row_index, LENGTHS, strict=True):
        mask = causal_mask(index.shape[1], N_PREFIX, q)
        groups.append(
            SequenceGroup(len(index), mask[torch.tensor(lengths) - 1] if ends_only else mask.repeat(len(index), 1))
        )

    prefix_k, prefix_v, *own = keys.gather(kv, n_prompts)
    prefix_kv = (prefix_k, prefix_v)
    qkvs = [QKV(*qkv) for qkv in zip(queries.gather(q, n_prompts), own[::2], own[1::2], strict=True)]
    results = [attend(qkv, prefix_kv, group) for qkv, group in zip(qkvs, groups, strict=True)]
    out = queries.scatter([out for out, _ in results], n_prompts).view_as(q)

    q_leaf, kv_leaf = q.clone().requires_grad_(), kv.clone().requires_grad_()
    expected = dense_attention(q_leaf, *kv_leaf.chunk(2, -1), allowed[query_rows])
    torch.testing.assert_close(out, expected.detach())

    expected.backward(grad)
    grad_prefix = [torch.zeros_like(prefix_k), torch.zeros_like(prefix_v)]
    grad_q, grad_kv = [], []
    grad_outs = queries.gather_gradient(grad, n_prompts)
    for grad_out, qkv, (_, weights), group in zip(grad_outs, qkvs, results, groups, strict=True):
        grad_qkv, grad_shared = attend_backward(grad_out, qkv, weights, prefix_kv, group)
        grad_q.append(grad_qkv[0])
        grad_kv += grad_qkv[1:]
        grad_prefix = [total + term for total, term in zip(grad_prefix, grad_shared, strict=True)]
        assert attend_backward(grad_out, qkv, weights, prefix_kv, group, qkv_needs_grad=False)[0] == []
    torch.testing.assert_close(queries.scatter(grad_q, n_prompts).view_as(q), q_leaf.grad)
    torch.testing.assert_close(keys.scatter(grad_prefix + grad_kv, n_prompts).view_as(kv), kv_leaf.grad)


def test_without_prefix():
    """A sequence with no prefix, such as the prefix itself."""
    qkv = QKV(*(random(N_HEADS, 4, 3, seed=seed) for seed in range(3)))
    out, _ = attend(qkv, None, SequenceGroup(1, causal_mask(4, 0, qkv.q)))
    expected = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
    torch.testing.assert_close(out, expected)
