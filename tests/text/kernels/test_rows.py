import pytest
import torch

from slimprompt.text.kernels.rows import PADDING, RowGather


def test_scatter_inverts_gather():
    row_index = [torch.arange(5)[None], torch.tensor([[5, 6, PADDING], [7, 8, 9]])]
    rows = RowGather(row_index, n_rows=10, n_heads=2, n_parts=2, device=torch.device("cpu"))
    matrix = torch.randn(3 * 10, 2 * 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(rows.scatter(rows.gather(matrix, 3), 3), matrix)
    padded = rows.gather_gradient(matrix, 3)
    assert torch.equal(rows.scatter(padded, 3), matrix)
    assert sum(float(part.square().sum()) for part in padded) == pytest.approx(float(matrix.square().sum()))
