"""The report of a folder of runs: an HTML page with the tables and figures of a paper as files. It reads run records only."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from slimprompt.analysis.claims import Finding, check, geometry_table
from slimprompt.analysis.frame import mixed_settings
from slimprompt.analysis.geometry import class_subset_of
from slimprompt.analysis.verdict import VERDICTS
from slimprompt.errors import InputError
from slimprompt.lab.records import Record, load_records, runs_command, select_records, unmet_conditions
from slimprompt.progress import progress
from slimprompt.report.folder import check_result_folder, write_result_folder
from slimprompt.report.html import render
from slimprompt.report.methods_figures import methods_figures
from slimprompt.report.methods_tables import methods_tables
from slimprompt.report.paper import MeasuredRuns, Paper
from slimprompt.report.plotting import Figure, figure_files
from slimprompt.report.runs import RUNS_CSV, runs_csv, runs_section
from slimprompt.report.summary import (
    key_figures,
    limitations,
    summary_table,
    uses_pocket,
    without_constants,
)
from slimprompt.report.table import Table
from slimprompt.report.table_formats import table_files

PAGE = "index.html"


@dataclass(frozen=True)
class Report:
    """The content of the page as plain data."""

    paper: Paper
    folder: Path
    records: Sequence[Record]
    failed: Sequence[Record]
    summary_table: Table
    answers: Table | None
    findings: Sequence[Finding]
    figures: Sequence[Figure]
    tables: Sequence[Table]
    limitations: Sequence[str]
    """What the runs do not cover."""
    notes: Sequence[str]
    """Settings that differ between runs, and runs that are left out."""
    methods_figures: Sequence[Figure] = ()
    """Comparisons of methods; empty if there are no runs of other methods or of prompts beyond the paper."""
    methods_tables: Sequence[Table] = ()

    @property
    def pocket(self) -> bool:
        """Whether some runs use the pocket world."""
        return any(uses_pocket(record) for record in self.records)


def build_report(
    runs: Path, paper: Paper, *, where: Sequence[str] = (), compare_published: bool = False, show: bool = False
) -> Report:
    """Analyse the complete runs of a folder that meet `where`; any set of them is enough, none is an `InputError`.

    With `compare_published` the tables have the published numbers and the differences.
    """
    everything = load_records(runs, complete_only=False, show=show)
    gc.freeze()  # the garbage collector would visit all records again and again
    chosen = select_records(everything, where)
    records = [record for record in chosen if record.complete]
    failed = [record for record in chosen if not record.complete]
    if not records:
        conditions = f" that meet {' and '.join(where)}" if where else ""
        broken = f" ({len(failed)} failed; `{runs_command('list', runs)}` shows their errors)" if failed else ""
        unmet = "".join(f"; {condition}" for condition in unmet_conditions(everything, where))
        raise InputError(f"no complete runs{conditions} in {runs}{broken}{unmet}; create some with `slimprompt study`")
    measured = MeasuredRuns(records, class_subset_of(where), show=show)
    results, geometry = measured.results, measured.geometry
    plots, tables = paper.figures(measured), paper.tables(measured, compare_published)
    parts: list[Callable[[], Any]] = [*plots, *tables.values()]
    with progress("tables and figures", len(parts), "parts", show=show) as advance:
        made = []
        for part in parts:
            made.append(part())
            advance()
    compared = methods_tables(results)
    built: dict[str, Table] = dict(zip(tables, made[len(plots) :], strict=True))
    return Report(
        paper=paper,
        folder=runs,
        records=records,
        failed=failed,
        summary_table=summary_table(results),
        answers=paper.answers(results.frame) if paper.answers else None,
        findings=check(paper.claims, measured.observed, geometry_table(geometry.medians(), geometry.displacement)),
        figures=made[: len(plots)],
        tables=[table for name, table in built.items() if name not in compared],
        limitations=limitations(records, len(failed), paper.studies.grid),
        notes=[*mixed_settings(records), *geometry.notes],
        methods_figures=methods_figures(results),
        methods_tables=[built[name] for name in compared if not built[name].empty],
    )


def write_report(report: Report, out: Path, *, section: str = "") -> Path:
    """Make `out`, a new or empty folder or an earlier report, hold exactly this report, and return its page.

    The files are `index.html`, `runs.csv`, `tables/`, `figures/` and `claims.json`; `section` is HTML with the anchor `theory`.
    """
    check_result_folder(out)
    tables = [table for table in (*report.methods_tables, *report.tables) if not table.empty]
    findings = json.dumps([finding.as_dict() for finding in report.findings], indent=1, ensure_ascii=False)
    plotted = figure_files([*report.figures, *report.methods_figures])
    files: dict[str, str | bytes] = {
        PAGE: render_report(report, section=section),
        RUNS_CSV: runs_csv(report.records),
        "claims.json": findings + "\n",
        **{f"tables/{name}": content for name, content in table_files(tables).items()},
        **{f"figures/{name}": content for name, content in plotted},
    }
    write_result_folder(out, files)
    return out / PAGE


def render_report(report: Report, *, section: str = "") -> str:
    """The HTML page; the arguments are those of `write_report`."""
    filled = [table for table in report.tables if not table.empty]
    verdicts = Counter(finding.verdict for finding in report.findings)
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
        "title": f"{report.paper.title}: {len(report.records):,} {'run' if len(report.records) == 1 else 'runs'}",
        "contents": list(contents.items()),
        "report": report,
        "notes": [*report.limitations, *report.notes],
        "key_figures": key_figures(report.records, len(report.failed), verdicts),
        "methods_tables": [without_constants(table) for table in report.methods_tables],
        "summary_table": without_constants(report.summary_table),
        "answers": without_constants(report.answers) if report.answers else None,
        "claims": [(name, list(same)) for name, same in groupby(report.findings, key=lambda finding: finding.name)],
        "verdicts": verdicts,
        "display": VERDICTS,
        "main_tables": [table for table in filled if table.name in report.paper.unfolded],
        "more_tables": [table for table in filled if table.name not in report.paper.unfolded],
        "empty_tables": [table for table in report.tables if table.empty],
        "theory_section": section,
        **runs_section(report.records),
    }
    return render("report.html.j2", values)
