import io
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import openpyxl
import pandas as pd
import pytest

from slimprompt.analysis.frame import (
    CELL,
    Measurements,
    dense,
    fixed_a,
    fixed_b,
    joint,
    observations,
    select,
)
from slimprompt.analysis.geometry import measure
from slimprompt.lab.records import load_records
from slimprompt.lab.spec import RunSpec
from slimprompt.paper import published as paper_numbers
from slimprompt.paper.published import (
    printed,
    published_baselines,
    published_geometry,
    published_measurements,
)
from slimprompt.paper.questions import questions_table
from slimprompt.paper.tables import comparisons, methods_tables_of, paper_tables, published_tables, summaries
from slimprompt.report.summary import summary_table
from slimprompt.report.table import Cell, Table
from slimprompt.report.table_formats import latex_document, table_files, to_frame, to_latex, to_markdown
from tests.report.test_table_formats import HOSTILE
from tests.synthetic_runs import accuracy_of, study_fields, write_methods, write_run, write_study

PAPER_DATASETS = ("caltech101", "dtd", "fgvc_aircraft", "food101", "oxford_flowers", "oxford_pets", "ucf101")
PAPER_NAMES = [
    "headline",
    "base2new",
    "fixedB",
    "transfer_pairs",
    "factor_geometry",
    "rank_sweep",
    "best_delta",
    "transfer_four_modes",
    "transfer_best_delta",
    *(f"b_ablation_rank{rank}_{backbone}" for rank in (1, 2, 4, 8) for backbone in ("rn50", "vitb16")),
    "base_to_new_rn50",
    "base_to_new_vitb16",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def results(runs):
    return measured(load_records(runs))


@pytest.fixture(scope="module")
def tables(runs, results):
    medians = measure(load_records(runs), draws=10).medians()
    return made(results, lambda: (medians, ()))


def measured(records):
    return Measurements.of(observations(records))


def made(results, *geometry, **options):
    """The paper's tables by name."""
    return {name: make() for name, make in paper_tables(results, *geometry, **options).items()}


@pytest.fixture(scope="module")
def paper_joint_runs(tmp_path_factory):
    """The joint runs of the paper's grid with one seed."""
    root = tmp_path_factory.mktemp("joint")
    axes = (("RN50", "ViT-B-16"), PAPER_DATASETS, (1, 4, 16), (1, 2, 4, 8))
    for backbone, dataset, shots, rank in product(*axes):
        fields = {"backbone": backbone, "dataset": dataset, "shots": shots, "seed": 5, "variant": "joint", "rank": rank}
        write_run(root, {**fields, "pretrained": "openai", "n_ctx": 16}, metrics={"accuracy": 50.0})
    return load_records(root)


def compared_geometry(records):
    """The geometry table of runs with the published numbers."""
    found = measure(records, draws=10)
    geometry = found.medians(), found.compared
    return paper_tables(measured(records), lambda: geometry, compare_published=True)["factor_geometry"]()


@pytest.fixture(scope="module")
def published():
    return published_tables()


def cell(table, *labels, column):
    """The cell in the row with these labels and the column with this full label."""
    rows = [row for row in table.rows if row.labels == labels]
    assert len(rows) == 1, [row.labels for row in rows]
    return rows[0].cells[[one.full_label for one in table.columns].index(column)]


def mean(fields):
    """Mean of the synthetic accuracy over seeds and datasets."""
    datasets = fields.pop("datasets", None) or [fields.pop("dataset")]
    values = [
        accuracy_of(RunSpec(**{"backbone": "RN50", "n_ctx": 8, "dataset": dataset, "seed": seed} | fields))
        for dataset in datasets
        for seed in (1, 2, 3)
    ]
    return sum(values) / len(values)


# ---------------------------------------------------------------- published tables


def test_the_paper_has_nineteen_tables(published):
    assert list(published) == PAPER_NAMES
    assert len(published) == 19


def numbers(tables):
    """The cells with a number."""
    return [one for table in tables.values() for one in table.cells if one.number is not None]


def test_every_published_number_appears_in_a_table_as_printed(published):
    """Beside the number that the printed cells give, and then instead of it."""
    geometry = (published_geometry(), ())
    compared = made(published_measurements(), lambda: geometry, compare_published=True)
    assert len(numbers(published)) == len(numbers(compared)) == len(printed()) == 2552
    assert all(one.published is not None for one in numbers(compared))
    assert [(one.published, one.published_sd) for one in numbers(compared)] == [
        (one.value, one.sd) for one in numbers(published)
    ]
    # A printed number is at most once in its table, except for the best dense one of each rank.
    expected = Counter(zip(printed()["mean"], printed()["sd"].fillna(-1), strict=True))
    assert Counter((one.value, -1 if one.sd is None else one.sd) for one in numbers(published)) == expected


def test_bold_marks_match_the_paper(published):
    """One of 2,230 marks differs: the paper marks only one of two tied values."""
    frame = printed().dropna(subset="bold")
    assert len(frame) == 2230
    marked = Counter((name, one.value) for name, table in published.items() for one in table.cells if one.bold)
    groups = {"b_ablation": "b_ablation", "base_to_new": "base2new_full"}
    found = Counter()
    for (name, value), count in marked.items():
        found[next((group for start, group in groups.items() if name.startswith(start)), name), value] += count
    bold = frame[frame["bold"] == 1]
    expected = Counter(zip(bold.index.get_level_values("table"), bold["mean"], strict=True))
    tied = select(published_frame(), backbone="ViT-B/16", dataset="Food101", label=fixed_b("gaussian", 4), shots=1)
    assert found - expected == {("b_ablation", tied["mean"].item()): 1} and not expected - found


def published_frame():
    return select(paper_numbers.published(), metric="accuracy")


def test_layout_of_the_papers_tables(published):
    sizes = {name: (len(table.rows), len(table.columns)) for name, table in published.items()}
    assert sizes["headline"] == (6, 4)
    assert sizes["base2new"] == (32, 9)
    assert sizes["fixedB"] == (8, 15)
    assert sizes["transfer_pairs"] == (13, 6)
    assert sizes["factor_geometry"] == (4, 6)
    assert sizes["rank_sweep"] == (21, 8)
    assert sizes["best_delta"] == (21, 5)
    assert sizes["transfer_four_modes"] == (16, 4)
    assert sizes["transfer_best_delta"] == (16, 5)
    assert sizes["b_ablation_rank8_vitb16"] == (21, 6)
    assert sizes["base_to_new_rn50"] == (35, 9)
    assert [row.labels for row in published["headline"].rows][:4] == [
        ("ViT-B/16", "1"), ("ViT-B/16", "4"), ("ViT-B/16", "16"), ("RN50", "1"),
    ]  # fmt: skip
    assert published["base2new"].rows[0].labels == ("RN50", "Caltech101", "Dense")
    assert [column.remark for column in published["headline"].columns] == ["(8,192)", "(2,048)", "(2,112)", ""]
    assert cell(published["best_delta"], "Caltech101", "1", column="Best Rank/Backbone").value == "Rank 1, ViT-B/16"
    assert cell(published["transfer_best_delta"], "Food101", "UCF101", column="Best Mode").value == "Freeze A, Train B"


def test_a_note_names_averages_that_the_cells_do_not_reproduce(published):
    notes = [note for note in published["headline"].notes if "printed" in note]
    assert "ViT-B/16, 1, Fact. r=4: printed 70.07, the printed cells give 70.064." in notes
    assert not any("printed cells" in note for note in published["base2new"].notes)


# ---------------------------------------------------------------- tables of runs


def test_rows_and_columns_follow_the_runs(tables):
    assert [column.label for column in tables["headline"].columns] == ["Dense-8", "Dense-4", "Fact. r=4", "Δ"]
    assert "b_ablation_rank2_rn50" in tables and "b_ablation_rank1_rn50" not in tables
    assert {row.labels[0] for row in tables["rank_sweep"].rows} == {"DTD", "Food101", "pocket-toy"}
    assert [column.full_label for column in tables["rank_sweep"].columns] == [
        "Rank 2 RN50", "Rank 2 ViT-B/16", "Rank 4 RN50", "Rank 4 ViT-B/16",
    ]  # fmt: skip
    assert {row.labels[1] for row in tables["headline"].rows} == {"1", "4"}


def test_numbers_match_the_formula(tables):
    datasets = ["dtd", "food101", "pocket-toy"]
    low = mean({"variant": "joint", "rank": 4, "shots": 4, "datasets": datasets})
    small = mean({"variant": "dense", "n_ctx": 4, "shots": 4, "datasets": datasets})
    assert cell(tables["headline"], "RN50", "4", column="Fact. r=4").value == pytest.approx(low)
    assert cell(tables["headline"], "RN50", "4", column="Δ").value == pytest.approx(low - small)
    gaussian = mean({"variant": "fixed-B", "basis": "gaussian", "rank": 2, "shots": 1, "dataset": "dtd"})
    found = cell(tables["b_ablation_rank2_rn50"], "DTD", "1", column="Gaussian B")
    assert found.value == pytest.approx(gaussian)
    assert found.bold  # the synthetic Gaussian basis is the best
    assert found.n == 3 and len(found.runs) == 3
    average = cell(tables["base2new"], "RN50", "Average", "Dense", column="4-shot S")
    assert average.value == pytest.approx(
        mean({"variant": "dense", "class_subset": "base", "shots": 4, "datasets": datasets}) + 5
    )
    assert not average.show_sd


def test_every_number_lists_its_runs(tables, runs):
    folders = {str(path) for path in runs.iterdir()}
    for table in tables.values():
        if table.name == "factor_geometry":
            continue
        for row in table.rows:
            for one in row.cells:
                if one.number is not None:
                    assert one.runs and set(one.runs) <= folders


def test_missing_runs_are_missing_cells(tmp_path):
    for fields in study_fields(backbones=("RN50",), datasets=("dtd", "food101"), shots=(1,)):
        gone = fields["dataset"] == "food101" and fields.get("basis") == "svd"
        if not gone:
            write_run(tmp_path, fields)
    tables = made(measured(load_records(tmp_path)))
    ablation = tables["b_ablation_rank4_rn50"]
    assert cell(ablation, "Food101", "1", column="SVD B").value is None
    assert cell(ablation, "DTD", "1", column="SVD B").value is not None
    assert cell(tables["fixedB"], "RN50", "4", column="1-shot SVD").value is None  # no average over fewer datasets
    assert cell(tables["fixedB"], "RN50", "4", column="1-shot Orth.").value is not None
    assert "1 of 12 cells have no runs (—)." in ablation.notes
    assert "—" in to_markdown(ablation) and "---" in to_latex(ablation)
    assert tables["factor_geometry"].empty


def test_a_missing_seed_is_noted(tmp_path):
    for fields in study_fields(backbones=("RN50",), datasets=("dtd", "food101"), shots=(1,)):
        if not (fields["dataset"] == "dtd" and fields["seed"] == 3 and fields["variant"] == "joint"):
            write_run(tmp_path, fields)
    tables = made(measured(load_records(tmp_path)))
    assert cell(tables["rank_sweep"], "DTD", "1", column="Rank 4 RN50").n == 2
    assert cell(tables["headline"], "RN50", "1", column="Fact. r=4").n == 2
    assert any("n = 2 to 3 seeds" in note for note in tables["rank_sweep"].notes)


def results_of(*rows):
    """Measurements from (backbone, dataset, label, shots, metric, source, values by seed)."""
    cells_, seeds = [], []
    for backbone, dataset, label, shots, metric, source, values in rows:
        variant, *rest = label.split()
        basis, rank = (rest[0] if len(rest) > 1 else "", int(rest[-1][1:]))
        cells_.append((backbone, dataset, label, variant, basis, rank, shots, metric, source))
        seeds.append(values)
    index = pd.MultiIndex.from_tuples(cells_, names=CELL)
    return Measurements(pd.DataFrame(seeds, index, dtype=float).sort_index().sort_index(axis=1))


def tables_of(cells, dataset="DTD", shots=1):
    """The paper's tables of labels on one dataset and RN50, from their values by seed."""
    rows = [("RN50", dataset, label, shots, "accuracy", "", values) for label, values in cells.items()]
    return made(results_of(*rows))


def of_joint(rank=4, backbone="RN50", dataset="DTD", shots=1):
    """Measurements of one joint prompt with the accuracy 60."""
    return results_of((backbone, dataset, joint(rank), shots, "accuracy", "", {1: 60.0}))


def test_differences_and_bold_compare_common_seeds():
    """Seed 2 is easier; on seed 1, which both have, dense is better."""
    tables = tables_of({joint(4): {1: 60.0, 2: 70.0}, dense(4): {1: 61.0}, dense(16): {1: 60.5}})
    (row,) = tables["headline"].rows
    assert [one.value for one in row.cells] == [60.5, 61.0, 65.0, -1.0]
    assert [one.bold for one in row.cells] == [False, True, False, False]
    assert row.cells[-1].n == 1
    assert any("common seeds" in note for note in tables["headline"].notes)
    assert cell(tables["best_delta"], "DTD", "1", column="Δ Best–Ctx16").value == -0.5


def test_without_common_seeds_there_is_no_difference_and_no_best():
    tables = tables_of({joint(4): {2: 70.0}, joint(2): {1: 60.0}, dense(4): {1: 61.0}})
    (row,) = tables["headline"].rows
    assert row.cells[-1].text() == "—" and not any(one.bold for one in row.cells)
    assert "1 of 3 cells have no runs or no common seeds (—)." in tables["headline"].notes
    (best,) = tables["best_delta"].rows
    assert {one.text() for one in best.cells} == {"—"}  # which rank is better is not known
    assert "5 of 5 cells have no runs or no common seeds (—)." in tables["best_delta"].notes


def test_each_backbone_has_its_own_headline_rank():
    """RN50 has rank 4, ViT-B/16 rank 8: both have their low rank, and dense is not the best because it is alone."""
    rows = []
    for backbone, rank in (("RN50", 4), ("ViT-B/16", 8)):
        for metric in ("accuracy", "harmonic"):
            rows += [(backbone, "DTD", label, 1, metric, "", {1: value}) for label, value in (
                (dense(16), 50.0), (joint(rank), 60.0)
            )]  # fmt: skip
    results = results_of(*rows)
    tables = made(results)
    headline = tables["headline"]
    assert [column.label for column in headline.columns] == ["Dense-16", "Fact. r=4 / 8", "Δ"]
    assert "RN50: r=4, ViT-B/16: r=8." in {", ".join(sorted(note[:-1].split(", "))) + "." for note in headline.notes}
    base = [row.labels for row in tables["base2new"].rows]
    assert ("RN50", "DTD", "Fact. (r=4)") in base and ("ViT-B/16", "DTD", "Fact. (r=8)") in base
    delta = tables["best_delta"]
    assert cell(delta, "DTD", "1", column="Best Factorized CoOp").value is not None
    everything = [headline, summary_table(results._replace(runs=no_runs(results)))]
    for table in everything:
        for row in table.rows:
            shown = {column.label: one for column, one in zip(table.columns, row.cells, strict=True)}
            low, full = (
                next(one for label, one in shown.items() if label.startswith(names))
                for names in (("Fact", "Joint"), ("Dense",))
            )
            assert low.value == 60.0 and low.bold and not full.bold
    questions = {row.labels[1:3] for row in questions_table(results.frame).rows}
    assert {("joint r4 − dense m16", "RN50"), ("joint r8 − dense m16", "ViT-B/16")} <= questions
    tested = {row.labels[1:4:2] for row in comparisons(results).rows}
    assert {("RN50", joint(4)), ("ViT-B/16", joint(8))} <= tested


def no_runs(results):
    return pd.Series([()] * len(results.frame), results.frame.index, name="run")


MODES = {"source-A": fixed_a("source", 4), "random-A": fixed_a("random", 4)}
MODES |= {"source-B": fixed_b("source", 4), "random-B": fixed_b("random", 4)}


def test_the_best_transfer_is_decided_on_common_seeds():
    modes = {"source-A": {1: 60.0}, "random-A": {1: 61.0}, "source-B": {1: 62.0, 2: 70.0}, "random-B": {1: 63.0}}
    rows = [
        ("RN50", "DTD", MODES[mode], 16, "accuracy", "Food101" if "source" in mode else "", values)
        for mode, values in modes.items()
    ]
    (row,) = made(results_of(*rows))["transfer_best_delta"].rows
    assert [one.value for one in row.cells[:3]] == [63.0, "Freeze Random B, Train A", 1.0]


def test_transfers_in_several_settings_have_a_column_of_settings():
    rows = [
        ("RN50", "DTD", fixed_b(basis, rank), 16, "accuracy", "Food101" if basis == "source" else "", {1: 60.0 + rank})
        for rank in (2, 4)
        for basis in ("source", "random")
    ]
    table = made(results_of(*rows))["transfer_four_modes"]
    assert [row.labels for row in table.rows] == [(f"RN50, rank {rank}, 16-shot", "DTD", "Food101") for rank in (2, 4)]
    assert [[one.value for one in row.cells] for row in table.rows] == [
        [None, 62.0, None, 62.0],
        [None, 64.0, None, 64.0],
    ]


def test_a_basis_of_your_own_has_its_columns_and_tests():
    labels = {joint(4): 70.0, fixed_b("orthogonal", 4): 70.5, fixed_b("my_bases:cosine", 4): 71.0}
    results = results_of(
        *(
            ("RN50", dataset, label, 1, "accuracy", "", {1: value, 2: value + offset})
            for label, value in labels.items()
            for dataset, offset in (("DTD", 0.5), ("Food101", 1.0))
        )
    )
    tables = made(results)
    average = cell(tables["fixedB"], "RN50", "4", column="1-shot my_bases:cosine")
    assert (average.value, average.bold) == (71.375, True)
    assert cell(tables["b_ablation_rank4_rn50"], "DTD", "1", column="my_bases:cosine").value == 71.25
    tested = [row.labels[3:] for row in comparisons(results).rows]
    assert ("fixed-B my_bases:cosine r4", "joint r4") in tested


def test_only_the_table_of_geometry_measures_geometry(results):
    def refuse():
        raise AssertionError

    makers = paper_tables(results, refuse)
    assert not makers["headline"]().empty
    with pytest.raises(AssertionError):
        makers["factor_geometry"]()


def test_no_runs_give_empty_tables():
    by_name = made(measured([]))
    assert list(by_name) == PAPER_NAMES[:9]
    tables = list(by_name.values())
    assert all(table.empty for table in tables)
    document = latex_document(map(to_latex, tables))
    assert r"\end{document}" in document
    assert all("nan" not in to_markdown(table) for table in tables)


def test_published_numbers_are_added_to_the_cells(results):
    tables = made(results, compare_published=True)
    found = cell(tables["rank_sweep"], "DTD", "1", column="Rank 4 RN50")
    assert (found.published, found.published_sd) == (41.96, 0.59)
    assert found.difference == pytest.approx(found.value - 41.96)
    assert found.exceeds_spread is True
    assert found.text(compare=True).endswith("(41.96, +11.63*)")
    other = cell(tables["rank_sweep"], "pocket-toy", "1", column="Rank 4 RN50")
    assert other.published is None and other.exceeds_spread is None
    # The averages are not over the paper's datasets, so they are not compared with its averages.
    assert all(one.published is None for row in tables["headline"].rows for one in row.cells)
    assert "There are no published numbers for these cells." in tables["headline"].notes


def test_published_geometry_is_shown_for_the_paper_s_runs(paper_joint_runs):
    table = compared_geometry(paper_joint_runs)
    found = cell(table, "Diff. datasets, same seed", column="Subspace overlap B")
    assert found.published == 0.86
    assert found.number is not None
    assert any(note.startswith("In brackets: the published number") for note in table.notes)


@pytest.mark.parametrize(
    ("changed", "missing", "reason"),
    [
        ({"n_ctx": 8}, None, "these runs differ in n_ctx"),
        ({"pretrained": "laion400m_e32"}, None, "these runs differ in backbone"),
        ({}, {"dataset": "dtd"}, "these runs differ in dataset"),
        ({}, {"rank": 8}, "these runs differ in rank"),
        ({}, {"rank": 8, "shots": 16}, "these runs are not all combinations"),
    ],
)
def test_published_geometry_is_left_out_for_other_runs(paper_joint_runs, changed, missing, reason):
    records = [
        replace(record, spec=record.spec.model_copy(update=changed))
        for record in paper_joint_runs
        if not missing or any(getattr(record.spec, name) != value for name, value in missing.items())
    ]
    table = compared_geometry(records)
    assert all(one.published is None for row in table.rows for one in row.cells)
    assert any(one.number is not None for row in table.rows for one in row.cells)
    assert reason in table.notes[-1]
    assert "not shown" in to_markdown(table)


def test_published_averages_are_compared_over_the_same_datasets():
    tables = made(published_measurements(), compare_published=True)
    found = cell(tables["headline"], "RN50", "1", column="Fact. r=4")
    assert found.published == 60.50
    assert found.exceeds_spread is None  # the paper prints no sd there


def test_another_length_than_the_published_one_is_said():
    spec = RunSpec(backbone="RN50", dataset="dtd", shots=1, seed=1, variant="joint", rank=4, n_ctx=8)
    for length, expected in ((8, True), (16, False)):
        specs = [spec.model_copy(update={"n_ctx": length})]
        table = made(of_joint(), specs=specs, compare_published=True)["rank_sweep"]
        assert ("Here low-rank prompts have 8 context tokens, the published ones 16." in table.notes) == expected


def test_another_protocol_than_the_papers_is_said():
    how = {"position": "middle", "precision": "bf16", "recipe": {"epochs": 20}}
    base = {"backbone": "RN50", "dataset": "dtd", "shots": 1, "seed": 1}

    def notes(*fields):
        specs = [RunSpec(**base, **one) for one in fields]
        tables = made(of_joint(), specs=specs, compare_published=True)
        return [note for note in tables["rank_sweep"].notes if "differ from the paper's grid" in note]

    low = {"variant": "joint", "rank": 4}
    expected = "position middle (there: end); precision bf16 (there: fp32); recipe.epochs 20 (there: 200)"
    assert notes(low, {**low, **how}) == [f"These runs differ from the paper's grid in {expected}."]
    assert notes(low, {"method": "tip-adapter"}, {**low, "depth": 3}) == []  # of other rows


def test_a_missing_mark_is_explained():
    tables = made(published_measurements(), compare_published=True)
    (note,) = [note for note in tables["headline"].notes if note.startswith("In brackets")]
    assert "no mark where the paper prints no standard deviation" in note


def test_best_results_are_compared_whichever_arm_is_best(results):
    tables = made(results, compare_published=True)
    found = cell(tables["best_delta"], "DTD", "1", column="Best Factorized CoOp")
    assert found.published == 50.45
    found = cell(tables["transfer_best_delta"], "DTD", "Food101", column="Best Transfer Result")
    assert found.published is None  # not a pair of the paper


def test_the_best_of_one_backbone_is_not_compared_with_the_best_of_both():
    for backbone, expected in (("RN50", None), ("ViT-B/16", 69.29)):
        table = made(of_joint(backbone=backbone, shots=16), compare_published=True)["best_delta"]
        assert cell(table, "DTD", "16", column="Best Factorized CoOp").published == expected


def test_published_differences_are_those_of_the_same_rank_and_length():
    values = {joint(2): 60.0, joint(8): 61.0, dense(2): 59.0, dense(8): 58.0}
    rows = [("ViT-B/16", "DTD", label, 16, "accuracy", "", {1: value}) for label, value in values.items()]
    table = made(results_of(*rows), compare_published=True)["best_delta"]
    assert cell(table, "DTD", "16", column="Best Factorized CoOp").published == 69.29
    labels = ("Δ Rank2–Best", "Δ Best–Ctx2", "Δ Best–Ctx8")
    shown = [cell(table, "DTD", "16", column=label) for label in labels]
    assert [one.number for one in shown] == [-1.0, 2.0, 3.0]
    assert all(one.published is None for one in shown)


@pytest.mark.parametrize(
    ("backbone", "rank", "expected"), [("ViT-B/16", 4, 96.03), ("ViT-B/16", 8, None), ("RN50", 4, None)]
)
def test_published_transfers_are_those_of_the_same_backbone_and_rank(backbone, rank, expected):
    results = results_of((backbone, "Oxford Flowers", fixed_b("source", rank), 16, "accuracy", "DTD", {1: 90.0}))
    table = made(results, compare_published=True)["transfer_best_delta"]
    assert cell(table, "Oxford Flowers", "DTD", column="Best Transfer Result").published == expected


# ---------------------------------------------------------------- tables that are not in the paper


def test_comparisons_table(results):
    table = comparisons(results)
    rows = [
        row for row in table.rows if row.labels == ("low rank − dense, accuracy", "RN50", "4", "joint r4", "dense m8")
    ]
    assert len(rows) == 1
    shown = {column.label: one.value for column, one in zip(table.columns, rows[0].cells, strict=True)}
    assert shown["n"] == "3"
    assert shown["Difference"] == pytest.approx(1.0, abs=0.1)
    assert shown["+/=/−"] == "3/0/0"
    assert shown["Reading"] == "different"
    readings = {row.cells[-1].value for row in table.rows if row.labels[3] == "fixed-B orthogonal r4"}
    assert readings == {"equivalent"}


def test_summaries_table(results):
    table = summaries(results)
    assert [column.full_label for column in table.columns][2] == "Macro Mean ± sd"
    assert not table.empty
    assert comparisons(measured([])).empty and summaries(measured([])).empty


# ---------------------------------------------------------------- formats


def test_csv_layout_has_numbers(tables):
    frame = to_frame(tables["b_ablation_rank4_rn50"])
    assert list(frame.columns[:5]) == ["Dataset", "Shots", "Dense CoOp Best", "Dense CoOp Best sd", "Dense CoOp Best n"]
    assert frame["Gaussian B"].dtype == float
    assert (frame["Gaussian B n"] == 3).all()


def test_all_formats_are_written(tables):
    files = table_files(list(tables.values()))
    assert {"tables.md", "tables.tex", "tables.xlsx", "cells.csv", "headline.csv", "headline.tex"} <= set(files)
    assert all(files.values())
    cells = pd.read_csv(io.StringIO(files["cells.csv"]))
    row = cells[(cells["table"] == "headline") & (cells["row"] == "RN50, 4") & (cells["column"] == "Fact. r=4")].iloc[0]
    assert row["n"] == 3 and len(row["runs"].split()) == 9
    book = openpyxl.load_workbook(io.BytesIO(files["tables.xlsx"]))
    assert book.sheetnames == ["contents", *(name[:31] for name in tables)]
    sheet = book["headline"]
    header = [one.value for one in sheet[2]]
    assert sheet.cell(3, header.index("Fact. r=4") + 1).value == pytest.approx(
        tables["headline"].rows[0].cells[2].value, abs=1e-4
    )
    assert sheet.cell(3, header.index("Fact. r=4") + 1).font.bold


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(results, published, tmp_path):
    compared = made(results, compare_published=True)
    shown = [*published.values(), *compared.values(), comparisons(results), summaries(results), HOSTILE]
    document = latex_document(map(to_latex, shown))
    (tmp_path / "tables.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000


def published_method_tables(runs: Path) -> dict[str, Table]:
    makers = methods_tables_of(measured(load_records(runs)), compare_published=True)
    return {name: table for name, make in makers.items() if not (table := make()).empty}


def cell_of(table: Table, *labels: str, column: int = 0) -> Cell:
    (row,) = (row for row in table.rows if row.labels == labels)
    return row.cells[column]


def test_published_baselines_stand_beside_measured_methods(tmp_path):
    tables = published_method_tables(write_methods(tmp_path, backbones=("RN50", "ViT-B-16"), seeds=(1,)))
    rows = {(row.method, row.dataset, row.backbone, row.class_subset, row.shots): row for row in published_baselines()}
    table = tables["methods_by_dataset"]
    tip = rows["tip-adapter", "dtd", "RN50", "all", 4]
    assert cell_of(table, "RN50", "DTD", "tip-adapter", column=1).published == tip.accuracy
    assert (
        cell_of(table, "RN50", "DTD", "zero-shot", column=1).published
        == rows["zero-shot", "dtd", "RN50", "all", 0].accuracy
    )
    assert cell_of(table, "RN50", "DTD", "clap").published is None
    assert cell_of(table, "ViT-B/16", "DTD", "tip-adapter").published is None
    assert table.compare
    assert f"Published tip-adapter: {tip.protocol} ({tip.source})." in table.notes
    average = cell_of(tables["methods"], "RN50", "gda").published
    assert average == pytest.approx(
        sum(rows["gda", name, "RN50", "all", 1].accuracy for name in ("dtd", "food101")) / 2
    )
    joint_cell = cell_of(table, "RN50", "DTD", "joint r4")
    paper = select(published_frame(), backbone="RN50", dataset="DTD", label=joint(4), shots=1)["mean"]
    assert joint_cell.published == paper.item()
    new = cell_of(tables["methods_base_to_new_by_dataset"], "ViT-B/16", "Food101", "zero-shot", column=1)
    assert new.published == rows["zero-shot", "food101", "ViT-B-16", "new", 0].accuracy


def test_averages_over_datasets_without_published_numbers_have_none(tmp_path):
    tables = published_method_tables(write_methods(tmp_path, datasets=("dtd", "pocket-toy"), shots=(1,), seeds=(1,)))
    assert cell_of(tables["methods"], "RN50", "tip-adapter").published is None
    assert cell_of(tables["methods_by_dataset"], "RN50", "DTD", "tip-adapter").published is not None


def test_other_weights_have_no_published_numbers(tmp_path):
    fields = {
        "backbone": "RN50",
        "pretrained": "cc12m",
        "dataset": "dtd",
        "shots": 1,
        "seed": 1,
        "method": "tip-adapter",
    }
    write_run(tmp_path, fields)
    (table,) = [one for one in published_method_tables(tmp_path).values() if one.name == "methods_by_dataset"]
    assert not table.compare
    assert "There are no published numbers for these cells." in table.notes
