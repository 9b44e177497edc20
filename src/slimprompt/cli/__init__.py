"""The command line. Heavy imports happen inside the commands, so that `slimprompt --help` answers at once."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from slimprompt import __version__
from slimprompt.allocator import keep_freed_memory
from slimprompt.cli import (
    backbones,
    cache,
    check_labels,
    data,
    doctor,
    evaluate,
    export,
    fit,
    import_coop,
    laboratory,
    predict,
    push,
    quickstart,
    serve,
    show,
    suggest,
    theory,
)
from slimprompt.cli.help import App
from slimprompt.cli.printing import say
from slimprompt.cli.stopping import Stopped, stop_on_signals
from slimprompt.cli.streams import output_error, safe_streams
from slimprompt.errors import InputError, one_line
from slimprompt.extras import explain_mismatch, explain_missing
from slimprompt.startup import import_lightly

if TYPE_CHECKING:
    from slimprompt.report.paper import Paper

#: What torch says if an allocation fails, on GPUs and on the CPU.
_NO_MEMORY = re.compile("out of memory|allocate memory")

app = App(
    name="slimprompt",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Adapt CLIP from a few images per class with a low-rank text prompt of a few KB.",
    epilog="Start with `slimprompt quickstart`. Any command takes --debug to show where an error came from.",
)


def _version(value: bool) -> None:
    if value:
        say(f"slimprompt {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def _paper() -> Paper:
    from slimprompt.paper.contents import PAPER

    return PAPER


_USE, _STUDY, _LOOK = "Classify", "Experiment", "Inspect"
app.command(rich_help_panel=_USE)(quickstart.quickstart)
app.command(rich_help_panel=_USE)(fit.fit)
app.command(rich_help_panel=_USE)(evaluate.evaluate)
app.command(rich_help_panel=_USE)(predict.predict)
app.command(rich_help_panel=_USE)(serve.serve)
app.command(rich_help_panel=_USE)(suggest.suggest)
app.command(rich_help_panel=_USE)(check_labels.check_labels)
app.command(rich_help_panel=_USE)(export.export)
app.command(rich_help_panel=_USE)(push.push)
app.command(rich_help_panel=_USE)(import_coop.import_coop)
laboratory.add_commands(app, _paper, _STUDY)
app.command(rich_help_panel=_STUDY)(theory.theory)
app.command(rich_help_panel=_LOOK)(doctor.doctor)
app.command(rich_help_panel=_LOOK)(show.show)
app.command(rich_help_panel=_LOOK)(backbones.backbones)
app.add_typer(data.app, name="data", rich_help_panel=_LOOK)
app.add_typer(cache.app, name="cache", rich_help_panel=_LOOK)


def main(commands: typer.Typer = app) -> None:
    """Run a command line: an error a user can act on is one message and exit code 2, never a traceback."""
    debug = "--debug" in sys.argv or os.environ.get("SLIMPROMPT_DEBUG") == "1"
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    safe_streams()
    keep_freed_memory()
    import_lightly()  # before a command imports open_clip
    warnings.showwarning = _show_warning
    received = stop_on_signals()
    left = "nothing half-written is left"
    try:
        commands()
        code: object = 0
    except (KeyboardInterrupt, Stopped) as stop:  # the first is exit code 130 of typer, except while typer ends itself
        code, left = 130, str(stop) or left
    except SystemExit as stop:
        code = stop.code
    except Exception as error:
        if debug:
            raise
        code = _explain(error)
    if received or code == 130:
        _say(f"stopped: {left}", "")
        sys.exit(128 + received[-1] if received else 130)
    if not code and (failed := output_error()):
        _say(f"the output could not be written completely: {failed.strerror or failed}")
        code = 2
    sys.exit(code)  # type: ignore[arg-type]


def _explain(error: Exception) -> int:
    """Say what went wrong; returns the exit code."""
    message = _message(error)
    _say(
        message
        or f"this is a bug in slimprompt ({type(error).__name__}: {error}). Run the command again with --debug to see where"
    )
    return 2 if message else 1


def _message(error: Exception) -> str | None:
    """What the user can do about an error; None about a bug."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return explain_missing(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        return (
            f"there is not enough memory ({one_line(str(error), 200)}): end other programs, or use a smaller model, smaller batches, "
            "fewer workers or another --device"
        )
    return explain_mismatch(error) if isinstance(error, RuntimeError) else None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Warnings of this package are notes for the user; those of libraries are not shown."""
    if category is UserWarning and Path(__file__).parents[1] in Path(filename).parents:
        _say(str(message), "note: ")


def _say(message: str, prefix: str = "error: ") -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(f"[bold red]{prefix}[/]" if prefix else "", end="")
    console.print(one_line(message), markup=False, soft_wrap=True)  # a path is never broken in two
