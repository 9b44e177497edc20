from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slimprompt.analysis.frame import select
from slimprompt.errors import InputError
from slimprompt.files import json_checksum
from slimprompt.lab.records import load_records
from slimprompt.lab.studies import Catalogue
from slimprompt.paper.contents import PAPER
from slimprompt.paper.theory import check_theory
from slimprompt.paper.theory.page import write_theory
from slimprompt.paper.theory.reader import report_section
from slimprompt.report import page as report_page
from slimprompt.report.page import Report, render_report, write_report
from slimprompt.report.paper import MeasuredRuns, Paper, Tables
from slimprompt.report.summary import key_figures
from slimprompt.report.table import Pivot, entries
from slimprompt.report.table_formats import to_markdown
from tests.html_page import Page
from tests.synthetic_runs import write_methods, write_run

build_report = partial(report_page.build_report, paper=PAPER)


@pytest.fixture(scope="module")
def report(study_report: Report) -> Report:
    return study_report


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page(render_report(report))


#: Conditions of the runs whose factors are compared.
WHOLE_GEOMETRY = ("class_subset=all", "variant=joint")


def test_one_folder_gives_all_class_geometry_and_base_to_new_tables(report: Report):
    subsets = {record.spec.class_subset for record in report.records if record.spec.variant == "joint"}
    assert subsets == {"all", "base"}
    tables = {table.name: table for table in report.tables if not table.empty}
    alone = {table.name: table for table in build_report(report.folder, where=WHOLE_GEOMETRY).tables}
    assert to_markdown(tables["factor_geometry"]) == to_markdown(alone["factor_geometry"])
    assert "base_to_new_pocket" in tables and alone["base2new"].empty
    assert any("left out, not trained on all classes" in note for note in report.notes)


FACTS: dict[str, Any] = {
    "versions": {"python": "3.11.4", "torch": "2.9"},
    "machine": {"host": "here", "cores": 2, "memory_gb": 8.0},
    "git": {"commit": "0123456789abcdef", "changed": True},
    "times": {"training": 2.0, "total": 3.0},
    "finished": "2025-01-02T03:04:05+00:00",
    "backbone_fingerprint": "f" * 64,
    "threads": 1,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A few runs with a backbone of the paper."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        for fields in ({"variant": "dense"}, {"variant": "joint", "rank": 4}):
            write_run(root, {"backbone": "ViT-B-16", "dataset": "dtd", "shots": 4, "seed": seed, **fields}, **FACTS)
    return build_report(root, compare_published=True)


def test_ids_are_unique_and_links_point_to_them(page: Page):
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    for attributes in page.all("a"):
        target = str(attributes["href"])
        assert target.startswith("#") and target[1:] in ids


def test_the_page_loads_nothing_and_runs_only_its_own_script(report: Report):
    text = render_report(report)
    for tag, attributes in Page(text).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in text and not re.search(r"url\((?!#)", text) and "fetch(" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy and script and text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1] and "default-src 'none'" in policy[1]


def test_every_number_links_to_its_runs(report: Report, page: Page):
    rows = {
        str(row["id"]): str(row["data-title"]) for row in page.all("tr") if str(row.get("id", "")).startswith("run-")
    }
    assert len(rows) == len(report.records)
    links = page.all("a", class_="n")
    assert len(links) > 100
    for link in links:
        assert all(f"run-{number}" in rows for number in str(link["data-runs"]).split())
    run_index = {str(record.folder): number for number, record in enumerate(report.records)}
    cell = next(cell for cell in report.tables[0].rows[0].cells if cell.runs)
    wanted = " ".join(map(str, sorted({run_index[run] for run in cell.runs})))
    assert any(link["data-runs"] == wanted for link in links)
    for run in cell.runs:
        record = next(record for record in report.records if str(record.folder) == run)
        assert rows[f"run-{run_index[run]}"] == f"{record.spec.title} · {record.folder.name}"


def test_a_page_of_too_many_runs_refers_to_a_file(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("slimprompt.report.runs.MAX_LISTED", len(report.records) - 1)
    page = Page(write_report(report, tmp_path).read_text(encoding="utf-8"))
    assert not page.all("tr", id="run-0") and not page.all("table", id="table-runs")
    assert page.all("a", href="runs.csv")
    assert f"These {len(report.records)} runs are too many" in page.text
    rows = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text(encoding="utf-8"))))
    cell = next(cell for cell in report.tables[0].rows[0].cells if cell.runs)
    numbers = [row["Run"] for row in rows if row["Run folder"] in {Path(run).name for run in cell.runs}]
    assert len(numbers) == len(cell.runs)
    assert " ".join(numbers) in {link["data-runs"] for link in page.all("a", class_="n")}


def test_runs_csv_holds_every_run(report: Report, tmp_path: Path):
    write_report(report, tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text(encoding="utf-8"))))
    assert [row["Run folder"] for row in rows] == [record.folder.name for record in report.records]
    assert [row["Run"] for row in rows] == [str(number) for number in range(len(rows))]
    for row, record in zip(rows, report.records, strict=True):
        assert row["Accuracy"] == str(record.metrics.get("accuracy", ""))
        assert row["Parameters"] == str(record.facts["trainable_parameters"])
        assert (row["Shots"], row["Seed"]) == (str(record.spec.shots), str(record.spec.seed))


def test_tables_are_accessible(page: Page):
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(header.get("scope") in ("col", "row", "colgroup") for header in page.all("th"))
    assert page.all("a", class_="skip") and page.all("html", lang="en") and page.all("main")
    regions = page.all("div", role="region")
    assert regions and all(region.get("tabindex") == "0" and region.get("aria-labelledby") for region in regions)
    assert len(page.all("svg", role="img")) == 8


def test_the_page_contains_banner_claims_and_summary(report: Report, page: Page):
    text = page.text
    assert "This is the pocket world: a stand-in, not the paper's results." in text
    for finding in report.findings:
        assert " ".join(finding.sentence.split()) in text
    summary_table = report.summary_table
    assert summary_table.rows and "Zero-shot" in [column.label for column in summary_table.columns]
    joint = next(row for row in summary_table.rows if row.labels[:3] == ("pocket", "accuracy", "4"))
    values = [cell.value for cell in joint.cells if cell.show_sd and cell.value is not None]
    assert all(isinstance(value, float) and 60 < value < 80 for value in values)
    assert "In every row: backbone = pocket, datasets = 2." in text  # a note replaces the constant columns
    assert [row.labels[0] for row in report.answers.rows].count("Must B be trained?") == 2


def test_a_real_backbone_has_no_banner_and_shows_published_numbers(small: Report):
    text = Page(render_report(small)).text
    assert "pocket world" not in text
    assert "There are no runs for this figure yet" in text and "No runs yet for:" in text
    assert "In brackets: the published number" in text
    assert len(small.records) == 4


def test_a_tile_lists_only_the_first_names(tmp_path: Path):
    for number in range(10):
        write_run(
            tmp_path,
            {"backbone": "RN50", "dataset": f"photos-{number}", "shots": 4, "seed": 1, "variant": "dense"},
            metrics={"accuracy": 50.0},
        )
    tiles = dict(key_figures(load_records(tmp_path), 0, Counter()))
    names = ", ".join(f"photos-{number}" for number in range(8))
    assert tiles[f"datasets: {names}, and 2 more"] == "10"
    assert tiles["backbone"] == "RN50"


def test_special_characters_in_names_are_escaped(tmp_path: Path):
    name = '"><script>alert(1)</script><img src=x onerror=alert(2)>$x^2$ & {{ 7*7 }}'
    root = tmp_path / "runs <b>&'\""
    metrics = {"accuracy": 50.0, "zero_shot_accuracy": 40.0}
    for seed in (1, 2):
        base = {"backbone": "pocket", "dataset": name, "shots": 4, "seed": seed}
        write_run(root, base | {"variant": "dense"}, metrics=metrics, machine={"host": "<i>h</i>"})
        write_run(root, base | {"variant": "joint", "rank": 4}, metrics=metrics, invocation=["<u>", name])
    failed = root / "0000failed"
    failed.mkdir()
    spec = {"backbone": "pocket", "dataset": name, "shots": 1, "seed": 1, "variant": "dense"}
    record = {"spec": spec, "status": "failed", "error": "<script>boom</script>"}
    (failed / "record.json").write_text(json.dumps(record | {"checksum": json_checksum(record)}))
    text = render_report(build_report(root))
    page = Page(text)
    words = "".join(page.words)
    assert text.count("<script") == 1
    assert not [tag for tag, attributes in page.elements if tag == "img" or "onerror" in attributes]
    assert name in words and "<script>boom</script>" in words and "<i>h</i>" in words and str(root) in words
    assert "1 run failed" in page.text


def test_provenance(small: Report):
    text = Page(render_report(small)).text
    wanted = (
        "0123456789ab with uncommitted changes",
        "here",
        "3.11.4",
        "2025-01-02",
        "ViT-B/16 ffffffffffff",
        "Memory (GB)",
        "200 epochs",
    )
    assert all(part in text for part in wanted)


def test_the_same_runs_give_the_same_page(small: Report):
    assert render_report(build_report(small.folder, compare_published=True)) == render_report(small)


def test_tables_figures_and_claims_are_written(small: Report, tmp_path: Path):
    path = write_report(small, tmp_path / "out")
    assert path == tmp_path / "out" / "index.html"
    assert (tmp_path / "out" / "tables" / "tables.xlsx").is_file() and (
        tmp_path / "out" / "tables" / "cells.csv"
    ).is_file()
    assert (tmp_path / "out" / "figures" / "accuracy_by_shots.svg").is_file()
    assert not (tmp_path / "out" / "figures" / "transfer_matrix.svg").exists()
    findings = json.loads((tmp_path / "out" / "claims.json").read_text(encoding="utf-8"))
    assert len(findings) == len(small.findings)
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(".")] == [".contents"]


def test_the_folder_holds_one_report(report: Report, small: Report, tmp_path: Path):
    """A report of fewer tables into the folder of a larger one, and into a folder with files of somebody else."""

    def written(found: Report, out: Path) -> set[str]:
        write_report(found, out)
        return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}

    alone = written(small, tmp_path / "alone")
    assert written(report, tmp_path / "out") - alone and written(small, tmp_path / "out") == alone
    (tmp_path / "out" / "tables" / "mine.csv").write_text("1")
    with pytest.raises(InputError, match="tables/mine.csv"):
        write_report(report, tmp_path / "out")


def test_theory_is_included_on_request(small: Report, tmp_path: Path):
    report = small
    assert "theory" not in [attributes.get("id") for _, attributes in Page(render_report(report)).elements]
    folder = tmp_path / "theory"
    write_theory(check_theory(m=4, d=10, rank=1, trials=10), folder)
    page = Page(render_report(report, section=report_section(folder)))
    assert page.all("section", **{"aria-labelledby": "theory"}) and "Dimension gap" in page.text
    assert page.all("figure", id="figure-theory-residual")
    with pytest.raises(InputError, match="holds no theory result"):
        report_section(tmp_path)


def test_errors_name_the_next_step(small: Report, tmp_path: Path):
    with pytest.raises(InputError, match="no runs folder"):
        build_report(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no complete runs in .*slimprompt study"):
        build_report(tmp_path)
    with pytest.raises(InputError, match="that meet shots=99"):
        build_report(small.folder, where=["shots=99"])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        write_report(small, tmp_path / "file")


def test_methods_have_a_section_of_their_own(tmp_path: Path, report: Report):
    found = build_report(write_methods(tmp_path / "runs", shots=(1,), seeds=(1,)), compare_published=True)
    text = render_report(found)
    assert '<h2 id="methods">Methods</h2>' in text
    assert text.index('id="methods"') < text.index('id="claims"')
    for title in ("Methods by shots", "Other datasets by name only", "Methods: accuracy against shots"):
        assert title in text
    write_report(found, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").rglob("methods*.svg")} == {
        *("methods_by_shots.svg", "methods_by_trained_numbers.svg", "methods_by_seconds.svg")
    }
    assert (tmp_path / "out" / "tables" / "cross_dataset.csv").is_file()
    assert 'id="methods"' not in render_report(report)  # only runs of the paper


@pytest.mark.parametrize(
    "fields",
    [{"method": "gda"}, {"method": "zero-shot", "evaluate_on": ["food101"]}, {"method": "gda", "class_subset": "base"}],
)
def test_a_page_of_methods_alone(tmp_path: Path, fields: dict[str, Any]):
    write_run(tmp_path, {"backbone": "RN50", "dataset": "dtd", "shots": 4, "seed": 1, **fields}, **FACTS)
    text = render_report(build_report(tmp_path))
    assert '<h2 id="methods">Methods</h2>' in text


def test_another_paper_brings_its_own_grid_and_tables(tmp_path: Path):
    for seed in (1, 2):
        write_run(tmp_path, {"backbone": "pocket", "dataset": "dtd", "shots": 4, "seed": seed, "variant": "dense"})
    pivot = Pivot("mine", "My table", {"Dataset": "{dataset}"}, "{label}")

    def tables(runs: MeasuredRuns, compare_published: bool) -> Tables:
        return {"mine": lambda: pivot.of(entries(select(runs.results.frame, metric="accuracy"), runs.results.runs))}

    grid = PAPER.studies.grid.model_copy(update={"backbones": ("pocket",), "datasets": ("dtd",), "shots": (4,)})
    mine = Paper(Catalogue({}, {}, grid, grid), tables, title="My paper")
    found = report_page.build_report(tmp_path, mine)
    assert [text for text in found.limitations if text.startswith("These runs cover")] == [
        "These runs cover 2 of the 3 seeds of the paper's study; not run: 3."
    ]
    page = Page(render_report(found))
    assert "My paper: 2 runs" in page.text and page.all("table", id="table-mine")
    assert page.all("table", id="table-summary") and not page.all("ul", id="claim-list") and not page.all("figure")


def test_the_page_says_what_the_runs_do_not_cover(small: Report):
    text = Page(render_report(small)).text
    for part in (
        "These runs cover 1 of the 7 datasets of the paper's study; not run: Caltech101,",
        "These runs cover 1 of the 2 backbones of the paper's study; not run: RN50.",
        "not run: 1, 16.",
    ):
        assert part in text


def test_settings_that_differ_are_named_after_what_is_missing(tmp_path: Path):
    cell = {"backbone": "RN50", "dataset": "dtd", "shots": 4, "variant": "dense"}
    for seed, epochs in ((1, 50), (2, 60)):
        write_run(tmp_path, {**cell, "seed": seed, "recipe": {"epochs": epochs}})
    found = build_report(tmp_path)
    assert any("recipe.epochs" in note for note in found.notes)
    assert "recipe.epochs = 50 (1 run), 60 (1 run)" in Page(render_report(found)).text


def test_every_number_of_a_claim_links_to_its_runs(report: Report):
    linked = [finding for finding in report.findings if finding.runs]
    assert len(linked) > 10
    number = {str(record.folder): number for number, record in enumerate(report.records)}
    shown = {str(link["data-runs"]) for link in Page(render_report(report)).all("a", class_="n")}
    for finding in linked:
        assert " ".join(map(str, sorted({number[run] for run in finding.runs}))) in shown
