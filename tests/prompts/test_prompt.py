import pytest
import torch

from slimprompt import InputError, Prompt, start_prompt

M, D, R = 16, 512, 4


@pytest.mark.parametrize(
    ("variant", "rank", "basis", "count"),
    [
        ("dense", None, None, 8192),
        ("joint", R, None, 2112),
        ("fixed-B", R, "orthogonal", 2048),
        ("fixed-A", R, "svd", 64),
    ],
)
def test_counts_of_the_paper(variant, rank, basis, count):
    assert start_prompt(variant, width=D, seed=1, n_ctx=M, rank=rank, basis=basis).trainable_parameters == count


def test_dense_is_the_identity_basis_exactly():
    p0 = torch.randn(M, D)
    prompt = Prompt(torch.eye(M), p0, "A")
    assert torch.equal(prompt(), p0)
    assert torch.equal(prompt.B.detach(), torch.eye(M))


def test_full_rank_factorisation_is_the_dense_prompt():
    joint = start_prompt("joint", width=D, seed=3, n_ctx=M, rank=M)
    dense = start_prompt("dense", width=D, seed=3, n_ctx=M)
    torch.testing.assert_close(joint(), dense(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trains", ["A", "B", "AB"])
def test_only_the_declared_factors_get_gradients(trains):
    prompt = Prompt(torch.randn(5, 2), torch.randn(2, 7), trains)
    prompt().square().sum().backward()
    assert (prompt.A.grad is not None) == ("A" in trains)
    assert (prompt.B.grad is not None) == ("B" in trains)


def test_factors_are_fp32_copies():
    basis = torch.randn(4, 2, dtype=torch.float64)
    prompt = Prompt(basis, torch.randn(2, 3), "A")
    basis.zero_()
    assert prompt.B.dtype == torch.float32
    assert prompt.B.abs().sum() > 0


def test_bad_arguments():
    with pytest.raises(InputError, match="do not multiply"):
        Prompt(torch.zeros(4, 2), torch.zeros(3, 5), "A")
    with pytest.raises(InputError, match="'A', 'B' or 'AB'"):
        Prompt(torch.zeros(4, 2), torch.zeros(2, 5), "C")  # type: ignore[arg-type]
