"""`slimprompt study` and `slimprompt runs` as a user types them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from slimprompt.cli import app
from slimprompt.errors import InputError
from slimprompt.lab.environment import RunEnvironment
from slimprompt.lab.executors.inline import InlineExecutor
from slimprompt.lab.plan import measure_speed
from slimprompt.paper.studies import read_grid, study_specs
from tests.conftest import complete_study, fingerprints, run_folders
from tests.fork_server import Command, start_command
from tests.lab.conftest import note_imports, noted_imports

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`slimprompt …` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


@pytest.fixture
def grid_file(tmp_path: Path, tiny_folder: str, collections: dict[str, str]) -> Path:
    """A headline study of 6 runs."""
    path = tmp_path / "my-grid.yaml"
    path.write_text(
        "study: headline\n"
        f"backbones: {tiny_folder}\n"
        f"datasets: [{', '.join(collections.values())}]\n"
        "shots: 1\nseeds: [1]\nranks: [2]\nn_ctx: 4\nshort_ctx: 2\n"
        "recipe: {epochs: 12, views: 2, batch_size: 4}\n"
    )
    return path


def test_without_a_name_it_lists_the_studies(run: Run) -> None:
    names = [line.split()[0] for line in run("study").stdout.splitlines() if line]
    assert {"headline", "all", "baselines"} < set(names)


def test_the_papers_plan_counts_its_runs_without_data_or_weights(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    result = run("study", "all", "--plan")
    assert result.exit_code == 0
    assert "3,540 runs, 0 of them complete in runs" in result.stdout
    assert "not estimated: caltech101: no data root for caltech101" in result.stdout
    assert "about" not in result.stdout  # no time is given that leaves something out
    assert not Path("runs").exists()


def test_values_that_no_run_uses_are_named(run: Run, grid_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIMPROMPT_DATA", raising=False)
    result = run("study", "base-to-new", "--plan", "--ranks", "2,4", "--bases", "orthogonal,gaussian")
    assert "note: no run of base-to-new uses these values of the grid: ranks 2; bases gaussian\n" in result.stderr
    grid_file.write_text(grid_file.read_text() + "bases: svd\n")
    result = run("study", grid_file, "--workers", 1, "--set", "epochs=1", "--set", "views=0")
    assert result.stderr.startswith("note: no run of headline uses these values of the grid: bases svd\n")
    assert "note" not in run("study", "base-to-new", "--plan").stderr  # only what was given


def test_plan_for_people_and_machines(run: Run, grid_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slimprompt.lab.plan.measure_speed", partial(measure_speed, seconds=0.01)
    )  # need not be precise
    text = run("study", grid_file, "--plan", "--workers", 2).stdout
    assert "6 runs, 0 of them complete in runs" in text
    assert "with 2 workers" in text and "on disk" in text
    data = json.loads(run("study", grid_file, "--plan", "--format", "json", "--shots", "1,2").stdout)
    assert data["runs"] == 12
    assert data["seconds"] > 0
    assert not Path("runs").exists()


def test_a_study_from_start_to_end(run: Run, grid_file: Path) -> None:
    first = run("study", grid_file, "--workers", 1)
    assert first.exit_code == 0, first.output
    assert "6 of 6 runs complete in runs" in first.stdout
    assert "[6/6]" in first.stderr and "zero-shot" in first.stderr  # not a terminal: one line per run
    again = run("study", grid_file, "--workers", 1, "--shots", "1,2", "--format", "json")
    rows = json.loads(again.stdout)
    assert sorted(row["outcome"] for row in rows) == ["complete"] * 6 + ["present"] * 6

    table = run("runs", "list", "--where", "variant=dense", "--where", "shots=2").stdout
    assert "4 runs in runs" in table and "dense m4" in table and "joint" not in table

    name = next(row["run"] for row in rows if row["outcome"] == "complete")
    shown = run("runs", "show", name[:10]).stdout
    assert name in shown and "recipe.epochs" in shown and "learning rate" in shown and "█" in shown
    assert json.loads(run("runs", "show", name, "--format", "json").stdout)["status"] == "complete"

    assert run("runs", "list", "runs").stdout == run("runs", "list").stdout
    assert run("runs", "show", f"runs/{name[:10]}").stdout == shown
    nothing = run("runs", "list", "--where", "variant=jont").stdout
    assert nothing == "0 runs in runs\nno run has variant=jont: they have dense, joint\n"
    kept = run("runs", "rm", name, "--where", "shots=1")
    assert "no run matches; no run has shots=1: they have 2" in kept.stdout
    assert run("runs", "rm", name).exit_code == 1  # nobody answered the question
    assert Path("runs", name).exists()
    assert "4 runs deleted" in run("runs", "rm", "--where", "variant=dense", "--where", "shots=2", "--yes").stdout
    assert len(run_folders(Path("runs"))) == 8


def test_the_command_is_in_the_record(run: Run, grid_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/slimprompt", "study", "my-grid.yaml", "--set", "epochs=1"])
    run("study", grid_file, "--workers", 1, "--set", "epochs=1", "--set", "views=0")
    record = json.loads(next(Path("runs").glob("*/record.json")).read_text())
    assert record["invocation"] == ["slimprompt", "study", "my-grid.yaml", "--set", "epochs=1"]
    assert (record["spec"]["recipe"]["epochs"], record["spec"]["recipe"]["views"]) == (1, 0)
    assert record["spec"]["recipe"]["batch_size"] == 4  # the rest of the file's recipe stays


def test_a_recipe_by_name_keeps_the_fields_of_the_file(run: Run, grid_file: Path) -> None:
    grid_file.write_text(grid_file.read_text().replace("batch_size: 4", "anchor: 8"))
    result = run("study", grid_file, "--workers", 1, "--recipe", "fast", "--set", "epochs=1")
    assert "sets views 2, anchor 8, which stays with --recipe fast\n" in result.stderr
    recipe = json.loads(next(Path("runs").glob("*/record.json")).read_text())["spec"]["recipe"]
    assert (recipe["anchor"], recipe["views"], recipe["epochs"]) == (8, 2, 1)
    assert (recipe["optimizer"], recipe["batch_size"]) == ("adamw", 256)


def test_a_run_that_returned_from_a_loss_that_is_not_finite_is_shown(run: Run, grid_file: Path) -> None:
    grid_file.write_text(grid_file.read_text().replace("epochs: 12", "epochs: 3, lr: 1.0e+25, backtrack: 0.1"))
    log = ("--log", "tensorboard") if importlib.util.find_spec("tensorboard") else ()
    result = run("study", grid_file, "--workers", 1, "--shots", 2, *log)  # several steps per epoch
    assert result.exit_code == 0, result.output
    for name in run_folders(Path("runs")):
        shown = run("runs", "show", name)
        assert shown.exit_code == 0, shown.output
        assert re.search(r" nan +[\d.]+ %$", shown.stdout, re.MULTILINE)


def test_failures_are_listed_and_the_exit_code_tells(run: Run, grid_file: Path) -> None:
    grid_file.write_text(grid_file.read_text().replace("epochs: 12", "epochs: 2, lr: 1.0e+30"))
    result = run("study", grid_file, "--workers", 1, "--runs", "elsewhere")
    assert result.exit_code == 1
    assert "0 of 6 runs complete" in result.stdout
    assert "the loss became" in result.stdout and "to retry failed runs" in result.stdout
    assert "(slimprompt runs list --runs elsewhere --where status=failed)" in result.stdout
    assert "6 failed" in run("runs", "list", "--runs", "elsewhere", "--where", "status=failed").stdout
    name = run_folders(Path("elsewhere"))[0]
    assert "Traceback" in run("runs", "show", "--runs", "elsewhere", name).stdout


def test_a_damaged_run_can_be_removed(run: Run, tmp_path: Path) -> None:
    damaged, empty, other = (tmp_path / "runs" / name for name in ("a" * 16, "b" * 16, "copy"))
    for folder in (damaged, empty, other):
        folder.mkdir(parents=True)
    for folder in (damaged, other):
        (folder / "record.json").write_text("{")
    assert "is not a run record" in str(run("runs", "rm", "copy", "--yes").exception)
    shown = run("runs", "rm", "aaaa", f"runs/{empty.name}", "--yes").stdout
    assert "aaaaaaaa  damaged  " in shown and "2 runs deleted" in shown
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["copy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs", "list", "here", "--runs", "there"), "which folder: here or there? Give it once"),
        (("runs", "list", "here", "--runs", "runs"), "which folder: here or runs? Give it once"),
        (("study", "hedline"), "unknown study 'hedline'; did you mean 'headline'"),
        (("study", "headline", "--datasets", "dtdd"), "unknown benchmark 'dtdd'; did you mean 'dtd'"),
        (
            ("study", "headline", "--datasets", "dtd,imagenet_sketch"),
            "no run can be trained on imagenet_sketch, which has",
        ),
        (("study", "baselines", "--datasets", "imagenet_a,imagenet_r", "--plan"), "which have only test images"),
        (
            ("study", "headline", "--shots", "one"),
            "shots: write whole numbers, such as 1 or [1, 2, 3] (given: ['one'])",
        ),
        (("study", "headline", "--executor", "rey"), "unknown executor 'rey'; did you mean 'ray'"),
        (("study", "headline", "--address", "auto"), "are for the Ray executor"),
        (("study", "nothing.yaml"), "cannot read the grid file nothing.yaml"),
        (("runs", "list"), "no runs folder at runs"),
        (("runs", "show", "abc"), "no run in runs begins with 'abc'"),
        (("runs", "rm"), "which runs?"),
    ],
)
def test_mistakes_are_explained(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


# --- stopped and killed ----------------------------------------------------------------------------------------------


WORKERS = ("--workers", "2")


Started = subprocess.Popen[str] | Command


def start(grid_file: Path, runs: Path, executor: Sequence[str] = WORKERS) -> Command:
    """`slimprompt study`, and its workers, without the seconds of their imports."""
    arguments = ["study", grid_file.name, *executor, "--runs", runs, "--device", "cpu"]
    return start_command(arguments, cwd=grid_file.parent, one_stream=True, fork_workers=True)


def start_in_background(grid_file: Path, runs: Path, *options: str) -> subprocess.Popen[str]:
    """The same by true starts of Python; in the background of a script, or under nohup, SIGINT and SIGHUP are ignored."""
    command = [sys.executable, "-c", "from slimprompt.cli import main; main()", "study", grid_file.name]

    def set_signals() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    return subprocess.Popen(
        [*command, *WORKERS, "--runs", str(runs), "--device", "cpu", *options],
        cwd=grid_file.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=set_signals,
    )


def lengthen(grid_file: Path) -> None:
    grid_file.write_text(grid_file.read_text().replace("seeds: [1]", "seeds: [1, 2, 3, 4, 5, 6]"))


def keep_one_dataset(grid_file: Path, collections: dict[str, str]) -> None:
    """One run of a dataset encodes its images before others begin, so when it is there, other workers are starting.

    To wait until workers have truly started takes seconds for each.
    """
    grid_file.write_text(grid_file.read_text().replace(", ".join(collections.values()), collections["warm"]))


def wait_for_runs(runs: Path, count: int, process: Started) -> None:
    deadline = time.monotonic() + 120
    while len(list(runs.glob("[0-9a-f]*/record.json"))) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)


def members(group: int) -> list[int]:
    """Processes of a process group that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def wait_until_gone(group: int) -> None:
    deadline = time.monotonic() + 60
    while left := members(group):
        assert time.monotonic() < deadline, f"processes outlive the study: {left}"
        time.sleep(0.1)


RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
#: Ray has handlers of its own for SIGINT and SIGTERM; SIGHUP and SIGTERM have the same handler here.
SIGNALS = [
    pytest.param(signal.SIGINT, WORKERS, id="SIGINT-processes"),
    pytest.param(signal.SIGTERM, WORKERS, id="SIGTERM-processes"),
    pytest.param(signal.SIGHUP, WORKERS, id="SIGHUP-processes"),
    pytest.param(signal.SIGINT, ("--executor", "ray"), id="SIGINT-ray", marks=RAY),
    pytest.param(signal.SIGTERM, ("--executor", "ray"), id="SIGTERM-ray", marks=RAY),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "executor"), SIGNALS)
def test_a_signal_to_the_study_alone_ends_its_workers(
    number: int, executor: Sequence[str], grid_file: Path, collections: dict[str, str], tmp_path: Path
) -> None:
    lengthen(grid_file)
    if "ray" in executor:
        keep_one_dataset(grid_file, collections)
    process = start(grid_file, tmp_path / "runs", executor)
    wait_for_runs(tmp_path / "runs", 1, process)
    process.send_signal(number)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + number, output
    assert output.count("stopped") == 1 and "re-run the same command to resume" in output
    assert "Traceback" not in output and "stack" not in output and "***" not in output
    wait_until_gone(process.pid)


@pytest.mark.slow
def test_a_study_in_the_background_ignores_ctrl_c_and_ends_on_sigterm(
    grid_file: Path, collections: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers, which are started as users have them, do not import what no run uses."""
    lengthen(grid_file)
    keep_one_dataset(grid_file, collections)
    grid_file.write_text(grid_file.read_text().replace("headline", "fixed-basis"))
    process = start_in_background(grid_file, tmp_path / "runs", "--bases", note_imports(tmp_path, monkeypatch))
    wait_for_runs(tmp_path / "runs", 1, process)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "re-run the same command to resume" in output and "Traceback" not in output
    wait_until_gone(process.pid)
    imported = set().union(*(names for pid, names in noted_imports(tmp_path).items() if pid != process.pid))
    assert "open_clip" in imported
    assert not {"transformers", "wandb", "torch._dynamo"} & imported


@pytest.mark.slow
def test_workers_end_with_a_killed_study(grid_file: Path, tmp_path: Path) -> None:
    process = start(grid_file, tmp_path / "runs")
    wait_for_runs(tmp_path / "runs", 1, process)
    process.kill()
    process.wait()
    wait_until_gone(process.pid)


@pytest.mark.slow
def test_interrupted_then_killed_then_finished(grid_file: Path, tmp_path: Path) -> None:
    grid_file.write_text(grid_file.read_text().replace("seeds: [1]", "seeds: [1, 2]"))
    runs = tmp_path / "disturbed"
    process = start(grid_file, runs)
    wait_for_runs(runs, 1, process)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C goes to the whole group
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert "stopped" in output and "re-run the same command to resume" in output
    assert "Traceback" not in output
    wait_until_gone(process.pid)
    assert not [name for name in run_folders(runs) if name.startswith(".")]  # nothing half written

    there = len(run_folders(runs))
    assert there < 12
    process = start(grid_file, runs)
    wait_for_runs(runs, there + 1, process)
    process.kill()  # only the main process: its workers notice by themselves
    process.communicate()
    wait_until_gone(process.pid)

    process = start(grid_file, runs)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    assert "12 of 12 runs complete" in output

    environment = RunEnvironment(runs=tmp_path / "undisturbed", cache=tmp_path / "other cache", device="cpu")
    specs = study_specs(read_grid(grid_file))
    complete_study(specs, environment.runs, InlineExecutor(environment), prompt_batch=8)
    assert fingerprints(runs) == fingerprints(environment.runs)


def test_a_module_that_cannot_be_imported_stops_the_study(run: Run) -> None:
    result = run("study", "fixed-basis", "--pocket", "--bases", "no_such_bases:first")
    assert isinstance(result.exception, InputError)
    assert "cannot import no_such_bases for the basis 'no_such_bases:first'" in str(result.exception)
    assert not Path("runs").exists()


def test_methods_of_a_study(run: Run, grid_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the table and one of the user's own; plan, tables and comparisons do not need its module."""
    (tmp_path / "studymethods.py").write_text(
        "from slimprompt.methods.head import FittedHead, Head\n"
        "def text(task):\n    return FittedHead(Head(task.class_names, task.class_features, 1.0), n_trained=0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "studymethods:text"
    grid_file.write_text(grid_file.read_text().replace("headline", "baselines"))
    options = ("--set", "epochs=1", "--set", "views=0", "--executor", "inline")
    study = ("study", grid_file, "--methods", f"gda,{name}", *options)
    planned = run(*study, "--plan", "--format", "json")
    assert json.loads(planned.stdout)["runs"] == 2 * (2 + 3)  # datasets × (methods + prompts)
    result = run(*study)
    assert "10 of 10 runs complete" in result.stdout, result.output
    monkeypatch.delitem(sys.modules, "studymethods")
    table = run("tables", "runs", "--only", "methods").stdout
    rows = [line for line in table.splitlines() if name in line or "gda" in line]
    assert len(rows) == 2 and name in rows[1]
    assert run("compare", "runs", name, "gda").stdout.startswith(f"{name} − gda, accuracy in points")
    assert run("runs", "list", "runs", "--where", f"method={name}").stdout.count(name) == 2
    assert run("report", "runs", "--out", "report").exit_code == 0
    assert name in Path("report/index.html").read_text()
    assert "studymethods" not in sys.modules


def test_methods_that_cannot_be_used_stop_the_study(run: Run) -> None:
    result = run("study", "baselines", "--pocket", "--methods", "gda,tip-adaptor")
    assert "unknown method 'tip-adaptor'; did you mean 'tip-adapter'" in str(result.exception)
    result = run("study", "headline", "--pocket", "--plan", "--methods", "gda", "--datasets", "pocket-sketch")
    assert "note: no run of headline uses these values of the grid: methods gda\n" in result.stderr
