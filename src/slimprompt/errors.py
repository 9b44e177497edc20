"""The one error a user is meant to read, and the sentence "did you mean …?"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something given cannot be used: the message says what was given, what is allowed and what to do next.

    The command line prints it in one piece and exits with code 2; from Python it is an ordinary `ValueError`.
    """


def unknown(kind: str, given: str, allowed: Iterable[str], *, next_step: str = "") -> InputError:
    """The error for a name that is not in a known set.

    >>> print(unknown("field", "rnak", ["rank", "shots"]))
    unknown field 'rnak'; did you mean 'rank'? Allowed: rank, shots.
    """
    names = sorted(set(allowed))
    close = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    if not close:  # a difference in case alone is a very close match
        close = [name for name in names if name.lower() == given.lower()]
    hint = f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else "."
    listing = f" Allowed: {', '.join(names)}." if len(names) <= 30 else f" ({len(names)} names are known.)"
    return InputError(f"unknown {kind} {given!r}{hint}{listing}{' ' + next_step if next_step else ''}")
