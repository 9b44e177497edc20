import sys

import numpy as np
import pytest
import torch

from slimprompt import InputError, start_prompt
from slimprompt.prompts.start import balanced_svd, gaussian_basis, initial_context, least_squares, orthogonal_basis

M, D, R = 16, 64, 4


@pytest.fixture
def p0():
    return initial_context(M, D, seed=7)


def test_p0_has_the_paper_s_spread():
    sample = initial_context(16, 4096, seed=1)
    assert abs(sample.std().item() - 0.02) < 2e-4
    assert abs(sample.mean().item()) < 3e-4


def test_every_variant_of_a_seed_starts_from_the_same_p0(p0):
    assert torch.equal(start_prompt("dense", width=D, seed=7).A.detach(), p0)
    b, a = balanced_svd(p0, R)
    joint = start_prompt("joint", width=D, seed=7, rank=R)
    assert torch.equal(joint.B.detach(), b)
    assert torch.equal(joint.A.detach(), a)
    assert not torch.equal(start_prompt("dense", width=D, seed=8).A, start_prompt("dense", width=D, seed=7).A)
    assert not torch.equal(start_prompt("dense", width=D, seed=0).A, start_prompt("dense", width=D, seed=7).A)


def test_balanced_svd_is_the_best_rank_r_approximation(p0):
    b, a = balanced_svd(p0, R)
    u, s, vt = np.linalg.svd(p0.double().numpy(), full_matrices=False)
    best = (u[:, :R] * s[:R]) @ vt[:R]
    np.testing.assert_allclose((b @ a).numpy(), best, atol=1e-6)
    torch.testing.assert_close(b.T @ b, a @ a.T)  # balanced


def test_norms_match_the_svd_basis(p0):
    norm = balanced_svd(p0, R)[0].norm()
    for rule in (gaussian_basis, orthogonal_basis):
        torch.testing.assert_close(rule(p0, R, torch.Generator().manual_seed(1)).norm(), norm)


@pytest.mark.parametrize("basis", ["svd", "gaussian", "orthogonal", "learned"])
def test_fixed_basis_starts_at_the_projection_of_p0(p0, basis):
    trained = (torch.randn(M, R), torch.randn(R, D))
    prompt = start_prompt("fixed-B", width=D, seed=7, rank=R, basis=basis, trained=trained)
    solution = np.linalg.lstsq(prompt.B.detach().double().numpy(), p0.double().numpy(), rcond=None)[0]
    np.testing.assert_allclose(prompt.A.detach().numpy(), solution, rtol=1e-3, atol=1e-5)
    if basis == "learned":
        assert torch.equal(prompt.B.detach(), trained[0])
    assert prompt.trainable == "A"


@pytest.mark.parametrize(("variant", "frozen", "own"), [("fixed-B", "B", "A"), ("fixed-A", "A", "B")])
def test_transfer_replaces_the_frozen_factor_and_fits_nothing(p0, variant, frozen, own):
    start = dict(zip("BA", balanced_svd(p0, R), strict=True))
    source = (torch.randn(M, R), torch.randn(R, D))
    prompt = start_prompt(variant, width=D, seed=7, rank=R, basis="source", trained=source)
    assert torch.equal(getattr(prompt, frozen).detach(), dict(zip("BA", source, strict=True))[frozen])
    assert torch.equal(getattr(prompt, own).detach(), start[own])
    control = start_prompt(variant, width=D, seed=7, rank=R, basis="random")
    assert torch.equal(getattr(control, own).detach(), start[own])
    assert not torch.allclose(getattr(control, frozen), start[frozen])
    other = balanced_svd(initial_context(M, D, 7, "random control"), R)
    assert torch.equal(getattr(control, frozen).detach(), dict(zip("BA", other, strict=True))[frozen])


ALL_VARIANTS = [
    ("dense", None, None),
    ("joint", R, None),
    *(("fixed-B", R, basis) for basis in ("gaussian", "orthogonal", "svd")),
    ("fixed-A", R, "svd"),
    ("fixed-B", R, "random"),
]


@pytest.fixture
def words():
    return torch.randn(M, D, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("variant", "rank", "basis"), ALL_VARIANTS[:6])
def test_word_start_treats_the_words_as_p0(words, variant, rank, basis):
    prompt = start_prompt(variant, width=D, seed=7, rank=rank, basis=basis, words=words)
    if variant == "dense":
        assert torch.equal(prompt().detach(), words)
    elif variant == "fixed-B" and basis != "svd":
        torch.testing.assert_close(prompt.A.detach(), least_squares(prompt.B.detach(), words))
    else:
        b, a = balanced_svd(words, R)
        torch.testing.assert_close((prompt.B.detach(), prompt.A.detach()), (b, a), rtol=1e-4, atol=1e-5)
    assert prompt.W is None


@pytest.mark.parametrize(("variant", "rank", "basis"), ALL_VARIANTS)
def test_anchored_prompts_start_exactly_at_the_words(words, variant, rank, basis):
    how = {"width": D, "seed": 7, "rank": rank, "basis": basis}
    prompt, free = start_prompt(variant, **how, words=words, anchored=True), start_prompt(variant, **how)
    assert torch.equal(prompt().detach(), words)
    kept, zero = ("A", "B") if variant == "fixed-A" else ("B", "A")
    assert torch.equal(getattr(prompt, kept), getattr(free, kept))  # as from the random P0
    assert not getattr(prompt, zero).any()
    assert getattr(prompt, zero).requires_grad  # so that it can leave zero: its gradient is the kept factor's product
    prompt().square().sum().backward()
    assert getattr(prompt, zero).grad.norm() > 0


@pytest.mark.parametrize(("variant", "rank", "basis"), ALL_VARIANTS[:6])
def test_deep_prompts_share_the_basis_of_the_shallow_one(variant, rank, basis):
    how = {"width": D, "seed": 7, "rank": rank, "basis": basis}
    shallow, deep = start_prompt(variant, **how), start_prompt(variant, **how, depth=3)
    assert torch.equal(deep.B, shallow.B)
    torch.testing.assert_close(deep.A[0], shallow.A, rtol=1e-4, atol=1e-6)
    layers = initial_context(M, D, 7, depth=3)
    for coefficients, p0_of_layer in zip(deep.A[1:], layers[1:], strict=True):
        expected = p0_of_layer if variant == "dense" else least_squares(shallow.B.detach(), p0_of_layer)
        torch.testing.assert_close(coefficients.detach(), expected)


def test_a_deep_word_start_replaces_the_first_layer(words):
    prompt = start_prompt("dense", width=D, seed=7, words=words, depth=2)
    assert torch.equal(prompt()[0], words)
    assert torch.equal(prompt()[1], initial_context(M, D, 7, depth=2)[1])


@pytest.mark.parametrize("basis", ["learned", "source"])
@pytest.mark.parametrize(("learned", "used"), [(1, 3), (3, 1)])
def test_a_basis_learned_at_one_depth_is_used_at_another(basis, learned, used):
    trained = start_prompt("joint", width=D, seed=3, rank=R, depth=learned)
    how = {"width": D, "seed": 7, "rank": R, "depth": used}
    prompt = start_prompt("fixed-B", basis=basis, trained=(trained.B, trained.A), **how)
    own = start_prompt("joint", **how)
    assert torch.equal(prompt.B, trained.B)
    assert prompt.A.shape == own.A.shape == ((3, R, D) if used == 3 else (R, D))
    if basis == "source":
        assert torch.equal(prompt.A, own.A)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"variant": "joint", "rank": 17},
        {"variant": "fixed-B", "rank": 4, "basis": "orthgonal"},
        {"variant": "fixed-A", "rank": 4, "basis": "gaussian"},
        {"variant": "fixed-B", "rank": 4, "basis": "learned"},
        {"variant": "dense", "anchored": True, "words": torch.zeros(16, D), "depth": 2},
        {"variant": "dense", "words": torch.zeros(4, D)},
    ],
)
def test_bad_input(kwargs):
    with pytest.raises(InputError):
        start_prompt(**kwargs, width=D, seed=1)


def hadamard(p0, rank, generator):
    """Columns of a Hadamard matrix."""
    matrix = torch.ones(1, 1)
    while len(matrix) < len(p0):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix[: len(p0), :rank]


def too_wide(p0, rank, generator):
    return torch.ones(len(p0), rank + 1)


def repeated(p0, rank, generator):
    """The first two columns are the same up to float rounding."""
    basis = torch.randn(len(p0), rank, generator=generator)
    basis[:, 1] = basis[:, 0] / 3 * 3
    return basis


def broken(p0, rank, generator):
    raise ZeroDivisionError("a mistake of the user")


def test_a_basis_of_your_own_starts_at_the_projection_of_p0(p0):
    prompt = start_prompt("fixed-B", width=D, seed=7, rank=R, basis=f"{__name__}:hadamard")
    assert torch.equal(prompt.B.detach(), hadamard(p0, R, None))
    torch.testing.assert_close(prompt.A.detach(), hadamard(p0, R, None).T @ p0 / M)  # its columns are orthogonal
    assert prompt.trainable == "A"


@pytest.mark.parametrize(
    "basis", [f"{__name__}:too_wide", f"{__name__}:broken", f"{__name__}:repeated", "antigravity:fly"]
)
def test_a_basis_of_your_own_that_cannot_be_used(basis):
    with pytest.raises(InputError, match=basis):
        start_prompt("fixed-B", width=D, seed=1, rank=R, basis=basis)
    assert "antigravity" not in sys.modules  # a name never imports code


def test_orthogonal_basis_has_orthogonal_columns_of_equal_length(p0):
    basis = orthogonal_basis(p0, R, torch.Generator().manual_seed(1))
    gram = basis.T @ basis
    torch.testing.assert_close(gram, gram[0, 0] * torch.eye(R), rtol=0, atol=1e-6)


def test_p0_of_deeper_layers_has_streams_of_its_own(p0):
    two, three = (initial_context(M, D, 7, depth=depth) for depth in (2, 3))
    assert torch.equal(two[0], p0)
    assert torch.equal(three[:2], two)
    assert len({layer.sum().item() for layer in three}) == 3
    assert abs(initial_context(16, 4096, 1, depth=2)[1].std().item() - 0.02) < 2e-4
