"""Claims: sentences about a set of runs, or about published numbers, each with a number, a bound and a verdict.

A claim is data. It says which columns of a table it speaks of (`of`), on which rows (`where`), what is computed from them (`value`),
what one observation is (`each`), and how the observations are compared with a bound (`statistic`, `bound`). `check` averages the
columns over their common seeds, computes one value per observation, and decides:

=================  ====================================================================================================
holds              the interval of every number is within the bound
violated           the interval of a number is outside the bound
undecided          neither: the runs are compatible with both
not applicable     the claim needs something that was not run: a dataset, a rank, a second target
=================  ====================================================================================================

`mean` has a t interval over datasets or targets and `share` an exact binomial interval. Both are 90 % intervals, so one side is a
test at 5 %, and "within ±0.5" is the equivalence test (two one-sided tests): a difference that is not significant shows nothing.
A claim with several numbers, such as one per number of shots, holds if each number passes its own test; it is violated if one fails
at 5 % divided by how many there are (Bonferroni), because one of many fails by chance. `every` speaks of the values themselves: a
single exception violates it.

The table `arms` has one row per backbone, dataset, source, rank, number of shots and seed, and one column per arm: `joint`, the fixed
bases `gaussian`, `orthogonal`, `svd`, `learned` or one of your own, `source_B`, `random_B`, `source_A`, `random_A` (named after the
frozen factor), `r2`, `r8`, … (joint prompts of that rank), `dense` (as many tokens), `short_dense` (as many as the rank) and
`best_dense` (the better length on that dataset). Columns are accuracies; `joint_seen`, `joint_unseen` and `joint_harmonic` are those
of base-to-new runs. The table `parameters` has counts of trained parameters (`parameter_table`), the table `geometry` medians of
overlaps and angles of factors per axis (`geometry_table`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from slimprompt.analysis.frame import AVERAGE, BEST_DENSE, cells, select, with_best_dense
from slimprompt.analysis.statistics import compare
from slimprompt.analysis.verdict import Verdict
from slimprompt.prompts.spec import count_parameters

#: One-sided level of the tests: an interval covers 1 − 2 · LEVEL.
LEVEL = 0.05


# --- what a claim is made of -------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """The interval in which a number has to be, with its ends."""

    text: str
    low: float = -math.inf
    high: float = math.inf


def above(x: float) -> Bound:
    """More than x."""
    return Bound(f"above {x:g}", low=math.nextafter(x, math.inf))


def below(x: float) -> Bound:
    """Less than x."""
    return Bound(f"below {x:g}", high=math.nextafter(x, -math.inf))


def at_least(x: float) -> Bound:
    """x or more."""
    return Bound(f"at least {x:g}", low=x)


def at_most(x: float) -> Bound:
    """x or less."""
    return Bound(f"at most {x:g}", high=x)


def between(low: float, high: float) -> Bound:
    """From low to high."""
    return Bound(f"from {low:g} to {high:g}", low, high)


def within(x: float) -> Bound:
    """From −x to x."""
    return Bound(f"within ±{x:g}", -x, x)


class Number(NamedTuple):
    """One number that is compared with the bound."""

    at: str
    """What distinguishes it from the other numbers of the claim, such as "4-shot"."""
    value: float
    low: float
    """Lower end of its 90 % interval; the value itself if it has none."""
    high: float
    n: int
    """Number of observations."""


class Statistic(NamedTuple):
    """How the observations of one number become an estimate."""

    title: str
    """What is compared with the bound, with {} for the name of an observation."""
    estimate: Callable[[np.ndarray, float], tuple[float, float, float]]
    """Maps observations and a one-sided level to the value and the ends of its interval."""
    least: int = 1
    """Number of observations that it needs."""


def _mean(values: np.ndarray, level: float) -> tuple[float, float, float]:
    found = compare(values, confidence=1 - 2 * level)
    assert found.mean is not None and found.low is not None and found.high is not None
    return found.mean, found.low, found.high


def _share(values: np.ndarray, level: float) -> tuple[float, float, float]:
    """Share of the observations that are true, with the Clopper–Pearson interval."""
    from scipy.special import betaincinv

    n, k = len(values), int(values.sum())
    low = betaincinv(k, n - k + 1, level) if k else 0.0
    high = betaincinv(k + 1, n - k, 1 - level) if k < n else 1.0
    return k / n, float(low), float(high)


def _itself(values: np.ndarray, level: float) -> tuple[float, float, float]:
    value = float(values.mean())
    return value, value, value


mean = Statistic("mean over {}s", _mean, least=2)
share = Statistic("share of {}s", _share)
every = Statistic("every {}", _itself)


def together(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One finding for all rows."""
    return {"": rows}


def by_backbone(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One finding per backbone."""
    return {str(name): group for name, group in rows.groupby(level="backbone")}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence with the numbers that decide it; the docstring of this module explains how they are computed."""

    name: str
    """Identifier."""
    sentence: str
    """The claim in words."""
    of: Sequence[str] | Mapping[str, Sequence[str]]
    """Columns of the table, compared on their common seeds; several groups of columns by name, for a number or observation each."""
    each: Sequence[str]
    """Levels that identify one observation: columns are averaged over all others. "name" is the name of a group in `of`."""
    bound: Bound
    statistic: Statistic = mean
    value: str | Callable[[pd.DataFrame], pd.Series] = ""
    """The value of each observation: an expression of columns and levels, or a function of the averaged columns with the levels
    `each`; empty for the first column minus the second."""
    measure: str = ""
    """The value in words; by default, the expression."""
    where: str = ""
    """Rows of the table, as a query of levels and columns, such as "rank == 4 and shots > 1"."""
    datasets: Sequence[str] = ()
    """Datasets that the claim names: it speaks of them only, and is not applicable without all of them."""
    numbers: Sequence[str] = ()
    """Levels that distinguish the numbers of the claim, each of which is compared with the bound; empty for one number."""
    scopes: Callable[[pd.DataFrame], dict[str, pd.DataFrame]] = by_backbone
    """The findings by name, each with its rows."""
    table: str = "arms"
    """arms, parameters or geometry."""
    least: int = 1
    """Number of observations without which it is not applicable."""
    needs: str = ""
    """The runs that it needs, in words; by default the columns, rows and number of observations."""
    unit: str = "dataset"
    """What an observation is, in the singular."""
    form: str = "+.2f"
    """Format of the values."""
    place: str = ""
    """Place in a paper."""
    paper: str | Mapping[str, str] = ""
    """Value in the text of a paper, or the values by scope."""


@dataclass(frozen=True)
class Finding:
    """Result of a claim on one scope; `claims.json` has these fields."""

    name: str
    sentence: str
    where: str
    """Place in the paper."""
    scope: str
    """Backbone or set of transfer pairs; empty for all runs."""
    verdict: Verdict
    value: str
    interval: str = ""
    """90 % interval; empty for values that are compared as they are."""
    bound: str = ""
    unit: str = ""
    n: int = 0
    """Number of observations of the number that has the fewest."""
    paper: str = ""
    note: str = ""
    """What a claim needs that is not applicable."""
    numbers: tuple[Number, ...] = ()
    cells: tuple[str, ...] = ()
    """One line per observation."""
    runs: tuple[str, ...] = field(default=(), repr=False)
    """Folders of the runs behind the numbers."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data for JSON."""
        return asdict(self) | {"numbers": [number._asdict() for number in self.numbers]}


# --- checking ----------------------------------------------------------------------------------------------------------


def check(claims: Sequence[Claim], observed: pd.DataFrame, geometry: pd.DataFrame | None = None) -> list[Finding]:
    """Check claims on `observations` of runs, or published numbers in that form: one finding per claim and scope.

    Without a `geometry_table` of the same runs, claims about geometry are not applicable.
    """
    nothing = pd.DataFrame()
    tables = {
        "parameters": (parameter_table(observed), nothing),
        "geometry": (geometry if geometry is not None else nothing, nothing),
    }
    if any(claim.table == "arms" for claim in claims):
        tables["arms"] = arm_table(observed), arm_table(observed, "run")
    return [finding for claim in claims for finding in _findings(claim, *tables[claim.table])]


def _findings(claim: Claim, table: pd.DataFrame, folders: pd.DataFrame) -> list[Finding]:
    groups, columns = _groups(claim), _columns(claim)
    known = table.reindex(columns=columns).dropna(how="all")
    if "source" in known.index.names and not any(name.startswith("source_") for name in columns):
        known = known[known.index.get_level_values("source") == ""]  # other arms are repeated for every source
    findings = []
    for scope, rows in (claim.scopes(known) if len(known) else {}).items():
        used = {name: _averaged(claim, rows[list(dict.fromkeys(group))]) for name, group in groups.items()}
        values = [_values(claim, name, cells_) for name, cells_ in used.items() if len(cells_)]
        paper = claim.paper if isinstance(claim.paper, str) else claim.paper.get(scope, "")
        finding = _finding(claim, scope, paper, pd.concat(values).dropna().round(9)) if values else None
        runs = [_runs(folders, cells_) for cells_ in used.values()] if finding else []
        findings.append(
            replace(finding, runs=tuple(dict.fromkeys(chain(*runs)))) if finding else _missing(claim, scope, paper)
        )
    everything = claim.paper if isinstance(claim.paper, str) else "; ".join(map(": ".join, claim.paper.items()))
    return findings or [_missing(claim, "", everything)]


def _groups(claim: Claim) -> Mapping[str, Sequence[str]]:
    return claim.of if isinstance(claim.of, Mapping) else {"": claim.of}


def _columns(claim: Claim) -> list[str]:
    return list(dict.fromkeys(chain(*_groups(claim).values())))


def _averaged(claim: Claim, rows: pd.DataFrame) -> pd.DataFrame:
    """The cells that a claim speaks of, averaged over the seeds that all of its columns have."""
    rows = rows.dropna()
    if "seed" in rows.index.names and "seed" not in claim.each:
        rows = rows.groupby(level=[level for level in rows.index.names if level != "seed"]).mean()
    rows = rows.query(claim.where) if claim.where else rows
    if claim.datasets:
        rows = rows[rows.index.get_level_values("dataset").isin(claim.datasets)]
        return rows if rows.index.get_level_values("dataset").nunique() == len(claim.datasets) else rows[:0]
    return rows


def _values(claim: Claim, name: str, rows: pd.DataFrame) -> pd.Series:
    """The value of each observation."""
    rows = rows.groupby(level=[level for level in claim.each if level != "name"]).mean()
    if callable(claim.value):
        values = claim.value(rows)
    else:
        values = pd.Series(rows.eval(claim.value)) if claim.value else rows.iloc[:, 0] - rows.iloc[:, 1]
    return pd.concat({name: values}, names=["name"]) if "name" in claim.each else values


def _finding(claim: Claim, scope: str, paper: str, values: pd.Series) -> Finding | None:
    """The verdict on the observations; None if there are too few."""
    levels = list(values.index.names) if claim.statistic is every else list(claim.numbers)
    groups = {_title(levels, key): group for key, group in values.groupby(level=levels)} if levels else {"": values}
    fewest = min(map(len, groups.values()), default=0)
    if fewest < claim.statistic.least or len(values) < claim.least:
        return None
    data = {at: group.to_numpy(dtype=float) for at, group in groups.items()}
    numbers = [Number(at, *claim.statistic.estimate(one, LEVEL), len(one)) for at, one in data.items()]
    cautious = [Number(at, *claim.statistic.estimate(one, LEVEL / len(data)), len(one)) for at, one in data.items()]
    return Finding(
        claim.name,
        claim.sentence,
        claim.place,
        scope,
        _verdict(claim.bound, numbers, cautious),
        value=_value(claim, numbers),
        interval="" if claim.statistic is every else ", ".join(_interval(claim, number) for number in numbers),
        bound=_condition(claim),
        unit=claim.unit,
        n=len(values) if claim.statistic is every else fewest,
        paper=paper,
        numbers=tuple(numbers),
        cells=tuple(f"{_title(values.index.names, key)}: {_form(claim, value)}" for key, value in values.items()),
    )


def _verdict(bound: Bound, numbers: Sequence[Number], cautious: Sequence[Number]) -> Verdict:
    if all(bound.low <= number.low and number.high <= bound.high for number in numbers):
        return "holds"
    if any(number.high < bound.low or bound.high < number.low for number in cautious):
        return "violated"
    return "undecided"


def _missing(claim: Claim, scope: str, paper: str) -> Finding:
    needs = claim.needs or _needs(claim)
    found = Finding(claim.name, claim.sentence, claim.place, scope, "not applicable", "—")
    return replace(found, bound=_condition(claim), unit=claim.unit, paper=paper, note=f"needs {needs}")


def _needs(claim: Claim) -> str:
    columns = ", ".join(map(_plain, _columns(claim)))
    on = f" on {', '.join(claim.datasets)}" if claim.datasets else ""
    where = f" where {claim.where.replace('==', '=')}" if claim.where else ""
    least = max(claim.least, claim.statistic.least)
    return f"{columns}{on}{where}" + (f"; {least} {claim.unit}s or more" if least > 1 else "")


def _runs(folders: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    """Folders of the runs in these columns and cells."""
    if folders.empty:
        return []
    chosen = folders.reindex(columns=rows.columns).dropna()
    if "seed" not in rows.index.names:
        chosen = chosen[chosen.index.droplevel("seed").isin(rows.index)]
    return [run for run in chain(*chosen.to_numpy()) if run]


# --- text --------------------------------------------------------------------------------------------------------------

_LEVELS = {"shots": "{}-shot", "rank": "r={}", "source": "from {}", "n_ctx": "m={}", "width": "d={}", "seed": "seed {}"}
_NUMBERS = {"shots": "number of shots", "name": "of them"}


def _title(levels: Sequence[Any], key: Any) -> str:
    """Name of an observation or number by its levels: `DTD, 4-shot`."""
    parts = zip(levels, key if isinstance(key, tuple) else (key,), strict=True)
    return ", ".join(_LEVELS.get(str(level), "{}").format(part) for level, part in parts if part != "")


def _condition(claim: Claim) -> str:
    each = f", for each {' and '.join(_NUMBERS.get(name, name) for name in claim.numbers)}" if claim.numbers else ""
    value = claim.value if isinstance(claim.value, str) else ""
    measure = claim.measure or value or " - ".join(next(iter(_groups(claim).values()))[:2])
    return f"{_plain(measure)}, {claim.statistic.title.format(claim.unit)}{each}: {claim.bound.text}"


def _plain(column: str) -> str:
    return column.replace("_", " ").replace(" - ", " − ")


def _form(claim: Claim, value: float) -> str:
    return ("yes" if value else "no") if claim.statistic is share else _number(value, claim.form)


def _number(value: float, form: str) -> str:
    return f"{value:{form}}".replace("-", "−")


def _shown(claim: Claim, number: Number) -> str:
    return f"{number.value * number.n:.0f} of {number.n}" if claim.statistic is share else _form(claim, number.value)


def _interval(claim: Claim, number: Number) -> str:
    form = ".0%" if claim.statistic is share else claim.form
    return f"[{_number(number.low, form)}, {_number(number.high, form)}]"


def _value(claim: Claim, numbers: Sequence[Number]) -> str:
    """The numbers of a claim; of `every` observation the worst one, and how many are outside the bound."""
    if claim.statistic is not every:
        return ", ".join(f"{number.at} {_shown(claim, number)}".strip() for number in numbers)
    slack = [min(number.value - claim.bound.low, claim.bound.high - number.value) for number in numbers]
    worst = numbers[slack.index(min(slack))]
    if len(numbers) == 1:
        return _shown(claim, worst)
    outside = sum(one < 0 for one in slack)
    return f"{_shown(claim, worst)} ({worst.at})" + (f", {outside} of {len(numbers)} outside" if outside else "")


# --- tables ------------------------------------------------------------------------------------------------------------

#: Levels of the rows of the table of arms.
ROWS = ("backbone", "dataset", "source", "rank", "n_ctx", "shots", "seed")
_METRICS = ("accuracy", "seen", "unseen", "harmonic")


def arm_table(observed: pd.DataFrame, content: str = "value") -> pd.DataFrame:
    """The values or the runs of each arm, in the rows `ROWS`; the docstring of this module lists the columns."""
    known = observed[observed["variant"].ne("") & observed["metric"].isin(_METRICS) & observed["dataset"].ne(AVERAGE)]
    metric = known["metric"].map(lambda name: "" if name == "accuracy" else f"_{name}")
    frozen = known["basis"].isin(("source", "random")) | known["variant"].eq("fixed-A")
    arm = known["basis"].where(~frozen, known["basis"] + "_" + known["variant"].str[-1])
    known = known.assign(arm=arm.where(known["variant"].ne("joint"), "joint") + metric, suffix=metric)
    low, dense = known[known["variant"].ne("dense")], known[known["label"].str.startswith("dense m")]
    if low.empty:
        return pd.DataFrame(index=pd.MultiIndex.from_tuples([], names=ROWS))
    table = low.pivot(index=list(ROWS), columns="arm", values=content)
    plain = table[table.index.get_level_values("source") == ""].droplevel(
        "source"
    )  # random factors, joint and fixed bases are compared with every source
    table = table.combine_first(plain.reindex(table.index.droplevel("source")).set_axis(table.index))
    cell = ["backbone", "dataset", "shots", "seed"]
    joint = low[low["variant"].eq("joint")]
    columns = (
        (joint.assign(arm="r" + joint["rank"].astype(str) + joint["suffix"]), [*cell, "n_ctx"]),
        (dense.assign(arm="dense" + dense["suffix"]), [*cell, "n_ctx"]),
        (dense.assign(arm="short_dense" + dense["suffix"]), [*cell, "rank"]),
        (_best_dense(observed, dense, content), cell),
    )
    for rows, on in columns:
        table = table.join(rows.pivot(index=on, columns="arm", values=content), on=on)
    return table


def _best_dense(observed: pd.DataFrame, dense: pd.DataFrame, content: str) -> pd.DataFrame:
    """The accuracy of the better length per dataset, or the runs of all lengths that were compared."""
    cell = ["backbone", "dataset", "shots", "seed"]
    if content == "value":
        best = select(with_best_dense(cells(observed)), label=BEST_DENSE, metric="accuracy")
        rows = best[best.index.get_level_values("dataset") != AVERAGE].stack().rename(content).reset_index()
        return rows.assign(arm="best_dense")
    return dense[dense["metric"].eq("accuracy")].groupby(cell)[content].first().reset_index().assign(arm="best_dense")


def parameter_table(observed: pd.DataFrame) -> pd.DataFrame:
    """Counts of trained parameters, with the levels backbone, variant, rank, n_ctx and width.

    The columns are `count`; `formula`, the count that the shape gives; and the counts of prompts on the same backbone: `dense` with
    as many tokens, `short_dense` with as many as the rank, and `fixed_A` of the same shape. The width is the one that most counts of
    the backbone imply.
    """
    levels = ["backbone", "variant", "rank", "n_ctx"]
    known = observed[observed["variant"].ne("") & observed["rank"].ne(0)].dropna(subset=["parameters"])
    counts = known.groupby(levels)["parameters"].first().rename("count").reset_index()
    implied = counts["count"] / counts["rank"] - counts["n_ctx"].where(counts["variant"].eq("joint"), 0)
    widths = (
        implied.where(counts["variant"].ne("fixed-A")).groupby(counts["backbone"]).agg(lambda one: one.mode().min())
    )
    counts["width"] = counts["backbone"].map(widths)
    counts = counts.dropna(subset=["width"]).astype({"width": int})
    counts["formula"] = [
        float(count_parameters(row.variant, n_ctx=row.n_ctx, width=row.width, rank=row.rank))
        for row in counts.itertuples()
    ]
    dense = counts[counts["variant"].eq("dense")].set_index(["backbone", "n_ctx"])["count"]
    fixed_a = counts[counts["variant"].eq("fixed-A")].set_index(["backbone", "rank", "n_ctx"])["count"]
    counts = counts.join(dense.rename("dense"), on=["backbone", "n_ctx"])
    counts = counts.join(dense.rename("short_dense"), on=["backbone", "rank"])
    counts = counts.join(fixed_a.rename("fixed_A"), on=["backbone", "rank", "n_ctx"])
    return counts.set_index([*levels, "width"])


def geometry_table(medians: pd.DataFrame, displacement: pd.DataFrame | None = None) -> pd.DataFrame:
    """Overlaps `B`, `A`, `BA` and angles `B_angle`, … of `Geometry.medians()`, with the level axis.

    The joint runs of `Geometry.displacement` give the axis "start", from the initial to the final factors.
    """
    if displacement is not None and len(displacement):
        joint = displacement[displacement["variant"].eq("joint")]
        start = joint.groupby("factor")[["overlap", "angle"]].median().reset_index()
        medians = pd.concat([medians, start.assign(axis="start")])
    medians = medians.astype({"axis": str, "factor": str})
    angles = medians.pivot(index="axis", columns="factor", values="angle").add_suffix("_angle")
    return medians.pivot(index="axis", columns="factor", values="overlap").join(angles)
