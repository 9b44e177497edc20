from __future__ import annotations

from pathlib import Path

from slimprompt.analysis.frame import Measurements, observations
from slimprompt.lab.records import load_records
from slimprompt.methods.table import METHODS
from slimprompt.report.methods_figures import methods_figures
from tests.svg import texts
from tests.synthetic_runs import write_methods, write_run, write_study


def results_of(root: Path) -> Measurements:
    return Measurements.of(observations(load_records(root)))


def test_the_papers_runs_alone_have_no_figures_of_methods(tmp_path: Path):
    assert methods_figures(results_of(write_study(tmp_path, backbones=("RN50",), datasets=("dtd",), seeds=(1,)))) == []


def test_methods_and_prompts_have_panels_of_their_own(tmp_path: Path):
    figures = {figure.name: figure for figure in methods_figures(results_of(write_methods(tmp_path)))}
    assert list(figures) == ["methods_by_shots", "methods_by_trained_numbers", "methods_by_seconds"]
    for figure in figures.values():
        shown = texts(figure)
        assert {*METHODS, "joint r4"} <= set(shown) and not any("mathdefault" in text for text in shown)
        assert figure.svg and figure.png and "averaged over 2 datasets (DTD, Food101)" in figure.caption
        assert "left out" not in figure.caption  # pocket-toy is only evaluated on
    assert {"RN50, methods without a prompt", "RN50, prompts"} <= set(texts(figures["methods_by_shots"]))
    assert "5,000" in texts(figures["methods_by_trained_numbers"])


def test_runs_without_times_have_no_figure_of_them(tmp_path: Path):
    write_run(tmp_path, {"backbone": "RN50", "dataset": "dtd", "shots": 4, "seed": 1, "method": "gda"})
    assert "methods_by_seconds" not in [figure.name for figure in methods_figures(results_of(tmp_path))]
