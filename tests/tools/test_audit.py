"""The page of the audit is current, and the known findings on the published numbers."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from slimprompt.analysis.claims import check, geometry_table
from slimprompt.paper.claims import CLAIMS
from slimprompt.paper.published import published, published_geometry, published_observations


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "audit.py"
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(tool):
    return {f"{table}: {statement}": run() for table, statement, run in tool.CHECKS}


@pytest.fixture(scope="module")
def claims():
    found = check(CLAIMS, published_observations(), geometry_table(published_geometry()))
    return {(one.name, one.scope): one for one in found}


def test_the_page_is_current(tool):
    generated = tool.PAGE.read_text(encoding="utf-8").partition(tool.MARK)[2]
    assert generated.strip() == tool.generated().strip(), "run `python tools/audit.py`"


def test_inconsistencies_between_tables(results):
    wrong = {name.split(": ", 1)[1]: result for name, result in results.items() if not result.agrees}
    assert {name: result.value for name, result in wrong.items()} == {
        "The rank-4 average is the same number in both tables.": "5 of 6 the same",
        "The main table lists every source–target pair.": "12 of 16 pairs",
        "The dense reference is the dense prompt of 16 tokens.": "4 of 6 targets",
        "The overlap of BA across seeds is that of subspaces of rank at most 8.": (
            "printed 0.15; chance 0.11 at rank 8, 0.15 at rank 16"
        ),
        "At rank 1 the Gaussian and the orthogonal basis are the same (RN50).": "1 of 21 cells",
        "The best numbers are bold: all tied ones, but none if the whole group is tied.": (
            "2103 of 2104 marked as they should be"
        ),
    }
    details = [line for result in wrong.values() for line in result.details]
    assert "ViT-B/16, 1-shot: 70.07 in headline, 70.06 in fixedB" in details
    assert "Food101: printed 85.10, 16 tokens 84.34" in details
    assert "Oxford Pets: printed 92.33, 16 tokens 91.90" in details
    assert "b_ablation, ViT-B/16, Food101, 1-shot, fixed-B gaussian r4: 81.94 is not bold" in details


def test_consistent_averages_and_differences(results):
    values = [result.value for result in results.values() if result.agrees]
    assert values == [
        "464 of 464 repeated cells are the same",
        "36 of 36 as printed",
        "120 of 120 as printed",
        "10 of 12 as printed, 2 within rounding",
        "6 of 6 as printed",
        "6 of 6 as printed",
        "39 of 42 as printed, 3 within rounding",
        "12 of 21 as printed, 9 within rounding",
        "58 of 64 as printed, 6 within rounding",
        "210 of 210 cells",
        "12 of 12 medians",
        "21 of 21 cells",
    ]


def test_counts_in_the_text_match_the_tables(tool):
    texts = list(tool.text_numbers())
    exact = [(text, tables) for name, text, tables in texts if not name.endswith("pairs") and text[0] in "0123456789+"]
    assert len(exact) == 14
    for text, tables in exact:
        assert tables == text or text == "96.0 to 96.2"
    numbers = {name: tables for name, _, tables in texts}
    assert numbers["Oxford Flowers from any source"] == "96.03 to 96.15"
    assert numbers["training A and training B, 12 pairs"] == "88.97, 78.29"
    assert numbers["average difference of source and random B, 16 pairs"] == "+0.117"
    assert numbers["joint and frozen B, 12 pairs"] == "89.01, 89.01"


def test_claims_that_the_tables_contradict_or_cannot_decide(claims):
    def having(verdict):
        return {key for key, finding in claims.items() if finding.verdict == verdict}

    main, everything = "ViT-B/16, pairs of the main table (12)", "ViT-B/16, all pairs (16)"
    assert having("violated") == {
        ("harmonic_ahead_despite_dense_seen", "RN50"),
        ("ten_point_gap_on_every_target", main),
        ("ten_point_gap_on_every_target", everything),
        ("source_b_like_random_b", everything),
    }
    assert having("not applicable") == {
        *((name, "RN50") for name in ("one_shot_gain_over_matched_dense", "one_shot_gain_over_full_dense")),
        *((name, "RN50") for name in ("matched_dense_indistinguishable", "full_dense_within_half_point")),
        *(("within_seed_variance", backbone) for backbone in ("RN50", "ViT-B/16")),
        ("b_hardly_moves", ""),
    }
    assert having("undecided") == {
        ("harmonic_gain_low_shot", "RN50"),
        ("seen_wins", "ViT-B/16"),
        ("dense_seen_edge_at_more_shots", "RN50"),
        ("matched_dense_indistinguishable", "ViT-B/16"),
        ("full_dense_within_half_point", "ViT-B/16"),
        *(("rank_saturation", backbone) for backbone in ("RN50", "ViT-B/16")),
        ("learned_weakest", ""),
        *(("fixed_basis_equivalent", backbone) for backbone in ("RN50", "ViT-B/16")),
        *(
            (name, main)
            for name in ("train_a_beats_train_b", "source_b_like_random_b_on_average", "transfer_near_dense")
        ),
        *((name, everything) for name in ("train_a_beats_train_b", "source_b_like_random_b_on_average")),
        ("transfer_near_dense", everything),
    }
    assert claims["harmonic_gain", "ViT-B/16"].value == "1-shot +3.58, 4-shot +4.25, 16-shot +1.74"


@pytest.mark.parametrize(("table", "metric"), [("base2new", "harmonic"), ("fixedB", "accuracy")])
def test_a_changed_cell_is_detected(tool, monkeypatch, table, metric):
    changed = published().copy()
    level = changed.index.get_level_values
    place = (level("label") == "joint r4") & (level("metric") == metric) & (level("dataset") == "DTD")
    changed.iloc[place.nonzero()[0][0], 0] += 1.0
    monkeypatch.setattr(tool, "published", lambda: changed)
    found = tool.averages(table)
    assert not found.agrees and "1 different" in found.value
