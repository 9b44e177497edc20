import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.paper.theory import check_theory
from tests.paper.theory.theory_objectives import Centres

SMALL = {"m": 4, "d": 10, "rank": 2, "trials": 200, "seed": 1}


@pytest.fixture
def objective():
    return Centres(np.random.default_rng(0).standard_normal((12, 4, 9)))


def test_statements_on_the_loss_need_an_encoder():
    theory = check_theory(**SMALL)
    assert theory.loss is None
    open_ = [one for one in theory.statements if one.verdict == "not testable"]
    assert [one.part for one in open_] == [
        "Local quadratic model",
        "Convergence with B fixed",
        "Convergence with A fixed",
    ]
    violated = {one.name for one in theory.statements if one.verdict == "violated"}
    # r = m/2, where the shares kept and removed agree on the token side
    assert violated == {"Corollary to the letter, random A fixed"}


def test_all_parts_with_an_objective(objective):
    theory = check_theory(**SMALL, objective=objective, title="toy", steps=10)
    assert theory.loss is not None and theory.loss.title == "toy"
    parts = list(dict.fromkeys(one.part for one in theory.statements))
    assert parts == [
        "Projection lemmas",
        "Expected asymmetry",
        "Bases in use",
        "Update spaces",
        "Local quadratic model",
        "Convergence with B fixed",
        "Convergence with A fixed",
    ]
    names = [(one.part, one.name) for one in theory.statements]
    assert len(names) == len(set(names))


def test_both_convergence_parts_have_the_same_statements(objective):
    loss = check_theory(**SMALL, objective=objective, steps=10).loss
    assert loss is not None
    mirrored = {"A": "B", "B": "A"}
    swapped = ["".join(mirrored.get(letter, letter) for letter in one.name) for one in loss.fixed_b.statements]
    assert [one.name for one in loss.fixed_a.statements] == swapped
    assert loss.fixed_a.descent.path.points.shape == (11, 2, 4)  # Bᵀ (r, m) at every step
    assert {one.verdict for one in loss.fixed_a.statements} == {"holds"}
    # F has curvature 1, so L_B is ‖A‖₂² and does not change along the path
    assert loss.fixed_a.descent.directional == pytest.approx(loss.fixed_a.descent.basis_norm**2, rel=2e-2)


def test_numbers_depend_on_the_seed_only(objective):
    first, again, other = (check_theory(**SMALL | {"seed": seed}, objective=objective) for seed in (3, 3, 4))
    assert [one.measured for one in first.statements] == [one.measured for one in again.statements]
    assert [one.measured for one in first.statements] != [one.measured for one in other.statements]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 5}, "r = 5, m = 4, d = 10"),
        ({"m": 10}, "1 ≤ r ≤ m < d"),
        ({"rank": 0}, "r = 0"),
        ({"trials": 1}, "1 trials are too few"),
    ],
)
def test_unsupported_sizes_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        check_theory(**SMALL | given)


def test_objective_with_another_prompt_length_is_refused(objective):
    with pytest.raises(InputError, match="prompts of 4 tokens, but m = 5"):
        check_theory(**SMALL | {"m": 5}, objective=objective)
