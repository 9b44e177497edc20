"""`slimprompt report`: an HTML page with tables and figures about a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slimprompt.cli.options import Where
from slimprompt.cli.printing import say
from slimprompt.errors import count

if TYPE_CHECKING:
    from slimprompt.report.paper import Paper


def report(
    runs: Path = typer.Argument(..., metavar="RUNS", help="Folder of run folders, written by `slimprompt study`."),
    out: Path = typer.Option(
        Path("report"), "--out", "-o", help="Folder for index.html, runs.csv, tables/, figures/, claims.json."
    ),
    where: Where = None,
    compare_published: bool = typer.Option(
        False, "--compare-published", help="Show the published number and the difference next to each number."
    ),
    theory: Path | None = typer.Option(
        None, help="Folder written by `slimprompt theory --out`; adds its statements to the page."
    ),
    *,
    paper: Paper,
) -> None:
    """Write a self-contained HTML page about a folder of runs: summary, claims, figures, tables, provenance.

    Any set of complete runs is enough; the page says what is missing. An earlier report in the output folder is replaced; a folder
    with other files is refused.

    Example: slimprompt report runs/ --out report/
    """
    from slimprompt.paper.theory.reader import read_theory, report_section
    from slimprompt.report.folder import check_result_folder
    from slimprompt.report.page import build_report, write_report

    check_result_folder(out)
    if theory is not None:
        read_theory(theory)  # a wrong folder is an error before the runs are read
    found = build_report(runs, paper, where=where or (), compare_published=compare_published, show=True)
    page = write_report(found, out, section=report_section(theory) if theory else "")
    for note in found.notes:
        say(f"note: {note}", err=True)
    plotted = [figure for figure in (*found.figures, *found.methods_figures) if not figure.missing]
    filled = [table for table in (*found.tables, *found.methods_tables) if not table.empty]
    parts = ((filled, "table"), (plotted, "figure"), (found.findings, "claim"))
    say(", ".join([count(len(found.records), "run"), *(count(len(made), noun) for made, noun in parts)]))
    if found.failed:
        say(f"{count(len(found.failed), 'failed run')} not included; the page shows the errors")
    missing = [figure.name for figure in found.figures if figure.missing]
    missing += [table.name for table in found.tables if table.empty]
    if missing:
        say(f"no runs yet for: {', '.join(missing)}")
    if found.pocket:
        say("these are runs in the pocket world: a stand-in, not the paper's results")
    say(f"open {page}")
