from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from slimprompt.analysis.geometry import Geometry, measure
from slimprompt.analysis.observations import Results, dense, joint, observe
from slimprompt.lab.records import Record, load_records
from slimprompt.paper import figures
from slimprompt.paper.published import published_results
from slimprompt.report.drawing import Figure
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


def texts(figure: Figure) -> list[str]:
    return [one.text or "" for one in ET.fromstring(figure.svg).iter() if one.tag.endswith("}text")]


def test_every_figure_is_drawn_from_a_whole_study(records: list[Record], results: Results, geometry: Geometry):
    drawn = figures.all_figures(records, results, geometry)
    assert len({figure.name for figure in drawn}) == len(drawn) == 8
    for figure in drawn:
        assert figure.svg and figure.png and figure.caption and not figure.missing, figure.name


def test_a_handful_of_runs_draws_what_it_can_and_says_what_is_missing(tmp_path: Path):
    for seed in (1, 2):
        write_run(tmp_path, {"backbone": "pocket", "dataset": "dtd", "shots": 4, "seed": seed, "variant": "dense"})
    records = load_records(tmp_path)
    results = Results.of(observe(records))
    drawn = {one.name: one for one in figures.all_figures(records, results, measure(records, draws=10))}
    assert {name for name, one in drawn.items() if one.svg} == {"accuracy_by_shots", "learning_curves"}
    for name, needed in (
        ("gain_over_dense", "dense and jointly trained"),
        ("accuracy_by_rank", "both factors"),
        ("fixed_against_trained", "fixed B"),
        ("transfer_matrix", "transfer runs"),
        ("factor_overlap", "differ in exactly one"),
        ("displacement", "low-rank runs"),
    ):
        assert needed in drawn[name].missing and not drawn[name].svg


def test_nothing_at_all_is_said_not_drawn():
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
    write_run(tmp_path, spec | {"split": "base"}, chance={"seen": 10.0, "unseen": 30.0})
    records = load_records(tmp_path)
    levels = figures.chance_levels(records)
    assert levels["DTD", "accuracy"] == 5.0
    assert levels["DTD", "harmonic"] == pytest.approx(15.0)
    results = Results.of(observe(records))
    assert figures.zero_shot(results, "pocket", "DTD", "accuracy") == DATASETS["dtd"]
    assert figures.zero_shot(results, "pocket", "Food101", "accuracy") is None
    shown = texts(figures.shots_curve(results, levels))
    assert "chance 5.0 %" in shown and "zero-shot" in shown


def test_an_average_is_made_over_the_best_covered_datasets_and_says_so(tmp_path: Path):
    for dataset, variants in (("dtd", ("dense", "joint")), ("food101", ("dense", "joint")), ("pocket-toy", ("dense",))):
        for variant in variants:
            fields = {"backbone": "pocket", "dataset": dataset, "shots": 4, "seed": 1, "variant": variant}
            write_run(tmp_path, fields | ({"rank": 4} if variant == "joint" else {}))
    results = Results.of(observe(load_records(tmp_path)))
    cells = [(dense(16), 4), (joint(4), 4)]
    assert figures.best_covered(results, "pocket", cells, "accuracy") == ["DTD", "Food101"]
    caption = figures.shots_curve(results).caption
    assert (
        "averaged over 2 datasets (DTD, Food101)" in caption and "not all runs are there yet for pocket-toy" in caption
    )


def test_gains_are_paired_by_seed(tmp_path: Path):
    base = {"backbone": "pocket", "dataset": "dtd", "shots": 4}
    for seed, full, low in ((1, 60.0, 61.0), (2, 70.0, 73.0), (3, 10.0, None)):
        write_run(tmp_path, base | {"seed": seed, "variant": "dense"}, metrics={"accuracy": full})
        if low is not None:
            write_run(tmp_path, base | {"seed": seed, "variant": "joint", "rank": 4}, metrics={"accuracy": low})
    results = Results.of(observe(load_records(tmp_path)))
    gain = figures._gain(results, "pocket", "DTD", joint(4), dense(16), 4, "accuracy")
    assert gain == pytest.approx((2.0, np.sqrt(2.0)))  # of 1 and 3; seed 3 has no partner


def test_the_violin_shows_chance_and_counts_its_pairs(geometry: Geometry):
    figure = figures.geometry_violin(geometry)
    shown = texts(figure)
    assert {"A", "B", "BA", "chance"} <= set(shown)
    pairs = geometry.pairs
    for axis in ("seed", "dataset", "shots", "rank"):
        n = int(((pairs["axis"] == axis) & (pairs["factor"] == "B")).sum())
        assert f"({n} pairs)" in shown
    assert "50 independent random subspaces" in figure.caption


def test_the_transfer_matrix_has_the_differences_to_training_both(results: Results, records: list[Record]):
    shown = texts(figures.transfer_matrix(results))
    source = next(r.spec for r in records if r.spec.basis == "source" and r.spec.variant == "fixed-A")
    assert accuracy_of(source) < 80
    assert shown.count("−11.0") >= 6  # freezing A costs 10 points, training both gains 1
    assert "random" in shown


def test_learning_curves_leave_out_what_does_not_fit_and_say_so(tmp_path: Path):
    base = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "variant": "dense"}
    for seed in (1, 2, 3):
        write_run(tmp_path, base | {"seed": seed})
    write_run(tmp_path, base | {"seed": 4, "recipe": {"epochs": 7}})
    (write_run(tmp_path, base | {"seed": 5}) / "curve.csv").unlink()
    figure = figures.learning_curves(load_records(tmp_path))
    assert "Mean over 3 runs" in figure.caption and "2 runs are left out" in figure.caption


def test_confusion_matrix_counts_and_survives_empty_and_hostile_classes():
    counts = np.array([[3, 1, 0], [0, 0, 0], [0, 0, 5]])
    figure = figures.confusion_matrix(["<b>cat</b>", "$dog$", "x" * 80], counts)
    shown = texts(figure)
    assert "<b>cat</b>" in shown and "$dog$" in shown and "x" * 27 + "…" in shown
    assert [text for text in shown if re.fullmatch(r"[135]", text)] == ["3", "1", "5"]
    assert figures.confusion_matrix([str(n) for n in range(40)], np.eye(40, dtype=int)).svg


def test_training_curve():
    assert figures.training_curve([(2.0, 10.0), (1.0, 60.0)]).svg
