"""The error that users are meant to read, and helpers that phrase it."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    Model = TypeVar("Model", bound=BaseModel)


class InputError(ValueError):
    """Something given cannot be used: the message says what was given, what is allowed and what to do next.

    The command line prints the message and exits with code 2; from Python it is an ordinary `ValueError`.
    """


def unknown(kind: str, given: str, allowed: Iterable[str], *, next_step: str = "") -> InputError:
    """The error for a name that is not in a known set.

    >>> print(unknown("field", "rnak", ["rank", "shots"]))
    unknown field 'rnak'; did you mean 'rank'? Allowed: rank, shots.
    """
    names = sorted(set(allowed))
    question = did_you_mean(given, names)
    hint = f"; {question}" if question else "."
    listing = f" Allowed: {', '.join(names)}." if len(names) <= 30 else f" ({len(names)} names are known.)"
    return InputError(f"unknown {kind} {given!r}{hint}{listing}{' ' + next_step if next_step else ''}")


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """A question that suggests the allowed names closest to `given`; empty if there is none.

    >>> did_you_mean("oter", ["badger", "otter"])
    "did you mean 'otter'?"
    """
    names = sorted(set(allowed))
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    if not close:  # a difference in case alone is a very close match
        close = [name for name in names if name.lower() == given.lower()]
    return f"did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def first_few(names: Sequence[str]) -> str:
    """Up to three names, for a message that should stay short.

    >>> first_few(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def choose(kind: str, given: str, allowed: Mapping[str, Any], *, next_step: str = "") -> Any:
    """`allowed[given]`, or the error that names what is allowed."""
    if given not in allowed:
        raise unknown(kind, given, allowed, next_step=next_step)
    return allowed[given]


def validate(model: type[Model], fields: Mapping[str, Any], what: str) -> Model:
    """`model(**fields)`; an unknown or invalid field is an `InputError` of one sentence instead of pydantic's report.

    Parameters
    ----------
    model
        A pydantic model class.
    fields
        Its fields as plain data.
    what
        What the model describes, for the message: "run", "recipe", "grid".
    """
    from pydantic import ValidationError

    for name in fields:
        if name not in model.model_fields:
            raise unknown(f"{what} field", name, model.model_fields)
    try:
        return model(**fields)
    except ValidationError as error:
        raise InputError(f"this {what} cannot be used: " + "; ".join(problems(error))) from None


def problems(error: ValidationError) -> list[str]:
    """What pydantic found, one phrase per field: `rank: Input should be greater than 0 (given: -1)`."""
    found = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        given = "" if problem["type"] == "missing" else f" (given: {reprlib.repr(problem['input'])})"
        found.append(f"{where}: {message}{given}" if where else message)
    return found
