import numpy as np
import pytest

from slimprompt.paper.theory.statement import equal
from slimprompt.paper.theory.update_space import kronecker_rank, update_dimensions, update_space_statements


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def test_rank_rule_gives_the_rank_of_the_product(generator):
    left, right = generator.standard_normal((4, 3)), generator.standard_normal((5, 2)) @ np.array([[1.0, 2], [2, 4]])
    assert kronecker_rank(left, right) == 3 == np.linalg.matrix_rank(np.kron(left, right))


def test_dimensions_at_the_papers_size(generator):
    basis, coefficients = generator.standard_normal((16, 4)), generator.standard_normal((4, 512))
    assert update_dimensions(basis, coefficients) == (2048, 64)
    statements = {one.name: one for one in update_space_statements(basis, coefficients, generator)}
    assert {one.verdict for one in statements.values()} == {"holds"}
    assert statements["Dimension gap"].measured == 32


def test_dimensions_agree_with_the_explicit_product(generator):
    basis, coefficients = generator.standard_normal((4, 2)), generator.standard_normal((2, 6))
    dim_a = np.linalg.matrix_rank(np.kron(np.eye(6), basis))
    dim_b = np.linalg.matrix_rank(np.kron(coefficients.T, np.eye(4)))
    assert update_dimensions(basis, coefficients) == (dim_a, dim_b)
    assert equal("part", "name", "claim", dim_a + 1, update_dimensions(basis, coefficients)[0]).verdict == "violated"


def test_rank_deficient_factor_is_not_testable(generator):
    basis = np.outer(np.ones(5), [1.0, 2.0])  # rank 1 instead of 2
    first, *_ = update_space_statements(basis, generator.standard_normal((2, 9)), generator)
    assert first.verdict == "not testable"
    assert "rank B0 = 1" in first.detail and "9 and 10 dimensions" in first.detail
