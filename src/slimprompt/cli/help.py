"""Help of the commands, by Typer and rich: what a docstring and an option need to be shown well."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""  # it takes no value
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


class App(typer.Typer):
    """A Typer application: in docstrings, paragraphs are wrapped, and lines that begin with `Example:` stay lines."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Any:
        """Register a command, as `typer.Typer.command` does."""

        def register(function: Callable[..., Any]) -> Any:
            text = _text(function.__doc__ or "")
            return super(App, self).command(name, cls=_Command, help=text, **options)(function)

        return register


def _text(docstring: str) -> str:
    text, *examples = inspect.cleandoc(docstring).split("Example: ")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]
    if examples:  # \b keeps the line breaks of a paragraph
        paragraphs.append("\b\n" + "\n".join(f"Example: {' '.join(example.split())}" for example in examples))
    return "\n\n".join(paragraphs)
