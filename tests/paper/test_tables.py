import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import openpyxl
import pandas as pd
import pytest

from slimprompt.analysis.arms import dense, fixed_basis, joint, transfer
from slimprompt.analysis.geometry import measure
from slimprompt.analysis.methods import costs
from slimprompt.analysis.observations import observe
from slimprompt.analysis.results import CellKey, Estimate, Results
from slimprompt.lab.records import load_records
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.published import PrintedKey, printed_numbers, published_baselines, published_results
from slimprompt.paper.tables import comparisons, paper_tables, published_tables, summaries, with_published_methods
from slimprompt.report.methods_tables import methods_tables
from slimprompt.report.table import Cell, Table, mark_best
from slimprompt.report.table_formats import latex_document, to_frame, to_latex, to_markdown, write_tables
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
    return Results.of(observe(load_records(runs)))


@pytest.fixture(scope="module")
def tables(runs, results):
    medians = measure(load_records(runs), draws=10).medians()
    return {table.name: table for table in paper_tables(results, medians)}


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
    results = Results.of(observe(records))
    tables = paper_tables(results, found.medians(), found.compared, compare_published=True)
    return next(table for table in tables if table.name == "factor_geometry")


@pytest.fixture(scope="module")
def published():
    return {table.name: table for table in published_tables()}


def cell(table, *labels, column):
    """The cell in the row with these labels (with or without the section) and the column with this full label."""
    rows = [row for row in table.rows if labels in (row.labels, (row.section, *row.labels))]
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


def test_every_published_number_appears_in_a_table_as_printed(published):
    cells = [one for table in published.values() for row in table.rows for one in row.cells if one.key]
    printed = printed_numbers()
    assert len(cells) == 2552
    assert {one.key for one in cells} == set(printed)
    for one in cells:
        assert (one.value, one.sd) == printed[one.key][:2]


def test_bold_marks_match_the_paper(published):
    """One of 2,230 marks differs: the paper marks only one of two tied values."""
    printed = printed_numbers()
    cells = [one for table in published.values() for row in table.rows for one in row.cells if one.key]
    differing = [one.key for one in cells if printed[one.key].bold not in (None, one.bold)]
    assert differing == [PrintedKey("b_ablation", CellKey("ViT-B/16", "Food101", *fixed_basis("gaussian", 4), 1))]


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
    assert published["base2new"].rows[0].section == "RN50"
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
    tables = {table.name: table for table in paper_tables(Results.of(observe(load_records(tmp_path))))}
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
    tables = {table.name: table for table in paper_tables(Results.of(observe(load_records(tmp_path))))}
    assert cell(tables["rank_sweep"], "DTD", "1", column="Rank 4 RN50").n == 2
    assert cell(tables["headline"], "RN50", "1", column="Fact. r=4").n == 2
    assert any("n = 2 to 3 seeds" in note for note in tables["rank_sweep"].notes)


def seeded(values):
    """An estimate from values by seed."""
    return Estimate(sum(values.values()) / len(values), None, len(values), by_seed=values)


def tables_of(cells, dataset="DTD", shots=1):
    """The paper's tables of arms on one dataset and RN50, from their values by seed."""
    results = Results({CellKey("RN50", dataset, *arm, shots): seeded(values) for arm, values in cells.items()})
    return {table.name: table for table in paper_tables(results)}


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


def test_the_best_transfer_is_decided_on_common_seeds():
    modes = {"source-A": {1: 60.0}, "random-A": {1: 61.0}, "source-B": {1: 62.0, 2: 70.0}, "random-B": {1: 63.0}}
    cells = {
        CellKey("RN50", "DTD", *transfer(mode, 4), 16, source="Food101" if "source" in mode else ""): seeded(values)
        for mode, values in modes.items()
    }
    tables = {table.name: table for table in paper_tables(Results(cells))}
    (row,) = tables["transfer_best_delta"].rows
    assert [one.value for one in row.cells[:3]] == [63.0, "Freeze Random B, Train A", 1.0]


def test_a_basis_of_your_own_has_its_columns_and_tests():
    arms = {joint(4): 70.0, fixed_basis("orthogonal", 4): 70.5, fixed_basis("my_bases:cosine", 4): 71.0}
    cells = {
        CellKey("RN50", dataset, *arm, 1): seeded({1: value, 2: value + offset})
        for arm, value in arms.items()
        for dataset, offset in (("DTD", 0.5), ("Food101", 1.0))
    }
    results = Results(cells)
    tables = {table.name: table for table in paper_tables(results)}
    average = cell(tables["fixedB"], "RN50", "4", column="1-shot my_bases:cosine")
    assert (average.value, average.bold) == (71.375, True)
    assert cell(tables["b_ablation_rank4_rn50"], "DTD", "1", column="my_bases:cosine").value == 71.25
    tested = [row.labels[3:] for row in comparisons(results).rows]
    assert ("fixed-B my_bases:cosine r4", "joint r4") in tested


def test_no_runs_give_empty_tables():
    tables = paper_tables(Results({}))
    assert [table.name for table in tables] == PAPER_NAMES[:9]
    assert all(table.empty for table in tables)
    document = latex_document(map(to_latex, tables))
    assert r"\end{document}" in document
    assert all("nan" not in to_markdown(table) for table in tables)


def test_published_numbers_are_added_to_the_cells(results):
    tables = {table.name: table for table in paper_tables(results, compare_published=True)}
    found = cell(tables["rank_sweep"], "DTD", "1", column="Rank 4 RN50")
    assert (found.published, found.published_sd) == (41.96, 0.59)
    assert found.difference == pytest.approx(found.value - 41.96)
    assert found.beyond_sd is True
    assert found.text(compare=True).endswith("(41.96, +11.63*)")
    other = cell(tables["rank_sweep"], "pocket-toy", "1", column="Rank 4 RN50")
    assert other.published is None and other.beyond_sd is None
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
    tables = {table.name: table for table in paper_tables(published_results(), compare_published=True)}
    found = cell(tables["headline"], "RN50", "1", column="Fact. r=4")
    assert found.published == 60.50
    assert found.beyond_sd is None  # the paper prints no sd there


def test_another_length_than_the_published_one_is_said():
    spec = RunSpec(backbone="RN50", dataset="dtd", shots=1, seed=1, variant="joint", rank=4, n_ctx=8)
    results = Results({CellKey("RN50", "DTD", *joint(4), 1): Estimate(60.0, 0.1, 3)})
    for length, expected in ((8, True), (16, False)):
        specs = [spec.model_copy(update={"n_ctx": length})]
        table = {one.name: one for one in paper_tables(results, specs=specs, compare_published=True)}["rank_sweep"]
        assert ("Here low-rank prompts have 8 context tokens, the published ones 16." in table.notes) == expected


def test_another_protocol_than_the_papers_is_said():
    how = {"position": "middle", "precision": "bf16", "recipe": {"epochs": 20}}
    base = {"backbone": "RN50", "dataset": "dtd", "shots": 1, "seed": 1}
    results = Results({CellKey("RN50", "DTD", *joint(4), 1): Estimate(60.0, 0.1, 3)})

    def notes(*fields):
        specs = [RunSpec(**base, **one) for one in fields]
        tables = {one.name: one for one in paper_tables(results, specs=specs, compare_published=True)}
        return [note for note in tables["rank_sweep"].notes if "differ from the paper's grid" in note]

    low = {"variant": "joint", "rank": 4}
    expected = "position middle (there: end); precision bf16 (there: fp32); recipe.epochs 20 (there: 200)"
    assert notes(low, {**low, **how}) == [f"These runs differ from the paper's grid in {expected}."]
    assert notes(low, {"method": "tip-adapter"}, {**low, "depth": 3}) == []  # of other rows


def test_a_missing_mark_is_explained():
    tables = {table.name: table for table in paper_tables(published_results(), compare_published=True)}
    (note,) = [note for note in tables["headline"].notes if note.startswith("In brackets")]
    assert "no mark where the paper prints no standard deviation" in note


def test_best_results_are_compared_whichever_arm_is_best(results):
    tables = {table.name: table for table in paper_tables(results, compare_published=True)}
    found = cell(tables["best_delta"], "DTD", "1", column="Best Factorized CoOp")
    assert found.published == 50.45
    found = cell(tables["transfer_best_delta"], "DTD", "Food101", column="Best Transfer Result")
    assert found.published is None  # not a pair of the paper


def test_the_best_of_one_backbone_is_not_compared_with_the_best_of_both():
    cells = {CellKey(backbone, "DTD", *joint(4), 16): Estimate(60.0, 0.1, 3) for backbone in ("RN50", "ViT-B/16")}
    for backbone, published in (("RN50", None), ("ViT-B/16", 69.29)):
        results = Results({key: one for key, one in cells.items() if key.backbone == backbone})
        table = {table.name: table for table in paper_tables(results, compare_published=True)}["best_delta"]
        assert cell(table, "DTD", "16", column="Best Factorized CoOp").published == published


def test_published_differences_are_those_of_the_same_rank_and_length():
    values = {joint(2): 60.0, joint(8): 61.0, dense(2): 59.0, dense(8): 58.0}
    results = Results({CellKey("ViT-B/16", "DTD", *arm, 16): Estimate(v, 0.1, 3) for arm, v in values.items()})
    table = {table.name: table for table in paper_tables(results, compare_published=True)}["best_delta"]
    assert cell(table, "DTD", "16", column="Best Factorized CoOp").published == 69.29
    labels = ("Δ Rank2–Best", "Δ Best–Ctx2", "Δ Best–Ctx8")
    shown = [cell(table, "DTD", "16", column=label) for label in labels]
    assert [one.number for one in shown] == [-1.0, 2.0, 3.0]
    assert all(one.published is None for one in shown)


@pytest.mark.parametrize(
    ("backbone", "rank", "published"), [("ViT-B/16", 4, 96.03), ("ViT-B/16", 8, None), ("RN50", 4, None)]
)
def test_published_transfers_are_those_of_the_same_backbone_and_rank(backbone, rank, published):
    key = CellKey(backbone, "Oxford Flowers", *transfer("source-B", rank), 16, source="DTD")
    tables = paper_tables(Results({key: Estimate(90.0, 0.1, 3)}), compare_published=True)
    table = {table.name: table for table in tables}["transfer_best_delta"]
    assert cell(table, "Oxford Flowers", "DTD", column="Best Transfer Result").published == published


@pytest.mark.parametrize(
    ("values", "bold"),
    [
        ([1.0, 2.0, 3.0], [False, False, True]),
        ([3.001, 3.004, 1.0], [True, True, False]),  # tied after rounding
        ([2.0, 2.0], [False, False]),  # all tied
        ([2.0, None], [False, False]),  # nothing to compare with
        ([None, None], [False, False]),
    ],
)
def test_the_best_number_is_bold(values, bold):
    assert [one.bold for one in mark_best([Cell(value) for value in values])] == bold


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
    assert comparisons(Results({})).empty and summaries(Results({})).empty


# ---------------------------------------------------------------- formats


def test_csv_layout_has_numbers(tables):
    frame = to_frame(tables["b_ablation_rank4_rn50"])
    assert list(frame.columns[:5]) == ["Dataset", "Shots", "Dense CoOp Best", "Dense CoOp Best sd", "Dense CoOp Best n"]
    assert frame["Gaussian B"].dtype == float
    assert (frame["Gaussian B n"] == 3).all()


def test_all_formats_are_written(tables, tmp_path):
    built = list(tables.values())
    files = write_tables(built, tmp_path / "out")
    names = {path.name for path in files}
    assert {"tables.md", "tables.tex", "tables.xlsx", "cells.csv", "headline.csv", "headline.tex"} <= names
    assert all(path.stat().st_size > 0 for path in files)
    cells = pd.read_csv(tmp_path / "out" / "cells.csv")
    row = cells[(cells["table"] == "headline") & (cells["row"] == "RN50, 4") & (cells["column"] == "Fact. r=4")].iloc[0]
    assert row["n"] == 3 and len(row["runs"].split()) == 9
    book = openpyxl.load_workbook(tmp_path / "out" / "tables.xlsx")
    assert book.sheetnames == ["contents", *(name[:31] for name in tables)]
    sheet = book["headline"]
    header = [one.value for one in sheet[2]]
    assert sheet.cell(3, header.index("Fact. r=4") + 1).value == pytest.approx(
        tables["headline"].rows[0].cells[2].value, abs=1e-4
    )
    assert sheet.cell(3, header.index("Fact. r=4") + 1).font.bold


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(results, published, tmp_path):
    compared = paper_tables(results, compare_published=True)
    shown = [*published.values(), *compared, comparisons(results), summaries(results), HOSTILE]
    document = latex_document(map(to_latex, shown))
    (tmp_path / "tables.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000


def published_method_tables(runs: Path) -> dict[str, Table]:
    records = load_records(runs)
    built = methods_tables(Results.of(observe(records)), costs(records))
    return {table.name: with_published_methods(table) for table in built}


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
    assert joint_cell.published == published_results().cell("RN50", "DTD", joint(4), 1).mean
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
