import numpy as np
import pytest

from slimprompt.paper.theory.update_space import dimension_statements, update_dimensions

M, D, R = 4, 6, 2


def vec(matrix):
    """The columns of a matrix, stacked."""
    return matrix.reshape(-1, order="F")


@pytest.fixture
def generator():
    return np.random.default_rng(0)


@pytest.mark.parametrize("rank", [R, 1])
def test_dimensions_agree_with_the_explicit_products(generator, rank):
    basis = generator.standard_normal((M, rank)) @ generator.standard_normal((rank, R))
    coefficients = generator.standard_normal((R, D))
    to_a, to_b = np.kron(np.eye(D), basis), np.kron(coefficients.T, np.eye(M))  # (md, rd), (md, mr)
    assert update_dimensions(basis, coefficients) == (np.linalg.matrix_rank(to_a), np.linalg.matrix_rank(to_b))


def test_updates_are_the_images_of_the_products(generator):
    """vec(B0 X) = (I ⊗ B0) vec X and vec(Y A0) = (A0ᵀ ⊗ I) vec Y."""
    basis, x = generator.standard_normal((M, R)), generator.standard_normal((R, D))
    np.testing.assert_allclose(vec(basis @ x), np.kron(np.eye(D), basis) @ vec(x))
    coefficients, y = generator.standard_normal((R, D)), generator.standard_normal((M, R))
    np.testing.assert_allclose(vec(y @ coefficients), np.kron(coefficients.T, np.eye(M)) @ vec(y))


@pytest.mark.parametrize(("d", "dimensions"), [(512, (2048, 64)), (768, (3072, 64))])
def test_dimension_gap_at_the_widths_of_both_towers(d, dimensions):
    token, embedding, gap = dimension_statements(16, d, 4, seed=1)
    assert (token.measured, embedding.measured) == dimensions
    assert gap.measured == gap.predicted == d / 16
    assert {one.verdict for one in (token, embedding, gap)} == {"holds"}
