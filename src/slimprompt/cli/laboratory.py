"""The commands of the laboratory for a paper: its studies, tables and claims, and comparisons of any runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from slimprompt.cli import analysis, report, runs, study
from slimprompt.cli.help import App

if TYPE_CHECKING:
    from slimprompt.report.paper import Paper


def add_commands(app: typer.Typer, paper: Callable[[], Paper], panel: str | None = None) -> None:
    """Add `study`, `runs`, `report`, `tables`, `claims`, `compare` and `geometry`; the paper is imported when one of them runs."""
    app.command(rich_help_panel=panel)(_bind(study.study, paper))
    app.add_typer(runs.app, name="runs", rich_help_panel=panel)
    for of_paper in (report.report, analysis.tables, analysis.claims):
        app.command(rich_help_panel=panel)(_bind(of_paper, paper))
    for of_runs in (analysis.compare, analysis.geometry):
        app.command(rich_help_panel=panel)(of_runs)


def command_line(paper: Callable[[], Paper]) -> typer.Typer:
    """A command line for a paper of one's own; `slimprompt.cli.main` runs it."""
    app = App(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    add_commands(app, paper)
    return app


def _bind(command: Callable[..., None], paper: Callable[[], Paper]) -> Callable[..., None]:
    """The command without its argument `paper`."""

    @wraps(command)
    def bound(**given: Any) -> None:
        command(**given, paper=paper())

    hints = get_type_hints(command, localns={"Paper": Any}, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "paper"
    ]
    bound.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    bound.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return bound
