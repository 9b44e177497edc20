import pytest
import torch

from slimprompt import InputError, Prompt, start_prompt
from slimprompt.prompts.spec import count_parameters

M, D, R = 16, 512, 4


@pytest.mark.parametrize(
    ("variant", "rank", "basis", "count"),
    [
        ("dense", None, None, M * D * 3),
        ("joint", R, None, R * (M + 3 * D)),
        ("fixed-B", R, "orthogonal", R * D * 3),
        ("fixed-A", R, "svd", M * R),
    ],
)
def test_counts_of_deep_prompts(variant, rank, basis, count):
    prompt = start_prompt(variant, width=D, seed=1, n_ctx=M, rank=rank, basis=basis, depth=3)
    assert prompt.trainable_parameters == count
    assert count_parameters(variant, n_ctx=M, width=D, rank=rank, depth=3) == count
    assert (prompt.depth, prompt.n_ctx, prompt.rank, prompt.width) == (3, M, rank or M, D)


def test_a_deep_prompt_is_one_basis_and_the_coefficients_of_each_layer():
    basis, coefficients = torch.randn(5, 2), torch.randn(3, 2, 7)
    context = Prompt(basis, coefficients, "A")()
    assert context.shape == (3, 5, 7)
    for layer, expected in zip(context, coefficients, strict=True):
        torch.testing.assert_close(layer, basis @ expected)


def test_an_anchored_prompt_adds_the_words():
    basis, coefficients, words = torch.randn(5, 2), torch.randn(2, 7), torch.randn(5, 7)
    prompt = Prompt(basis, coefficients, "AB", words)
    torch.testing.assert_close(prompt(), words + basis @ coefficients)
    assert len(prompt.trainable_factors) == 2
    assert prompt.trainable_parameters == 5 * 2 + 2 * 7
    assert {name: tuple(value.shape) for name, value in prompt.tensors().items()} == {
        "B": (5, 2),
        "A": (2, 7),
        "W": (5, 7),
    }
    assert set(Prompt(basis, coefficients, "A").tensors()) == {"B", "A"}


def test_dense_is_the_identity_basis_exactly():
    p0 = torch.randn(M, D)
    prompt = Prompt(torch.eye(M), p0, "A")
    assert torch.equal(prompt(), p0)
    assert torch.equal(prompt.B.detach(), torch.eye(M))


def test_full_rank_factorisation_is_the_dense_prompt():
    joint = start_prompt("joint", width=D, seed=3, n_ctx=M, rank=M)
    dense = start_prompt("dense", width=D, seed=3, n_ctx=M)
    torch.testing.assert_close(joint(), dense(), rtol=1e-4, atol=1e-6)


def test_bad_arguments():
    with pytest.raises(InputError, match="do not multiply"):
        Prompt(torch.zeros(4, 2), torch.zeros(3, 5), "A")
    with pytest.raises(InputError, match="trainable must be"):
        Prompt(torch.zeros(4, 2), torch.zeros(2, 5), "C")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="do not multiply"):
        Prompt(torch.zeros(4, 2), torch.zeros(1, 3, 2, 5), "A")
    with pytest.raises(InputError, match=r"W \(3, 5\) cannot be added"):
        Prompt(torch.zeros(4, 2), torch.zeros(2, 5), "A", torch.zeros(3, 5))
    with pytest.raises(InputError, match="a deep prompt has no words"):
        Prompt(torch.zeros(4, 2), torch.zeros(3, 2, 5), "A", torch.zeros(4, 5))


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


@pytest.mark.parametrize("trains", ["A", "B", "AB"])
def test_only_the_declared_factors_get_gradients(trains):
    prompt = Prompt(torch.randn(5, 2), torch.randn(2, 7), trains)
    prompt().square().sum().backward()
    assert (prompt.A.grad is not None) == ("A" in trains)
    assert (prompt.B.grad is not None) == ("B" in trains)
