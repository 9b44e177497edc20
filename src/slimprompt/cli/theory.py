"""`slimprompt theory`: check every statement of the theory numerically."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slimprompt.cli.analysis import complete_records
from slimprompt.cli.options import DataRoot, ModelOptions, model_options
from slimprompt.cli.printing import print_table, say
from slimprompt.errors import InputError
from slimprompt.progress import progress

if TYPE_CHECKING:
    from slimprompt.paper.theory import Statement


@model_options("backbone", "pretrained", "device", backbone="pocket")
def theory(
    m: int = typer.Option(16, min=1, max=1024, help="Context tokens."),
    d: int = typer.Option(
        512, min=2, max=16384, help="Text width of the surrogate; the loss uses that of the backbone."
    ),
    r: int = typer.Option(4, min=1, max=1024, help="Rank."),
    trials: int = typer.Option(1000, min=10, max=1_000_000, help="Random bases per side."),
    seed: int = typer.Option(1, min=0, help="Seed of the bases, of P0 and of the few-shot sample."),
    runs: Path | None = typer.Option(
        None, help="Folder of runs: trained dense prompts as P*, learned factors as bases."
    ),
    benchmark: str = typer.Option(
        "pocket-sketch", help="Images of the loss: a benchmark (`slimprompt data list`) or a folder."
    ),
    data_root: DataRoot = None,
    shots: int = typer.Option(16, min=1, help="Images per class."),
    steps: int = typer.Option(30, min=2, max=100_000, help="Steps of gradient descent."),
    damping: float | None = typer.Option(
        None, min=0, help="Damping of the local model over the largest curvature; default: automatic."
    ),
    no_encoder: bool = typer.Option(
        False, "--no-encoder", help="Skip the statements that need a text encoder; takes a few seconds."
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Folder for theory.html, statements.csv, figures.csv and the figures."
    ),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show the claim and the remark of every statement."),
    *,
    model_options: ModelOptions,
) -> None:
    """Check every statement of the theory numerically, and show both sides with a verdict.

    A violated statement is a result, not an error. The statements on the loss use a text encoder in double precision,
    by default the embedded model (pocket).

    Example: slimprompt theory --out theory/
    """
    from slimprompt.paper.theory import check_sizes, check_theory
    from slimprompt.paper.theory.page import write_theory

    check_sizes(m, d, r)
    if damping is not None and damping <= 0:
        raise InputError(f"the damping must be above 0 (given: {damping}): without it the curvature cannot be inverted")
    if out is not None:
        from slimprompt.report.folder import check_result_folder

        check_result_folder(out)
    records = complete_records(runs) if runs else []
    objective = None
    if not no_encoder:
        from slimprompt.paper.theory.prompt_objective import few_shot_objective

        model = model_options.load_backbone()
        objective = few_shot_objective(model, benchmark, shots=shots, seed=seed, n_ctx=m, data_root=data_root)
        say(f"loss: {objective.title}")
    with progress("checking", None, "text passes") as advance:
        if objective is not None:
            objective.on_pass = advance
        result = check_theory(
            m=m,
            d=d,
            rank=r,
            trials=trials,
            seed=seed,
            records=records,
            objective=objective,
            steps=steps,
            relative_damping=damping,
        )
    _print_statements(result.statements, verbose)
    if out is not None:
        page, *others = write_theory(result, out)
        say(f"\nwrote {page} and {len(others)} files next to it")
    else:
        say("\nAdd --out FOLDER for a page with figures.")


def _print_statements(statements: Sequence[Statement], verbose: bool) -> None:
    """Print a table of all statements, then the claims of the violated ones (of all if `verbose`)."""
    from slimprompt.analysis.verdict import VERDICTS
    from slimprompt.paper.theory.page import statement_rows, verdict_counts

    rows = statement_rows(statements)
    lines: list[Sequence[str]] = []
    for part, same in groupby(rows, key=lambda row: row["part"]):
        lines += [[""] * 5, [part, *[""] * 4]]
        for row in same:
            predicted = f"{row['relation']} {row['predicted']}" if row["predicted"] else ""
            lines.append([row["statement"], predicted, row["measured"], row["interval"], row["verdict"]])
    headings = ("statement", "predicted", "measured", "interval", "verdict")
    colours = {str(name): verdict.color for name, verdict in VERDICTS.items()}
    print_table(headings, lines, right=("predicted", "measured", "interval"), colours=colours)
    say(f"\n{verdict_counts(rows)}")
    for row in rows:
        if verbose or row["verdict"] == "violated":
            detail = f"\n  {row['detail']}" if row["detail"] else ""
            say(f"\n{row['statement']}: {row['verdict']}. {row['claim']}{detail}")
