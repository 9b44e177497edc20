"""`slimprompt quickstart`: a complete small comparison, offline, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimprompt.cli.printing import print_table, say
from slimprompt.extras import missing_packages
from slimprompt.files import check_folder

if TYPE_CHECKING:
    from slimprompt.quickstart.job import Quickstart


def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page, the runs and the prompt.")] = Path(
        "quickstart"
    ),
    benchmark: Annotated[
        str, typer.Option(help="A rendered benchmark: pocket-sketch, pocket-negative, pocket-mosaic, …")
    ] = "pocket-sketch",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: as cores and memory allow.")
    ] = None,
) -> None:
    """See it work: compare prompts on rendered images with the embedded model, save the best one, write a page.

    Needs no network and no data. Compares zero-shot, dense CoOp, joint rank 4 and a fixed orthogonal basis, at 1, 4 and 16
    shots over three seeds, on all classes and on base and new classes. Takes about a minute on two cores.
    """
    check_folder(out)
    say(
        "The pocket world: a small CLIP and rendered images that are part of the package. A toy, not the paper's results."
    )
    from slimprompt.quickstart.job import quickstart_specs, run_quickstart

    say(f"{len(quickstart_specs(benchmark))} small runs on {benchmark} …")
    result = run_quickstart(out, benchmark, workers=workers)
    _print(result)
    say(f"best by validation: {result.best_method}, seed {result.best.spec.seed}; saved to {result.prompt}")
    if missing := missing_packages("lab"):
        say(
            f"{result.seconds:.0f} s in all; a page with figures needs {', '.join(missing)}: pip install 'slimprompt[lab]'"
        )
        return
    from slimprompt.quickstart.page import write_quickstart

    say(f"{result.seconds:.0f} s in all; open {write_quickstart(result, out)}")


def _print(result: Quickstart) -> None:
    from slimprompt.quickstart.table import results_table

    headings = ("method", "shots", "accuracy", "seen", "new", "H", "params", "time")
    rows: list[tuple[str, ...]] = []
    before = ""
    for row in results_table(result).rows:
        method, shots = row.labels
        *scores, parameters, seconds = (cell.text().replace(" ± ", "±") for cell in row.cells)
        time = seconds if seconds == "—" else f"{seconds} s"
        rows.append((method if method != before else "", shots, *scores, parameters, time))
        before = method
    say(f"{result.benchmark.name}: {result.title}, {len(result.benchmark.class_names)} classes")
    print_table(headings, rows, right=headings[1:])
    say("Accuracy in percent, mean±sd over 3 seeds. H: harmonic mean of base (seen) and new classes.")
    shown = result.predictions[:6]
    if shown:
        say(f"Predictions of the saved prompt for {len(shown)} test images sampled at random:")
    for one in shown:
        name, share = one.best[0]
        verdict = "correct" if one.right else f"wrong, it is a {one.true}"
        say(f"  {one.image.parent.name}/{one.image.name}: {name} ({share:.0f} %), {verdict}")
