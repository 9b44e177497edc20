from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slimprompt.analysis.arms import dense, fixed_basis, joint, transfer
from slimprompt.analysis.geometry import Geometry, measure
from slimprompt.analysis.observations import observe
from slimprompt.analysis.results import CellKey, Estimate, Results
from slimprompt.analysis.selection import best_covered, chance_levels, zero_shot
from slimprompt.lab.records import Record, load_records
from slimprompt.paper import figures
from slimprompt.paper.figures.differences import paired_gain
from slimprompt.paper.page import Report
from slimprompt.paper.published import published_results
from slimprompt.paper.summary import summary_table
from tests.svg import texts
from tests.synthetic_runs import DATASETS, accuracy_of, write_run, write_study


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    root = tmp_path_factory.mktemp("study")
    return load_records(write_study(root, backbones=("pocket",), seeds=(1, 2)))


@pytest.fixture(scope="module")
def results(records: list[Record]) -> Results:
    return Results.of(observe(records))


@pytest.fixture(scope="module")
def geometry(records: list[Record]) -> Geometry:
    return measure(records, draws=50)


def test_a_whole_study_gives_every_figure(study_report: Report):
    plotted = study_report.figures
    assert len({figure.name for figure in plotted}) == len(plotted) == 8
    for figure in plotted:
        assert figure.svg and figure.png and figure.caption and not figure.missing, figure.name


def test_a_few_runs_give_some_figures_and_the_others_name_the_missing_runs(tmp_path: Path):
    for seed in (1, 2):
        write_run(tmp_path, {"backbone": "pocket", "dataset": "dtd", "shots": 4, "seed": seed, "variant": "dense"})
    records = load_records(tmp_path)
    results = Results.of(observe(records))
    built = {one.name: one for one in figures.all_figures(records, results, measure(records, draws=10))}
    assert {name for name, one in built.items() if one.svg} == {"accuracy_by_shots", "learning_curves"}
    for name, needed in (
        ("gain_over_dense", "dense and jointly trained"),
        ("accuracy_by_rank", "both factors"),
        ("fixed_against_trained", "fixed B"),
        ("transfer_matrix", "transfer runs"),
        ("factor_overlap", "differ in exactly one"),
        ("displacement", "low-rank runs"),
    ):
        assert needed in built[name].missing and not built[name].svg


def test_no_runs_give_missing_figures():
    empty = Results({})
    for make in (figures.shots_curve, figures.rank_curve, figures.gain_over_dense, figures.fixed_against_trained):
        assert make(empty).missing
    assert figures.learning_curves([]).missing


def test_figures_of_the_published_numbers():
    published = published_results()
    for make in (figures.shots_curve, figures.transfer_matrix):
        assert make(published).svg


def test_chance_and_zero_shot_come_from_the_records(tmp_path: Path):
    spec = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "seed": 1, "variant": "dense"}
    write_run(tmp_path, spec, chance={"accuracy": 5.0})
    write_run(tmp_path, spec | {"class_subset": "base"}, chance={"seen": 10.0, "unseen": 30.0})
    records = load_records(tmp_path)
    levels = chance_levels(records)
    assert levels["DTD", "accuracy"] == 5.0
    assert levels["DTD", "harmonic"] == pytest.approx(15.0)
    results = Results.of(observe(records))
    assert zero_shot(results, "pocket", ["DTD"], 4, "accuracy") == DATASETS["dtd"]
    assert zero_shot(results, "pocket", ["DTD", "Food101"], 4, "accuracy") is None
    shown = texts(figures.shots_curve(results, levels))
    assert "chance 5.0 %" in shown and "zero-shot" in shown


def test_zero_shot_follows_the_held_out_images(tmp_path: Path):
    """In a folder without test images they depend on shots and seed."""
    spec = {"backbone": "pocket", "dataset": "dtd", "variant": "dense"}
    for (shots, seed), level in {(1, 1): 53.0, (1, 2): 54.0, (4, 1): 50.0, (4, 2): 51.0}.items():
        metrics = {"accuracy": 60.0, "zero_shot_accuracy": level}
        write_run(tmp_path, spec | {"shots": shots, "seed": seed}, metrics=metrics)
    write_run(
        tmp_path,
        spec | {"shots": 4, "seed": 1, "variant": "joint", "rank": 4},
        metrics={"accuracy": 60.0, "zero_shot_accuracy": 50.0},
    )
    records = load_records(tmp_path)
    results = Results.of(observe(records))
    assert [zero_shot(results, "pocket", ["DTD"], shots, "accuracy") for shots in (1, 4)] == [53.5, 50.5]
    table = summary_table(results, records)
    column = [one.label for one in table.columns].index("Zero-shot")
    assert [(row.labels[2], row.cells[column].value) for row in table.rows] == [("1", 53.5), ("4", 50.5)]
    assert texts(figures.shots_curve(results)).count("zero-shot") == 1


def test_the_best_arm_of_the_summary_is_decided_on_common_seeds():
    values = {dense(16): {1: 60.0, 2: 80.0}, joint(4): {1: 61.0}}
    cells = {
        CellKey("pocket", "DTD", *arm, 4): Estimate(
            sum(by_seed.values()) / len(by_seed), None, len(by_seed), (), by_seed
        )
        for arm, by_seed in values.items()
    }
    (row,) = summary_table(Results(cells), []).rows
    assert [(one.value, one.bold) for one in row.cells] == [(70.0, False), (61.0, True)]


def test_averages_are_over_the_best_covered_datasets_and_the_caption_names_them(tmp_path: Path):
    for dataset, variants in (("dtd", ("dense", "joint")), ("food101", ("dense", "joint")), ("pocket-toy", ("dense",))):
        for variant in variants:
            fields = {"backbone": "pocket", "dataset": dataset, "shots": 4, "seed": 1, "variant": variant}
            write_run(tmp_path, fields | ({"rank": 4} if variant == "joint" else {}))
    results = Results.of(observe(load_records(tmp_path)))
    cells = [(dense(16), 4), (joint(4), 4)]
    assert best_covered(results, "pocket", cells, "accuracy") == ["DTD", "Food101"]
    caption = figures.shots_curve(results).caption
    assert "averaged over 2 datasets (DTD, Food101)" in caption
    assert "left out because some runs are missing: pocket-toy" in caption


def test_gains_are_paired_by_seed(tmp_path: Path):
    base = {"backbone": "pocket", "dataset": "dtd", "shots": 4}
    for seed, full, low in ((1, 60.0, 61.0), (2, 70.0, 73.0), (3, 10.0, None)):
        write_run(tmp_path, base | {"seed": seed, "variant": "dense"}, metrics={"accuracy": full})
        if low is not None:
            write_run(tmp_path, base | {"seed": seed, "variant": "joint", "rank": 4}, metrics={"accuracy": low})
    results = Results.of(observe(load_records(tmp_path)))
    gain = paired_gain(results, "pocket", "DTD", joint(4), dense(16), 4, "accuracy")
    assert gain == pytest.approx((2.0, np.sqrt(2.0)))  # mean and sd of 1 and 3; seed 3 has no counterpart


def test_the_overlap_figure_shows_chance_and_the_number_of_pairs(geometry: Geometry):
    figure = figures.geometry_violin(geometry)
    shown = texts(figure)
    assert {"A", "B", "BA", "chance"} <= set(shown)
    pairs = geometry.pairs
    for axis in ("seed", "dataset", "shots", "rank"):
        n = int(((pairs["axis"] == axis) & (pairs["factor"] == "B")).sum())
        assert f"({n} pairs)" in shown
    assert "50 independent random subspaces" in figure.caption


def test_the_transfer_matrix_shows_differences_to_training_both_factors(results: Results, records: list[Record]):
    shown = texts(figures.transfer_matrix(results))
    source = next(r.spec for r in records if r.spec.basis == "source" and r.spec.variant == "fixed-A")
    assert accuracy_of(source) < 80
    assert shown.count("−11.0") >= 6  # freezing A costs 10 points, training both gains 1
    assert "random" in shown


def test_fixed_factors_are_compared_on_common_seeds():
    def results(by_seed: dict[int, float]) -> Results:
        frozen = Estimate(sum(by_seed.values()) / len(by_seed), None, len(by_seed), (), by_seed)
        cells = dict.fromkeys((transfer("random-B", 4), fixed_basis("svd", 4)), frozen)
        cells[joint(4)] = Estimate(60.0, None, 1, (), {1: 60.0})
        return Results({CellKey("pocket", "DTD", *arm, 4): cell for arm, cell in cells.items()})

    for figure in (figures.transfer_matrix, figures.fixed_against_trained):
        assert figure(results({1: 61.0, 2: 90.0})).svg == figure(results({1: 61.0})).svg


def test_a_basis_of_your_own_is_compared_with_the_trained_one():
    values = {joint(4): 60.0, fixed_basis("orthogonal", 4): 61.0, fixed_basis("my_bases:cosine", 4): 62.0}
    cells = {
        CellKey("pocket", "DTD", *arm, 4): Estimate(value, None, 1, (), {1: value}) for arm, value in values.items()
    }
    shown = texts(figures.fixed_against_trained(Results(cells)))
    assert "my_bases:cosine B" in shown and "my_bases:cosine (n = 1)" in shown


def test_learning_curves_omit_other_numbers_of_epochs_and_missing_curves(tmp_path: Path):
    base = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "variant": "dense"}
    for seed in (1, 2, 3):
        write_run(tmp_path, base | {"seed": seed})
    write_run(tmp_path, base | {"seed": 4, "recipe": {"epochs": 7}})
    (write_run(tmp_path, base | {"seed": 5}) / "curve.csv").unlink()
    figure = figures.learning_curves(load_records(tmp_path))
    assert "Mean over 3 runs" in figure.caption and "2 runs are left out" in figure.caption
