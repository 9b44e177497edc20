"""The four verdicts on a claim about runs or a statement of a theory, and how they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

Verdict = Literal["holds", "violated", "undecided", "not applicable"]


class Display(NamedTuple):
    """How a verdict is shown."""

    kind: Literal["holds", "fails", "open"]
    """CSS class on HTML pages."""
    icon: str
    color: str
    """Terminal color."""
    plural: str
    """Text after a count, as in "3 hold"."""


VERDICTS: dict[Verdict, Display] = {
    "holds": Display("holds", "✓", "green", "hold"),
    "violated": Display("fails", "✗", "red", "violated"),
    "undecided": Display("open", "?", "yellow", "undecided"),
    "not applicable": Display("open", "–", "bright_black", "not applicable"),
}


def count_verdicts(verdicts: Iterable[Verdict]) -> str:
    """The number of verdicts of each kind, as one line of text.

    >>> count_verdicts(["holds", "violated", "holds"])
    '2 hold, 1 violated, 0 undecided, 0 not applicable'
    """
    counts = Counter(verdicts)
    return ", ".join(f"{counts[kind]} {shown.plural}" for kind, shown in VERDICTS.items())
