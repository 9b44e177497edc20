"""`slimprompt theory`: the statements on P = B A, both sides computed, with a verdict each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimprompt.errors import InputError

if TYPE_CHECKING:
    from slimprompt.paper.theory import Statement, Theory

_STYLES = {"holds": "green", "violated": "bold red", "not testable": "dim"}


def theory(
    m: Annotated[int, typer.Option("--m", min=1, help="Context tokens.")] = 16,
    d: Annotated[int, typer.Option("--d", min=2, help="Text width of the surrogate; the true loss has its own.")] = 512,
    r: Annotated[int, typer.Option("--r", min=1, help="Rank.")] = 4,
    trials: Annotated[int, typer.Option(min=10, help="Random bases per side.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bases, of P0 and of the few-shot draw.")] = 1,
    runs: Annotated[
        Path | None, typer.Option(help="Run folders: trained dense prompts as P*, learned factors as bases.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="Text encoder of the true loss: pocket (embedded), an open_clip name, hf-hub:…")
    ] = "pocket",
    pretrained: Annotated[
        str | None, typer.Option(help="Its weights: an open_clip tag, a checkpoint file, or random:0.")
    ] = None,
    benchmark: Annotated[
        str, typer.Option(help="Images of the true loss: a benchmark (slimprompt data list) or a folder.")
    ] = "pocket-sketch",
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Folder of the benchmarks; default: $SLIMPROMPT_DATA.")
    ] = None,
    shots: Annotated[int, typer.Option(min=1, help="Images per class.")] = 16,
    steps: Annotated[int, typer.Option(min=2, help="Steps of gradient descent.")] = 30,
    damping: Annotated[
        float | None,
        typer.Option(min=0, help="Of the local model, over the largest curvature; default: as the loss allows."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    no_encoder: Annotated[
        bool, typer.Option("--no-encoder", help="Leave out what needs a text encoder; takes a few seconds.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write theory.html, statements.csv and the figures there.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show claim and note of every statement.")] = False,
) -> None:
    """Check every statement of the theory by numbers, and show both sides with a verdict.

    A violated statement is a result, not an error. The statements on the true loss run on a text encoder in double
    precision: the embedded model by default.

    Example: slimprompt theory --out theory/
    """
    if not 1 <= r <= m < d:
        raise InputError(f"the statements need 1 ≤ r ≤ m < d; given: r = {r}, m = {m}, d = {d}")
    if damping is not None and damping <= 0:
        raise InputError(f"the damping must be above 0 (given: {damping}): without it the curvature cannot be inverted")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder for the page")
    from slimprompt.lab.records import load_records

    records = load_records(runs) if runs else []
    if runs and not records:
        raise InputError(f"no complete runs in {runs}; make some with `slimprompt study`, or leave --runs out")

    from slimprompt.paper.theory import check_theory

    objective = None
    if not no_encoder:
        from slimprompt.clip.backbone import load_backbone
        from slimprompt.paper.theory.prompt_objective import few_shot_objective

        model = load_backbone(backbone, pretrained, device=device)
        objective = few_shot_objective(model, benchmark, shots=shots, seed=seed, n_ctx=m, data_root=data_root)
    result = check_theory(
        m=m,
        d=d,
        rank=r,
        trials=trials,
        seed=seed,
        records=records,
        objective=objective,
        title=objective.title if objective else "",
        steps=steps,
        relative_damping=damping,
    )
    _print(result, verbose)
    if out is not None:
        from slimprompt.paper.theory.page import write_theory

        page, *others = write_theory(result, out)
        typer.echo(f"\n{page} and {len(others)} files beside it")
    else:
        typer.echo("\nWith --out FOLDER the same as a page with figures.")


def _print(result: Theory, verbose: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from slimprompt.paper.theory.page import statement_rows, verdict_counts

    console = Console(highlight=False)
    if result.loss:
        console.print(f"true loss: {result.loss.title}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("statement", ratio=1)
    for heading in ("predicted", "measured", "interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    part = ""
    for row in statement_rows(result.statements):
        if row["part"] != part:
            part = row["part"]
            table.add_row(f"[bold]{part}[/bold]", *[""] * 4)
        name = row["statement"]
        if verbose:
            name += f"\n[dim]{row['claim']}{' (' + row['detail'] + ')' if row['detail'] else ''}[/dim]"
        style = _STYLES[row["verdict"]]
        predicted = f"{row['relation']} {row['predicted']}" if row["predicted"] else ""
        verdict = f"[{style}]{row['verdict']}[/{style}]"
        table.add_row(name, predicted, row["measured"], row["interval"], verdict)
    console.print(table)
    counts = verdict_counts(result.statements)
    console.print(f"{counts['holds']} hold, {counts['violated']} violated, {counts['not testable']} not testable")
    if not verbose:
        _explain([one for one in result.statements if one.verdict == "violated"], console)


def _explain(violated: list[Statement], console: object) -> None:
    from rich.console import Console

    assert isinstance(console, Console)
    for one in violated:
        console.print(f"\n[bold]{one.name}[/bold] is violated. {one.claim}\n  {one.detail}", soft_wrap=True)
