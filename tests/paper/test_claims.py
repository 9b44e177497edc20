"""Each claim on a case that can be solved by hand, on synthetic runs, and on too few runs."""

from itertools import product

import pandas as pd
import pytest

from slimprompt.analysis.arms import dense, fixed_basis, joint, transfer
from slimprompt.analysis.results import CellKey, Estimate, Results
from slimprompt.errors import InputError
from slimprompt.lab.records import load_records
from slimprompt.paper.claims import CLAIMS, Evidence, ParameterCount, check_claims, gather
from tests.synthetic_runs import write_run, write_study

NAMES = [claim.name for claim in CLAIMS]
BASE = {"backbone": "pocket", "dataset": "dtd", "shots": 1, "seed": 1, "n_ctx": 8}


def cells(entries):
    """(dataset, arm, shots, metric, value[, source]) of one backbone → Results with three similar seeds."""
    found = {}
    for dataset, arm, shots, metric, value, *source in entries:
        by_seed = {1: value - 0.1, 2: value, 3: value + 0.1}
        key = CellKey("pocket", dataset, *arm, shots, metric, source[0] if source else "")
        found[key] = Estimate(value, 0.1, 3, (), by_seed)
    return Results(found)


def outcome(name, evidence):
    found = check_claims(evidence, [name])
    assert len(found) == 1, found
    return found[0]


def base_to_new(gains):
    """{(dataset, shots): (seen gain, unseen gain, H gain)} relative to a dense prompt at 50, 40 and 44."""
    entries = []
    for (dataset, shots), gain in gains.items():
        for metric, level, more in zip(("seen", "unseen", "harmonic"), (50.0, 40.0, 44.0), gain, strict=True):
            entries += [(dataset, dense(16), shots, metric, level), (dataset, joint(4), shots, metric, level + more)]
    return Evidence(cells(entries))


def few_shot(averages):
    """{(arm, shots): accuracy} as the average over two datasets that are 2 points apart."""
    entries = [
        (dataset, arm, shots, "accuracy", value + offset)
        for (arm, shots), value in averages.items()
        for dataset, offset in (("one", -1.0), ("two", 1.0))
    ]
    return Evidence(cells(entries))


MIXED = {("a", 1): (1, 3, 2), ("b", 1): (1, 3, 2), ("a", 16): (-1, 2, 1), ("b", 16): (0, 1, -1)}


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("harmonic_wins", "3 of 4", "holds"),
        ("harmonic_gain", "+2.00 / +0.00 at 1/16 shots", "does not hold"),
        ("harmonic_gain_low_shot", "+2.00 / +0.00 at 1/16 shots", "holds"),
        ("gain_on_unseen", "unseen +2.25, seen +0.25", "holds"),
        ("seen_wins", "3 of 4", "holds"),
        ("dense_seen_edge_at_more_shots", "1 of 1 above 1 shot", "holds"),
        ("harmonic_ahead_despite_dense_seen", "1 of 1", "holds"),
    ],
)
def test_base_to_new_by_hand(name, value, verdict):
    found = outcome(name, base_to_new(MIXED))
    assert (found.value, found.verdict, found.scope) == (value, verdict, "pocket")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("harmonic_wins", "0 of 4"),
        ("harmonic_gain_low_shot", "-3.00 / -1.00 at 1/16 shots"),
        ("gain_on_unseen", "unseen -3.00, seen -1.00"),
        ("seen_wins", "0 of 4"),
        ("dense_seen_edge_at_more_shots", "2 of 4 above 1 shot"),
        ("harmonic_ahead_despite_dense_seen", "0 of 2"),
    ],
)
def test_base_to_new_can_fail(name, value):
    lost = {("a", 1): (-1, -3, -3), ("b", 1): (-1, -3, -3), ("a", 16): (-1, -3, -1), ("b", 16): (-1, -3, -1)}
    found = outcome(name, base_to_new(lost))
    assert (found.value, found.verdict) == (value, "does not hold")


FEW_SHOT = {
    (dense(16), 1): 60.0,
    (dense(4), 1): 60.5,
    (joint(2), 1): 61.8,
    (joint(4), 1): 62.0,
    (joint(8), 1): 62.1,
    (dense(16), 16): 80.0,
    (dense(4), 16): 79.7,
    (joint(2), 16): 79.5,
    (joint(4), 16): 79.6,
    (joint(8), 16): 80.9,
}


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("one_shot_gain_over_matched_dense", "+1.50 at 1 shot", "holds"),
        ("one_shot_gain_over_full_dense", "+2.00 at 1 shot", "holds"),
        ("full_dense_within_half_point", "-0.40 at 16 shots", "holds"),
        ("within_seed_variance", "1 of 2 differences within √(sd² + sd²); largest 0.40", "does not hold"),
        ("rank_saturation", "r=2→8: +0.30 / +1.40 at 1/16 shots", "does not hold"),
    ],
)
def test_few_shot_by_hand(name, value, verdict):
    found = outcome(name, few_shot(FEW_SHOT))
    assert (found.value, found.verdict) == (value, verdict)


def test_few_shot_can_fail():
    worse = few_shot(FEW_SHOT | {(joint(4), 1): 59.0, (joint(4), 16): 81.0})
    for name in ("one_shot_gain_over_matched_dense", "one_shot_gain_over_full_dense", "full_dense_within_half_point"):
        assert outcome(name, worse).verdict == "does not hold"
    flat = few_shot(dict.fromkeys(FEW_SHOT, 70.0))
    assert outcome("rank_saturation", flat).verdict == "holds"


def test_indistinguishable_is_decided_by_a_paired_test():
    def runs(gaps):
        entries = []
        for dataset, gap in zip("abcdef", gaps, strict=True):
            for shots in (1, 16):
                entries += [
                    (dataset, dense(4), shots, "accuracy", 70.0),
                    (dataset, joint(4), shots, "accuracy", 70.0 + gap),
                ]
        return Evidence(cells(entries))

    assert outcome("matched_dense_indistinguishable", runs([0.3, -0.2, 0.1, -0.3, 0.2, -0.1])).verdict == "holds"
    clear = outcome("matched_dense_indistinguishable", runs([2.0, 2.1, 1.9, 2.2, 1.8, 2.0]))
    assert clear.verdict == "does not hold"
    assert (clear.n, clear.unit) == (6, "dataset")
    narrow, wide = ([0.3, -0.2, 0.1, -0.3, 0.2, -0.1], [9.0, -9.0, 3.0, -3.0, 6.0, -6.0])
    assert "not confirmed" not in outcome("matched_dense_indistinguishable", runs(narrow)).note
    remark = outcome("matched_dense_indistinguishable", runs(wide)).note
    assert remark == "not refuted, but not confirmed: the 95 % interval [-7.45, +7.45] is wider than ±0.5"


@pytest.mark.parametrize(
    ("gains", "note"),
    [
        ((1.5, 1.4, 1.6), ""),
        ((9.0, -9.0, 0.3), "not clear: the 95 % interval over datasets [-22.26, +22.46] contains 0"),
        ((1.5,), "one matched cell: nothing can be tested"),
        ((-9.0, 2.0, 2.0), ""),  # does not hold
    ],
)
def test_a_gain_that_may_be_chance_is_said(gains, note):
    entries = [
        (name, arm, 1, "accuracy", 60.0 + (arm == joint(4)) * gain)
        for name, gain in zip("abc", gains, strict=False)
        for arm in (dense(4), joint(4))
    ]
    found = outcome("one_shot_gain_over_matched_dense", Evidence(cells(entries)))
    assert (found.note, found.unit) == (note, "seed")
    assert found.verdict == ("holds" if sum(gains) > 0 else "does not hold")


def test_no_advantage_by_a_wide_interval_is_not_confirmed():
    found = transfers({("x", "y"): (79.0, 70.0, 60.0, 60.0), ("y", "x"): (61.0, 70.0, 60.0, 60.0)})
    result = outcome("source_b_no_advantage", found)
    assert result.verdict == "holds" and "not refuted, but not confirmed" in result.note


def bases(gaussian, orthogonal, svd, learned, *, trainable=(70.0, 70.0, 70.0)):
    """Averages over two datasets in three settings with trainable and fixed bases of rank 4."""
    arms = {"trainable": trainable, "gaussian": gaussian, "orthogonal": orthogonal, "svd": svd, "learned": learned}
    return few_shot(
        {(fixed_basis(b, 4), k): v for b, values in arms.items() for k, v in zip((1, 4, 16), values, strict=True)}
    )


def test_fixed_basis_by_hand():
    evidence = bases((70.3, 70.3, 69.9), (70.1, 70.3, 69.8), (69.9, 69.9, 69.7), (68.4, 69.5, 69.4))
    found = {name: outcome(name, evidence) for name in NAMES if name.startswith(("fixed", "gaussian", "learned"))}
    assert found["fixed_basis_close"].value == "10 of 12 within 0.5; median |gap| 0.30"
    assert found["fixed_basis_close"].verdict == "holds"
    assert found["fixed_basis_worst_gap"].value.startswith("1.60 (-1.60: pocket, r=4, 1-shot, learned)")
    assert found["fixed_basis_worst_gap"].verdict == "does not hold"
    assert found["fixed_basis_best_count"].value == "2 of 3"
    assert found["fixed_basis_best_count"].verdict == "does not hold"  # fewer than 18 of 24
    assert "2.4 of 3" in found["fixed_basis_best_count"].note
    assert found["gaussian_often_best"].value == "gaussian 2, orthogonal 1, trainable 1"  # the tie counts twice
    assert found["gaussian_often_best"].verdict == "holds"
    assert found["learned_weakest"].verdict == "holds"
    assert found["fixed_basis_equivalent"].verdict == "does not hold"


def test_fixed_basis_with_opposite_verdicts():
    evidence = bases((69.0, 69.0, 69.0), (69.5, 69.4, 69.3), (70.1, 70.1, 69.9), (70.05, 70.05, 70.05))
    assert outcome("learned_weakest", evidence).verdict == "does not hold"
    assert outcome("gaussian_often_best", evidence).verdict == "does not hold"
    assert outcome("fixed_basis_best_count", evidence).verdict == "holds"
    assert outcome("fixed_basis_worst_gap", evidence).verdict == "holds"


def test_small_gaps_of_fixed_bases_are_equivalent():
    evidence = bases((70.01, 70.0, 70.02), (70.0, 70.01, 69.99), (70.02, 70.0, 70.0), (69.99, 70.0, 70.01))
    found = outcome("fixed_basis_equivalent", evidence)
    assert (found.value, found.verdict) == ("equivalent within ±0.5 in 4 of 4 tests (5 %, Holm)", "holds")


def test_a_basis_that_was_run_at_some_shots_only_leaves_the_other_settings():
    everywhere = {joint(4): 69.0, fixed_basis("svd", 4): 70.0, fixed_basis("gaussian", 4): 70.0}
    averages = {(arm, k): value for arm, value in everywhere.items() for k in (1, 4)}
    found = outcome("fixed_basis_worst_gap", few_shot(averages | {(fixed_basis("learned", 4), 4): 68.5}))
    assert found.n == 2 + 3


def transfers(rows, **evidence):
    """{(target, source): (source-B, random-B, source-A, random-A)} with dense 80 and joint 81 on every target."""
    entries = []
    for (target, source), values in rows.items():
        for mode, value in zip(("source-B", "random-B", "source-A", "random-A"), values, strict=True):
            entries.append((target, transfer(mode, 4), 16, "accuracy", value, source if "source" in mode else ""))
        entries += [(target, dense(16), 16, "accuracy", 80.0), (target, joint(4), 16, "accuracy", 81.0)]
    return Evidence(cells(entries), **evidence)


GOOD = {
    ("x", "y"): (81.1, 81.0, 65.0, 66.0),
    ("x", "z"): (81.0, 81.0, 64.0, 66.0),
    ("y", "x"): (80.9, 81.0, 70.0, 70.0),
}


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("train_a_beats_train_b", "81.00 against 66.83 (gap 14.17)", "holds"),
        ("train_a_ahead_on_every_target", "2 of 2 targets", "holds"),
        ("ten_point_gap_on_every_target", "2 of 2 targets", "holds"),
        ("food_within_a_point", "—", "not enough runs"),
        ("source_b_like_random_b", "0.10 (x from y)", "holds"),
        ("source_b_like_random_b_on_average", "+0.000", "holds"),
        ("source_b_no_advantage", "source ahead in 1 of 3 pairs", "holds"),
        ("same_from_any_source", "widest range 0.10 (x: 81.00 to 81.10)", "holds"),
        ("training_b_adds_nothing", "joint 81.00, frozen B 81.00 (+0.00)", "holds"),
        ("transfer_near_dense", "frozen B +1.00, joint +1.00 against dense 80.00", "does not hold"),
        ("matches_dense_on", "x, y", "holds"),
    ],
)
def test_transfer_by_hand(name, value, verdict):
    found = outcome(name, transfers(GOOD))
    assert (found.value, found.verdict) == (value, verdict)


def test_transfers_of_several_settings_are_compared_within_each():
    rows = GOOD | {("Food101", "y"): (81.0, 81.0, 80.5, 80.5)}
    few, more = transfers(rows), transfers({pair: [value + 9 for value in values] for pair, values in rows.items()})
    at_32_shots = {key._replace(shots=32): one for key, one in more.results.cells.items()}
    both = Evidence(Results(few.results.cells | at_32_shots))
    found = outcome("same_from_any_source", both)
    assert (found.value, found.n) == ("widest range 0.10 (x, pocket, r=4, 16-shot: 81.00 to 81.10)", 2)
    assert outcome("food_within_a_point", both).value == "spread 0.50"
    assert outcome("matches_dense_on", both).value == "Food101, x, y"
    at_32_shots[CellKey("pocket", "Food101", *dense(16), 32)] = Estimate(95.0, 0.1, 3, (), {1: 94.9, 2: 95.0, 3: 95.1})
    assert outcome("matches_dense_on", Evidence(Results(few.results.cells | at_32_shots))).value == "x, y"


def seeds_of(gains):
    """{arm: (gain, seeds)} → the cells of three datasets, in which the seeds 1, 2 and 3 give 60, 70 and 80 plus the gain."""
    found = {}
    for arm, (gain, seeds) in gains.items():
        by_seed = {seed: 50.0 + 10 * seed + gain for seed in seeds}
        for dataset, metric in product(("x", "y", "z"), ("accuracy", "harmonic")):
            key = CellKey("pocket", dataset, *arm, 4, metric, "other" if arm.basis.startswith("source") else "")
            found[key] = Estimate(sum(by_seed.values()) / len(by_seed), None, len(by_seed), (), by_seed)
    return Evidence(Results(found))


def test_only_common_seeds_are_compared():
    partial = seeds_of({dense(16): (0.0, (1,)), joint(4): (-1.0, (1, 3))})
    for name in ("harmonic_gain", "one_shot_gain_over_full_dense"):
        assert outcome(name, partial).value == "-1.00 at 4 shots"
    bases = {fixed_basis(basis, 4): (0.0, (2, 3)) for basis in ("gaussian", "orthogonal", "svd")}
    found = outcome("fixed_basis_worst_gap", seeds_of(bases | {joint(4): (-1.0, (1, 3))}))
    assert found.value.startswith("1.00 (+1.00")
    assert (
        outcome("harmonic_gain", seeds_of({dense(16): (0.0, (1,)), joint(4): (1.0, (3,))})).verdict == "not enough runs"
    )


def test_transfers_are_compared_on_common_seeds():
    modes = {transfer(mode, 4): (0.0, (2, 3)) for mode in ("random-B", "source-A", "random-A")}
    modes[transfer("source-B", 4)] = (0.5, (1, 2, 3))
    found = seeds_of(modes | {joint(4): (0.0, (1, 2, 3)), dense(16): (0.0, (1, 2))})
    assert outcome("source_b_like_random_b", found).value == "0.50 (x from other)"
    assert outcome("training_b_adds_nothing", found).value == "joint 75.00, frozen B 75.50 (-0.50)"
    assert outcome("transfer_near_dense", found).verdict == "not enough runs"


def test_transfer_can_fail():
    bad = transfers(
        {
            ("x", "y"): (70.0, 69.0, 75.0, 75.0),
            ("x", "z"): (72.0, 69.0, 75.0, 75.0),
            ("y", "x"): (71.2, 69.1, 60.0, 75.0),
            ("z", "x"): (71.1, 69.0, 60.0, 75.0),
        }
    )
    failing = [name for name in NAMES if check_claims(bad, [name])[0].verdict == "does not hold"]
    assert {
        "train_a_beats_train_b",
        "train_a_ahead_on_every_target",
        "ten_point_gap_on_every_target",
        "source_b_like_random_b",
        "source_b_like_random_b_on_average",
        "source_b_no_advantage",
        "same_from_any_source",
        "training_b_adds_nothing",
        "matches_dense_on",
    } <= set(failing)


def test_pairs_of_the_main_table_are_a_separate_scope():
    found = check_claims(transfers(GOOD, main_pairs=(("x", "y"), ("x", "z"))), ["source_b_like_random_b"])
    assert [one.scope for one in found] == ["the 2 pairs of the main table", "all 3 pairs"]


def medians(overlaps):
    """Table of medians from {(axis, factor): overlap}."""
    rows = [(axis, factor, value, 90 - 90 * value) for (axis, factor), value in overlaps.items()]
    return pd.DataFrame(rows, columns=["axis", "factor", "overlap", "angle"])


def geometry_evidence(b, a, seed_b):
    axes = ("seed", "dataset", "shots", "rank")
    overlaps = {(axis, "B"): seed_b if axis == "seed" else b for axis in axes}
    overlaps |= {(axis, factor): a for axis in axes for factor in ("A", "BA")}
    return Evidence(Results({}), geometry=medians(overlaps).assign(chance_overlap=0.3))


def test_geometry_claims_by_hand():
    like, unlike = geometry_evidence(0.9, 0.2, 0.4), geometry_evidence(0.3, 0.6, 0.5)
    for name in ("b_overlap_across_tasks", "a_overlap_across_tasks", "b_most_stable", "b_least_alike_across_seeds"):
        assert outcome(name, like).verdict == "holds"
        assert outcome(name, unlike).verdict == "does not hold"
    assert outcome("b_least_alike_across_seeds", like).value == "0.40 against 0.90 to 0.90"


def test_displacement_decides_whether_b_moves():
    def evidence(overlap):
        rows = [("joint", factor, overlap, 10.0, 0.1) for factor in ("A", "B", "BA")]
        return Evidence(
            Results({}),
            displacement=pd.DataFrame(rows, columns=["variant", "factor", "overlap", "angle", "relative_norm"]),
        )

    assert outcome("b_hardly_moves", evidence(0.95)).verdict == "holds"
    assert outcome("b_hardly_moves", evidence(0.5)).verdict == "does not hold"


def test_parameter_claims_by_hand():
    counts = (
        ParameterCount("dense", 4, 512, 0, 2048),
        ParameterCount("dense", 16, 512, 0, 8192),
        ParameterCount("joint", 16, 512, 4, 2112),
        ParameterCount("fixed-B", 16, 512, 4, 2048),
        ParameterCount("fixed-A", 16, 512, 4, 64),
    )
    right = Evidence(Results({}), parameters=counts)
    assert outcome("parameter_counts", right).verdict == "holds"
    assert outcome("parameter_share", right).value == "0.258 (3.88 times)"
    assert outcome("dimension_gap", right).value == "32"
    assert outcome("matched_parameters", right).value == "2048 against 2112"
    assert outcome("matched_parameters", right).verdict == "holds"
    wide = Evidence(
        Results({}), parameters=(ParameterCount("dense", 4, 32, 0, 128), ParameterCount("joint", 16, 32, 4, 192))
    )
    assert outcome("matched_parameters", wide).verdict == "does not hold"
    wrong = Evidence(Results({}), parameters=(*counts[:4], ParameterCount("fixed-A", 16, 512, 4, 2048)))
    assert outcome("parameter_counts", wrong).verdict == "does not hold"
    assert outcome("dimension_gap", wrong).verdict == "does not hold"


def test_small_study_decides_all_claims_it_has_runs_for(tmp_path):
    findings = check_claims(gather(load_records(write_study(tmp_path, backbones=("pocket",)))))
    assert {finding.name for finding in findings} == set(NAMES)
    verdicts = {finding.name: finding.verdict for finding in findings}
    undecided = {name for name, verdict in verdicts.items() if verdict == "not enough runs"}
    # Dense is never better on seen classes in these runs.
    assert undecided == {"dense_seen_edge_at_more_shots", "harmonic_ahead_despite_dense_seen"}
    assert verdicts["harmonic_wins"] == verdicts["b_hardly_moves"] == verdicts["train_a_beats_train_b"] == "holds"
    assert verdicts["gaussian_often_best"] == verdicts["learned_weakest"] == "holds"
    assert verdicts["parameter_counts"] == "holds"
    for finding in findings:
        assert finding.as_dict()["name"] == finding.name
        assert finding.bound and finding.sentence and finding.where and finding.unit


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [{"variant": "dense"}],
        [{"variant": "joint", "rank": 2}],
        [{"variant": "fixed-B", "basis": "source", "source": "food101", "rank": 4}],
        [{"variant": "dense", "class_subset": "base"}, {"variant": "joint", "rank": 4, "class_subset": "base"}],
    ],
)
def test_too_few_runs_are_reported_without_an_error(tmp_path, fields):
    for one in fields:
        write_run(tmp_path, BASE | one)
    findings = check_claims(gather(load_records(tmp_path)))
    assert {finding.name for finding in findings} == set(NAMES)
    decided = {finding.name for finding in findings if finding.verdict != "not enough runs"}
    assert decided <= {"parameter_counts", "parameter_share", "b_hardly_moves"}


def test_unknown_claim_is_an_error():
    with pytest.raises(InputError, match="did you mean 'harmonic_wins'"):
        check_claims(Evidence(Results({})), ["harmonic_win"])
