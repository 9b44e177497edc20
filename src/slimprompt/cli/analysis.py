"""`slimprompt geometry`, `claims`, `compare`, `tables`: what a folder of runs says. They read run records only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from slimprompt.lab.records import Record
    from slimprompt.paper.claims import Finding

app = typer.Typer(help="What a folder of runs says.", no_args_is_help=True)

Runs = Annotated[Path, typer.Argument(metavar="RUNS", help="Folder of run folders, as `slimprompt study` writes it.")]
MaybeRuns = Annotated[
    Path | None, typer.Argument(metavar="[RUNS]", help="Folder of run folders; none with --published.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", "-w", help="Keep only runs with field=value[,value…], such as shots=16 or recipe.epochs=50."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print plain JSON.")]
Published = Annotated[bool, typer.Option("--published", help="Use the paper's published tables instead of runs.")]


def _records(runs: Path, where: Sequence[str] | None) -> list[Record]:
    """The complete runs that meet the conditions; what they mix is said on standard error."""
    from slimprompt.analysis.observations import mixed_settings
    from slimprompt.lab.records import load_records, select_records

    found = load_records(runs)
    records = select_records(found, where or ())
    if not records:
        conditions = f" that meet {' and '.join(where)}" if where else ""
        raise InputError(
            f"no complete runs{conditions} in {runs} ({len(found)} complete runs there); "
            "make some with `slimprompt study`, or look with `slimprompt runs list`"
        )
    for line in mixed_settings(records):
        typer.echo(f"note: {line}", err=True)
    return records


def _given(runs: Path | None, published: bool) -> Path | None:
    """The runs folder, or None for the published tables; exactly one of the two."""
    if (runs is None) != published:
        raise InputError("give either a folder of runs or --published, for the paper's own tables")
    return runs


@app.command()
def geometry(
    runs: Runs,
    variant: Annotated[str, typer.Option(help="Which runs are compared: joint, fixed-B or fixed-A.")] = "joint",
    by: Annotated[
        list[str] | None, typer.Option("--by", help="Split the medians further: backbone, rank, split.")
    ] = None,
    draws: Annotated[int, typer.Option(min=10, help="Random pairs of subspaces behind each chance level.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the random subspaces.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write pairs.csv, displacement.csv, chance.csv here.")
    ] = None,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """How alike the trained factors are: between runs, to their own start, and against chance."""
    from slimprompt.analysis.geometry import measure
    from slimprompt.errors import unknown

    for name in by or ():
        if name not in _SPLITS:
            raise unknown("way to split the medians", name, _SPLITS)
    if variant not in ("joint", "fixed-B", "fixed-A"):
        raise unknown("variant", variant, ("joint", "fixed-B", "fixed-A"))
    found = measure(_records(runs, where), variant=variant, draws=draws, seed=seed)
    medians = found.medians(("axis", *(by or ())))
    columns = ["overlap", "angle", "relative_norm"]
    groups = ["variant", "basis", "factor"]
    moved = found.displacement.groupby(groups)[columns].median().reset_index()
    moved["n"] = list(found.displacement.groupby(groups).size())
    if out:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("pairs", "displacement", "chance"):
            getattr(found, name).to_csv(out / f"{name}.csv", index=False)
    if as_json:
        content = {
            "medians": _plain(medians),
            "displacement": _plain(moved),
            "draws": draws,
            "notes": list(found.notes),
        }
        typer.echo(json.dumps(content, indent=1))
        return
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    if medians.empty:
        typer.echo(f"no two {variant} runs here differ in exactly one of seed, dataset, shots, rank")
    else:
        typer.echo(
            f"Median subspace overlap and mean principal angle of pairs of {variant} runs that differ in one thing"
        )
        _print(_frame_table(medians))
        typer.echo(f"start: the same pairs before training. chance: {draws} random pairs of subspaces per shape.")
        typer.echo(
            "B by columns, A by rows. Rows of BA span what the rows of A span, its columns what those of B span.\n"
        )
    typer.echo("Displacement from the start, medians over runs (relative_norm: ‖X−X₀‖/‖X₀‖)")
    _print(_frame_table(moved))
    if out:
        typer.echo(f"written: {', '.join(str(out / f'{name}.csv') for name in ('pairs', 'displacement', 'chance'))}")


_SPLITS = ("backbone", "split", "rank", "shots", "dataset")


@app.command()
def claims(
    runs: MaybeRuns = None,
    published: Published = False,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Only this claim; may be given several times.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the bound and every cell counted.")] = False,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Does each empirical sentence of the paper hold on these runs? With --published: text against tables."""
    from slimprompt.paper.audit import AUDIT, audit, published_evidence
    from slimprompt.paper.claims import check_claims, gather
    from slimprompt.paper.published import published_pairs

    folder = _given(runs, published)
    audited: list[Finding] = []
    if folder is None:
        checks = {check.name for check in AUDIT}
        of_text, of_tables = ([one for one in name or () if (one in checks) == listed] for listed in (False, True))
        found = check_claims(published_evidence(), of_text) if of_text or not name else []
        audited = audit(of_tables) if of_tables or not name else []
    else:
        found = check_claims(gather(_records(folder, where), main_pairs=published_pairs()), name or ())
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in (*found, *audited)], indent=1, ensure_ascii=False))
        return
    if found:
        typer.echo(
            "The paper's claims" + (" against its own tables" if folder is None else f" on the runs in {folder}")
        )
        _print_findings(found, verbose)
    if audited:
        typer.echo("\nThe paper's tables against each other")
        _print_findings(audited, verbose)


_STYLES = {"holds": "green", "does not hold": "bold red", "not enough runs": "dim"}


def _print_findings(findings: Sequence[Finding], verbose: bool) -> None:
    """Each claim's sentence, and below it a row per scope: verdict, number here, number in the paper, n."""
    from collections import Counter
    from itertools import groupby

    from rich.markup import escape
    from rich.table import Table

    console = _console()
    for _, outcomes in groupby(findings, key=lambda one: one.name):
        group = list(outcomes)
        claim = group[0]
        console.print(f"\n[bold]{escape(claim.sentence)}[/] [dim]{escape(claim.where)} · {escape(claim.name)}[/]")
        if verbose:
            console.print(f"[dim]holds if: {escape(claim.bound)}[/]")
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for width, ratio in ((15, None), (None, 5), (None, 4), (8, None)):
            table.add_column(width=width, ratio=ratio, overflow="fold")
        for one in group:
            value = escape(f"{one.scope}: {one.value}" if one.scope else one.value)
            value += f"\n[dim]{escape(one.note)}[/]" if one.note else ""
            style = _STYLES[one.verdict]
            paper = f"paper: {escape(one.paper)}" if one.paper else ""
            table.add_row(f"[{style}]{one.verdict}[/]", value, paper, f"n = {one.n}" if one.n else "")
        console.print(table)
        for one in group if verbose else ():
            for cell in one.cells:
                console.print(f"    [dim]{escape(cell)}[/]")
    counts = Counter(str(one.verdict) for one in findings)
    words = {"holds": "hold", "does not hold": "do not hold", "not enough runs": "not enough runs"}
    console.print("\n" + ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]))


@app.command()
def compare(
    runs: Runs,
    first: Annotated[str, typer.Argument(help="One arm, as `dense m16`, `joint r4`, `fixed-B orthogonal r4`.")],
    second: Annotated[str, typer.Argument(help="The arm it is compared with.")],
    metric: Annotated[str, typer.Option(help="accuracy, seen, unseen or harmonic.")] = "accuracy",
    unit: Annotated[str, typer.Option(help="What counts as one observation: dataset, run or seed.")] = "dataset",
    margin: Annotated[float, typer.Option(help="Equivalence margin in points.")] = 0.5,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Paired comparison of two arms over matched cells: difference, interval, tests, equivalence."""
    from dataclasses import asdict

    from slimprompt.analysis.comparisons import compare_arms
    from slimprompt.analysis.observations import UNITS, Results, arm_label, observe
    from slimprompt.errors import unknown

    if margin <= 0:
        raise InputError(f"the equivalence margin must be above 0 points (given: {margin})")
    if unit not in UNITS:
        raise unknown("unit of comparison", unit, UNITS)
    results = Results.of(observe(_records(runs, where)))
    arms = {arm_label(key.arm): key.arm for key in results.cells}
    metrics = {key.metric for key in results.cells}
    if metric not in metrics:
        raise unknown("metric of these runs", metric, metrics)
    for name in (first, second):
        if name not in arms:
            raise unknown("arm of these runs", name, arms)
    pair = (arms[first], arms[second])
    found = compare_arms(results, [pair], metric=metric, unit=unit, margin=margin)  # type: ignore[arg-type]
    if not found:
        raise InputError(f"no cell of these runs has both {first!r} and {second!r} with metric {metric!r}")
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
        return
    typer.echo(f"{first} − {second}, {metric} in points; {UNITS[unit]}")
    rows = []
    for one in found:
        test = one.result
        interval = "—" if test.low is None or test.high is None else f"[{_points(test.low)}, {_points(test.high)}]"
        tests = (_p(one.holm_t), _p(one.holm_wilcoxon), _p(one.holm_equivalence))
        counts = f"{test.wins}/{test.ties}/{test.losses}"
        mean = "—" if test.mean is None else _points(test.mean)
        rows.append((one.backbone, str(one.shots), str(test.n), mean, interval, counts, *tests, test.note))
    headings = ("backbone", "shots", "n", "difference", "95 % interval", "+/=/−", "t", "Wilcoxon", "equivalence", "")
    _print(_text_table(headings, rows))
    family = f"corrected by Holm over the {len(found)} rows" if len(found) > 1 else "one test, nothing to correct"
    typer.echo(f"p values two-sided, {family}; equivalence: two one-sided tests within ±{margin} points.")


def _points(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0 makes a negative zero positive


def _p(value: float | None) -> str:
    return "—" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


@app.command()
def tables(
    runs: MaybeRuns = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the files; without it they are printed.")
    ] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="markdown, latex, csv, xlsx; several times or comma-separated.")
    ] = None,
    published: Published = False,
    compare_published: Annotated[
        bool, typer.Option("--compare-published", help="The published number and the difference beside each number.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this table, such as headline.")] = None,
    where: Where = None,
) -> None:
    """The paper's tables from these runs, in its own layout; and paired tests and averages beyond the paper."""
    from slimprompt.analysis.geometry import measure
    from slimprompt.analysis.observations import Results, observe
    from slimprompt.errors import unknown
    from slimprompt.paper.published import published_results
    from slimprompt.paper.tables import comparisons, paper_tables, published_tables, summaries
    from slimprompt.report.table_formats import FORMATS, to_markdown, write_tables

    folder = _given(runs, published)
    chosen = [name for text in formats or () for name in text.split(",")] or list(FORMATS)
    for one in chosen:
        if one not in FORMATS:
            raise unknown("table format", one, FORMATS)
    if folder is None:
        built = [*published_tables(), comparisons(published_results())]
    else:
        records = _records(folder, where)
        results = Results.of(observe(records))
        medians = measure(records, draws=10).medians()  # the paper's table has no chance level
        built = paper_tables(results, medians, compare_published=compare_published)
        built += [comparisons(results), summaries(results)]
    if only:
        known = {table.name: table for table in built}
        for name in only:
            if name not in known:
                raise unknown("table", name, known)
        built = [known[name] for name in only]
    if out is None:
        if formats and chosen != ["markdown"]:
            raise InputError(
                f"--format {', '.join(chosen)} needs --out FOLDER; without it tables are printed as Markdown"
            )
        typer.echo("\n".join(to_markdown(table) for table in built if not table.empty))
        return
    written = write_tables(built, out, chosen)
    empty = [table.name for table in built if table.empty]
    typer.echo(f"{len(built)} tables in {len(written)} files in {out}")
    if empty:
        typer.echo(f"no runs yet for: {', '.join(empty)}")


# ---------------------------------------------------------------- printing


def _console() -> Console:
    """As wide as the terminal; into a file or pipe 140 columns, so that little is folded."""
    import sys

    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def _print(table: Table) -> None:
    _console().print(table)


def _text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table as RichTable

    table = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    return table


def _frame_table(frame: pd.DataFrame) -> Table:
    columns = [str(name) for name in frame.columns]
    rows = [[_shown(name, row[name]) for name in columns] for row in _plain(frame)]
    return _text_table([name.replace("_", " ") for name in columns], rows)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}" if "angle" in name else f"{value:.3f}"
    return "—" if value is None else str(value)


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with Python's own numbers, None for NaN."""
    return json.loads(frame.to_json(orient="records", force_ascii=False))
