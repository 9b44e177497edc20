"""`slimprompt study` runs the paper's experiments or one's own grid; `slimprompt runs` looks at what came out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.errors import InputError, unknown

if TYPE_CHECKING:
    from slimprompt.lab.environment import RunEnvironment
    from slimprompt.lab.executors import Executor
    from slimprompt.lab.plan import Plan
    from slimprompt.lab.records import Record
    from slimprompt.lab.study import Outcome
    from slimprompt.paper.studies import Grid

runs_app = typer.Typer(help="Look at the runs of studies: list, show, remove.", no_args_is_help=True)

_EXECUTORS = ("inline", "ray")

RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder of the run folders.")]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", help="Only runs with field=value[,value…]: shots=1,4, status=failed. Repeatable."),
]


def study(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|GRID.yaml", help="A study, or a grid file. Without it: the list.")
    ] = None,
    pocket: Annotated[bool, typer.Option("--pocket", help="On the embedded models and drawn benchmarks.")] = False,
    datasets: Annotated[str | None, typer.Option(help="Benchmarks or own folders, by commas.")] = None,
    backbones: Annotated[str | None, typer.Option(help="Models as NAME or NAME=WEIGHTS, by commas.")] = None,
    shots: Annotated[str | None, typer.Option(help="Images per class, by commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, by commas.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks, by commas.")] = None,
    bases: Annotated[str | None, typer.Option(help="Fixed bases: gaussian,orthogonal,svd,learned.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the images.")] = None,
    views: Annotated[
        int | None, typer.Option(min=0, help="Random views per image, taken in turn; default: a fresh one every epoch.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Of the frozen forward passes: fp32, bf16, fp16.")] = None,
    runs: RunsFolder = Path("runs"),
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Folder of the benchmarks; default: $SLIMPROMPT_DATA.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it will take, and run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The plan, or the outcome, as JSON.")] = False,
    executor: Annotated[str, typer.Option(help="inline (this machine) or ray (this machine or a cluster).")] = "inline",
    workers: Annotated[
        int | None, typer.Option(min=1, help="inline: runs side by side; default: as cores and memory allow.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of one run; part of what makes results repeatable.")] = 1,
    prompt_batch: Annotated[
        int,
        typer.Option(
            "--prompt-batch", "--stack", min=1, help="Most runs on the same images to train together; 1: none."
        ),
    ] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    address: Annotated[
        str | None, typer.Option(help="ray: a running cluster, auto or host:port; default: this machine.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0.0, help="ray: GPUs of one run, such as 0.25; default: 1 with --device cuda.")
    ] = None,
) -> None:
    """Run a study of the paper, or a grid of your own. Stop it at any time: the same command goes on where it stopped."""
    from slimprompt.lab.environment import RunEnvironment

    if name is None:
        _list_studies()
        return
    axes = {
        "datasets": _names(datasets),
        "backbones": _names(backbones),
        "shots": _numbers("--shots", shots),
        "seeds": _numbers("--seeds", seeds),
        "ranks": _numbers("--ranks", ranks),
        "bases": _names(bases),
        "precision": precision,
    }
    given = {field: value for field, value in axes.items() if value is not None}
    recipe = {field: value for field, value in (("epochs", epochs), ("views", views)) if value is not None}
    grid = _grid(name, pocket, given, recipe)
    if executor not in _EXECUTORS:
        raise unknown("executor", executor, _EXECUTORS)
    environment = RunEnvironment(
        runs=runs,
        data_root=data_root,
        cache=_cache_folder(),
        threads=threads,
        device=device,
        invocation=("slimprompt", *sys.argv[1:]),
        executor=executor,
    )
    if plan:
        _plan(grid, environment, workers, as_json=as_json)
    else:
        _run(
            name,
            grid,
            environment,
            _executor(environment, workers, address, gpus),
            prompt_batch=prompt_batch,
            as_json=as_json,
        )


def _list_studies() -> None:
    from slimprompt.paper.studies import PAPER, POCKET, STUDIES

    rows = [("study", "paper", "pocket", "")]
    for name, make in STUDIES.items():
        about = (make.__doc__ or "").splitlines()[0].rstrip(".")
        rows.append((name, f"{len(make(PAPER)):,}", f"{len(make(POCKET)):,}", about))
    _print_table(rows, right="paper|pocket")
    typer.echo("\nThe numbers are runs; studies share some, and `all` has each once.")
    typer.echo("See what one takes with `slimprompt study NAME --plan`.")


def _grid(name: str, pocket: bool, given: dict[str, Any], recipe: dict[str, Any]) -> Grid:
    from slimprompt.paper.studies import STUDIES, make_grid, read_grid

    if name in STUDIES:
        grid = make_grid({"study": name, **given}, pocket=pocket)
    elif Path(name).suffix.lower() in (".yaml", ".yml"):
        grid = read_grid(Path(name), pocket=pocket, **given)
    else:
        raise unknown("study", name, STUDIES, next_step="A grid of your own is a file GRID.yaml.")
    if not recipe:
        return grid
    fields = {field: getattr(grid, field) for field in type(grid).model_fields}
    return make_grid({**fields, "recipe": {**grid.recipe.model_dump(), **recipe}})


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"{option} takes whole numbers by commas, such as 1,4,16; given: {text!r}") from None


def _cache_folder() -> Path | None:
    """Where the environment says the cache is, so that processes elsewhere use the same."""
    import os

    from slimprompt.storage import cache_dir

    return cache_dir() if os.environ.get("SLIMPROMPT_CACHE") else None


# --- plan ------------------------------------------------------------------------------------------------------------


def _plan(grid: Grid, environment: RunEnvironment, workers: int | None, *, as_json: bool) -> None:
    from slimprompt.lab.executors import default_workers
    from slimprompt.lab.plan import count_runs, plan_study

    if not as_json:
        _print_counts(count_runs(grid, environment, workers or 1), environment)
        typer.echo("counting tokens and measuring this machine …", err=True)
    full = plan_study(grid, environment, workers or default_workers(environment))
    if as_json:
        typer.echo(json.dumps(full.as_json(), indent=1))
    else:
        _print_estimate(full)


def _print_counts(plan: Plan, environment: RunEnvironment) -> None:
    typer.echo(f"{plan.runs:,} runs, {plan.complete:,} of them complete in {environment.runs}")
    for name, count in plan.studies.items():
        typer.echo(f"  {name:<12} {count:>6,}")
    if len(plan.studies) > 1 and sum(plan.studies.values()) + plan.sources > plan.runs:
        typer.echo("  runs that several studies share are made once")
    if plan.sources:
        typer.echo(f"  and {plan.sources:,} whose factors others start from")


def _print_estimate(plan: Plan) -> None:
    from slimprompt.lab.observer import duration

    if plan.tasks:
        rows = [("backbone", "dataset", "split", "classes", "runs", "text tokens a step", "steps")]
        for task in plan.tasks:
            few, many = task.tokens_per_step or ("?", "?")
            tokens = str(few) if few == many else f"{few}–{many}"
            sizes = (f"{task.classes}", f"{task.runs:,}", tokens, f"{task.steps:,}")
            rows.append((task.backbone, task.dataset, task.split, *sizes))
        typer.echo()
        _print_table(rows, right="classes|runs|text tokens a step|steps")
        tokens = f", {plan.tokens / 1e6:,.1f} million text tokens" if plan.tokens else ""
        typer.echo(f"{plan.steps:,} steps{tokens}\n")
        banks = [("feature bank", "dataset", "test images", "views of training images")]
        banks += [(bank.backbone, bank.dataset, f"{bank.test:,}", f"{bank.train:,}") for bank in plan.banks]
        _print_table(banks, right="test images|views of training images")
        features = sum(bank.test + bank.train for bank in plan.banks)
        typer.echo(f"{features:,} image features, each encoded once and shared by all runs that can use it\n")
    for speed in plan.speeds:
        typer.echo(
            f"{speed.backbone} here, on {_count(plan.threads, 'thread')}: a step takes {1000 * speed.step:.1f} ms + "
            f"{1000 * speed.token:.3f} ms per text token, an image {1000 * speed.image:.1f} ms"
        )
    if plan.seconds is not None:
        parts = f"{duration(plan.training_seconds)} of training, {duration(plan.encoding_seconds)} of encoding images"
        typer.echo(f"about {duration(plan.seconds)} with {_count(plan.workers, 'worker')} ({parts})")
        typer.echo(f"about {_bytes(plan.disk_bytes)} on disk")
    for what in plan.missing:
        typer.echo(f"not estimated: {what}")
    if plan.missing:
        typer.echo("time and disk are not given, because the above is not in them")


# --- run -------------------------------------------------------------------------------------------------------------


def _executor(environment: RunEnvironment, workers: int | None, address: str | None, gpus: float | None) -> Executor:
    from slimprompt.lab.executors import default_workers
    from slimprompt.lab.executors.inline import InlineExecutor
    from slimprompt.lab.executors.processes import ProcessExecutor

    if environment.executor == "ray":
        from slimprompt.lab.executors.ray import RayExecutor

        if workers is not None:
            raise InputError("--workers is for the inline executor; Ray runs as many as the cluster's CPUs allow")
        return RayExecutor(environment, address=address, gpus=gpus or float(environment.device.startswith("cuda")))
    if address is not None or gpus is not None:
        raise InputError("--address and --gpus are for the Ray executor: add --executor ray")
    workers = workers or default_workers(environment)
    return InlineExecutor(environment) if workers == 1 else ProcessExecutor(environment, workers)


def _run(
    name: str, grid: Grid, environment: RunEnvironment, executor: Executor, *, prompt_batch: int, as_json: bool
) -> None:
    from slimprompt.lab.observer import study_observer
    from slimprompt.lab.study import run_study
    from slimprompt.paper.studies import study_specs

    try:
        outcome = run_study(
            study_specs(grid), environment.runs, executor, study_observer(name), prompt_batch=prompt_batch
        )
    except KeyboardInterrupt:
        typer.echo(
            f"stopped. Complete runs are in {environment.runs}; the same command goes on where this one stopped",
            err=True,
        )
        raise typer.Exit(130) from None
    if as_json:
        counts = {"present": outcome.present, "complete": outcome.complete, "failed": outcome.failed}
        typer.echo(
            json.dumps({what: [record.spec.fingerprint for record in records] for what, records in counts.items()})
        )
    else:
        _print_outcome(outcome, environment)
    if outcome.failed:
        raise typer.Exit(1)


def _print_outcome(outcome: Outcome, environment: RunEnvironment) -> None:
    total = len(outcome.present) + len(outcome.complete) + len(outcome.failed)
    there = f" ({len(outcome.present):,} were there already)" if outcome.present else ""
    typer.echo(f"{total - len(outcome.failed):,} of {total:,} runs complete in {environment.runs}{there}")
    for note in dict.fromkeys(note for record in outcome.complete for note in record.facts.get("notes", ())):
        typer.echo(f"note: {note}")
    for record in outcome.failed[:5]:
        typer.echo(f"failed: {record.spec.fingerprint} {record.spec.title}: {record.error}")
    if outcome.failed:
        more = f"{len(outcome.failed) - 5:,} more failed; " if len(outcome.failed) > 5 else ""
        typer.echo(f"{more}the same command tries failed runs again (slimprompt runs list --where status=failed)")


# --- runs ------------------------------------------------------------------------------------------------------------


@runs_app.command("list")
def list_runs(runs: RunsFolder = Path("runs"), where: Where = None) -> None:
    """Every run, one per line: status, what it was, what came out."""
    from slimprompt.lab.observer import result
    from slimprompt.lab.records import load_records, select_records

    records = select_records(load_records(runs, complete_only=False), where or ())
    records.sort(key=lambda record: (record.spec.backbone, record.spec.dataset, record.spec.title))
    rows = [("run", "status", "backbone", "dataset", "split", "shots", "seed", "prompt", "result")]
    for record in records:
        spec = record.spec
        outcome = result(record) if record.complete else " ".join((record.error or "").split())
        what = (spec.backbone, spec.dataset, spec.split, str(spec.shots), str(spec.seed), spec.label)
        rows.append((spec.fingerprint[:8], record.status, *what, outcome))
    if records:
        _print_table(rows, right="shots|seed")
    failed = sum(not record.complete for record in records)
    typer.echo(f"{len(records):,} runs in {runs}" + (f", {failed:,} failed" if failed else ""))


@runs_app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder name, or how it begins.")],
    runs: RunsFolder = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="The record as it is on disk.")] = False,
) -> None:
    """One run: its record and its learning curve."""
    from slimprompt.lab.records import CURVE, RECORD

    record = _find(runs, run)
    if as_json:
        typer.echo((record.folder / RECORD).read_text(encoding="utf-8").rstrip())
        return
    typer.echo(f"{record.spec.fingerprint}  {record.spec.title}\n{record.folder}: {record.status}")
    if record.error:
        typer.echo(f"error: {record.error}")
        if "traceback" in record.facts:
            typer.echo(record.facts["traceback"].rstrip())
    facts = {**record.metrics, **{name: value for name, value in record.facts.items() if name != "traceback"}}
    rows = [(name, _plain(value)) for name, value in [*record.spec.flat().items(), *facts.items()] if value is not None]
    _print_table(rows, heading=False)
    if (record.folder / CURVE).is_file():
        _print_curve(record)


def _print_curve(record: Record) -> None:
    curve = record.curve()
    typer.echo(f"\nloss      {_bars(curve['loss'].tolist())}\naccuracy  {_bars(curve['accuracy'].tolist())}")
    rows = [("epoch", "learning rate", "loss", "accuracy")]
    chosen = sorted({round(index * (len(curve) - 1) / 9) for index in range(10)})
    for row in curve.iloc[chosen].itertuples():
        rows.append((str(row.epoch), f"{row.lr:.6f}", f"{row.loss:.4f}", f"{row.accuracy:.1f} %"))
    _print_table(rows, right="epoch|learning rate|loss|accuracy")


def _bars(values: list[float], width: int = 60) -> str:
    """A curve in one line of text, lowest to highest value."""
    size = -(-len(values) // width)
    means = [
        sum(values[start : start + size]) / len(values[start : start + size]) for start in range(0, len(values), size)
    ]
    low, high = min(means), max(means)
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * (value - low) / (high - low)))] if high > low else "▄" for value in means)


@runs_app.command("rm")
def remove_runs(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]…", help="Folder names, or how they begin.")
    ] = None,
    runs: RunsFolder = Path("runs"),
    where: Where = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs, by name or by condition; a study that needs them makes them again."""
    from slimprompt.lab.records import load_records, remove_run, select_records

    if not names and not where:
        raise InputError("which runs? Give their names, or a condition such as --where status=failed")
    records = [_find(runs, name) for name in names or ()] or load_records(runs, complete_only=False)
    chosen = {record.folder: record for record in select_records(records, where or ())}
    if not chosen:
        typer.echo("no run meets that")
        return
    for record in list(chosen.values())[:10]:
        typer.echo(f"{record.spec.fingerprint[:8]}  {record.status}  {record.spec.title}")
    if len(chosen) > 10:
        typer.echo(f"… and {len(chosen) - 10:,} more")
    if not yes and not typer.confirm(f"Delete {len(chosen):,} runs?"):
        raise typer.Abort
    for record in chosen.values():
        remove_run(record)
    typer.echo(f"{len(chosen):,} runs deleted")


def _find(runs: Path, name: str) -> Record:
    from slimprompt.lab.records import RECORD, read_record

    folders = [path.parent for path in runs.glob(f"{name}*/{RECORD}")] if name.isalnum() else []
    if len(folders) == 1:
        return read_record(folders[0])
    if folders:
        names = ", ".join(sorted(folder.name for folder in folders)[:5])
        raise InputError(f"{len(folders)} runs in {runs} begin with {name!r}: {names}; give more of the name")
    raise InputError(f"no run in {runs} begins with {name!r}; `slimprompt runs list` shows what is there")


# --- printing --------------------------------------------------------------------------------------------------------


def _print_table(rows: Iterable[Sequence[object]], *, right: str = "", heading: bool = True) -> None:
    """Rows of cells in aligned columns, never cut off; the first row is the heading. `right`: names of number columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = [heading and name in right.split("|") for name in cells[0]]
    for row in cells:
        aligned = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ]
        typer.echo("  ".join(aligned).rstrip())


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _bytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
