import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.paper.theory.asymmetry import kept_share
from slimprompt.paper.theory.local_model import (
    check_local_model,
    conjugate_gradients,
    kept_by,
    local_model,
    local_model_statements,
)
from slimprompt.paper.theory.objective import gradient, hessian_product, largest_curvature, value
from tests.paper.theory.theory_objectives import Quadratic

M, D, R = 4, 7, 2


@pytest.fixture
def generator():
    return np.random.default_rng(3)


@pytest.fixture
def uneven(generator):
    """Curvature from 1 to 100 with a random minimum."""
    return Quadratic(np.geomspace(1, 100, M * D).reshape(M, D), generator.standard_normal((M, D)))


@pytest.fixture
def even(generator):
    return Quadratic(np.full((M, D), 5.0), generator.standard_normal((M, D)))


def checked(objective, generator, draws=400):
    p0 = 0.1 * generator.standard_normal((M, D))
    u, s, vt = np.linalg.svd(p0, full_matrices=False)
    return check_local_model(
        objective,
        {"svd": u[:, :R] * np.sqrt(s[:R])},
        np.sqrt(s[:R])[:, None] * vt[:R],
        draws=draws,
        generator=generator,
        relative_damping=1e-9,
    )


def verdicts(statements):
    return {statement.name: statement.verdict for statement in statements}


def test_conjugate_gradients(generator):
    root = generator.standard_normal((12, 12))
    matrix, right = root @ root.T + np.eye(12), generator.standard_normal((3, 4))
    solution = conjugate_gradients(lambda x: (matrix @ x.ravel()).reshape(3, 4), right, tolerance=1e-10)
    np.testing.assert_allclose(solution.ravel(), np.linalg.solve(matrix, right.ravel()), rtol=1e-7)


def test_conjugate_gradients_that_do_not_converge_are_an_error():
    scale = np.geomspace(1, 1e6, 40).reshape(5, 8)
    with pytest.raises(InputError, match="larger --damping"):
        conjugate_gradients(lambda x: scale * x, np.ones((5, 8)), most=3)
    np.testing.assert_array_equal(conjugate_gradients(lambda x: x, np.zeros((2, 2))), 0)


def test_largest_curvature_is_the_largest_absolute_value(generator):
    scale = np.linspace(-9, 7, 20).reshape(4, 5)
    assert largest_curvature(lambda v: scale * v, (4, 5), tolerance=1e-8) == pytest.approx(9)
    assert largest_curvature(lambda v: np.array([[-3.0, 2.0]]) * v, (1, 2)) == pytest.approx(3)


def test_differences_give_the_hessian_product(uneven, generator):
    point, direction = generator.standard_normal((2, M, D))
    np.testing.assert_allclose(hessian_product(uneven, point, direction), uneven.h * direction, rtol=1e-7)


def test_model_of_a_quadratic_is_exact(uneven, generator):
    """Without damping, P0 + δ* is the minimum and the decrease of the model is the true one."""
    p0 = generator.standard_normal((M, D))
    model = local_model(uneven, p0, relative_damping=1e-12)
    np.testing.assert_allclose(p0 + model.ideal, uneven.target, atol=2e-3)  # accuracy of conjugate gradients
    assert model.decrease == pytest.approx(value(uneven, p0), rel=1e-6)
    assert model.agreement == pytest.approx(1, abs=1e-6)


def test_damping_follows_the_formula(uneven, generator):
    p0 = generator.standard_normal((M, D))
    model = local_model(uneven, p0, relative_damping=0.5)
    assert model.damping == pytest.approx(0.5 * uneven.h.max(), rel=1e-3)
    np.testing.assert_allclose(model.ideal, -gradient(uneven, p0) / (uneven.h + model.damping), rtol=1e-3, atol=1e-6)


def test_default_damping_is_the_smallest_that_describes_the_loss(uneven, generator):
    model = local_model(uneven, generator.standard_normal((M, D)))
    assert model.relative_damping == 1e-4  # the model of a quadratic is always exact


def test_shares_by_hand(uneven, generator):
    """S of the first token: share Σ g²/h over the first row of the decrease, and Σ (g/h)² of ‖δ*‖²."""
    p0 = generator.standard_normal((M, D))
    model = local_model(uneven, p0, relative_damping=1e-12)
    g, h = gradient(uneven, p0), uneven.h
    row = kept_by(model, "first", "token", np.eye(M)[:, :1])
    assert row.curvature_share == pytest.approx((g**2 / h)[0].sum() / (g**2 / h).sum(), rel=1e-4)
    assert row.euclidean_share == pytest.approx(((g / h) ** 2)[0].sum() / ((g / h) ** 2).sum(), rel=1e-3)
    assert row.true_share == pytest.approx(row.curvature_share, rel=1e-4)
    column = kept_by(model, "last", "embedding", np.eye(D)[:, -1:])
    assert column.curvature_share == pytest.approx((g**2 / h)[:, -1].sum() / (g**2 / h).sum(), rel=1e-4)


def test_h_projection_is_never_worse_than_the_euclidean_one(uneven, generator):
    model = local_model(uneven, generator.standard_normal((M, D)), relative_damping=1e-9)
    kept = kept_by(model, "random", "token", generator.standard_normal((M, R)))
    assert kept.projected_share < kept.curvature_share


def test_surrogate_is_exact_for_isotropic_curvature(even, generator):
    check = checked(even, generator)
    token = check.in_use[0]
    assert token.curvature_share == pytest.approx(token.euclidean_share, rel=1e-6)
    assert token.curvature_share == pytest.approx(kept_share(token.update, check.model.ideal), rel=1e-3)
    found = verdicts(local_model_statements(check, "toy"))
    assert found["Curvature share of δ*, random B"] == found["Curvature share of δ*, random A"] == "holds"
    assert found["A random B keeps more decrease than a random A"] == "holds"


def test_surrogate_fails_for_anisotropic_curvature(generator):
    """The possible decrease is concentrated in stiff directions of one token, while δ* is spread over soft ones."""
    h = np.ones((M, D))
    h[0] = 1e4
    target = np.ones((M, D))
    target[0] = 0.02  # gradient 200 and decrease ½·4e-4·1e4 per entry; ½ elsewhere
    check = checked(Quadratic(h, target), generator)
    found = verdicts(local_model_statements(check, "toy"))
    assert found["Euclidean share of δ*, random B"] == "holds"
    assert found["Curvature share of δ*, random B"] == "violated"


def test_order_of_the_spaces_can_fail(generator):
    """δ* = y a with A0 parallel to a and B0 orthogonal to y: S_B(A0) contains δ*, and S_A(B0) is orthogonal to it."""
    p0_b, p0_a = np.eye(M)[:, :1], np.eye(D)[:1]
    target = np.outer(np.eye(M)[2], np.eye(D)[0])
    objective = Quadratic(np.ones((M, D)), p0_b @ p0_a + target)
    check = check_local_model(objective, {"svd": p0_b}, p0_a, draws=3, generator=generator, relative_damping=1e-6)
    found = {one.name: one for one in local_model_statements(check, "toy")}
    assert found["S_A(B0) keeps more decrease"].verdict == "violated"
    assert found["S_A(B0) lowers the loss more"].verdict == "violated"
    assert found["S_A(B0) keeps more decrease"].predicted == pytest.approx(1)


def test_square_fails_with_a_wrong_ideal_update(uneven, generator):
    check = checked(uneven, generator, draws=3)
    assert verdicts(local_model_statements(check, "toy"))["Completing the square in S_A(B0)"] == "holds"
    wrong = check._replace(model=check.model._replace(ideal=1.1 * check.model.ideal))
    assert verdicts(local_model_statements(wrong, "toy"))["Completing the square in S_A(B0)"] == "violated"


def test_stationary_reference_is_refused(even):
    with pytest.raises(InputError, match="gradient .* is zero"):
        local_model(even, even.target)
