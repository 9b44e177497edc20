import numpy as np
import pytest

from slimprompt.paper.theory.convergence import (
    FIXED_A,
    Rate,
    check_descent,
    check_rate,
    descend,
    descent_inequality,
    descent_statements,
    directional_smoothness,
    gradient_bound,
    rate_statements,
    smoothness,
)
from slimprompt.paper.theory.objective import Transposed
from tests.paper.theory.theory_objectives import Centres, DoubleWell, Quadratic

M, D, R = 4, 6, 2


@pytest.fixture
def generator():
    return np.random.default_rng(5)


@pytest.fixture
def quadratic(generator):
    """L = 8."""
    return Quadratic(np.linspace(0.5, 8, M * D).reshape(M, D), generator.standard_normal((M, D)))


@pytest.fixture
def basis(generator):
    return 0.7 * generator.standard_normal((M, R))


def verdicts(statements):
    return {statement.name: statement for statement in statements}


# -- smoothness ---------------------------------------------------------------------------------------------------------


def test_smoothness_of_a_quadratic(quadratic, basis, generator):
    point = generator.standard_normal((R, D))
    assert smoothness(quadratic, basis @ point) == pytest.approx(8, rel=1e-3)
    # φ(A) has the curvature Bᵀ diag(h of column k) B in column k of A
    exact = max(np.linalg.norm(basis.T @ np.diag(quadratic.h[:, k]) @ basis, 2) for k in range(D))
    assert directional_smoothness(quadratic, basis, point) == pytest.approx(exact, rel=1e-3)
    assert exact <= 8 * np.linalg.norm(basis, 2) ** 2


def test_bound_by_the_norm_of_b_is_tight_for_isotropic_curvature(basis, generator):
    isotropic = Quadratic(np.full((M, D), 3.0), np.zeros((M, D)))
    found = directional_smoothness(isotropic, basis, generator.standard_normal((R, D)))
    assert found == pytest.approx(3 * np.linalg.norm(basis, 2) ** 2, rel=1e-3)


def test_bound_by_the_norm_of_b_fails_with_a_wrong_norm(basis, generator):
    isotropic = Quadratic(np.full((M, D), 3.0), np.ones((M, D)))
    descent = check_descent(isotropic, basis, generator.standard_normal((R, D)), steps=5)
    assert verdicts(descent_statements(descent, 0.0))["L_A by the norm of B"].verdict == "holds"
    wrong = descent._replace(basis_norm=0.9 * descent.basis_norm)
    assert verdicts(descent_statements(wrong, 0.0))["L_A by the norm of B"].verdict == "violated"


# -- full gradients -----------------------------------------------------------------------------------------------------


def test_one_step_by_hand():
    objective = Quadratic(np.array([[2.0, 4.0]]), np.zeros((1, 2)))
    path = descend(objective, np.array([[1.0]]), np.array([[1.0, 1.0]]), 0.25, 1)
    np.testing.assert_allclose(path.points[1], [[0.5, 0.0]])
    np.testing.assert_allclose(path.values, [3.0, 0.25])
    np.testing.assert_allclose(path.squared_gradients, [20.0, 1.0])


def test_descent_holds_on_a_quadratic(quadratic, basis, generator):
    descent = check_descent(quadratic, basis, generator.standard_normal((R, D)), steps=30)
    assert descent.path.steps == 30
    found = verdicts(descent_statements(descent, 0.0))
    assert {statement.verdict for statement in found.values()} == {"holds"}
    assert "Descent inequality, L_A taken at the start" not in found  # the curvature of a quadratic is constant


def test_descent_inequality_fails_with_a_step_above_1_over_l(quadratic, basis, generator):
    constant = directional_smoothness(quadratic, basis, np.zeros((R, D)))
    start = generator.standard_normal((R, D))
    assert descent_inequality(descend(quadratic, basis, start, 1 / constant, 40)).verdict == "holds"
    failed = descent_inequality(descend(quadratic, basis, start, 1.9 / constant, 40))
    assert failed.verdict == "violated" and "first at t =" in failed.detail
    diverging = descend(quadratic, basis, start, 2.5 / constant, 40)
    assert diverging.values[-1] > diverging.values[0]
    assert descent_inequality(diverging).verdict == "violated"


def test_descent_inequality_is_tight_at_1_over_l():
    """With η = 1/L, φ(A_1) = 0 = φ(A_0) − (η/2)‖∇φ‖² exactly; any larger step fails."""
    objective = Quadratic(np.array([[4.0, 4.0]]), np.zeros((1, 2)))
    start, one = np.array([[1.0, 1.0]]), np.array([[1.0]])
    assert descent_inequality(descend(objective, one, start, 0.25, 1)).verdict == "holds"
    assert descent_inequality(descend(objective, one, start, 0.2501, 1)).verdict == "violated"


def test_overflowing_path_is_violated(quadratic, basis, generator):
    with np.errstate(over="ignore", invalid="ignore"):
        path = descend(quadratic, basis, generator.standard_normal((R, D)), 1e6, 400)
    assert not np.isfinite(path.values[-1])
    assert descent_inequality(path).verdict == "violated"


def test_gradient_bound_fails_with_a_wrong_constant(quadratic, basis, generator):
    constant = directional_smoothness(quadratic, basis, np.zeros((R, D)))
    path = descend(quadratic, basis, generator.standard_normal((R, D)), 1 / constant, 20)
    assert gradient_bound(path, quadratic.lower_bound).verdict == "holds"
    too_high = path.values[0] - 0.1 * (path.values[0] - path.values[1])  # claims almost no possible decrease
    failed = gradient_bound(path, too_high)
    assert failed.verdict == "violated" and "first at T = 1" in failed.detail


def test_growing_curvature_shortens_the_step():
    """In a double well, |curvature| is 1 at the start and 2 at the minimum."""
    objective = DoubleWell((1, 2))
    descent = check_descent(objective, np.array([[1.0]]), np.array([[0.05, -0.04]]), steps=40)
    assert descent.constant == pytest.approx(2, rel=0.02)
    found = verdicts(descent_statements(descent, 0.0))
    assert found["Descent inequality"].verdict == "holds"
    first = found["Descent inequality, L_A taken at the start"]
    assert first.verdict == "violated" and "first at t =" in first.detail


def test_unconfirmed_smoothness_is_violated():
    objective = DoubleWell((1, 2))
    descent = check_descent(objective, np.array([[1.0]]), np.array([[0.05, -0.04]]), steps=40, rounds=1)
    assert verdicts(descent_statements(descent, 0.0))["L_A on the path"].verdict == "violated"


def test_step_size_of_the_training_protocol(quadratic, basis, generator):
    descent = check_descent(quadratic, basis, generator.standard_normal((R, D)), steps=5)
    name = "The training protocol's step size"
    assert verdicts(descent_statements(descent, 0.0))[name].measured == 0.002
    too_long = descent_statements(descent, 0.0, step_size=1.1 / descent.constant)
    assert verdicts(too_long)[name].verdict == "violated"


# -- A fixed ------------------------------------------------------------------------------------------------------------


def test_one_step_on_b_by_hand():
    """P = 2B: φ(B) = ½(2·4b₁² + 4·4b₂²), ∇φ = (8, 16) at B = (1, 1), and L_B = 4·2² = 16."""
    objective = Transposed(Quadratic(np.array([[2.0], [4.0]]), np.zeros((2, 1))))
    fixed, start = np.array([[2.0]]), np.array([[1.0], [1.0]])
    assert directional_smoothness(objective, fixed.T, start.T) == pytest.approx(16)
    path = descend(objective, fixed.T, start.T, 1 / 16, 1)
    np.testing.assert_allclose(path.points[1].T, [[0.5], [0.0]])
    np.testing.assert_allclose(path.values, [12.0, 1.0])
    np.testing.assert_allclose(path.squared_gradients, [320.0, 16.0])
    assert descent_inequality(path, FIXED_A).verdict == "holds"
    assert descent_inequality(descend(objective, fixed.T, start.T, 2.1 / 16, 1), FIXED_A).verdict == "violated"


def test_smoothness_with_a_fixed(quadratic, generator):
    """φ(B) has the curvature A diag(h of row i) Aᵀ in row i of B, which is at most L ‖A‖₂²."""
    fixed, start = generator.standard_normal((R, D)), generator.standard_normal((M, R))
    exact = max(np.linalg.norm(fixed @ np.diag(quadratic.h[i]) @ fixed.T, 2) for i in range(M))
    transposed = Transposed(quadratic)
    assert directional_smoothness(transposed, fixed.T, start.T) == pytest.approx(exact, rel=1e-3)
    assert smoothness(transposed, (start @ fixed).T) == pytest.approx(smoothness(quadratic, start @ fixed), rel=1e-3)
    assert exact <= 8 * np.linalg.norm(fixed, 2) ** 2


def test_path_on_b_equals_descent_written_out(quadratic, generator):
    fixed, point = generator.standard_normal((R, D)), generator.standard_normal((M, R))
    path = descend(Transposed(quadratic), fixed.T, point.T, 0.01, 5)
    for t in range(6):
        np.testing.assert_allclose(path.points[t].T, point)
        point = point - 0.01 * quadratic.h * (point @ fixed - quadratic.target) @ fixed.T


def test_statements_with_a_fixed(quadratic, generator):
    transposed, fixed = Transposed(quadratic), generator.standard_normal((R, D))
    descent = check_descent(transposed, fixed.T, generator.standard_normal((R, M)), steps=20)
    statements = descent_statements(descent, 0.0, FIXED_A, step_size=0.5 / descent.constant)
    assert {one.part for one in statements} == {"Convergence with A fixed"}
    assert {one.verdict for one in statements} == {"holds"}
    found = verdicts(statements)
    assert {"L_B on the path", "L_B by the norm of A", "Descent inequality", "Smallest gradient"} <= set(found)
    assert "φ(B_0)" in found["Smallest gradient"].claim and "‖A‖₂" in found["L_B by the norm of A"].detail


def test_bound_by_the_norm_of_a_fails_with_a_wrong_norm(generator):
    isotropic = Transposed(Quadratic(np.full((M, D), 3.0), np.ones((M, D))))
    descent = check_descent(isotropic, generator.standard_normal((D, R)), generator.standard_normal((R, M)), steps=5)
    name = "L_B by the norm of A"
    assert verdicts(descent_statements(descent, 0.0, FIXED_A))[name].verdict == "holds"
    wrong = descent._replace(basis_norm=0.9 * descent.basis_norm)
    assert verdicts(descent_statements(wrong, 0.0, FIXED_A))[name].verdict == "violated"


def test_stochastic_statements_with_a_fixed(generator):
    """With A = I, batches of b have σ² = mean‖C_i − C̄‖²/b; a gap and an L_B that are too small are detected."""
    centres = Centres(generator.standard_normal((20, M, M)))
    rate = check_rate(
        Transposed(centres),
        np.eye(M),
        3 + np.zeros((M, M)),
        1.0,
        horizons=(4, 16, 64),
        batch_size=2,
        replicates=8,
        generator=generator,
    )
    assert rate.variances.mean() == pytest.approx(centres.variance / 2, rel=0.1)
    statements = rate_statements(rate, FIXED_A)
    assert {(one.part, one.verdict) for one in statements} == {("Convergence with A fixed", "holds")}
    assert "L_B η σ²" in statements[0].claim
    wrong = rate_statements(rate._replace(gap=0.001 * rate.gap, constant=0.01), FIXED_A)
    assert {one.verdict for one in wrong} == {"violated"}


# -- stochastic gradients -----------------------------------------------------------------------------------------------


@pytest.fixture
def centres(generator):
    return Centres(generator.standard_normal((20, M, D)))


def test_measured_variance_matches_the_formula(centres, generator):
    """With B = I, σ² = mean‖C_i − C̄‖²/b at every point."""
    errors = [
        descend(centres, np.eye(M), np.zeros((M, D)), 0.1, 50, batch_size=5, generator=generator).squared_errors[:-1]
        for _ in range(20)
    ]
    assert np.mean(errors) == pytest.approx(centres.variance / 5, rel=0.05)


def test_single_example_has_no_variance(generator):
    everything = Quadratic(np.ones((M, D)), np.ones((M, D)))  # one example, so that every batch is the full set
    settings = everything, np.eye(M), np.zeros((M, D)), 0.5, 3
    sampled, full = descend(*settings, batch_size=4, generator=generator), descend(*settings)
    assert not sampled.squared_errors.any()
    np.testing.assert_allclose(sampled.points, full.points)


def rate_of(centres, generator, constant=1.0):
    return check_rate(
        centres,
        np.eye(M),
        3 + np.zeros((M, D)),
        constant,
        horizons=(4, 16, 64),
        batch_size=2,
        replicates=8,
        generator=generator,
    )


def test_stochastic_bound_and_rate_hold(centres, generator):
    rate = rate_of(centres, generator)
    assert rate.covered
    np.testing.assert_allclose(rate.step_sizes * np.sqrt(rate.horizons), rate.step_sizes[0] * 2)  # η ∝ T^(−1/2)
    assert rate.step_sizes.max() <= 1
    assert {statement.verdict for statement in rate_statements(rate)} == {"holds"}


def test_stochastic_bound_fails_with_a_wrong_constant(centres, generator):
    rate = rate_of(centres, generator)
    wrong = rate._replace(gap=0.001 * rate.gap, constant=0.01)  # gap and L_A are too small
    assert {statement.verdict for statement in rate_statements(wrong)} == {"violated"}


def test_variance_term_is_needed(centres, generator):
    """At the minimum the bound without L_A η σ² is 0, but the noise moves the path away."""
    start = centres.centres.mean(0)
    paths = [descend(centres, np.eye(M), start, 0.5, 30, batch_size=1, generator=generator) for _ in range(10)]
    squares = np.array([path.squared_gradients[:-1] for path in paths])
    errors = np.array([path.squared_errors[:-1] for path in paths])
    rate = Rate(np.array([30]), np.array([0.5]), [squares], [errors], constant=1.0, gap=0.0, batch_size=1)
    assert 0.1 * rate.variances[0] < squares.mean() <= rate.bounds[0]


def test_step_above_1_over_l_is_not_covered(centres, generator):
    rate = rate_of(centres, generator, constant=0.25)  # the true constant is 1, so that η is up to 4 times too large
    assert rate.constant == pytest.approx(1, rel=1e-2) and not rate.covered
    statements = rate_statements(rate)
    assert {statement.verdict for statement in statements} == {"not applicable"}
    assert "L_A = 1" in statements[0].detail
