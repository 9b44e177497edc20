"""The report of a folder of runs: an HTML page with its tables and figures as files. It reads run records only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from slimprompt.analysis.claims import Finding, check, geometry_table
from slimprompt.analysis.frame import observations
from slimprompt.analysis.geometry import Geometry, class_subset_of, measure
from slimprompt.analysis.methods import Costs, costs
from slimprompt.analysis.observations import mixed_settings, observe
from slimprompt.analysis.results import Results
from slimprompt.analysis.verdict import VERDICTS
from slimprompt.errors import InputError
from slimprompt.forked import run_forked
from slimprompt.lab.records import Record, load_records, runs_command, select_records, unmet_conditions
from slimprompt.paper.claims import CLAIMS
from slimprompt.paper.figures import figure_functions
from slimprompt.paper.summary import key_figures, questions_table, summary_table, without_constants
from slimprompt.paper.tables import comparisons, paper_tables, summaries, with_published_methods
from slimprompt.paper.theory.reader import report_section
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.progress import progress
from slimprompt.report.folder import check_result_folder, write_result_folder
from slimprompt.report.html import render
from slimprompt.report.methods_figures import methods_figures
from slimprompt.report.methods_tables import methods_tables
from slimprompt.report.plotting import Figure, figure_files, load_matplotlib
from slimprompt.report.runs import RUNS_CSV, runs_csv, runs_section
from slimprompt.report.table import Table
from slimprompt.report.table_formats import table_files

PAGE = "index.html"
#: Tables in the body of the paper; the page folds all others.
_MAIN_TABLES = ("headline", "base2new", "fixedB", "transfer_pairs", "factor_geometry")


@dataclass(frozen=True)
class Report:
    """The content of the page as plain data."""

    folder: Path
    records: Sequence[Record]
    failed: Sequence[Record]
    summary_table: Table
    questions: Table
    findings: Sequence[Finding]
    figures: Sequence[Figure]
    tables: Sequence[Table]
    notes: Sequence[str]
    methods_figures: Sequence[Figure] = ()
    """Comparisons of methods; empty if there are no runs of other methods or of prompts beyond the paper."""
    methods_tables: Sequence[Table] = ()

    @property
    def pocket(self) -> bool:
        """Whether some runs use the pocket world."""
        return any(uses_pocket(record) for record in self.records)


def uses_pocket(record: Record) -> bool:
    """Whether the run used an embedded model or a rendered benchmark."""
    return record.spec.backbone.split("-")[0] == "pocket" or record.spec.dataset in POCKET_BENCHMARKS


def build_report(
    runs: Path, *, where: Sequence[str] = (), compare_published: bool = False, show: bool = False
) -> Report:
    """Analyse a folder of runs; any set of complete runs is enough.

    Parameters
    ----------
    runs
        Folder of run folders.
    where
        Conditions `field=value[,value…]` that select runs.
    compare_published
        Add the published numbers and the differences to the tables.
    show
        Show the progress of each stage.

    Raises
    ------
    InputError
        If no complete run meets the conditions.
    """
    everything = load_records(runs, complete_only=False, show=show)
    chosen = select_records(everything, where)
    records = [record for record in chosen if record.complete]
    failed = [record for record in chosen if not record.complete]
    if not records:
        conditions = f" that meet {' and '.join(where)}" if where else ""
        broken = f" ({len(failed)} failed; `{runs_command('list', runs)}` shows their errors)" if failed else ""
        unmet = "".join(f"; {one}" for one in unmet_conditions(everything, where))
        raise InputError(f"no complete runs{conditions} in {runs}{broken}{unmet}; create some with `slimprompt study`")
    results = Results.of(observe(records))
    geometry = measure(records, class_subset=class_subset_of(where), draws=500, show=show)
    medians = geometry_table(geometry.medians(), geometry.displacement)
    found = costs(records)
    plots = figure_functions(records, results, geometry)
    others: dict[str, Callable[[], Any]] = {
        "summary_table": lambda: summary_table(results, records),
        "questions": lambda: questions_table(results),
        "findings": lambda: check(CLAIMS, observations(records), medians),
        "tables": lambda: _tables(results, geometry, records, compare_published),
        "methods_figures": lambda: methods_figures(results, found),
        "methods_tables": lambda: _methods_tables(results, found, compare_published),
    }
    jobs = [*others.values(), *plots]
    load_matplotlib()
    with progress("tables and figures", len(jobs), "parts", show=show) as advance:
        made = run_forked(jobs[::-1], advance=lambda _: advance())[::-1]  # figures take longest, so they begin first
    return Report(
        folder=runs,
        records=records,
        failed=failed,
        figures=made[len(others) :],
        notes=[*mixed_settings(records), *geometry.notes],
        **dict(zip(others, made[: len(others)], strict=True)),
    )


def _tables(results: Results, geometry: Geometry, records: Sequence[Record], compare_published: bool) -> list[Table]:
    specs = [record.spec for record in records]
    tables = paper_tables(
        results, geometry.medians(), geometry.compared, specs=specs, compare_published=compare_published
    )
    return [*tables, comparisons(results), summaries(results)]


def _methods_tables(results: Results, found: Costs, compare_published: bool) -> list[Table]:
    compared = methods_tables(results, found)
    return [with_published_methods(table) for table in compared] if compare_published else compared


def write_report(report: Report, out: Path, *, theory: Path | None = None, show: bool = False) -> Path:
    """Make `out` hold exactly this report: `index.html`, `runs.csv`, `tables/`, `figures/` and `claims.json`.

    Parameters
    ----------
    report
        Result of `build_report`.
    out
        A new or empty folder, or one with an earlier report, which is replaced.
    theory
        Folder that `slimprompt theory --out` wrote, to include its statements.
    show
        Show the progress.

    Returns
    -------
    Path
        The page.
    """
    check_result_folder(out)
    tables = [table for table in (*report.methods_tables, *report.tables) if not table.empty]
    jobs: list[Callable[[], Any]] = [
        lambda: render_report(report, theory=theory),
        lambda: table_files(tables),
        lambda: runs_csv(report.records),
    ]
    with progress("page and files", len(jobs), "parts", show=show) as advance:
        page, files, listed = run_forked(jobs, advance=lambda _: advance())
    findings = [finding.as_dict() for finding in report.findings]
    write_result_folder(
        out,
        {
            PAGE: page,
            RUNS_CSV: listed,
            "claims.json": json.dumps(findings, indent=1, ensure_ascii=False) + "\n",
            **{f"tables/{name}": content for name, content in files.items()},
            **{
                f"figures/{name}": content for name, content in figure_files([*report.figures, *report.methods_figures])
            },
        },
    )
    return out / PAGE


def render_report(report: Report, *, theory: Path | None = None) -> str:
    """The HTML page; the arguments are those of `write_report`."""
    filled = [table for table in report.tables if not table.empty]
    verdicts = Counter(str(finding.verdict) for finding in report.findings)
    section = report_section(theory) if theory else ""
    contents = [("summary", "Summary"), *([("methods", "Methods")] if report.methods_tables else [])]
    contents += [("claims", "Claims"), ("figures", "Figures"), ("tables", "Tables")]
    contents += [("theory", "Theory")] if section else []
    contents += [("provenance", "Environment and provenance"), ("runs", "Runs")]
    return render(
        "report.html.j2",
        {
            "title": f"Low-rank prompts: {len(report.records):,} runs",
            "contents": contents,
            "report": report,
            "key_figures": key_figures(report.records, len(report.failed), verdicts),
            "methods_tables": [without_constants(table) for table in report.methods_tables],
            "summary_table": without_constants(report.summary_table),
            "questions": without_constants(report.questions),
            "claims": [(name, list(same)) for name, same in groupby(report.findings, key=lambda one: one.name)],
            "verdicts": verdicts,
            "display": VERDICTS,
            "main_tables": [table for table in filled if table.name in _MAIN_TABLES],
            "more_tables": [table for table in filled if table.name not in _MAIN_TABLES],
            "empty_tables": [table for table in report.tables if table.empty],
            "theory_section": section,
            **runs_section(report.records),
        },
    )
