"""The known findings of the audit of the published tables."""

import pytest

from slimprompt.analysis.arms import joint
from slimprompt.analysis.results import Estimate, Results
from slimprompt.paper.audit import AUDIT, audit, base2new_averages, fixed_basis_averages, published_evidence
from slimprompt.paper.claims import Evidence, check_claims


@pytest.fixture(scope="module")
def findings():
    return audit()


@pytest.fixture(scope="module")
def claims():
    return check_claims(published_evidence())


def test_every_check_runs(findings):
    assert {finding.name for finding in findings} == {check.name for check in AUDIT}
    assert all(finding.verdict != "not enough runs" for finding in findings)


def test_inconsistencies_between_tables(findings):
    wrong = {(finding.name, finding.scope): finding for finding in findings if finding.verdict == "does not hold"}
    assert set(wrong) == {
        ("same_average_in_two_tables", ""),
        ("transfer_pairs_shown", ""),
        ("transfer_dense_reference", ""),
        ("product_subspace_rank", ""),
        ("rank_one_bases_coincide", "RN50"),
        ("bold_marks", ""),
    }
    assert wrong["same_average_in_two_tables", ""].note == "ViT-B/16, 1-shot: 70.07 in headline, 70.06 in fixedB"
    assert wrong["transfer_pairs_shown", ""].value == "12 of 16 pairs"
    assert wrong["transfer_dense_reference", ""].cells == (
        "Food101: printed 85.10, 16 tokens 84.34",
        "Oxford Pets: printed 92.33, 16 tokens 91.90",
    )
    assert wrong["bold_marks", ""].cells == ("b_ablation_rank4_vitb16, Food101, 1, Gaussian B: 81.94 is not marked",)


def test_consistent_averages_and_differences(findings):
    value = {finding.name: finding.value for finding in findings}
    assert value["repeated_cells"] == "464 of 464 repeated cells are the same"
    assert value["base2new_averages"] == "36 of 36 as printed"
    assert value["fixed_basis_averages"] == "120 of 120 as printed"
    assert value["headline_averages"] == "10 of 12 as printed, 2 within rounding"
    assert value["best_factorized"] == "39 of 42 as printed, 3 within rounding"
    assert value["best_transfer"] == "58 of 64 as printed, 6 within rounding"
    assert value["harmonic_concavity"] == "210 of 210 cells"


def test_claims_of_the_text_that_the_tables_contradict(claims):
    wrong = {(finding.name, finding.scope) for finding in claims if finding.verdict == "does not hold"}
    assert wrong == {
        ("harmonic_ahead_despite_dense_seen", "RN50"),
        ("rank_saturation", "RN50"),
        ("rank_saturation", "ViT-B/16"),
        ("fixed_basis_equivalent", ""),
        ("ten_point_gap_on_every_target", "the 12 pairs of the main table"),
        ("ten_point_gap_on_every_target", "all 16 pairs"),
        ("source_b_like_random_b", "all 16 pairs"),
        ("source_b_like_random_b_on_average", "all 16 pairs"),
        ("transfer_near_dense", "all 16 pairs"),
    }
    undecided = {(finding.name, finding.scope) for finding in claims if finding.verdict == "not enough runs"}
    assert undecided == {
        ("matched_dense_indistinguishable", "RN50"),
        ("within_seed_variance", "RN50"),
        ("within_seed_variance", "ViT-B/16"),
        ("b_hardly_moves", ""),
    }


def test_counts_in_the_text_match_the_tables(claims):
    value = {(finding.name, finding.scope): (finding.value, finding.paper) for finding in claims}
    for name, scope in (
        ("harmonic_wins", "RN50"),
        ("harmonic_wins", "ViT-B/16"),
        ("seen_wins", "RN50"),
        ("seen_wins", "ViT-B/16"),
    ):
        here, paper = value[name, scope]
        assert here == paper
    assert value["harmonic_wins", "RN50"][0] == "17 of 21"
    assert value["fixed_basis_best_count", ""] == ("18 of 24", "18 of 24")
    assert value["harmonic_gain", "ViT-B/16"][0] == "+3.58 / +4.25 / +1.74 at 1/4/16 shots"


@pytest.mark.parametrize(("check", "metric"), [(base2new_averages, "harmonic"), (fixed_basis_averages, "accuracy")])
def test_a_changed_cell_is_detected(check, metric):
    evidence = published_evidence()
    cells = dict(evidence.results.cells)
    key = next(key for key in cells if key.arm == joint(4) and key.metric == metric)
    cells[key] = Estimate(cells[key].mean + 1.0, None, 3)
    (found,) = check(Evidence(Results(cells, published=True), geometry=evidence.geometry))
    assert found.verdict == "does not hold"
    assert "1 different" in found.value
