"""Help of the commands. On a narrow terminal, the text of an option is below it, instead of in a narrow column beside it."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

#: Columns below which the text of an option is written below it.
NARROW = 80


class Command(TyperCommand):
    """A command whose help can be read at any width."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; a flag shows no type."""
        return _without_types_of_flags(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: as Typer does, or one option after the other."""
        width = shutil.get_terminal_size().columns
        self.help = "\n".join(
            _lines(self.help or "")
        ).strip()  # a paragraph is one line, wrapped at the width of the terminal
        if width >= NARROW:
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        for line in ["", *self.help.split("\n")]:
            formatter.write(_wrapped(line, width, indent=2))
        panel = None
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                names, text = record
                if (own := getattr(parameter, "rich_help_panel", None)) and own != panel:
                    formatter.write(f"\n{own}:\n")
                panel = own or panel
                formatter.write(f"\n  {names}\n" + _wrapped(text, width, indent=6))


class Group(TyperGroup):
    """A group of such commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; a flag shows no type."""
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""  # it takes no value
    return parameters


def _lines(text: str) -> Iterator[str]:
    """The paragraphs of a help text, each after an empty line; examples are lines of their own."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        yield ""
        examples = paragraph.replace("\n", " ").split(" Example: ")
        yield examples[0]
        yield from (f"Example: {example}" for example in examples[1:])


def _wrapped(line: str, width: int, indent: int) -> str:
    line, space = line.replace("\\[", "["), " " * indent  # the escape of Rich's markup
    return (
        textwrap.fill(line, max(width - 1, 30), initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
        + "\n"
    )


class App(typer.Typer):
    """A Typer application of such commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Any:
        """Register a command, as `typer.Typer.command` does."""
        return super().command(name, cls=Command, **options)
