"""`slimprompt quickstart`: a complete small comparison, offline, in about a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slimprompt.cli.printing import print_table, say
from slimprompt.extras import missing_packages
from slimprompt.files import check_folder

if TYPE_CHECKING:
    from slimprompt.quickstart import Quickstart


def quickstart(
    out: Path = typer.Option(Path("quickstart"), "--out", "-o", help="Folder for the page, the runs and the prompt."),
    benchmark: str = typer.Option(
        "pocket-sketch", help="A rendered benchmark: pocket-sketch, pocket-negative, pocket-mosaic, …"
    ),
    workers: int | None = typer.Option(None, min=1, help="Worker processes; default: as cores and memory allow."),
) -> None:
    """See it work: compare prompts on rendered images with the embedded model, save the best one, write a page.

    Needs no network and no data. Compares zero-shot, dense CoOp, joint rank 4 and a fixed orthogonal basis, at 1, 4 and 16
    shots over three seeds, on all classes and on base and new classes. Takes about a minute on two cores.
    """
    begin = time.perf_counter()
    check_folder(out)
    say(
        "The pocket world: a small CLIP and rendered images that are part of the package. A toy, not the paper's results."
    )
    from slimprompt.quickstart import run_quickstart, title

    result = run_quickstart(out, benchmark, workers=workers)
    _print(result)
    spec = result.best.spec
    say(
        f"best by validation: {title(result.best)}, {spec.shots}-shot, seed {spec.seed}; saved to {result.model}\n"
        f"use it: slimprompt predict {result.model} {result.predictions[0].image}"
    )
    if missing := missing_packages("lab"):
        say(f"a page with figures needs {', '.join(missing)}: pip install 'slimprompt[lab]'")
    else:
        from slimprompt.paper.contents import PAPER
        from slimprompt.report.page import build_report, write_report

        say(f"open {write_report(build_report(out / 'runs', PAPER), out / 'report')}")
    say(f"{time.perf_counter() - begin:.0f} s in all")


def _print(result: Quickstart) -> None:
    from slimprompt.quickstart import METRICS

    headings = ("method", "shots", "accuracy", "base", "new", "H", "params", "time")
    rows: list[tuple[str, ...]] = []
    for line in result.lines:
        scores = [
            f"{mean:.1f}±{sd:.1f}" if line.shots else f"{mean:.1f}"
            for mean, sd in (line.scores[metric] for metric in METRICS)
        ]
        cost = (f"{line.parameters:,}", f"{line.seconds:.1f} s") if line.shots else ("0", "—")
        rows.append((line.method, str(line.shots), *scores, *cost))
    say(f"{result.benchmark.name}: {len(result.benchmark.class_names)} classes, {len(result.records)} runs")
    print_table(headings, rows, right=headings[1:])
    say("Accuracy in percent, mean±sd over the seeds. H: harmonic mean of base and new classes.")
    shown = result.predictions[:6]
    say(f"Predictions of the saved prompt for {len(shown)} test images sampled at random:")
    for one in shown:
        verdict = "correct" if one.predicted == one.true else f"wrong, it is a {one.true}"
        say(f"  {one.image.parent.name}/{one.image.name}: {one.predicted} ({100 * one.probability:.0f} %), {verdict}")
