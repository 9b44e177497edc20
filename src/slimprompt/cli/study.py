"""`slimprompt study`: run the paper's experiments, comparisons of methods, or a grid of your own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.options import DataRoot, Device, Log, note_codes, options_from
from slimprompt.cli.printing import count, print_json, print_table, say, size
from slimprompt.errors import InputError, choose, first_few, unknown
from slimprompt.lab.grid import Grid
from slimprompt.tracking import find_tracker
from slimprompt.training.recipe import Recipe, replace_fields

if TYPE_CHECKING:
    from slimprompt.lab.environment import RunEnvironment
    from slimprompt.lab.executors import Executor
    from slimprompt.lab.plan import Plan
    from slimprompt.lab.study import Outcome

_EXECUTORS = {
    "processes": "worker processes of this machine",
    "inline": "this process",
    "ray": "Ray, on this machine or a cluster",
}
_AXES = tuple(name for name in Grid.model_fields if name not in ("study", "pairs", "recipe"))

RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder of the run folders.")]


@options_from(Recipe, *Recipe.model_fields, into="overrides", panel="Override the recipe")
@options_from(Grid, *_AXES, into="axes", panel="Override the grid")
def study(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|GRID.yaml", help="A study, or a grid file. Without it: list studies.")
    ] = None,
    pocket: Annotated[
        bool, typer.Option("--pocket", help="Use the embedded models and rendered benchmarks instead of the paper's.")
    ] = False,
    recipe: Annotated[str | None, typer.Option(help="Recipe by name: paper, paper-10x or fast.")] = None,
    runs: RunsFolder = Path("runs"),
    data_root: DataRoot = None,
    plan: Annotated[bool, typer.Option("--plan", help="Estimate the cost and run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan, or the outcome, as JSON.")] = False,
    executor: Annotated[
        str, typer.Option(help="; ".join(f"{name}: {what}" for name, what in _EXECUTORS.items()) + ".")
    ] = "processes",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: as cores and memory allow.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of one run; changes results by float rounding.")] = 1,
    prompt_batch: Annotated[
        int,
        typer.Option(
            "--prompt-batch",
            "--stack",
            min=1,
            help="Maximum number of runs on the same images to train together; 1 disables batching.",
        ),
    ] = 8,
    device: Device = "auto",
    address: Annotated[
        str | None, typer.Option(help="ray: a running cluster, auto or host:port; default: this machine.")
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0.0, help="ray: GPUs per worker, such as 0.25; default: 1 if the cluster has GPUs."),
    ] = None,
    log: Log = None,
    *,
    axes: dict[str, Any],
    overrides: dict[str, Any],
) -> None:
    """Run a study of the paper, a comparison of methods, or a grid of your own.

    Stop it at any time; re-run the same command to resume.

    Example: slimprompt study headline --pocket
    Example: slimprompt study baselines --pocket
    Example: slimprompt study rank-sweep --datasets oxford_pets --backbones ViT-B-16 --data-root DATA
    """
    if name is None:
        _list_studies()
        return
    choose("executor", executor, _EXECUTORS)
    grid, given = _grid(name, pocket, axes, recipe, overrides)
    from slimprompt.data import BENCHMARKS, load_folder
    from slimprompt.files import cache_dir
    from slimprompt.lab.environment import RunEnvironment
    from slimprompt.lab.grid import unused_values
    from slimprompt.lab.spec import import_user_functions
    from slimprompt.lab.study import check_train_splits
    from slimprompt.paper.studies import study_specs

    specs = study_specs(grid)
    check_train_splits(specs)  # before Ray or workers start
    import_user_functions(specs)
    for dataset in grid.datasets:
        if dataset not in BENCHMARKS:
            note_codes(load_folder(dataset).class_names, "rename the folders, or give a CSV file of path,label")
    unused = {field: values for field, values in unused_values(grid, specs).items() if field in given}
    if unused:
        shown = "; ".join(f"{field} {first_few(values)}" for field, values in unused.items())
        say(f"note: no run of {', '.join(grid.study)} uses these values of the grid: {shown}", err=True)
    environment = RunEnvironment(
        runs=runs,
        data_root=data_root,
        cache=cache_dir() if os.environ.get("SLIMPROMPT_CACHE") else None,  # workers elsewhere use the same
        threads=threads,
        device=device,
        invocation=("slimprompt", *sys.argv[1:]),
    )
    if plan:
        _plan(grid, environment, workers, as_json=as_json)
    else:
        if log is not None:
            find_tracker(log)
        chosen = _executor(executor, environment, workers, address, gpus)
        if address is None:  # the disks of a cluster are elsewhere
            _check_disk(grid, environment)
        _run(name, grid, environment, chosen, prompt_batch=prompt_batch, as_json=as_json, log=log)


def _list_studies() -> None:
    from slimprompt.paper.studies import ALL_STUDIES, PAPER, POCKET

    rows = []
    for name, make in ALL_STUDIES.items():
        about = (make.__doc__ or "").splitlines()[0].rstrip(".")
        rows.append((name, f"{len(make(PAPER)):,}", f"{len(make(POCKET)):,}", about))
    print_table(("study", "paper", "pocket", ""), rows, right=("paper", "pocket"))
    say("\nThe numbers are runs. Studies share some of them; `all` contains those of the paper's studies, each once.")
    say("Estimate the cost of a study with `slimprompt study NAME --plan`.")


def _grid(
    name: str, pocket: bool, axes: dict[str, Any], recipe: str | None, overrides: dict[str, Any]
) -> tuple[Grid, set[str]]:
    """The grid, and the names of the fields that the user gave."""
    from slimprompt.lab.grid import read_grid_file
    from slimprompt.paper.studies import ALL_STUDIES, make_grid

    fields: dict[str, Any] = {"study": name}
    if name not in ALL_STUDIES:
        if Path(name).suffix.lower() not in (".yaml", ".yml"):
            raise unknown("study", name, ALL_STUDIES, next_step="A grid of your own is a file GRID.yaml.")
        fields, says_pocket = read_grid_file(Path(name))
        pocket = pocket or says_pocket
    fields |= axes | ({"recipe": recipe} if recipe else {})
    grid = make_grid(fields, pocket=pocket)
    return grid.model_copy(update={"recipe": replace_fields(grid.recipe, overrides)}), set(fields)


# --- plan ------------------------------------------------------------------------------------------------------------


def _plan(grid: Grid, environment: RunEnvironment, workers: int | None, *, as_json: bool) -> None:
    from slimprompt.lab.executors import default_workers
    from slimprompt.lab.plan import count_runs, plan_runs
    from slimprompt.paper.studies import studies_of

    studies = studies_of(grid)
    if not as_json:
        _print_counts(count_runs(studies, environment, workers or 1), environment)
        say("counting tokens and measuring this machine …", err=True)
    full = plan_runs(studies, environment, workers or default_workers(environment))
    if as_json:
        print_json(full.as_json())
    else:
        _print_estimate(full)


def _print_counts(plan: Plan, environment: RunEnvironment) -> None:
    say(f"{plan.runs:,} runs, {plan.complete:,} of them complete in {environment.runs}")
    for name, runs in plan.studies.items():
        say(f"  {name:<13} {runs:>6,}")
    if len(plan.studies) > 1 and sum(plan.studies.values()) + plan.sources > plan.runs:
        say("  runs that several studies share are executed once")
    if plan.sources:
        say(f"  and {plan.sources:,} source runs whose factors others use")


def _print_estimate(plan: Plan) -> None:
    from slimprompt.progress import duration

    if plan.tasks:
        _print_tasks(plan)
    for speed in plan.speeds:
        say(
            f"{speed.backbone} on this machine, {count(plan.threads, 'thread')}: a step takes {1000 * speed.step:.1f} ms + "
            f"{1000 * speed.token:.3f} ms per text token, an image {1000 * speed.image:.1f} ms"
        )
    if plan.seconds is not None:
        parts = f"{duration(plan.training_seconds)} of training, {duration(plan.encoding_seconds)} of encoding images"
        say(f"about {duration(plan.seconds)} with {count(plan.workers, 'worker')} ({parts})")
        if plan.fitted:
            say(f"not included: {count(plan.fitted, 'run')} of other methods than prompts, which take seconds each")
        say(f"about {size(plan.disk_bytes)} on disk")
    for what in plan.missing[:2]:
        say(f"not estimated: {what}")
    if len(plan.missing) > 2:
        say(f"not estimated: {len(plan.missing) - 2} more, which --json lists")
    if plan.missing:
        say("time and disk are not given, because they would not include the above")


def _print_tasks(plan: Plan) -> None:
    rows = []
    for task in plan.tasks:
        few, many = task.tokens_per_step or (("?", "?") if task.steps else ("—", "—"))
        tokens = str(few) if few == many else f"{few}–{many}"
        numbers = (f"{task.classes}", f"{task.runs:,}", tokens, f"{task.steps:,}")
        rows.append((task.backbone, task.dataset, task.split, *numbers))
    headings = ("backbone", "dataset", "classes of", "classes", "runs", "text tokens per step", "steps")
    say()
    print_table(headings, rows, right=headings[3:])
    tokens = f", {plan.tokens / 1e6:,.1f} million text tokens" if plan.tokens else ""
    say(f"{plan.steps:,} steps{tokens}\n")
    banks = [(bank.backbone, bank.dataset, f"{bank.test:,}", f"{bank.train:,}") for bank in plan.banks]
    counts = ("test images", "views of training images")
    print_table(("feature bank", "dataset", *counts), banks, right=counts)
    features = sum(bank.test + bank.train for bank in plan.banks)
    say(f"{features:,} image features, each encoded once and shared by all runs that can use it\n")


# --- run -------------------------------------------------------------------------------------------------------------


def _executor(
    name: str, environment: RunEnvironment, workers: int | None, address: str | None, gpus: float | None
) -> Executor:
    from slimprompt.lab.executors import default_workers
    from slimprompt.lab.executors.inline import InlineExecutor
    from slimprompt.lab.executors.processes import ProcessExecutor

    if name != "processes" and workers is not None:
        raise InputError("--workers is for worker processes; Ray runs as many as the cluster's CPUs allow")
    if name == "ray":
        from slimprompt.lab.executors.ray import RayExecutor

        return RayExecutor(environment, address=address, gpus=gpus)
    if address is not None or gpus is not None:
        raise InputError("--address and --gpus are for the Ray executor: add --executor ray")
    workers = 1 if name == "inline" else workers or default_workers(environment)
    return InlineExecutor(environment) if workers == 1 else ProcessExecutor(environment, workers)


def _check_disk(grid: Grid, environment: RunEnvironment) -> None:
    from slimprompt.lab.plan import check_disk
    from slimprompt.paper.studies import study_specs

    warning = check_disk(study_specs(grid), environment)
    if warning:
        say(f"warning: {warning}", err=True)


def _run(
    name: str,
    grid: Grid,
    environment: RunEnvironment,
    executor: Executor,
    *,
    prompt_batch: int,
    as_json: bool,
    log: str | None,
) -> None:
    from slimprompt.lab.observer import LoggingObserver, study_observer
    from slimprompt.lab.study import run_study
    from slimprompt.paper.studies import study_specs

    specs, observer = study_specs(grid), study_observer(name)
    if log is not None:
        observer = LoggingObserver(log, observer)
    try:
        outcome = run_study(specs, environment.runs, executor, observer, prompt_batch=prompt_batch)
    except KeyboardInterrupt:
        say(f"stopped. Complete runs are in {environment.runs}; re-run the same command to resume", err=True)
        raise typer.Exit(130) from None
    if as_json:
        records = {"present": outcome.present, "complete": outcome.complete, "failed": outcome.failed}
        print_json({what: [one.spec.fingerprint for one in some] for what, some in records.items()}, indent=None)
    else:
        _print_outcome(outcome, environment)
    if outcome.failed:
        raise typer.Exit(1)


def _print_outcome(outcome: Outcome, environment: RunEnvironment) -> None:
    from slimprompt.lab.records import runs_command

    total = len(outcome.present) + len(outcome.complete) + len(outcome.failed)
    present = f" ({len(outcome.present):,} were complete before)" if outcome.present else ""
    say(f"{total - len(outcome.failed):,} of {total:,} runs complete in {environment.runs}{present}")
    for note in dict.fromkeys(note for record in outcome.complete for note in record.facts.get("notes", ())):
        say(f"note: {note}")
    for record in outcome.failed[:5]:
        say(f"failed: {record.spec.fingerprint} {record.spec.title}: {record.error}")
    if outcome.failed:
        more = f"{len(outcome.failed) - 5:,} more failed; " if len(outcome.failed) > 5 else ""
        shown = runs_command("list", environment.runs, "--where", "status=failed")
        say(f"{more}re-run the same command to retry failed runs ({shown})")
