"""What the claims are made of: the evidence, a claim, its outcome, and cells of two arms side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd

from slimprompt.analysis.observations import Arm, Estimate, Results, dense, joint
from slimprompt.analysis.statistics import Comparison

Verdict = Literal["holds", "does not hold", "not enough runs"]

#: Fewer matched cells than this decide nothing.
MIN_CELLS = 3
#: "A few tenths of a point", and the paper's own "within half a point".
HALF_POINT = 0.5
#: An average of rounded numbers may miss the printed one by this much without anything being wrong.
ROUNDING = 0.0101
#: Opens the bound of a claim whose text gives a number.
SAME_NUMBER = "on the published tables the same number; on own runs "


@dataclass(frozen=True)
class Outcome:
    """What one claim comes to on one scope (a backbone, or all)."""

    value: str
    """The number on these results."""
    verdict: Verdict
    paper: str = ""
    """The number in the paper's text; empty where it speaks of other backbones or gives none."""
    scope: str = ""
    n: int = 0
    """How many cells, pairs or tests were counted."""
    cells: tuple[str, ...] = ()
    """What was counted, one line each."""
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper in our own words, and the function that looks it up."""

    name: str
    where: str
    sentence: str
    bound: str
    """When it counts as holding on one's own runs."""
    check: Callable[[Evidence], list[Outcome]]


@dataclass(frozen=True)
class Finding:
    """A claim together with one of its outcomes; plain data for a table or a page."""

    name: str
    where: str
    sentence: str
    bound: str
    scope: str
    value: str
    paper: str
    verdict: Verdict
    n: int
    cells: tuple[str, ...]
    note: str

    @classmethod
    def of(cls, claim: Claim, outcome: Outcome) -> Finding:
        """Claim and outcome in one row."""
        return cls(
            claim.name,
            claim.where,
            claim.sentence,
            claim.bound,
            outcome.scope,
            outcome.value,
            outcome.paper,
            outcome.verdict,
            outcome.n,
            outcome.cells,
            outcome.note,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ParameterCount:
    """How many numbers a run trains, and what decides it."""

    variant: str
    n_ctx: int
    width: int
    rank: int
    count: int

    @property
    def formula(self) -> int:
        """md, r(m+d), rd or mr."""
        m, d, r = self.n_ctx, self.width, self.rank
        return {"dense": m * d, "joint": r * (m + d), "fixed-B": r * d, "fixed-A": m * r}[self.variant]


@dataclass(frozen=True)
class Evidence:
    """All that the claims look at."""

    results: Results
    geometry: pd.DataFrame | None = None
    """Medians: axis, factor, overlap, angle (and n)."""
    displacement: pd.DataFrame | None = None
    """Start against end of each run: variant, factor, overlap, angle, relative_norm."""
    parameters: tuple[ParameterCount, ...] = ()
    main_pairs: tuple[tuple[str, str], ...] = ()
    """(target, source) pairs of the paper's main transfer table, which leaves some out."""

    @property
    def published(self) -> bool:
        """Whether these are the paper's own tables."""
        return self.results.published

    def backbones(self, metric: str = "accuracy") -> list[str]:
        """Backbones with results in `metric`."""
        return self.results.axis("backbone", metric=metric)

    def shots(self, backbone: str, metric: str = "accuracy") -> list[int]:
        """Shot counts with results."""
        return self.results.axis("shots", backbone=backbone, metric=metric)

    def datasets(self, backbone: str, metric: str = "accuracy") -> list[str]:
        """Datasets with results."""
        return self.results.axis("dataset", backbone=backbone, metric=metric)

    def ranks(self, backbone: str, basis: str = "trainable", metric: str = "accuracy") -> list[int]:
        """Ranks with results on one basis."""
        return self.results.axis("rank", backbone=backbone, method="factorized", basis=basis, metric=metric)

    def low_rank(self, backbone: str, metric: str = "accuracy") -> Arm | None:
        """The joint prompt that stands for low rank: rank 4, as in the paper, or the nearest there is."""
        ranks = self.ranks(backbone, metric=metric)
        return joint(min(ranks, key=lambda rank: (abs(rank - 4), rank))) if ranks else None

    def full_dense(self) -> Arm | None:
        """The dense prompt of the full length."""
        lengths = self.results.dense_lengths()
        return dense(lengths[-1]) if lengths else None


def verdict_of(holds: bool) -> Verdict:
    """The verdict of a claim that could be decided."""
    return "holds" if holds else "does not hold"


def missing(paper: str, what: str, scope: str = "") -> list[Outcome]:
    """The outcome of a claim that needs runs that are not there."""
    return [Outcome("—", "not enough runs", paper, scope, note=f"needs {what}")]


class Measured(NamedTuple):
    """What a claim's function finds in one scope."""

    value: str
    holds: bool | None
    """None: these results cannot decide it."""
    n: int
    cells: tuple[str, ...] = ()
    note: str = ""

    def outcome(self, paper: str, scope: str = "") -> Outcome:
        """With the paper's value beside it."""
        verdict: Verdict = "not enough runs" if self.holds is None else verdict_of(self.holds)
        return Outcome(self.value, verdict, paper, scope, self.n, self.cells, self.note)


def per_backbone(
    e: Evidence, metric: str, paper: dict[str, str], needs: str, measure: Callable[[str], Measured | None]
) -> list[Outcome]:
    """The claim on each backbone; `paper` has the text's value by backbone, "" for a sentence about all of them."""
    outcomes: list[Outcome] = []
    for backbone in e.backbones(metric):
        said = paper.get(backbone, paper.get("", ""))
        found = measure(backbone)
        outcomes += [found.outcome(said, backbone)] if found else missing(said, needs, backbone)
    everything = "; ".join(f"{name}: {value}" if name else value for name, value in paper.items())
    return outcomes or missing(everything, needs)


def rounds_to(value: float, printed: float) -> bool:
    """Whether a number recomputed from printed ones can have been printed like this."""
    return abs(value - printed) <= ROUNDING


def by_shots(values: dict[int, float]) -> str:
    """`+1.00 / -0.20 at 1/16 shots`."""
    numbers = " / ".join(f"{value:+.2f}" for value in values.values())
    return f"{numbers} at {'/'.join(str(k) for k in values)} shots"


def describe_test(name: str, test: Comparison, corrected: float | None = None) -> str:
    """One line: difference, interval, n, and the p values (Holm's in brackets)."""
    if test.p_t is None:
        return f"{name}: {test.note}"
    holm = f" (Holm {corrected:.3f})" if corrected is not None else ""
    return (
        f"{name}: {test.mean:+.2f} [{test.low:+.2f}, {test.high:+.2f}], n={test.n}, paired t p={test.p_t:.3f}{holm}, "
        f"Wilcoxon p={test.p_wilcoxon:.3f}, equivalence within ±{test.margin} p={test.p_equivalence:.3f}"
    )


@dataclass(frozen=True)
class MatchedCell:
    """One dataset and shot count with both arms."""

    dataset: str
    shots: int
    first: Estimate
    second: Estimate

    @property
    def gap(self) -> float:
        """First minus second; rounding dust between equal printed numbers is no difference."""
        return round(self.first.mean - self.second.mean, 9)

    @property
    def name(self) -> str:
        """`DTD, 4-shot`."""
        return f"{self.dataset}, {self.shots}-shot"

    def __str__(self) -> str:
        return f"{self.name}: {self.first.mean:.2f} against {self.second.mean:.2f} ({self.gap:+.2f})"


def matched_cells(e: Evidence, backbone: str, first: Arm | None, second: Arm | None, metric: str) -> list[MatchedCell]:
    """Every dataset and shot count that has both arms."""
    if first is None or second is None:
        return []
    found = []
    for dataset in e.datasets(backbone, metric):
        for k in e.shots(backbone, metric):
            one, other = (e.results.cell(backbone, dataset, arm, k, metric) for arm in (first, second))
            if one and other:
                found.append(MatchedCell(dataset, k, one, other))
    return found


def lines_of(cells: Iterable[MatchedCell]) -> tuple[str, ...]:
    """One line per cell."""
    return tuple(str(cell) for cell in cells)
