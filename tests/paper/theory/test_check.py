import numpy as np
import pytest

from slimprompt.errors import InputError
from slimprompt.paper.theory import check_loss, check_theory
from tests.paper.theory.theory_objectives import Centres

SMALL = {"m": 4, "d": 10, "rank": 2, "trials": 200, "seed": 1}


@pytest.fixture
def objective():
    return Centres(np.random.default_rng(0).standard_normal((12, 4, 9)))


def test_statements_on_the_loss_need_an_encoder():
    theory = check_theory(**SMALL)
    open_ = [one for one in theory.statements if one.verdict == "not applicable"]
    assert [one.part for one in open_] == [
        "Local quadratic model",
        "Convergence with B fixed",
        "Convergence with A fixed",
    ]
    violated = {one.name for one in theory.statements if one.verdict == "violated"}
    # r = m/2, where the shares kept and removed agree on the token side
    assert violated == {"Corollary to the letter, random A fixed"}


def test_all_parts_with_an_objective(objective):
    theory = check_theory(**SMALL, objective=objective, steps=10)
    assert theory.setting == "Surrogate: m = 4, d = 10, r = 2. Loss: toy <loss>."
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
    statements = check_loss(objective, rank=2, seed=1, steps=10).statements
    fixed_b, fixed_a = ([one for one in statements if one.part == f"Convergence with {x} fixed"] for x in "BA")
    mirrored = {"A": "B", "B": "A"}
    swapped = ["".join(mirrored.get(letter, letter) for letter in one.name) for one in fixed_b]
    assert [one.name for one in fixed_a] == swapped
    assert {one.verdict for one in fixed_a} == {"holds"}
    # F has curvature 1, so L_B is ‖A‖₂² and does not change along the path
    norm = next(one for one in fixed_a if one.name == "L_B by the norm of A")
    assert norm.measured == pytest.approx(norm.predicted, rel=2e-2)


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
    ],
)
def test_unsupported_sizes_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        check_theory(**SMALL | given)
