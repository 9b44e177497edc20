from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from slimprompt.analysis.frame import CELL, cells, dense, fixed_a, fixed_b, joint, observations
from slimprompt.analysis.geometry import Geometry, measure
from slimprompt.lab.records import Record, load_records
from slimprompt.paper import figures
from slimprompt.paper.published import published
from slimprompt.report.page import Report
from slimprompt.report.paper import MeasuredRuns
from tests.svg import texts
from tests.synthetic_runs import accuracy_of, write_run, write_study


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    root = tmp_path_factory.mktemp("study")
    return load_records(write_study(root, backbones=("pocket",), seeds=(1, 2)))


def frame_of(root: Path) -> pd.DataFrame:
    return cells(observations(load_records(root)))


def made_of(cells: dict[str, dict[int, float]], **levels: object) -> pd.DataFrame:
    """A frame of one backbone and dataset: label → seed → accuracy."""
    place = {"backbone": "pocket", "dataset": "DTD", "shots": 4, "metric": "accuracy", "source": "", **levels}
    rows = []
    for label, by_seed in cells.items():
        variant, *basis = label.rsplit(" ", 1)[0].split(" ")
        how = {"label": label, "variant": variant, "basis": "".join(basis), "rank": int(re.findall(r"\d+$", label)[0])}
        rows += [{**place, **how, "seed": seed, "value": value} for seed, value in by_seed.items()]
    return pd.DataFrame(rows).pivot(index=list(CELL), columns="seed", values="value")


def test_a_whole_study_gives_every_figure(study_report: Report):
    plotted = study_report.figures
    assert len({figure.name for figure in plotted}) == len(plotted) == 8
    for figure in plotted:
        assert figure.svg and figure.png and figure.caption and not figure.missing, figure.name


def test_a_few_runs_give_some_figures_and_the_others_name_the_missing_runs(tmp_path: Path):
    for seed in (1, 2):
        write_run(tmp_path, {"backbone": "pocket", "dataset": "dtd", "shots": 4, "seed": seed, "variant": "dense"})
    plots = figures.figures_of_runs(MeasuredRuns(load_records(tmp_path), draws=10))
    built = {one.name: one for one in (plot() for plot in plots)}
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


def test_figures_of_the_published_numbers():
    frame = published()[["mean"]]
    for make in figures.OF_FRAME:
        assert make(frame).svg


def test_the_levels_of_chance_and_zero_shot(tmp_path: Path):
    spec = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "seed": 1, "variant": "dense"}
    write_run(tmp_path, spec, chance={"accuracy": 5.0})
    write_run(tmp_path, spec | {"class_subset": "base"}, chance={"seen": 10.0, "unseen": 30.0})
    shown = texts(figures.shots_curve(frame_of(tmp_path)))
    assert "chance 5.0 %" in shown and "chance 15.0 %" in shown  # the harmonic mean of 10 and 30
    assert "zero-shot" in shown


def test_the_rank_of_every_backbone_is_its_own(tmp_path: Path):
    """One backbone has only rank 4, the other only rank 8."""
    cell = {"dataset": "dtd", "shots": 4, "seed": 1}
    for backbone, rank in (("RN50", 4), ("ViT-B-16", 8)):
        for how in ({"variant": "dense"}, {"variant": "joint", "rank": rank}):
            write_run(tmp_path, {"backbone": backbone, **cell, **how}, metrics={"accuracy": 60.0 + rank})
    frame = frame_of(tmp_path)
    assert {"joint r4", "joint r8"} <= set(texts(figures.shots_curve(frame)))
    gains = figures.gain_over_dense(frame)
    assert {"RN50, accuracy", "ViT-B/16, accuracy"} <= set(texts(gains))
    assert "joint r4 − dense m16; joint r8 − dense m16" in gains.caption


def test_averages_are_over_the_best_covered_datasets_and_the_caption_names_them(tmp_path: Path):
    for dataset, variants in (("dtd", ("dense", "joint")), ("food101", ("dense", "joint")), ("pocket-toy", ("dense",))):
        for variant in variants:
            fields = {"backbone": "pocket", "dataset": dataset, "shots": 4, "seed": 1, "variant": variant}
            write_run(tmp_path, fields | ({"rank": 4} if variant == "joint" else {}))
    caption = figures.shots_curve(frame_of(tmp_path)).caption
    assert "averaged over 2 datasets (DTD, Food101)" in caption
    assert "left out because some runs are missing: pocket-toy" in caption


def test_gains_are_paired_by_seed():
    """Seed 3 has no counterpart."""
    low = {1: 61.0, 2: 73.0}
    paired = {dense(16): {1: 60.0, 2: 70.0}, joint(4): low}
    unpaired = {dense(16): {1: 60.0, 2: 70.0, 3: 10.0}, joint(4): low}
    one, other = (figures.gain_over_dense(made_of(some)) for some in (paired, unpaired))
    assert one.svg == other.svg
    assert {"0.0", "2.0"} & set(texts(one))


def test_the_overlap_figure_shows_chance_and_the_number_of_pairs(records: list[Record]):
    geometry: Geometry = measure(records, draws=50)
    figure = figures.geometry_violin(geometry)
    shown = texts(figure)
    assert {"A", "B", "BA", "chance"} <= set(shown)
    pairs = geometry.pairs
    for axis in ("seed", "dataset", "shots", "rank"):
        n = int(((pairs["axis"] == axis) & (pairs["factor"] == "B")).sum())
        assert f"({n} pairs)" in shown
    assert "50 independent random subspaces" in figure.caption


def test_the_transfer_matrix_shows_differences_to_training_both_factors(records: list[Record]):
    shown = texts(figures.transfer_matrix(cells(observations(records))))
    source = next(r.spec for r in records if r.spec.basis == "source" and r.spec.variant == "fixed-A")
    assert accuracy_of(source) < 80
    assert shown.count("−11.0") >= 6  # freezing A costs 10 points, training both gains 1
    assert "random" in shown and not any("-" in text for text in shown if re.fullmatch(r"\W?[\d.]+", text))


def test_the_labels_of_the_transfer_matrix_are_inside_the_figure():
    """With one target the panels are low."""
    frame = made_of({joint(4): {1: 60.0}, fixed_b("random", 4): {1: 61.0}, fixed_a("random", 4): {1: 50.0}})
    figure = figures.transfer_matrix(frame)
    height = float(re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', figure.svg)[0])
    label = re.findall(r'transform="(?:rotate|translate)\(([^)]*)\)[^"]*"[^>]*>target<', figure.svg)
    assert label, "no label of the targets"
    middle = float(re.findall(r"[\d.]+", label[0])[-1])
    assert 20 < middle < height - 20


def test_fixed_factors_are_compared_on_common_seeds():
    def frame(by_seed: dict[int, float]) -> pd.DataFrame:
        return made_of({fixed_b("random", 4): by_seed, fixed_b("svd", 4): by_seed, joint(4): {1: 60.0}})

    for plot in (figures.transfer_matrix, figures.fixed_against_trained):
        assert plot(frame({1: 61.0, 2: 90.0})).svg == plot(frame({1: 61.0})).svg


def test_a_basis_of_your_own_is_compared_with_the_trained_one():
    labels = joint(4), fixed_b("orthogonal", 4), fixed_b("my_bases:cosine", 4)
    shown = texts(figures.fixed_against_trained(made_of({label: {1: 60.0} for label in labels})))
    assert "my_bases:cosine B" in shown and "my_bases:cosine (n = 1)" in shown


def test_learning_curves_start_at_epoch_one_and_say_what_they_leave_out(tmp_path: Path):
    base = {"backbone": "pocket", "dataset": "dtd", "shots": 4, "variant": "dense"}
    for seed in (1, 2, 3):
        write_run(tmp_path, base | {"seed": seed})
    write_run(tmp_path, base | {"seed": 4, "recipe": {"epochs": 7}})
    (write_run(tmp_path, base | {"seed": 5}) / "curve.csv").unlink()
    (write_run(tmp_path, base | {"seed": 6}) / "curve.csv").write_text("epoch,loss,accuracy,lr\n0,x,1,1\n")
    figure = figures.learning_curves(frame_of(tmp_path), load_records(tmp_path))
    assert "Mean over 3 runs" in figure.caption
    for part in ("1 with another number of epochs than 200", "1 without curve.csv", "1 with a damaged curve.csv"):
        assert part in figure.caption
    assert {"1", "2"} <= set(texts(figure)) and "0" not in texts(figure)
