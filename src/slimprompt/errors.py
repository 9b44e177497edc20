"""The error that users are meant to read, and helpers that phrase it."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    Model = TypeVar("Model", bound=BaseModel)


class InputError(ValueError):
    """Something given cannot be used: the message says what was given, what is allowed and what to do next.

    The command line prints the message and exits with code 2; from Python it is an ordinary `ValueError`. The message is one
    line of at most 1,000 characters, whatever was given.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


def printable(text: str) -> str:
    r"""Text that can be encoded as UTF-8: the bytes of a file name that is not UTF-8 are escaped.

    >>> print(printable("caf\udce9.png"))
    caf\udce9.png
    """
    return text.encode(errors="backslashreplace").decode()


def one_line(text: str, most: int = 1000) -> str:
    r"""A message as one line: control characters are escaped, and the middle of a long text is left out.

    >>> print(one_line("a\n  b\0"), one_line("0123456789", 8))
    a b\x00 01234…89
    """
    text = re.sub(r"\s*[\r\n]\s*", " ", text)
    text = re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], printable(text))
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"


def shown(value: object, most: int = 80) -> str:
    """A given value in a message: its `repr`, shortened.

    >>> shown("a" * 100, 12)
    "'aaaaaaa…aa'"
    """
    try:
        return one_line(repr(value), most)
    except Exception:  # a value whose repr fails, as an integer of more than 4,300 digits
        return f"a {type(value).__name__}"


def whole_number(name: str, value: object, *, least: int = 0, most: int | None = None) -> int:
    """The value as an int, if it is a whole number in the range; text, fractions and truth values are errors.

    >>> whole_number("rank", 4, least=1)
    4
    """
    allowed = (
        f"a whole number from {least:,} to {most:,}" if most is not None else f"a whole number of at least {least}"
    )
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise InputError(f"{name} must be {allowed} (given: {shown(value)})")
    return number


def unknown(kind: str, given: object, allowed: Iterable[str], *, next_step: str = "") -> InputError:
    """The error for a name that is not in a known set.

    >>> print(unknown("field", "rnak", ["rank", "shots"]))
    unknown field 'rnak'; did you mean 'rank'? Allowed: rank, shots.
    """
    names = sorted(set(allowed))
    question = did_you_mean(given, names)
    hint = f"; {question}" if question else "."
    listing = f" Allowed: {', '.join(names)}." if len(names) <= 30 else f" ({len(names)} names are known.)"
    return InputError(f"unknown {kind} {shown(given)}{hint}{listing}{' ' + next_step if next_step else ''}")


def did_you_mean(given: object, allowed: Iterable[str], most: int = 3) -> str:
    """A question that suggests up to `most` allowed names close to `given`; empty if there is none.

    >>> did_you_mean("oter", ["badger", "otter"])
    "did you mean 'otter'?"
    """
    if not isinstance(given, str) or len(given) > 200:  # a number, or a text that is no misspelt name
        return ""
    names = sorted(set(allowed))
    close = difflib.get_close_matches(given, names, n=most, cutoff=0.5)
    if not close:  # a difference in case alone is a very close match
        close = [name for name in names if name.lower() == given.lower()]
    return f"did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "dataset"), count(1200, "run")
    ('1 dataset', '1,200 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_few(names: Sequence[str], most: int = 80) -> str:
    """Up to three names of up to `most` characters, for a message that should stay short.

    >>> first_few(["a", "b", "c", "d"])
    'a, b, c, …'
    """
    return ", ".join(one_line(name, most) for name in names[:3]) + (", …" if len(names) > 3 else "")


def choose(kind: str, given: object, allowed: Mapping[str, Any], *, next_step: str = "") -> Any:
    """`allowed[given]`, or the error that names what is allowed."""
    if not isinstance(given, str) or given not in allowed:
        raise unknown(kind, given, allowed, next_step=next_step)
    return allowed[given]


def validate(model: type[Model], fields: Mapping[str, Any], what: str) -> Model:
    """`model(**fields)`; an unknown or invalid field is an `InputError` of one sentence instead of pydantic's report.

    `what` the model describes is for the message: "run", "recipe", "grid".
    """
    from pydantic import ValidationError

    known = model.model_fields
    for name in fields:
        if name not in known:
            raise unknown(f"{what} field", name, known)
    try:
        return model(**fields)
    except ValidationError as error:
        found = problems(error)
        more = f"; and {len(found) - 3:,} more problems" if len(found) > 3 else ""
        raise InputError(f"this {what} cannot be used: {'; '.join(found[:3])}{more}") from None


def problems(error: ValidationError) -> list[str]:
    """What pydantic found, one phrase per field: `rank: Input should be greater than 0 (given: -1)`."""
    found = []
    for problem in error.errors():
        where = one_line(".".join(str(part) for part in problem["loc"]), 80)
        message = problem["msg"].removeprefix("Value error, ")
        given = "" if problem["type"] == "missing" else f" (given: {shown(problem['input'])})"
        found.append(f"{where}: {message}{given}" if where else message)
    return found
