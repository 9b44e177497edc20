"""Each statistic and verdict of claims, and the tables that claims read, on cases solved by hand."""

import math

import pandas as pd
import pytest

from slimprompt.analysis.claims import (
    Claim,
    above,
    arm_table,
    at_least,
    at_most,
    below,
    between,
    check,
    every,
    geometry_table,
    mean,
    parameter_table,
    share,
    together,
    within,
)
from slimprompt.analysis.frame import dense, fixed_a, fixed_b, joint
from slimprompt.analysis.statistics import compare
from slimprompt.analysis.verdict import count_verdicts
from tests.observed import counted, observed


def claim(**fields):
    fields = {"of": ("joint", "dense"), "each": ("dataset",), "bound": above(0)} | fields
    return Claim(name="gain", sentence="Low rank is better.", **fields)


def gains(*values, shots=1):
    """Rank 4 minus dense, by dataset."""
    entries = []
    for index, value in enumerate(values):
        place = f"dataset {index}"
        entries += [(place, dense(16), shots, "accuracy", 50.0), (place, joint(4), shots, "accuracy", 50.0 + value)]
    return observed(entries)


# t(0.95; 2 degrees of freedom) = 2.920, so 1 ± 2.920 · 0.1 / √3, and 1 ± 2.920 · 1 / √3
@pytest.mark.parametrize(
    ("statistic", "bound", "values", "number", "verdict"),
    [
        (mean, above(0), (0.9, 1.0, 1.1), (1.0, 0.83, 1.17, 3), "holds"),
        (mean, above(0), (0.0, 1.0, 2.0), (1.0, -0.69, 2.69, 3), "undecided"),
        (mean, below(0), (0.9, 1.0, 1.1), (1.0, 0.83, 1.17, 3), "violated"),
        (mean, within(0.5), (-0.1, 0.0, 0.1), (0.0, -0.17, 0.17, 3), "holds"),
        (mean, within(0.5), (0.5, 0.6, 0.7), (0.6, 0.43, 0.77, 3), "undecided"),
        (mean, within(0.5), (0.9, 1.0, 1.1), (1.0, 0.83, 1.17, 3), "violated"),
        (mean, at_most(0.5), (-9.0, -9.1, -8.9), (-9.0, -9.17, -8.83, 3), "holds"),
        (mean, between(0, 2), (0.9, 1.0, 1.1), (1.0, 0.83, 1.17, 3), "holds"),
        (mean, above(0), (1.0,), None, "not applicable"),
        (share, above(0.5), (1.0,) * 5, (1.0, 0.05**0.2, 1.0, 5), "holds"),
        (share, above(0.5), (1.0,) * 4, (1.0, 0.05**0.25, 1.0, 4), "undecided"),
        (share, above(0.5), (-1.0,) * 5, (0.0, 0.0, 1 - 0.05**0.2, 5), "violated"),
        (every, above(0), (1.0, 2.0, 3.0), (1.0, 1.0, 1.0, 1), "holds"),
        (every, above(0), (0.0, 2.0, 3.0), (0.0, 0.0, 0.0, 1), "violated"),
        (every, at_least(0), (0.0, 2.0, 3.0), (0.0, 0.0, 0.0, 1), "holds"),
        (every, at_most(2), (0.0, 2.0, 3.0), (0.0, 0.0, 0.0, 1), "violated"),
    ],
)
def test_statistics_and_verdicts(statistic, bound, values, number, verdict):
    value = "joint > dense" if statistic is share else ""
    (found,) = check([claim(statistic=statistic, bound=bound, value=value)], gains(*values))
    assert found.verdict == verdict
    assert bool(found.numbers) == bool(number)
    if number:
        assert found.numbers[0][1:] == pytest.approx(number, abs=0.005)
        assert found.n == len(values)
    else:
        assert found.note == "needs joint, dense; 2 datasets or more" and found.value == "—"


@pytest.mark.parametrize("values", [(0.2, 0.1, 0.3, 0.4), (0.4, 0.9, -0.6, 0.5), (0.45, 0.5, 0.55, 0.4)])
def test_equality_holds_exactly_if_the_equivalence_test_succeeds(values):
    (found,) = check([claim(bound=within(0.5))], gains(*values))
    assert (found.verdict == "holds") == (compare(values, margin=0.5).p_equivalence < 0.05)


def test_every_names_the_worst_observation():
    (found,) = check([claim(statistic=every, bound=within(2))], gains(1.0, -1.5, 0.5))
    assert (found.value, found.interval, found.n) == ("−1.50 (dataset 1)", "", 3)
    assert found.cells == ("dataset 0: +1.00", "dataset 1: −1.50", "dataset 2: +0.50")


def test_one_of_several_numbers_fails_by_chance():
    """At 5 %, each number is below 0; one of three is, which is expected in one of seven cases without a difference."""
    by_shots = claim(each=("dataset", "shots"), numbers=("shots",))
    low = (0.0, -1.0, -2.0, -2.2)
    single = check([by_shots], gains(*low, shots=1))[0]
    assert single.verdict == "violated" and single.numbers[0].high < 0
    others = [gains(5.0, -5.0, 3.0, -3.0, shots=k) for k in (4, 16)]
    several = check([by_shots], pd.concat([gains(*low, shots=1), *others]))[0]
    assert (several.verdict, [number.at for number in several.numbers]) == (
        "undecided",
        ["1-shot", "4-shot", "16-shot"],
    )
    clear = check([by_shots], pd.concat([gains(-1.0, -1.1, -0.9, -1.0, shots=1), *others]))[0]
    assert clear.verdict == "violated"


def test_where_and_datasets_choose_the_cells():
    data = pd.concat([gains(1.0, 2.0, shots=1), gains(-1.0, -2.0, shots=4)])
    assert check([claim(where="shots == 4", statistic=every)], data)[0].value == "−2.00 (dataset 1), 2 of 2 outside"
    assert check([claim(where="shots == 4 and joint < 49", statistic=every)], data)[0].n == 1
    named = claim(datasets=("dataset 0", "dataset 7"), statistic=every)
    (found,) = check([named], data)
    assert (found.verdict, found.note) == (
        "not applicable",
        "needs joint, dense on dataset 0, dataset 7",
    )
    assert check([claim(datasets=("dataset 0",), statistic=every)], data)[0].n == 1
    enough = claim(statistic=every, least=3)
    assert check([enough], data)[0].verdict == "not applicable"


def test_scopes_groups_and_own_bases():
    data = pd.concat([gains(1.0, 1.1).assign(backbone=name) for name in ("one", "two")])
    assert [found.scope for found in check([claim()], data)] == ["one", "two"]
    assert [found.scope for found in check([claim(scopes=together)], data)] == [""]
    entries = [("a", fixed_b("mine:cosine", 4), 1, "accuracy", 51.0), ("a", joint(4), 1, "accuracy", 50.0)]
    mine = claim(of={"mine": ("mine:cosine", "joint")}, each=("name", "dataset"), statistic=every)
    assert check([mine], observed(entries))[0].cells == ("mine, a: +1.00",)


def test_the_paper_is_named_per_scope():
    data = gains(1.0, 1.1).assign(backbone="RN50")
    text = claim(paper={"RN50": "+1.0", "ViT-B/16": "+2.0"})
    assert check([text], data)[0].paper == "+1.0"
    assert check([text], data[:0])[0].paper == "RN50: +1.0; ViT-B/16: +2.0"


def test_the_table_of_arms():
    entries = [
        ("a", dense(4), 1, "accuracy", 52.0),
        ("a", dense(16), 1, "accuracy", 50.0),
        ("a", joint(4), 1, "accuracy", 60.0),
        ("a", joint(8), 1, "accuracy", 61.0),
        ("a", joint(4), 1, "seen", 70.0),
        ("a", fixed_b("svd", 4), 1, "accuracy", 62.0),
        ("a", fixed_b("source", 4), 1, "accuracy", 63.0, "b"),
        ("a", fixed_b("random", 4), 1, "accuracy", 64.0),
        ("a", fixed_a("random", 4), 1, "accuracy", 40.0),
        ("a", joint(4), 1, "zero_shot_accuracy", 30.0),
    ]
    table = arm_table(observed(entries, seeds={1: 0.0}))
    plain = table.loc["pocket", "a", "", 4, 16, 1, 1].dropna().to_dict()
    shared = {"joint": 60.0, "joint_seen": 70.0, "svd": 62.0, "random_B": 64.0, "random_A": 40.0, "dense": 50.0}
    shared |= {"short_dense": 52.0, "best_dense": 52.0, "r4": 60.0, "r4_seen": 70.0, "r8": 61.0}
    assert plain == shared
    assert table.loc["pocket", "a", "b", 4, 16, 1, 1].dropna().to_dict() == shared | {"source_B": 63.0}
    assert math.isnan(table.loc[("pocket", "a", "", 8, 16, 1, 1), "svd"])
    assert arm_table(observed(entries), "run").loc[("pocket", "a", "", 4, 16, 1, 2), "joint"] == "joint r4 a 2"


def test_the_table_of_parameters():
    table = parameter_table(
        counted((dense(4), 4, 128), (dense(16), 16, 512), (joint(4), 16, 192), (fixed_a("random", 4), 16, 64))
    )
    row = table.loc["pocket", "joint", 4, 16, 32]
    assert row[["count", "formula", "dense", "short_dense", "fixed_A"]].tolist() == [192, 192, 512, 128, 64]
    assert parameter_table(observed([])).empty


def test_the_table_of_geometry():
    medians = pd.DataFrame({"axis": ["seed"], "factor": ["B"], "overlap": [0.4], "angle": [65.0]})
    moved = pd.DataFrame(
        {
            "variant": ["joint", "joint", "fixed-B"],
            "factor": ["B"] * 3,
            "overlap": [0.8, 0.9, 0.0],
            "angle": [9.0, 7.0, 0.0],
        }
    )
    table = geometry_table(medians, moved)
    assert table["B"].to_dict() == {"seed": 0.4, "start": pytest.approx(0.85)}
    assert table["B_angle"].to_dict() == {"seed": 65.0, "start": 8.0}


def test_counts_of_verdicts():
    assert count_verdicts(["holds", "undecided", "holds"]) == "2 hold, 0 violated, 1 undecided, 0 not applicable"
