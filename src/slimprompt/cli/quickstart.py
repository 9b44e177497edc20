"""`slimprompt quickstart`: the whole thing once, offline, in a minute or two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slimprompt.quickstart.job import Quickstart


def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page, the runs and the prompt.")] = Path(
        "quickstart"
    ),
    benchmark: Annotated[
        str, typer.Option(help="A pocket benchmark: pocket-sketch, pocket-negative, pocket-mosaic, …")
    ] = "pocket-sketch",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trainings side by side; default: as cores and memory allow.")
    ] = None,
) -> None:
    """See it work: compare prompts on drawn pictures with the embedded model, save the best one, write a page.

    Needs no network and no data. Zero-shot, dense CoOp, joint rank 4 and a fixed orthogonal basis, at 1, 4 and 16 shots over
    three seeds, on all classes and on seen and new ones. Takes a minute or two on two cores.
    """
    typer.echo(
        "The pocket world: a small CLIP and drawn pictures that come with the package. A stand-in, not the paper's results."
    )
    from slimprompt.quickstart.job import quickstart_specs, run_quickstart

    typer.echo(f"{len(quickstart_specs(benchmark))} small trainings on {benchmark} …")
    result = run_quickstart(out, benchmark, workers=workers)
    from slimprompt.quickstart.page import write_quickstart

    page = write_quickstart(result, out)
    _print(result)
    typer.echo(f"best by validation: {result.best_method}, seed {result.best.spec.seed}; saved to {result.prompt}")
    typer.echo(f"{result.seconds:.0f} s in all; open {page}")


def _print(result: Quickstart) -> None:
    from rich.console import Console
    from rich.table import Table

    from slimprompt.quickstart.page import results_table

    title = f"{result.benchmark.name}: {result.title}, {len(result.benchmark.class_names)} classes"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left", title_style="bold")
    for heading in ("method", "shots", "accuracy", "seen", "new", "H", "params", "time"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    before = ""
    for row in results_table(result).rows:
        method, shots = row.labels
        *scores, parameters, seconds = (cell.text() for cell in row.cells)
        if method != before and before:
            table.add_row()
        numbers = (score.replace(" ± ", "±") for score in scores)
        table.add_row(
            method if method != before else "",
            shots,
            *numbers,
            parameters,
            seconds if seconds == "—" else f"{seconds} s",
        )
        before = method
    console = Console(highlight=False)
    console.print(table)
    console.print("Percent right, mean±sd over 3 seeds. H: harmonic mean of seen and new classes.", style="dim")
    if result.predictions:
        console.print(f"{len(result.predictions)} test pictures drawn at random, the saved prompt's answers:")
        for one in result.predictions[:6]:
            name, share = one.best[0]
            mark = "right" if one.right else f"wrong, it is a {one.true}"
            console.print(
                f"  {one.picture.parent.name}/{one.picture.name}: {name} ({share:.0f} %), {mark}",
                markup=False,
                soft_wrap=True,
            )
