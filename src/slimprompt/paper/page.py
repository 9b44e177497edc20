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
from slimprompt.analysis.frame import Measurements, cells, costs_of, observations, runs_of
from slimprompt.analysis.geometry import class_subset_of, measure
from slimprompt.analysis.verdict import VERDICTS
from slimprompt.errors import InputError
from slimprompt.lab.records import Record, load_records, runs_command, select_records, unmet_conditions
from slimprompt.paper.claims import CLAIMS
from slimprompt.paper.figures import figure_functions
from slimprompt.paper.summary import (
    key_figures,
    limitations,
    questions_table,
    summary_table,
    uses_pocket,
    without_constants,
)
from slimprompt.paper.tables import paper_tables
from slimprompt.paper.tables.extra import comparisons, summaries
from slimprompt.paper.tables.methods import published_methods, with_protocols
from slimprompt.paper.theory.reader import report_section
from slimprompt.progress import progress
from slimprompt.report.folder import check_result_folder, write_result_folder
from slimprompt.report.html import render
from slimprompt.report.methods_figures import methods_figures
from slimprompt.report.methods_tables import methods_tables
from slimprompt.report.plotting import Figure, figure_files
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
    """Limitations of these runs."""
    methods_figures: Sequence[Figure] = ()
    """Comparisons of methods; empty if there are no runs of other methods or of prompts beyond the paper."""
    methods_tables: Sequence[Table] = ()

    @property
    def pocket(self) -> bool:
        """Whether some runs use the pocket world."""
        return any(uses_pocket(record) for record in self.records)


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
    geometry = measure(records, class_subset=class_subset_of(where), draws=500, show=show)
    observed = observations(records)
    results = Measurements(cells(observed), runs_of(observed), costs_of(observed))
    medians = geometry.medians()
    plots = figure_functions(results.frame, geometry, records)
    specs = [record.spec for record in records]
    tables = {
        **paper_tables(results, lambda: (medians, geometry.compared), specs=specs, compare_published=compare_published),
        "comparisons": lambda: comparisons(results),
        "summaries": lambda: summaries(results),
    }
    parts: list[Callable[[], Any]] = [*plots, *tables.values()]
    with progress("tables and figures", len(parts), "parts", show=show) as advance:
        made = []
        for part in parts:
            made.append(part())
            advance()
    published = published_methods(results.frame) if compare_published else None
    compared = methods_tables(results, published)
    return Report(
        folder=runs,
        records=records,
        failed=failed,
        summary_table=summary_table(results),
        questions=questions_table(results.frame),
        findings=check(CLAIMS, observed, geometry_table(medians, geometry.displacement)),
        figures=made[: len(plots)],
        tables=made[len(plots) :],
        notes=[*limitations(records, len(failed)), *geometry.notes],
        methods_figures=methods_figures(results),
        methods_tables=with_protocols(compared, results.frame) if compare_published else compared,
    )


def write_report(report: Report, out: Path, *, theory: Path | None = None) -> Path:
    """Make `out` hold exactly this report, and return its page.

    The files are `index.html`, `runs.csv`, `tables/`, `figures/` and `claims.json`.

    Parameters
    ----------
    report
        Result of `build_report`.
    out
        A new or empty folder, or one with an earlier report, which is replaced.
    theory
        Folder that `slimprompt theory --out` wrote, to include its statements.
    """
    check_result_folder(out)
    tables = [table for table in (*report.methods_tables, *report.tables) if not table.empty]
    findings = json.dumps([finding.as_dict() for finding in report.findings], indent=1, ensure_ascii=False)
    plotted = figure_files([*report.figures, *report.methods_figures])
    files: dict[str, str | bytes] = {
        PAGE: render_report(report, theory=theory),
        RUNS_CSV: runs_csv(report.records),
        "claims.json": findings + "\n",
        **{f"tables/{name}": content for name, content in table_files(tables).items()},
        **{f"figures/{name}": content for name, content in plotted},
    }
    write_result_folder(out, files)
    return out / PAGE


def render_report(report: Report, *, theory: Path | None = None) -> str:
    """The HTML page; the arguments are those of `write_report`."""
    filled = [table for table in report.tables if not table.empty]
    verdicts = Counter(finding.verdict for finding in report.findings)
    section = report_section(theory) if theory else ""
    contents = {
        "summary": "Summary",
        **({"methods": "Methods"} if report.methods_tables else {}),
        "claims": "Claims",
        "figures": "Figures",
        "tables": "Tables",
        **({"theory": "Theory"} if section else {}),
        "provenance": "Environment and provenance",
        "runs": "Runs",
    }
    values = {
        "title": f"Low-rank prompts: {len(report.records):,} {'run' if len(report.records) == 1 else 'runs'}",
        "contents": list(contents.items()),
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
    }
    return render("report.html.j2", values)
