"""Verdicts on the paper's empirical claims and on the statements of its theory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

Verdict = Literal["holds", "does not hold", "not enough runs", "violated", "not testable"]


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
    "does not hold": Display("fails", "✗", "red", "do not hold"),
    "not enough runs": Display("open", "–", "bright_black", "not enough runs"),
    "violated": Display("fails", "✗", "red", "violated"),
    "not testable": Display("open", "–", "bright_black", "not testable"),
}
CLAIM_VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "not enough runs")
STATEMENT_VERDICTS: tuple[Verdict, ...] = ("holds", "violated", "not testable")


def claim_verdict(holds: bool | None) -> Verdict:
    """The verdict of an empirical claim; None means that the results cannot decide it."""
    if holds is None:
        return "not enough runs"
    return "holds" if holds else "does not hold"


def statement_verdict(holds: bool | None) -> Verdict:
    """The verdict of a statement of the theory; None means that it cannot be tested."""
    if holds is None:
        return "not testable"
    return "holds" if holds else "violated"


def count_verdicts(verdicts: Iterable[Verdict], kinds: tuple[Verdict, ...]) -> str:
    """The number of verdicts of each kind, as one line of text.

    >>> count_verdicts(["holds", "violated", "holds"], STATEMENT_VERDICTS)
    '2 hold, 1 violated, 0 not testable'
    """
    counts = Counter(verdicts)
    return ", ".join(f"{counts[kind]} {VERDICTS[kind].plural}" for kind in kinds)
