"""`slimprompt report`: a folder of runs as one HTML page with its tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="Folder of run folders, as `slimprompt study` writes it.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for index.html, tables/, figures/ and claims.json.")
    ] = Path("report"),
    where: Annotated[
        list[str] | None,
        typer.Option("--where", "-w", help="Only runs with field=value[,value…], such as shots=16. Repeatable."),
    ] = None,
    compare_published: Annotated[
        bool, typer.Option("--compare-published", help="The published number and the difference beside each number.")
    ] = False,
    theory: Annotated[
        Path | None,
        typer.Option("--theory", help="Folder of `slimprompt theory --out`, to put its statements on the page."),
    ] = None,
) -> None:
    """Make one self-contained HTML page of a folder of runs: summary, claims, figures, tables, provenance.

    Any set of complete runs will do; what is missing is shown as missing. Running it again replaces the page.

    Example: slimprompt report runs/ --out report/
    """
    from slimprompt.paper.page import build_report, write_report

    found = build_report(runs, where=where or (), compare_published=compare_published)
    page = write_report(found, out, theory=theory)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    drawn = [figure for figure in found.figures if not figure.missing]
    filled = [table for table in found.tables if not table.empty]
    typer.echo(f"{len(found.records):,} runs, {len(filled)} tables, {len(drawn)} figures, {len(found.findings)} claims")
    if found.failed:
        typer.echo(f"{len(found.failed)} failed runs are left out; the page shows their errors")
    absent = [figure.name for figure in found.figures if figure.missing]
    absent += [table.name for table in found.tables if table.empty]
    if absent:
        typer.echo(f"no runs yet for: {', '.join(absent)}")
    if found.pocket:
        typer.echo("these are runs of the pocket world: a stand-in, not the paper's results")
    typer.echo(f"open {page}")
