"""Runs commands of slimprompt in forked children of one process, which loads the libraries once.

    python -m tests.robustness.commands <job.json>

A job is a list of steps. The commands of a step and its `readers` run at the same time; those of `meanwhile` are repeated one after
the other as long as the commands run, beginning when `wait_for` exists. The results, with what the commands printed, are written to `<job>.done`.
Tests start a job by `run_job`.
"""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import cache
from itertools import count, cycle
from pathlib import Path
from typing import NamedTuple, TypedDict

from tests.fork_server import start_command


class Step(TypedDict, total=False):
    """Commands that run at the same time, and others that are repeated meanwhile."""

    commands: list[list[str]]
    readers: list[list[str]]
    meanwhile: list[list[str]]
    wait_for: str
    """Pattern of a path, such as `runs/*/record.json`."""
    streams: str
    """A row of `STREAMS`."""
    encoding: str
    """Of standard output and standard error, as PYTHONIOENCODING sets it."""


#: What happens to the streams of a command, as the shell would write it.
STREAMS = ("", ">&-", "2>&-", "<&- >&- 2>&-", "| head -1")


class Done(NamedTuple):
    """A command that has ended."""

    command: list[str]
    code: int
    output: str


def run_job(
    steps: list[Step], folder: Path, variables: Mapping[str, str] | None = None
) -> tuple[list[Done], list[Done]]:
    """Run steps in a new process; the results of their commands and of those that ran meanwhile.

    Environment variables that matter when Python starts need a true start, which takes seconds.
    """
    job = Path(tempfile.mkdtemp(dir=folder)) / "job.json"
    job.write_text(json.dumps(steps))
    if variables is None:
        run = start_command([job], module="tests.robustness.commands")
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
    else:
        command = [sys.executable, "-m", "tests.robustness.commands", str(job)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | dict(variables)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    commands, meanwhile = json.loads(job.with_suffix(".done").read_text())
    return [Done(*one) for one in commands], [Done(*one) for one in meanwhile]


def load_libraries() -> None:
    """Import what commands import, and compute nothing, so that children can be forked.

    The facts about the machine that every record of a run has are found here too.
    """
    load_classifiers()
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.style  # noqa: F401
    import pandas  # noqa: F401
    import sklearn.linear_model  # noqa: F401

    import slimprompt.lab.plan
    import slimprompt.lab.study
    import slimprompt.report.page  # noqa: F401
    from slimprompt.lab.provenance import git_state, machine, versions

    for find in (versions, machine, git_state):
        find()


def load_classifiers() -> None:
    """Import what `fit` and `predict` import; build tokenizers and the command line once.

    Both take every command a quarter of a second, and do not change by use.
    """
    from slimprompt.cli import app  # isort: skip  # first: it leaves out what commands do not use

    import open_clip.factory
    import scipy.optimize  # noqa: F401  # of the calibration
    import typer.main

    import slimprompt.clip.backbone
    import slimprompt.collections.inputs
    import slimprompt.fit
    import slimprompt.training.loop  # noqa: F401

    open_clip.factory.SimpleTokenizer = cache(open_clip.factory.SimpleTokenizer)
    typer.main.get_command = cache(typer.main.get_command)
    for context_length in (48, 40):  # of the pocket models and of the tests' tiny one
        open_clip.factory.SimpleTokenizer(context_length=context_length)
    typer.main.get_command(app)


def run_command(arguments: list[str]) -> int:
    """`slimprompt …` in this process; its exit code."""
    from slimprompt.cli import main as slimprompt

    sys.argv = ["slimprompt", *arguments]
    code: object
    try:
        slimprompt()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 99
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return int(code or 0)  # type: ignore[call-overload]


def _start(arguments: list[str], output: Path, streams: str, encoding: str) -> int:
    """`slimprompt …` in a forked child; its process id."""
    child = os.fork()
    if child:
        return child
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    if encoding:
        for stream, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(encoding=encoding, errors=errors)
    reader = _redirect(streams)
    code = run_command(arguments)
    if reader is not None:
        os.close(1)
        reader.wait()
    os._exit(code)


def _redirect(streams: str) -> subprocess.Popen[bytes] | None:
    """Close streams, as Python finds them if the shell has closed them, or give them to a reader, which is returned."""
    if streams == "| head -1":
        read, write = os.pipe()
        reader = subprocess.Popen(["head", "-n", "1"], stdin=read)
        os.close(read)
        os.dup2(write, 1)
        os.close(write)
        return reader
    for number, name, sign in ((0, "stdin", "<&-"), (1, "stdout", ">&-"), (2, "stderr", "2>&-")):
        if sign in streams.split():
            os.close(number)
            setattr(sys, name, None)
    return None


def _result(command: list[str], status: int, output: Path) -> Done:
    return Done(command, os.waitstatus_to_exitcode(status), output.read_bytes().decode(errors="backslashreplace"))


def _run_step(step: Step, outputs: count[int], folder: Path) -> tuple[list[Done], list[Done]]:
    def next_output() -> Path:
        return folder / f"{next(outputs)}.txt"

    commands = [*step["commands"], *step.get("readers", ())]
    files = [next_output() for _ in commands]
    how = (step.get("streams", ""), step.get("encoding", ""))
    children = [_start(*one, *how) for one in zip(commands, files, strict=True)]
    ended: dict[int, int] = {}

    def running(options: int) -> bool:
        for child in children:
            if child not in ended and (found := os.waitpid(child, options))[0]:
                ended[child] = found[1]
        return not ended.keys() >= set(children[: len(step["commands"])])

    meanwhile = []
    for command in cycle(step.get("meanwhile", ())):
        while running(os.WNOHANG) and not any(Path("/").glob(step["wait_for"].lstrip("/"))):
            time.sleep(0.01)
        if not running(os.WNOHANG):
            break
        file = next_output()
        meanwhile.append(_result(command, os.waitpid(_start(command, file, *how), 0)[1], file))
    running(0)
    return [_result(*one) for one in zip(commands, (ended[child] for child in children), files, strict=True)], meanwhile


def main() -> None:
    """Run the job that the command line names."""
    job, outputs = Path(sys.argv[1]), count()
    load_classifiers()  # in a fork, everything is loaded
    gc.freeze()  # a collection in a child would read, and so copy, all objects of the libraries
    commands: list[Done] = []
    meanwhile: list[Done] = []
    for step in json.loads(job.read_text()):
        some, others = _run_step(step, outputs, job.parent)
        commands += some
        meanwhile += others
    job.with_suffix(".done").write_text(json.dumps([commands, meanwhile]))


if __name__ == "__main__":
    main()
