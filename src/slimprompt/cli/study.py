"""`slimprompt study`: run the paper's experiments, comparisons of methods, or a grid of your own."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimprompt.cli.options import (
    DataRoot,
    Log,
    ModelOptions,
    OutputFormat,
    RecipeChoice,
    RecipeFields,
    model_options,
    note_codes,
    options_from,
    parse_fields,
    read_recipe,
)
from slimprompt.cli.printing import Format, emit, print_json, say, size
from slimprompt.cli.stopping import resumable
from slimprompt.errors import InputError, choose, count, first_few, unknown
from slimprompt.lab.grid import Grid
from slimprompt.tracking import find_tracker, open_log
from slimprompt.training.recipe import RECIPES, Recipe, replace_fields

if TYPE_CHECKING:
    from slimprompt.lab.environment import RunEnvironment
    from slimprompt.lab.executors import Executor
    from slimprompt.lab.records import Record
    from slimprompt.lab.spec import RunSpec
    from slimprompt.lab.studies import Catalogue
    from slimprompt.lab.study import Event, Outcome, Study

_EXECUTORS = {
    "processes": "worker processes of this machine",
    "inline": "this process",
    "ray": "Ray, on this machine or a cluster",
}
_EXECUTOR_HELP = "; ".join(f"{name}: {what}" for name, what in _EXECUTORS.items()) + "."
_AXES = tuple(name for name in Grid.model_fields if name not in ("study", "pairs", "recipe"))

RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder of the run folders.")]


@model_options("device")
@options_from(Grid, *_AXES, into="axes", panel="Override the grid")
def study(
    name: str | None = typer.Argument(
        None, metavar="NAME|GRID.yaml", help="A study, or a grid file. Without it: list studies."
    ),
    pocket: bool = typer.Option(
        False, "--pocket", help="Use the embedded models and rendered benchmarks instead of the paper's."
    ),
    recipe: RecipeChoice = None,
    fields: RecipeFields = None,
    runs: RunsFolder = Path("runs"),
    data_root: DataRoot = None,
    plan: bool = typer.Option(False, "--plan", help="Estimate the cost and run nothing."),
    format: OutputFormat = Format.table,
    executor: str = typer.Option("processes", help=_EXECUTOR_HELP),
    workers: int | None = typer.Option(None, min=1, help="Worker processes; default: as cores and memory allow."),
    threads: int = typer.Option(1, min=1, help="Threads of one run; changes results by float rounding."),
    prompt_batch: int = typer.Option(
        8, min=1, help="Maximum number of runs on the same images to train together; 1 disables batching."
    ),
    address: str | None = typer.Option(None, help="ray: a running cluster, auto or host:port; default: this machine."),
    gpus: float | None = typer.Option(
        None, min=0.0, help="ray: GPUs per worker, such as 0.25; default: 1 if the cluster has GPUs."
    ),
    log: Log = None,
    *,
    axes: dict[str, Any],
    model_options: ModelOptions,
    paper: Any,
) -> None:
    """Run a study of the paper, a comparison of methods, or a grid of your own.

    Stop it at any time; re-run the same command to resume.

    Example: slimprompt study headline --pocket
    Example: slimprompt study baselines --pocket
    Example: slimprompt study rank-sweep --datasets oxford_pets --backbones ViT-B-16 --data-root DATA
    """
    catalogue: Catalogue = paper.studies
    if name is None:
        _list_studies(catalogue)
        return
    choose("executor", executor, _EXECUTORS)
    grid, given = _grid(catalogue, name, pocket, axes, recipe, parse_fields(Recipe, fields))
    from slimprompt.files import cache_dir
    from slimprompt.lab.environment import RunEnvironment
    from slimprompt.lab.spec import import_user_functions
    from slimprompt.lab.study import open_study

    studies = catalogue.studies_of(grid)
    opened = open_study(catalogue.study_specs(grid), runs)  # errors come before Ray or workers start
    import_user_functions(opened.asked)
    _note_grid(grid, given, opened)
    environment = RunEnvironment(
        runs=runs,
        data_root=data_root,
        cache=cache_dir() if os.environ.get("SLIMPROMPT_CACHE") else None,  # workers elsewhere use the same
        threads=threads,
        device=model_options.device,
        invocation=("slimprompt", *sys.argv[1:]),
    )
    if plan:
        _plan(opened, studies, environment, workers, format)
    else:
        if log is not None:
            find_tracker(log)
        chosen = _executor(executor, environment, workers, address, gpus)
        _run(name, opened, chosen, format, prompt_batch=prompt_batch, log=log)


def _list_studies(catalogue: Catalogue) -> None:
    studies = catalogue.studies.items()
    emit([{"study": name, "": (make.__doc__ or "").splitlines()[0].rstrip(".")} for name, make in studies])
    say("\nCount the runs of a study and estimate their cost with `slimprompt study NAME --plan`.")


def _grid(
    catalogue: Catalogue, name: str, pocket: bool, axes: dict[str, Any], recipe: str | None, overrides: dict[str, Any]
) -> tuple[Grid, set[str]]:
    """The grid, and the names of the fields that the user gave."""
    from slimprompt.lab.grid import read_grid_file

    fields: dict[str, Any] = {"study": name}
    if name not in catalogue.studies:
        if Path(name).suffix.lower() not in (".yaml", ".yml"):
            raise unknown("study", name, catalogue.studies, next_step="A grid of your own is a file GRID.yaml.")
        fields, says_pocket = read_grid_file(Path(name))
        pocket = pocket or says_pocket
    if recipe is not None:
        fields["recipe"] = _chosen_recipe(name, recipe, fields.get("recipe"), overrides)
    fields |= axes
    grid = catalogue.make_grid(fields, pocket=pocket)
    return grid.model_copy(update={"recipe": replace_fields(grid.recipe, overrides)}), set(fields)


def _chosen_recipe(name: str, recipe: str, in_file: Any, overrides: Mapping[str, Any]) -> Recipe | dict[str, Any]:
    """The recipe of `--recipe`, with the fields that the grid file sets; these stay unless --set replaces them."""
    given = read_recipe(recipe)
    if not isinstance(given, str):
        return given | (dict(in_file) if isinstance(in_file, Mapping) else {})
    chosen: Recipe = choose("recipe", given, RECIPES)
    if not isinstance(in_file, Mapping):
        return chosen
    if stay := [f"{field} {value}" for field, value in in_file.items() if field not in overrides]:
        say(f"note: {name} sets {', '.join(stay)}, which stays with --recipe {recipe}", err=True)
    return replace_fields(chosen, in_file)


def _note_grid(grid: Grid, given: set[str], opened: Study) -> None:
    """Say what looks like a mistake in a grid."""
    from slimprompt.data import BENCHMARKS, load_folder
    from slimprompt.lab.grid import unused_values

    for dataset in grid.datasets:
        if dataset not in BENCHMARKS:
            note_codes(load_folder(dataset).class_names, "rename the folders, or give a CSV file of path,label")
    unused = {field: values for field, values in unused_values(grid, opened.asked).items() if field in given}
    if unused:
        shown = "; ".join(f"{field} {first_few(values)}" for field, values in unused.items())
        say(f"note: no run of {', '.join(grid.study)} uses these values of the grid: {shown}", err=True)


# --- plan ------------------------------------------------------------------------------------------------------------


def _plan(
    opened: Study,
    studies: Mapping[str, list[RunSpec]],
    environment: RunEnvironment,
    workers: int | None,
    format: Format,
) -> None:
    from slimprompt.lab.executors import default_workers
    from slimprompt.lab.plan import plan_study

    counts = {
        "studies": {name: len(specs) for name, specs in studies.items()},
        "runs": len(opened.specs),
        "sources": len(opened.specs) - len(opened.asked),
        "complete": len(opened.complete),
    }
    if format is Format.csv:
        emit([{"study": name, "runs": len(specs)} for name, specs in studies.items()], format)
        return
    if format is Format.table:
        _print_counts(counts, environment.runs)
        say("counting images and text tokens, and measuring this machine …", err=True)
    found = asdict(plan_study(opened, environment, workers or default_workers(environment)))
    if format is Format.json:
        print_json(counts | found)
    else:
        _print_estimate(found)


def _print_counts(counts: Mapping[str, Any], runs: Path) -> None:
    say(f"{counts['runs']:,} runs, {counts['complete']:,} of them complete in {runs}")
    for name, number in counts["studies"].items():
        say(f"  {name:<13} {number:>6,}")
    if sum(counts["studies"].values()) + counts["sources"] > counts["runs"]:
        say("  runs that several studies share are executed once")
    if counts["sources"]:
        say(f"  and {counts['sources']:,} source runs whose factors others use")


def _print_estimate(plan: Mapping[str, Any]) -> None:
    from slimprompt.progress import duration

    if plan["seconds"] is not None:
        say(
            f"{plan['steps']:,} steps with {plan['tokens'] / 1e6:,.1f} million text tokens; {plan['images']:,} image views"
        )
        say(f"about {duration(plan['seconds'])} with {count(plan['workers'], 'worker')}")
        if plan["fitted"]:
            say(f"not included: {count(plan['fitted'], 'run')} of other methods than prompts, which take seconds each")
        say(f"about {size(plan['disk_bytes'])} on disk")
    for what in plan["missing"][:2]:
        say(f"not estimated: {what}")
    if len(plan["missing"]) > 2:
        say(f"not estimated: {len(plan['missing']) - 2} more, which --format json lists")
    if plan["missing"]:
        say("time and disk are not given, because they would not include the above")


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


def _run(name: str, opened: Study, executor: Executor, format: Format, *, prompt_batch: int, log: str | None) -> None:
    from slimprompt.lab.display import shown
    from slimprompt.lab.study import outcome_of, run_study

    events = shown(name, opened, run_study(opened, executor, prompt_batch=prompt_batch))
    with resumable(f"complete runs are in {opened.runs}; re-run the same command to resume"):
        outcome = outcome_of(opened, events if log is None else _logged(log, events))
    if format is Format.table:
        _print_outcome(outcome, opened.runs)
    else:
        emit(_outcome_rows(outcome), format)
    if outcome.failed:
        raise typer.Exit(1)


def _outcome_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """One row per run: whether it was complete before, is complete now, or failed."""
    groups = {"present": outcome.present, "complete": outcome.complete, "failed": outcome.failed}
    return [
        {"run": record.spec.fingerprint, "title": record.spec.title, "outcome": group, "error": record.error}
        for group, records in groups.items()
        for record in records
    ]


def _logged(target: str, events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """The events of a study; runs that are complete now are written to a tracker, from this process, whichever executor runs them."""
    from slimprompt.lab.study import Ended

    failed = False
    with closing(events):
        for event in events:
            if isinstance(event, Ended) and event.record.complete and not failed:
                try:
                    _log_run(target, event.record)
                except InputError as error:
                    failed = True
                    warnings.warn(f"{error}; nothing more is logged", stacklevel=1)
            yield event


def _log_run(target: str, record: Record) -> None:
    from slimprompt.training.loop import EpochResult

    facts = {name: record.facts.get(name) for name in ("trainable_parameters", "backbone_fingerprint")}
    name = f"{record.spec.label}-{record.spec.fingerprint}"
    with open_log(target, name, record.spec.flat() | facts) as log:
        if record.spec.is_prompt:
            for row in record.curve().itertuples(index=False):
                log.epoch(EpochResult(*row))
        log.result(record.metrics)


def _print_outcome(outcome: Outcome, runs: Path) -> None:
    from slimprompt.lab.records import runs_command

    total = len(outcome.present) + len(outcome.complete) + len(outcome.failed)
    present = f" ({len(outcome.present):,} were complete before)" if outcome.present else ""
    say(f"{total - len(outcome.failed):,} of {total:,} runs complete in {runs}{present}")
    for note in dict.fromkeys(note for record in outcome.complete for note in record.facts.get("notes", ())):
        say(f"note: {note}")
    for record in outcome.failed[:5]:
        say(f"failed: {record.spec.fingerprint} {record.spec.title}: {record.error}")
    if outcome.failed:
        more = f"{len(outcome.failed) - 5:,} more failed; " if len(outcome.failed) > 5 else ""
        shown = runs_command("list", runs, "--where", "status=failed")
        say(f"{more}re-run the same command to retry failed runs ({shown})")
