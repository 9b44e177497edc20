"""Claims about training A with a fixed B, compared with training both factors."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from slimprompt.analysis.arms import fixed_basis, joint
from slimprompt.analysis.results import on_common_seeds
from slimprompt.analysis.statistics import compare, holm
from slimprompt.paper.claims.claim import HALF_POINT, MIN_CELLS, Claim, Measured, Outcome, describe_test, missing
from slimprompt.paper.claims.evidence import Evidence, matched_cells
from slimprompt.prompts.spec import FIXED_BASES

_NEEDS = f"fixed-basis and joint runs in {MIN_CELLS} settings"


@dataclass(frozen=True)
class _Setting:
    """Averages over datasets with a trainable and with fixed B, at one backbone, rank and shot count."""

    backbone: str
    rank: int
    shots: int
    trainable: float
    fixed: dict[str, float]

    @property
    def name(self) -> str:
        """Backbone, rank and shots."""
        return f"{self.backbone}, r={self.rank}, {self.shots}-shot"

    def winners(self) -> list[str]:
        """All variants with the highest average, rounded to the two decimals that tables print."""
        everything = {"trainable": self.trainable, **self.fixed}
        best = max(round(value, 2) for value in everything.values())
        return [name for name, value in everything.items() if round(value, 2) == best]


def _settings(e: Evidence) -> list[_Setting]:
    """All settings with joint runs and a fixed basis, averaged over the datasets and seeds common to all variants."""
    found = []
    for backbone in e.backbones():
        for rank in e.ranks(backbone):
            for k in e.shots(backbone):
                bases = [basis for basis in FIXED_BASES if rank in e.ranks(backbone, basis, shots=k)]
                arms = {"trainable": joint(rank)} | {basis: fixed_basis(basis, rank) for basis in bases}
                names = e.datasets(backbone)
                names = [n for n in names if all(e.results.cell(backbone, n, arm, k) for arm in arms.values())]
                averages = {name: e.results.macro(backbone, names, arm, k) for name, arm in arms.items()}
                known = {name: average for name, average in averages.items() if average}
                if len(known) > 1 and (shared := on_common_seeds(list(known.values()))):
                    means = {name: average.mean for name, average in zip(known, shared, strict=True)}
                    if "trainable" in means:
                        found.append(_Setting(backbone, rank, k, means.pop("trainable"), means))
    return found


def _gaps(settings: list[_Setting]) -> dict[str, float]:
    """Fixed minus trainable average by setting and basis."""
    return {f"{one.name}, {basis}": value - one.trainable for one in settings for basis, value in one.fixed.items()}


def _winner_lines(settings: list[_Setting]) -> tuple[str, ...]:
    """One line of text per setting with its best variants."""
    return tuple(f"{setting.name}: {', '.join(setting.winners())}" for setting in settings)


def _counts(counter: Counter[str]) -> str:
    """Names and counts, most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def fixed_basis_close(e: Evidence) -> list[Outcome]:
    """Number of gaps between fixed and trainable B of at most half a point."""
    paper = "usually within a few tenths of a point"
    gaps = _gaps(_settings(e))
    if len(gaps) < MIN_CELLS:
        return missing(paper, _NEEDS)
    sizes = [abs(gap) for gap in gaps.values()]
    near = sum(size <= HALF_POINT for size in sizes)
    value = f"{near} of {len(gaps)} within {HALF_POINT}; median |gap| {statistics.median(sizes):.2f}"
    lines = tuple(f"{name}: {gap:+.2f}" for name, gap in gaps.items())
    return [Measured(value, 2 * near > len(gaps), len(gaps), lines).outcome(paper)]


def fixed_basis_worst_gap(e: Evidence) -> list[Outcome]:
    """The largest gap between fixed and trainable B in averages over datasets."""
    paper = "within roughly 1.5 points"
    gaps = _gaps(_settings(e))
    if len(gaps) < MIN_CELLS:
        return missing(paper, _NEEDS)
    ordered = sorted(gaps.items(), key=lambda item: -abs(item[1]))
    (widest, gap), (lowest, loss) = ordered[0], min(gaps.items(), key=lambda item: item[1])
    value = f"{abs(gap):.2f} ({gap:+.2f}: {widest}); worst loss {loss:+.2f} ({lowest})"
    single = [
        (cell.gap, f"{backbone}, r={rank}, {basis}, {cell}")
        for backbone in e.backbones()
        for rank in e.ranks(backbone)
        for basis in FIXED_BASES
        for cell in matched_cells(e, backbone, fixed_basis(basis, rank), joint(rank), "accuracy")
    ]
    lines = tuple(f"{name}: {gap:+.2f}" for name, gap in ordered)
    note = f"worst loss in a single dataset: {min(single)[1]}"
    return [Measured(value, round(abs(gap), 1) <= 1.5, len(gaps), lines, note).outcome(paper)]


def fixed_basis_best_count(e: Evidence) -> list[Outcome]:
    """Number of settings in which a fixed basis has the best average."""
    paper = "18 of 24"
    settings = _settings(e)
    if len(settings) < MIN_CELLS:
        return missing(paper, _NEEDS)
    best = [setting for setting in settings if set(setting.winners()) != {"trainable"}]
    expected = sum(len(setting.fixed) / (len(setting.fixed) + 1) for setting in settings)
    holds = len(best) == 18 if e.published else len(best) / len(settings) >= 18 / 24
    note = f"{expected:.1f} of {len(settings)} are expected if all variants are equally good, since most have a fixed B"
    value = f"{len(best)} of {len(settings)}"
    return [Measured(value, holds, len(settings), _winner_lines(settings), note).outcome(paper)]


def gaussian_often_best(e: Evidence) -> list[Outcome]:
    """Number of settings that each variant wins."""
    paper = "among the most frequent winners"
    settings = [setting for setting in _settings(e) if "gaussian" in setting.fixed]
    if len(settings) < MIN_CELLS:
        return missing(paper, _NEEDS)
    wins = Counter(winner for setting in settings for winner in setting.winners())
    more_often = sum(count > wins["gaussian"] for count in wins.values())
    ties = sum(len(setting.winners()) > 1 for setting in settings)
    note = f"a tie counts as a win for each tied variant; {ties} of {len(settings)} settings are tied" if ties else ""
    return [Measured(_counts(wins), more_often < 2, len(settings), _winner_lines(settings), note).outcome(paper)]


def learned_weakest(e: Evidence) -> list[Outcome]:
    """Mean gap of each fixed basis to the trainable B over all settings."""
    paper = "the weakest of the four"
    settings = [setting for setting in _settings(e) if len(setting.fixed) == len(FIXED_BASES)]
    if len(settings) < MIN_CELLS:
        return missing(paper, f"runs of all four fixed bases in {MIN_CELLS} settings")
    gaps = {basis: statistics.fmean(one.fixed[basis] - one.trainable for one in settings) for basis in FIXED_BASES}
    ordered = sorted(gaps.items(), key=lambda item: item[1])
    last = Counter(min(one.fixed, key=lambda basis: one.fixed[basis]) for one in settings)
    alone = Counter(one.winners()[0] for one in settings if len(one.winners()) == 1)
    value = "mean gap " + ", ".join(f"{basis} {gap:+.2f}" for basis, gap in ordered)
    note = f"worst of the four: {_counts(last)}; sole winner: {_counts(alone)}"
    return [Measured(value, ordered[0][0] == "learned", len(settings), _winner_lines(settings), note).outcome(paper)]


def fixed_basis_equivalent(e: Evidence) -> list[Outcome]:
    """Equivalence tests of each fixed basis and the trainable B within half a point, paired over datasets."""
    paper = "on par, costs nothing (no test is given)"
    tests = {}
    for backbone in e.backbones():
        for basis in FIXED_BASES:
            gaps: dict[str, list[float]] = {}
            for rank in e.ranks(backbone, basis):
                for cell in matched_cells(e, backbone, fixed_basis(basis, rank), joint(rank), "accuracy"):
                    gaps.setdefault(cell.dataset, []).append(cell.gap)
            if len(gaps) >= 2:
                per_dataset = [statistics.fmean(values) for values in gaps.values()]
                tests[f"{backbone}, {basis}"] = compare(per_dataset, margin=HALF_POINT)
    if not tests:
        return missing(paper, "fixed-basis and joint runs on two datasets")
    corrected = holm([test.p_equivalence for test in tests.values()])
    shown = sum(p is not None and p < 0.05 for p in corrected)
    lines = tuple(
        describe_test(name, test) + (f" (Holm {p:.3f})" if p is not None else "")
        for (name, test), p in zip(tests.items(), corrected, strict=True)
    )
    value = f"equivalent within ±{HALF_POINT} in {shown} of {len(tests)} tests (5 %, Holm)"
    smallest = min(test.n for test in tests.values())
    note = f"one difference per dataset, averaged over ranks, shots and seeds; n = {smallest} datasets"
    return [Measured(value, shown == len(tests), len(tests), lines, note).outcome(paper)]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "fixed_basis_close",
        "§1, §6 fixed basis",
        "A fixed basis is usually within a few tenths of a point of the trainable factorisation.",
        "more than half of the gaps are at most 0.5 points",
        fixed_basis_close,
        unit="gap",
    ),
    Claim(
        "fixed_basis_worst_gap",
        "§6 fixed basis",
        "The largest gap of a fixed basis is about 1.5 points.",
        "at most 1.5 points, rounded to one decimal",
        fixed_basis_worst_gap,
        unit="gap",
    ),
    Claim(
        "fixed_basis_best_count",
        "§6 fixed basis",
        "A fixed basis is the best of the five variants in most settings.",
        "at least three quarters of the settings",
        fixed_basis_best_count,
        unit="setting",
    ),
    Claim(
        "gaussian_often_best",
        "§6 fixed basis",
        "The Gaussian basis is among the most frequent winners.",
        "at most one variant wins more often",
        gaussian_often_best,
        unit="setting",
    ),
    Claim(
        "learned_weakest",
        "§6 fixed basis",
        "The learned-then-frozen basis is the weakest of the four.",
        "lowest mean gap over all settings",
        learned_weakest,
        unit="setting",
    ),
    Claim(
        "fixed_basis_equivalent",
        "abstract, §6 fixed basis",
        "Fixing B is on par with training it and has no cost in accuracy.",
        "equivalent within ±0.5 points for every basis and backbone (two one-sided tests, Holm)",
        fixed_basis_equivalent,
        unit="test",
    ),
)
