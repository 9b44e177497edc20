"""The generated parts of the reference: commands from the Typer app, fields of files and specs from their schemas.

A page says `<!-- generated: commands -->` where a part goes. The parts are Markdown.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

_PLACE = re.compile(r"<!-- generated: ([\w.:]+) -->")


def fill_in(_app: object, _page: str, source: list[str]) -> None:
    """Replace every place of a page by its generated part."""
    source[0] = _PLACE.sub(lambda place: generate(place[1]), source[0])


def generate(name: str) -> str:
    """One generated part: "commands", or the table of fields of a pydantic model, `module:Class`."""
    if name == "commands":
        return "\n".join(commands())
    module, _, model = name.partition(":")
    return "\n".join(fields_table(getattr(__import__(module, fromlist=[model]), model)))


# --- commands --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """A section per command, with its usage, its examples and tables of its arguments and options."""
    import typer

    from slimprompt.cli import app

    yield from _commands("slimprompt", typer.main.get_command(app))


def _commands(path: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from _commands(f"{path} {name}", one)
        return
    context = command.make_context(path, [], resilient_parsing=True)
    yield f"## {path}\n"
    yield from _help(command.help or "")
    yield f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```\n"
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            title = (getattr(parameter, "rich_help_panel", None) or "Options") if is_option else "Arguments"
            panels.setdefault(title, []).append((f"`{record[0]}`", escape(record[1])))
    for title, rows in panels.items():
        yield from _table((title, ""), rows)


def _help(text: str) -> Iterator[str]:
    """The help of a command; its lines `Example: …` become one block."""
    lines = inspect.cleandoc(text).splitlines()
    prose = [line for line in lines if not line.startswith("Example:")]
    examples = [line.removeprefix("Example:").strip() for line in lines if line.startswith("Example:")]
    yield escape("\n".join(prose).strip()) + "\n"
    if examples:
        yield "```sh\n" + "\n".join(examples) + "\n```\n"


# --- fields ----------------------------------------------------------------------------------------------------------


def fields_table(model: Any) -> Iterator[str]:
    """A table of the fields of a pydantic model: name, type, default, meaning."""
    from pydantic_core import PydanticUndefined

    meanings = dict(_attribute_comments(model))
    rows = []
    for name, field in model.model_fields.items():
        missing = field.default is PydanticUndefined and field.default_factory is None
        default = "required" if missing else f"`{_plain(field.get_default(call_default_factory=True))}`"
        meaning = field.description or meanings.get(name) or _meaning_in_a_run(name)
        rows.append((f"`{name}`", f"`{type_name(field.annotation)}`", default, escape(_sentence(meaning))))
    yield from _table(("field", "type", "default", "meaning"), rows)


def _meaning_in_a_run(name: str) -> str:
    """Saved models have some fields of the run spec, with the same meaning."""
    from slimprompt.lab.spec import RunSpec

    return RunSpec.model_fields[name].description or "" if name in RunSpec.model_fields else ""


def _sentence(text: str) -> str:
    return text and text[0].upper() + text[1:].rstrip(".") + "."


def _plain(value: Any) -> str:
    """A default as it is written in JSON; a model by its name."""
    from pydantic import BaseModel

    return f"{type(value).__name__}()" if isinstance(value, BaseModel) else json.dumps(value, ensure_ascii=False)


def _attribute_comments(model: Any) -> Iterator[tuple[str, str]]:
    """The texts that follow the fields in the source of a class and its bases."""
    from sphinx.pycode import ModuleAnalyzer

    for cls in reversed(model.__mro__):
        if cls.__module__.startswith("slimprompt"):
            analyzer = ModuleAnalyzer.for_module(cls.__module__)
            for (owner, name), lines in analyzer.find_attr_docs().items():
                if owner == cls.__name__:
                    yield name, " ".join(lines).strip()


def type_name(annotation: Any) -> str:
    """A type for people: `str or null`, `list of str`, `"all" or "base"`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f'"{value}"' for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(type_name, arguments))
    if origin in (list, tuple):
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"map of {type_name(arguments[0])} to {type_name(arguments[1])}"
    return "null" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


# --- Markdown --------------------------------------------------------------------------------------------------------


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    headings = list(headings)
    for cells in (headings, ["---"] * len(headings), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
    yield ""


def escape(text: str) -> str:
    """The text with its signs escaped that Markdown would read, except in `code`."""
    parts = text.split("`")
    return "`".join(
        re.sub(r"([<>*_\[\]$])", r"\\\1", part) if place % 2 == 0 else part for place, part in enumerate(parts)
    )
