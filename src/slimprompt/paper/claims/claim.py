"""Claims, their outcomes, and helpers that build outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from slimprompt.analysis.statistics import Comparison
from slimprompt.paper.claims.evidence import Evidence
from slimprompt.paper.verdict import Verdict, claim_verdict

#: Claims that count cells need at least this many.
MIN_CELLS = 3
#: Bound for "a few tenths of a point" and for the paper's "within half a point".
HALF_POINT = 0.5
#: An average of rounded numbers can differ from the printed average by up to this much.
ROUNDING = 0.0101
#: Start of the bound of a claim whose text gives a number.
SAME_NUMBER = "on the published tables the same number; on own runs "


@dataclass(frozen=True)
class Claim:
    """One empirical claim of the paper.

    Attributes
    ----------
    name
        Identifier, the name of the function `check`.
    where
        Place in the paper.
    sentence
        The claim in our own words.
    bound
        Condition under which it holds on your own runs.
    check
        Function that computes the outcomes, one per scope.
    unit
        What `Outcome.n` counts, in the singular; a cell is a dataset at one shot count.
    """

    name: str
    where: str
    sentence: str
    bound: str
    check: Callable[[Evidence], list[Outcome]]
    unit: str = "cell"


@dataclass(frozen=True)
class Outcome:
    """Result of one claim on one scope.

    Attributes
    ----------
    value
        The value on these results, as text.
    verdict
        "holds", "does not hold" or "not enough runs".
    paper
        The value in the paper's text; empty if the text gives none for this scope.
    scope
        A backbone or a set of transfer pairs; empty for all results.
    n
        Number of units behind the value, see `Claim.unit`.
    cells
        One line per cell, pair or test.
    note
        Additional remark.
    """

    value: str
    verdict: Verdict
    paper: str = ""
    scope: str = ""
    n: int = 0
    cells: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """A claim together with one of its outcomes; the fields are those of `Claim` and `Outcome`."""

    name: str
    where: str
    sentence: str
    bound: str
    unit: str
    scope: str
    value: str
    paper: str
    verdict: Verdict
    n: int
    cells: tuple[str, ...]
    note: str

    @classmethod
    def of(cls, claim: Claim, outcome: Outcome) -> Finding:
        """Combine a claim and an outcome."""
        return cls(claim.name, claim.where, claim.sentence, claim.bound, claim.unit, **asdict(outcome))

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data for JSON."""
        return asdict(self)


class Measured(NamedTuple):
    """Value and decision of a claim on one scope, before the paper's value is added."""

    value: str
    holds: bool | None
    """None if these results cannot decide the claim."""
    n: int
    cells: tuple[str, ...] = ()
    note: str = ""

    def outcome(self, paper: str, scope: str = "") -> Outcome:
        """The outcome with the paper's value and the scope."""
        return Outcome(self.value, claim_verdict(self.holds), paper, scope, self.n, self.cells, self.note)


def missing(paper: str, what: str, scope: str = "") -> list[Outcome]:
    """The outcome of a claim whose runs are missing; `what` names the runs it needs."""
    return [Outcome("—", "not enough runs", paper, scope, note=f"needs {what}")]


def per_backbone(
    e: Evidence, metric: str, paper: dict[str, str], needs: str, measure: Callable[[str], Measured | None]
) -> list[Outcome]:
    """Evaluate a claim on each backbone.

    Parameters
    ----------
    e
        Evidence.
    metric
        Only backbones with results in this metric are evaluated.
    paper
        Value in the paper's text by backbone; the key "" is a value for all backbones.
    needs
        Runs the claim needs, for the note of a missing outcome.
    measure
        Maps a backbone to its result, or to None if runs are missing.

    Returns
    -------
    list of Outcome
    """
    outcomes: list[Outcome] = []
    for backbone in e.backbones(metric):
        printed = paper.get(backbone, paper.get("", ""))
        found = measure(backbone)
        outcomes += [found.outcome(printed, backbone)] if found else missing(printed, needs, backbone)
    everything = "; ".join(f"{name}: {value}" if name else value for name, value in paper.items())
    return outcomes or missing(everything, needs)


def rounds_to(value: float, printed: float) -> bool:
    """Whether a value recomputed from rounded numbers agrees with the printed one."""
    return abs(value - printed) <= ROUNDING


def by_shots(values: dict[int, float]) -> str:
    """Values per shot count, as `+1.00 / -0.20 at 1/16 shots`."""
    numbers = " / ".join(f"{value:+.2f}" for value in values.values())
    return f"{numbers} at {'/'.join(str(k) for k in values)} shots"


def wide_interval(tests: Iterable[Comparison]) -> str:
    """A remark if "no difference" rests on intervals that are wider than the equivalence margin; empty otherwise."""
    widest = max(tests, key=_width)
    if _width(widest) <= 2 * widest.margin:
        return ""
    return f"not refuted, but not confirmed: the 95 % interval {_interval(widest)} is wider than ±{widest.margin}"


def unclear_sign(test: Comparison) -> str:
    """A remark if the interval of a gain contains 0, or why there is none; empty otherwise."""
    if test.low is None or test.high is None:
        return test.note
    return (
        f"not clear: the 95 % interval over datasets {_interval(test)} contains 0" if test.low <= 0 <= test.high else ""
    )


def _width(test: Comparison) -> float:
    return (test.high or 0.0) - (test.low or 0.0)


def _interval(test: Comparison) -> str:
    return f"[{test.low:+.2f}, {test.high:+.2f}]"


def describe_test(name: str, test: Comparison, corrected: float | None = None) -> str:
    """One line with difference, interval, n and p-values; `corrected` is the Holm-adjusted p of the t-test."""
    if test.p_t is None:
        return f"{name}: {test.note}"
    holm = f" (Holm {corrected:.3f})" if corrected is not None else ""
    return (
        f"{name}: {test.mean:+.2f} {_interval(test)}, n={test.n}, paired t p={test.p_t:.3f}{holm}, "
        f"Wilcoxon p={test.p_wilcoxon:.3f}, equivalence within ±{test.margin} p={test.p_equivalence:.3f}"
    )
