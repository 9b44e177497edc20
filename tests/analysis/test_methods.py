from __future__ import annotations

from pathlib import Path

import pytest

from slimprompt.analysis.arms import Arm, arm_label, joint
from slimprompt.analysis.comparisons import compare_arms
from slimprompt.analysis.methods import Cost, average_cost, costs, cross_dataset_average, method_arms
from slimprompt.analysis.observations import mixed_settings, observe
from slimprompt.analysis.results import Results
from slimprompt.lab.records import Record, load_records
from slimprompt.methods.table import METHODS
from tests.synthetic_runs import METHOD_EFFECTS, TRAINED_NUMBERS, write_methods, write_run, write_study

GDA, TIP, ZERO_SHOT = (Arm(name, "", 0) for name in ("gda", "tip-adapter", "zero-shot"))
ANCHORED = "joint r4 anchored at “a photo of a”"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return load_records(write_methods(tmp_path_factory.mktemp("methods")))


@pytest.fixture(scope="module")
def results(records: list[Record]) -> Results:
    return Results.of(observe(records))


def test_methods_come_first_then_prompts(results: Results) -> None:
    arms = method_arms(results)
    assert [arm_label(arm) for arm in arms.methods] == list(METHODS)
    assert [arm_label(arm) for arm in arms.prompts] == ["joint r4", ANCHORED]
    assert [arm_label(arm) for arm in method_arms(results, "cross_dataset").all] == ["zero-shot", "joint r4"]


def test_methods_of_the_users_own_come_after_those_of_the_table(tmp_path: Path) -> None:
    runs = write_methods(tmp_path)
    for name in ("their_methods:fit", "my_methods:nearest_mean"):
        fields = {"backbone": "RN50", "dataset": "dtd", "shots": 1, "seed": 1, "method": name}
        write_run(runs, fields, metrics={"accuracy": 50.0}, factors={})
        write_run(runs, fields | {"class_subset": "base"}, metrics={"seen": 50.0}, factors={})
    found = Results.of(observe(load_records(runs)))
    own = ["my_methods:nearest_mean", "their_methods:fit"]
    assert [arm_label(arm) for arm in method_arms(found).methods] == [*METHODS, *own]
    assert [arm_label(arm) for arm in method_arms(found).prompts] == ["joint r4", ANCHORED]
    assert [arm_label(arm) for arm in method_arms(found, "seen").methods] == [*METHODS, *own]


def test_the_papers_runs_alone_are_no_comparison_of_methods(tmp_path: Path) -> None:
    paper = Results.of(observe(load_records(write_study(tmp_path, datasets=("dtd",), seeds=(1,)))))
    assert method_arms(paper).all == []


def test_prompts_beyond_the_paper_have_cells_of_their_own(results: Results) -> None:
    plain, anchored = (results.cell("RN50", "DTD", arm, 1) for arm in (joint(4), Arm(ANCHORED, "", 0)))
    assert plain and anchored
    assert set(plain.runs).isdisjoint(anchored.runs)


def test_what_is_part_of_the_arm_is_no_mixed_setting(records: list[Record]) -> None:
    assert mixed_settings(records) == []


def test_new_classes_only_of_methods_that_take_new_names(results: Results) -> None:
    assert results.cell("RN50", "DTD", GDA, 1, "seen")
    assert results.cell("RN50", "DTD", GDA, 1, "unseen") is None
    assert results.cell("RN50", "DTD", ZERO_SHOT, 1, "harmonic")


def test_costs_are_averaged_over_seeds_and_datasets(records: list[Record], tmp_path: Path) -> None:
    found = costs(records)
    assert average_cost(found, "RN50", ["DTD", "Food101"], TIP, 4) == Cost(TRAINED_NUMBERS["tip-adapter"], 0.5)
    assert average_cost(found, "RN50", ["DTD", "EuroSAT"], TIP, 4) is None
    fields = {"backbone": "RN50", "dataset": "dtd", "shots": 1, "method": "gda"}
    for seed, seconds in ((1, 1.0), (2, 4.0)):
        write_run(tmp_path, {**fields, "seed": seed}, times={"training": seconds})
    write_run(tmp_path, {**fields, "seed": 3})  # did not record its time
    assert costs(load_records(tmp_path)) == {("RN50", "DTD", GDA, 1): Cost(TRAINED_NUMBERS["gda"], 2.5)}


def test_two_methods_are_compared_over_datasets(results: Results) -> None:
    for one in compare_arms(results, [(GDA, TIP)]):
        assert one.cells == pytest.approx(
            dict.fromkeys(["DTD", "Food101"], METHOD_EFFECTS["gda"] - METHOD_EFFECTS["tip-adapter"])
        )


def test_cross_dataset_cells_belong_to_the_dataset_that_was_evaluated(results: Results) -> None:
    own = results.cell("RN50", "DTD", ZERO_SHOT, 4, "source_accuracy", "DTD")
    assert own and own.mean == pytest.approx(50 + 2 * 4 + 0.3 * 2)
    first, second = (
        results.cell("RN50", name, ZERO_SHOT, 4, "cross_dataset", "DTD") for name in ("Food101", "pocket-toy")
    )
    assert first and first.mean == pytest.approx(own.mean + 1)
    assert second and second.mean == pytest.approx(own.mean + 2)
    average = cross_dataset_average(results, "RN50", "DTD", ["Food101", "pocket-toy"], ZERO_SHOT, 4)
    assert average and average.mean == pytest.approx(own.mean + 1.5)
    assert average.sd == pytest.approx(0.3)
    assert cross_dataset_average(results, "RN50", "DTD", ["Food101", "DTD"], ZERO_SHOT, 4) is None
    (one, *_) = compare_arms(results, [(joint(4), ZERO_SHOT)], metric="cross_dataset")
    assert set(one.cells) == {"DTD", "Food101", "pocket-toy"}


def test_cross_dataset_runs_do_not_collide_with_those_of_other_studies(results: Results) -> None:
    cell = results.cell("RN50", "DTD", joint(4), 1)
    assert cell and cell.n == 3
