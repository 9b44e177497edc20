"""`slimprompt runs`: list, show and remove the runs of studies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slimprompt.cli.help import App
from slimprompt.cli.options import OutputFormat, Where
from slimprompt.cli.printing import Format, emit, note, print_table, say
from slimprompt.cli.study import RunsFolder
from slimprompt.errors import InputError

if TYPE_CHECKING:
    from slimprompt.lab.records import Record

app = App(help="Inspect the runs of studies: list, show, remove.", no_args_is_help=True)


@app.command("list")
def list_runs(
    folder: Path | None = typer.Argument(
        None, metavar="RUNS", help="Folder of the run folders, as --runs.", show_default=False
    ),
    runs: Path | None = typer.Option(None, help="Folder of the run folders.", show_default="runs"),
    where: Where = None,
    format: OutputFormat = Format.table,
) -> None:
    """List runs with their status and result, one per line."""
    from slimprompt.lab.display import result
    from slimprompt.lab.records import scan_records, select_records, unmet_conditions

    if folder is not None and runs not in (None, folder):
        raise InputError(f"which folder: {folder} or {runs}? Give it once, as RUNS or as --runs")
    runs = folder or runs or Path("runs")
    found, damaged = scan_records(runs)
    records = select_records(found, where or ())
    records.sort(key=lambda record: (record.spec.backbone, record.spec.dataset, record.spec.title))
    rows = [
        {
            "run": record.spec.fingerprint[:8],
            "status": record.status,
            "backbone": record.spec.backbone,
            "dataset": record.spec.dataset,
            "classes": record.spec.class_subset,
            "shots": record.spec.shots,
            "seed": record.spec.seed,
            "method": record.spec.label,
            "result": result(record) if record.complete else " ".join((record.error or "").split()),
        }
        for record in records
    ]
    emit(rows, format)
    if format is not Format.table:
        return
    failed = sum(not record.complete for record in records)
    say(f"{len(records):,} runs in {runs}" + (f", {failed:,} failed" if failed else ""))
    for reason in unmet_conditions(found, where or ()):
        say(reason)
    for reason in damaged.values():
        note("damaged:", reason)


@app.command("show")
def show_run(
    run: str = typer.Argument(..., metavar="RUN", help="Folder name of the run, or its beginning; or its path."),
    runs: RunsFolder = Path("runs"),
    format: OutputFormat = Format.table,
) -> None:
    """Show one run: its record and its learning curve; as JSON, the record as it is on disk, as CSV, its fields."""
    from slimprompt.files import read_text
    from slimprompt.lab.records import CURVE, RECORD, read_record

    record = read_record(_find(runs, run))
    if format is Format.json:
        say(read_text(record.folder / RECORD).rstrip())
        return
    everything = record.spec.flat() | record.metrics | record.facts
    fields = {name: value for name, value in everything.items() if value is not None and name != "traceback"}
    if format is Format.csv:
        emit([{"field": name, "value": value} for name, value in fields.items()], format)
        return
    say(f"{record.spec.fingerprint}  {record.spec.title}\n{record.folder}: {record.status}")
    if record.error:
        say(f"error: {record.error}")
        if "traceback" in record.facts:
            say(record.facts["traceback"].rstrip())
    print_table((), [(name, _plain(value)) for name, value in fields.items()])
    if (record.folder / CURVE).exists():
        _print_curve(record)


def _print_curve(record: Record) -> None:
    curve = record.curve()
    say(f"\nloss      {_bars(curve['loss'].tolist())}\naccuracy  {_bars(curve['accuracy'].tolist())}")
    chosen = sorted({round(index * (len(curve) - 1) / 9) for index in range(10)})
    rows = [
        (str(row.epoch), f"{row.lr:.6f}", f"{row.loss:.4f}", f"{row.accuracy:.1f} %")
        for row in curve.iloc[chosen].itertuples()
    ]
    headings = ("epoch", "learning rate", "loss", "accuracy")
    print_table(headings, rows, right=headings)


def _bars(values: list[float], width: int = 60) -> str:
    """A curve as one line of block characters; a value that is not finite is shown as a space."""
    size = -(-len(values) // width)
    means = [
        sum(values[start : start + size]) / len(values[start : start + size]) for start in range(0, len(values), size)
    ]
    finite = [value for value in means if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def block(value: float) -> str:
        if not math.isfinite(value):
            return " "
        return "▁▂▃▄▅▆▇█"[min(7, int(8 * (value - low) / (high - low)))] if high > low else "▄"

    return "".join(block(value) for value in means)


@app.command("rm")
def remove_runs(
    names: list[str] | None = typer.Argument(None, metavar="RUN", help="Folder names, their beginnings, or paths."),
    runs: RunsFolder = Path("runs"),
    where: Where = None,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
) -> None:
    """Delete runs by name or by condition; a study that needs them executes them again.

    A damaged run can be deleted by its name.
    """
    from slimprompt.lab.records import (
        is_named_like_a_run,
        load_records,
        read_record,
        remove_run,
        select_records,
        unmet_conditions,
    )

    if not names and not where:
        raise InputError("which runs? Give their names, or a condition such as --where status=failed")
    records: list[Record] = [] if names else load_records(runs, complete_only=False)
    chosen: dict[Path, str] = {}
    for folder in dict.fromkeys(_find(runs, name) for name in names or ()):
        try:
            records.append(read_record(folder))
        except InputError as error:
            if where or not is_named_like_a_run(folder):
                raise
            chosen[folder] = f"damaged  {error}"
    for record in select_records(records, where or ()):
        chosen[record.folder] = f"{record.status}  {record.spec.title}"
    if not chosen:
        say("; ".join(["no run matches", *unmet_conditions(records, where or ())]))
        return
    for folder, what in list(chosen.items())[:10]:
        say(f"{folder.name[:8]}  {what}")
    if len(chosen) > 10:
        say(f"… and {len(chosen) - 10:,} more")
    if not yes and not typer.confirm(f"Delete {len(chosen):,} runs?"):
        raise typer.Abort
    for folder in chosen:
        remove_run(folder)
    say(f"{len(chosen):,} runs deleted")


def _find(runs: Path, name: str) -> Path:
    """The folder of the run whose name begins with `name`, in `runs` or in the folder of a path FOLDER/NAME."""
    from slimprompt.lab.records import RECORD, is_named_like_a_run, runs_command

    if Path(name).name != name:
        runs, name = Path(name).parent, Path(name).name
    found = runs.glob(f"{name}*") if name.isalnum() else ()
    folders = [path for path in found if (path / RECORD).is_file() or is_named_like_a_run(path)]
    if len(folders) == 1:
        return folders[0]
    if folders:
        names = ", ".join(sorted(folder.name for folder in folders)[:5])
        raise InputError(f"{len(folders)} runs in {runs} begin with {name!r}: {names}; give more of the name")
    raise InputError(f"no run in {runs} begins with {name!r}; `{runs_command('list', runs)}` lists them")


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return str(value)
