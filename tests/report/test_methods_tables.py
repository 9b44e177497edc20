from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest

from slimprompt.analysis.comparisons import compare_labels
from slimprompt.analysis.frame import Measurements, observations
from slimprompt.lab.records import load_records
from slimprompt.lab.studies import BASIS_ROWS, DEPTH
from slimprompt.methods.table import METHODS
from slimprompt.report.methods_figures import methods_figures
from slimprompt.report.methods_tables import basis_transfer, compared_labels, methods_tables
from slimprompt.report.table import Row, Table
from tests.svg import texts
from tests.synthetic_runs import METHOD_EFFECTS, TRAINED_NUMBERS, write_methods, write_run, write_study

MEAN_OF_SEEDS = 0.3 * 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_methods(tmp_path_factory.mktemp("methods"), backbones=("RN50", "ViT-B-16"))


@pytest.fixture(scope="module")
def tables(runs: Path) -> dict[str, Table]:
    return {name: make() for name, make in methods_tables(measured(runs)).items()}


def measured(runs: Path) -> Measurements:
    return Measurements.of(observations(load_records(runs)))


def row(table: Table, *labels: str) -> Row:
    (found,) = (one for one in table.rows if one.labels == labels)
    return found


def numbers(table: Table, *labels: str) -> list[float | None]:
    return [cell.number for cell in row(table, *labels).cells]


def test_methods_by_shots(tables: dict[str, Table]) -> None:
    table = tables["methods"]
    assert [column.full_label for column in table.columns] == [
        "Accuracy by shots 1",
        "Accuracy by shots 4",
        "At 4 shots Trained numbers",
        "At 4 shots Seconds",
    ]
    macro = (50 + 80) / 2 + METHOD_EFFECTS["gda"] + MEAN_OF_SEEDS
    assert numbers(table, "RN50", "gda") == pytest.approx([macro + 2, macro + 8, TRAINED_NUMBERS["gda"], 0.5])
    cell = row(table, "RN50", "gda").cells[0]
    assert (cell.text(), cell.n, len(cell.runs)) == (f"{macro + 2:.1f} ± 0.3", 3, 6)
    assert [one.labels for one in table.rows] == [
        (backbone, name)
        for backbone in ("RN50", "ViT-B/16")
        for name in (*METHODS, "joint r4", "joint r4 anchored at “a photo of a”")
    ]
    best = [one.labels[1] for one in table.rows if one.cells[0].bold]
    assert best == [max(METHOD_EFFECTS, key=METHOD_EFFECTS.__getitem__)] * 2
    assert "RN50: average over DTD, Food101." in table.notes


def test_methods_on_each_dataset(tables: dict[str, Table]) -> None:
    found = numbers(tables["methods_by_dataset"], "ViT-B/16", "DTD", "tip-adapter")
    macro = 50 + METHOD_EFFECTS["tip-adapter"] + MEAN_OF_SEEDS
    assert found == pytest.approx([macro + 2, macro + 8])


def test_a_dash_for_new_classes_of_methods_without_new_names(tables: dict[str, Table]) -> None:
    table = tables["methods_base_to_new"]
    assert [column.full_label for column in table.columns][:3] == ["1-shot Base", "1-shot New", "1-shot H"]
    base, new, harmonic = numbers(table, "RN50", "gda")[:3]
    assert base is not None and new is None and harmonic is None
    assert None not in numbers(table, "RN50", "zero-shot")
    assert any("takes no new names" in note for note in table.notes)
    assert numbers(tables["methods_base_to_new_by_dataset"], "RN50", "Food101", "gda")[0] == pytest.approx(
        80 + 2 + MEAN_OF_SEEDS + METHOD_EFFECTS["gda"] + 5
    )


def test_other_datasets_by_name_only(tables: dict[str, Table]) -> None:
    table = tables["cross_dataset"]
    names = [column.full_label for column in table.columns]
    assert names == ["Source", *(f"Other datasets {name}" for name in ("DTD", "Food101", "pocket-toy", "Average"))]
    own = 50 + 2 + MEAN_OF_SEEDS
    assert numbers(table, "RN50", "DTD", "1", "zero-shot") == [
        pytest.approx(own),
        None,  # the source is no target
        pytest.approx(own + 1),
        pytest.approx(own + 2),
        pytest.approx(own + 1.5),
    ]


#: Accuracy of the synthetic run of a basis on DTD with seed 0, by the origin of B and the depth at which it is used.
BASES = {row.title: (60.0 + number, 70.0 + number) for number, row in enumerate(BASIS_ROWS)}


@pytest.fixture(scope="module")
def basis_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets, Food101 from one source and DTD from two, of which the second is two points better; Food101 is 10 higher."""
    root = tmp_path_factory.mktemp("bases")
    for row, (target, sources), seed in product(BASIS_ROWS, TARGETS.items(), (1, 2)):
        for depth, accuracy in zip((1, DEPTH), BASES[row.title], strict=True):
            common = {"backbone": "RN50", "dataset": target, "shots": 16, "seed": seed, "n_ctx": 8, "rank": 4}
            fields = {**common, **row.fields, "depth": depth}
            for number, source in enumerate(sources if row.fields.get("basis") == "source" else (None,)):
                value = accuracy + seed + 10 * (target == "food101") + 2 * number
                write_run(root, fields | {"source": source}, metrics={"accuracy": value}, factors={})
    return root


@pytest.fixture(scope="module")
def basis_results(basis_runs: Path) -> Measurements:
    return measured(basis_runs)


TARGETS = {"dtd": ("food101", "pocket-toy"), "food101": ("dtd",)}


def test_the_origin_of_the_basis(basis_results: Measurements) -> None:
    table = basis_transfer(basis_results)
    assert [column.full_label for column in table.columns] == ["Used at depth 1", "Used at depth 3"]
    assert [one.labels for one in table.rows] == [("RN50", "16", row.title) for row in BASIS_ROWS]
    seeds, datasets = 1.5, 5.0
    for title, expected in BASES.items():
        average = seeds + datasets + 0.5 * ("another" in title)  # the two sources of DTD count as one dataset
        assert numbers(table, "RN50", "16", title) == pytest.approx([value + average for value in expected])
    assert "RN50: average over DTD, Food101." in table.notes
    assert "basis_transfer" in methods_tables(basis_results)


@pytest.mark.parametrize("rank", [2, 4])
def test_a_joint_run_of_another_rank_hides_no_basis(basis_runs: Path, tmp_path: Path, rank: int) -> None:
    """The bases have rank 4; the main comparison of the folder may have another one."""
    runs = tmp_path / "runs"
    shutil.copytree(basis_runs, runs)
    for record in load_records(runs):
        if record.spec.label == "joint r4":
            shutil.rmtree(record.folder)
    write_run(
        runs,
        {"backbone": "RN50", "dataset": "dtd", "shots": 16, "seed": 1, "variant": "joint", "rank": rank, "n_ctx": 8},
    )
    table = basis_transfer(measured(runs))
    assert {one.labels[-1] for one in table.rows} >= {row.title for row in BASIS_ROWS[1:]}
    assert any("rank 4" in note for note in table.notes)


def test_paired_tests_of_bases_average_over_their_sources(basis_results: Measurements) -> None:
    pairs = [("fixed-B source r4 depth 3 B of depth 1", "joint r4 depth 3")]
    (found,) = compare_labels(basis_results.frame, pairs, unit="dataset").itertuples()
    assert found.cells == pytest.approx({"DTD": 5 + 1, "Food101": 5})


def test_methods_come_first_then_the_users_own_then_prompts(runs: Path, tmp_path: Path) -> None:
    prompts = ["joint r4", "joint r4 anchored at “a photo of a”"]
    frame = measured(runs).frame
    assert compared_labels(frame, "RN50") == [*METHODS, *prompts]
    assert compared_labels(frame, "RN50", "cross_dataset") == ["zero-shot", "joint r4"]
    own = ["my_methods:nearest_mean", "their_methods:fit"]
    write_methods(tmp_path, datasets=("dtd",), shots=(1,), seeds=(1,))
    for name in own:
        fields = {"backbone": "RN50", "dataset": "dtd", "shots": 1, "seed": 1, "method": name}
        write_run(tmp_path, fields, metrics={"accuracy": 50.0}, factors={})
        write_run(tmp_path, fields | {"class_subset": "base"}, metrics={"seen": 50.0}, factors={})
    found = measured(tmp_path).frame
    assert compared_labels(found, "RN50") == compared_labels(found, "RN50", "seen") == [*METHODS, *own, *prompts]


def test_the_papers_runs_alone_have_no_tables_and_figures_of_methods(tmp_path: Path) -> None:
    results = measured(write_study(tmp_path, datasets=("dtd",), seeds=(1,), backbones=("RN50",)))
    assert methods_tables(results) == {}
    assert methods_figures(results) == []


def test_figures(tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in methods_figures(measured(write_methods(tmp_path, seeds=(1,))))}
    assert list(figures) == ["methods_by_shots", "methods_by_trained_numbers", "methods_by_seconds"]
    for figure in figures.values():
        labels = texts(figure)
        assert {*METHODS, "joint r4"} - {"zero-shot"} <= set(labels)
        assert "averaged over 2 datasets (DTD, Food101)" in figure.caption
        assert "left out" not in figure.caption  # pocket-toy is only evaluated on
        assert not any("mathdefault" in label for label in labels)
    assert "5,000" in texts(figures["methods_by_trained_numbers"])


def test_runs_without_times_have_no_figure_of_costs(tmp_path: Path) -> None:
    results = measured(write_methods(tmp_path, datasets=("dtd",), shots=(1,), seeds=(1,)))
    without = results._replace(costs=results.costs.iloc[:0])
    assert [figure.name for figure in methods_figures(without)] == ["methods_by_shots"]
