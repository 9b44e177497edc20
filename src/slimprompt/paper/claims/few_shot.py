"""Claims about low-rank and dense prompts on all classes, and about the effect of the rank."""

from __future__ import annotations

import math
from collections.abc import Callable

from slimprompt.analysis.arms import Arm, arm_label, dense, joint
from slimprompt.analysis.results import Estimate, on_common_seeds
from slimprompt.analysis.statistics import compare, holm
from slimprompt.paper.claims.claim import (
    HALF_POINT,
    SAME_NUMBER,
    Claim,
    Measured,
    Outcome,
    by_shots,
    describe_test,
    per_backbone,
    rounds_to,
    unclear_sign,
    wide_interval,
)
from slimprompt.paper.claims.evidence import Evidence, lines_of, matched_cells

_Averages = dict[int, tuple[Estimate, Estimate]]
_NEEDS = "dense and low-rank few-shot runs"


def _averages(e: Evidence, backbone: str, first: Arm | None, second: Arm | None) -> _Averages:
    """Averages of both arms over the datasets and seeds with results of both, per shot count."""
    if first is None or second is None:
        return {}
    found = {}
    for k in e.shots(backbone):
        names = e.datasets(backbone)
        if not e.published:  # the paper prints some averages without the values they average
            names = [name for name in names if all(e.results.cell(backbone, name, arm, k) for arm in (first, second))]
        one, other = (e.results.macro(backbone, names, arm, k) for arm in (first, second))
        if one and other and (pair := on_common_seeds((one, other))):
            found[k] = (pair[0], pair[1])
    return found


def _gaps(averages: _Averages) -> dict[int, float]:
    """First minus second average per shot count."""
    return {k: one.mean - other.mean for k, (one, other) in averages.items()}


def _lines(averages: _Averages, first: Arm, second: Arm) -> tuple[str, ...]:
    """One line of text per shot count."""
    return tuple(
        f"{k}-shot: {arm_label(first)} {one.mean:.2f}, {arm_label(second)} {other.mean:.2f} "
        f"({one.mean - other.mean:+.2f}; {one.n} seeds)"
        for k, (one, other) in averages.items()
    )


def _gain_at_fewest(e: Evidence, other: Callable[[Arm], Arm | None], printed: dict[str, float]) -> list[Outcome]:
    """Average gain of low rank over the arm `other(low rank)` at the smallest shot count."""

    def measure(backbone: str) -> Measured | None:
        first = e.low_rank(backbone)
        second = other(first) if first else None
        averages = _averages(e, backbone, first, second)
        if not averages or first is None or second is None:
            return None
        fewest = min(averages)
        gain = _gaps(averages)[fewest]
        holds = rounds_to(gain, printed[backbone]) if e.published else gain > 0
        value = f"{gain:+.2f} at {fewest} shot{'s' if fewest > 1 else ''}"
        differences = e.results.differences(first, second, backbone=backbone, shots=fewest)
        note = unclear_sign(compare(list(differences.values()))) if holds and differences else ""
        return Measured(value, holds, averages[fewest][0].n, _lines(averages, first, second), note)

    paper = {backbone: f"{gain:+.2f} at 1 shot" for backbone, gain in printed.items()}
    return per_backbone(e, "accuracy", paper, _NEEDS, measure)


def one_shot_gain_over_matched_dense(e: Evidence) -> list[Outcome]:
    """Gain of rank r over the dense prompt of r tokens at the smallest shot count."""
    return _gain_at_fewest(e, lambda low: dense(low.rank), {"RN50": 1.99, "ViT-B/16": 1.93})


def one_shot_gain_over_full_dense(e: Evidence) -> list[Outcome]:
    """Gain of low rank over the full dense prompt at the smallest shot count."""
    return _gain_at_fewest(e, lambda low: e.full_dense(), {"RN50": 2.00, "ViT-B/16": 1.85})


def matched_dense_indistinguishable(e: Evidence) -> list[Outcome]:
    """Paired t-tests of rank r against the dense prompt of r tokens above the smallest shot count."""

    def measure(backbone: str) -> Measured | None:
        first = e.low_rank(backbone)
        second = dense(first.rank) if first else None
        averages = _averages(e, backbone, first, second)
        more = [k for k in averages if k > min(averages)]
        if not more or first is None or second is None:
            return None
        value = by_shots({k: gap for k, gap in _gaps(averages).items() if k in more})
        tests = [compare([*e.results.differences(first, second, backbone=backbone, shots=k).values()]) for k in more]
        corrected = holm([test.p_t for test in tests])
        if any(p is None for p in corrected):
            note = "the values behind these averages are not available, so nothing can be tested"
            return Measured(value, None, 0, _lines(averages, first, second), note)
        lines = [describe_test(f"{k}-shot", test, p) for k, test, p in zip(more, tests, corrected, strict=True)]
        holds = all(p is not None and p >= 0.05 for p in corrected)
        note = "not significant does not mean equal; see the equivalence p-value"
        note = (wide_interval(tests) if holds else "") or note
        return Measured(value, holds, tests[0].n, tuple(lines), note)

    paper = {"": "statistically indistinguishable at 4 and 16 shots (no test is given)"}
    return per_backbone(e, "accuracy", paper, f"{_NEEDS} at two shot counts", measure)


def within_seed_variance(e: Evidence) -> list[Outcome]:
    """Differences of averages at higher shot counts, compared with √(sd² + sd²) over seeds."""

    def measure(backbone: str) -> Measured | None:
        low, full = e.low_rank(backbone), e.full_dense()
        if low is None or full is None:
            return None
        found = {arm: _averages(e, backbone, low, arm) for arm in dict.fromkeys((full, dense(low.rank)))}
        compared = [
            (arm, k, *pair) for arm, averages in found.items() for k, pair in averages.items() if k > min(averages)
        ]
        if not compared:
            return None
        lines, outside, spreads = [], 0, []
        for arm, k, one, other in compared:
            spread = None if one.sd is None or other.sd is None else math.hypot(one.sd, other.sd)
            shown = "—" if spread is None else f"{spread:.2f}"
            lines.append(f"{k}-shot, − {arm_label(arm)}: {one.mean - other.mean:+.2f}, √(sd² + sd²) {shown}")
            spreads.append(spread)
            outside += spread is not None and abs(one.mean - other.mean) > spread
        widest = max(abs(one.mean - other.mean) for _, _, one, other in compared)
        if None in spreads:
            note = "the standard deviation over seeds is not available"
            return Measured(f"largest difference {widest:.2f}", None, len(compared), tuple(lines), note)
        value = f"{len(compared) - outside} of {len(compared)} differences within √(sd² + sd²); largest {widest:.2f}"
        return Measured(value, not outside, len(compared), tuple(lines))

    paper = {"": "the three methods fall within seed variance at 4 and 16 shots (no spread is given)"}
    return per_backbone(e, "accuracy", paper, f"{_NEEDS} at two shot counts", measure)


def full_dense_within_half_point(e: Evidence) -> list[Outcome]:
    """Difference between low rank and the full dense prompt above the smallest shot count."""

    def measure(backbone: str) -> Measured | None:
        first, second = e.low_rank(backbone), e.full_dense()
        averages = _averages(e, backbone, first, second)
        gaps = {k: gap for k, gap in _gaps(averages).items() if k > min(averages)}
        if not gaps or first is None or second is None:
            return None
        holds = all(abs(gap) <= HALF_POINT for gap in gaps.values())
        return Measured(by_shots(gaps), holds, len(gaps), _lines(averages, first, second))

    paper = {"": "within half a point at 4 and 16 shots"}
    return per_backbone(e, "accuracy", paper, f"{_NEEDS} at two shot counts", measure)


def rank_saturation(e: Evidence) -> list[Outcome]:
    """Change of the average from rank 2 to the largest rank."""

    def measure(backbone: str) -> Measured | None:
        ranks = [rank for rank in e.ranks(backbone) if rank >= 2]
        if len(ranks) < 2:
            return None
        low, high = joint(ranks[0]), joint(ranks[-1])
        averages = _averages(e, backbone, high, low)
        if not averages:
            return None
        gaps, cells = _gaps(averages), matched_cells(e, backbone, high, low, "accuracy")
        value = f"r={low.rank}→{high.rank}: {by_shots(gaps)}"
        note = f"largest change in one dataset: {max(cells, key=lambda cell: abs(cell.gap))}"
        holds = all(abs(gap) <= HALF_POINT for gap in gaps.values())
        return Measured(value, holds, len(gaps), (*_lines(averages, high, low), *lines_of(cells)), note)

    paper = {"": "near-saturated at r=2, little change up to r=8 (no number given)"}
    return per_backbone(e, "accuracy", paper, "joint runs at two ranks of at least 2", measure)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "one_shot_gain_over_matched_dense",
        "§6 few-shot",
        "At 1 shot rank 4 is clearly better than the dense prompt of 4 tokens, which trains about as many parameters.",
        SAME_NUMBER + "better at the smallest shot count",
        one_shot_gain_over_matched_dense,
        unit="seed",
    ),
    Claim(
        "matched_dense_indistinguishable",
        "§6 few-shot",
        "At higher shot counts rank 4 and the dense prompt of 4 tokens are statistically indistinguishable.",
        "paired t-test over datasets, Holm-corrected p ≥ 0.05 at every such shot count",
        matched_dense_indistinguishable,
        unit="dataset",
    ),
    Claim(
        "within_seed_variance",
        "§6 few-shot",
        "At higher shot counts rank 4 and both dense prompts are within seed variance of each other.",
        "every difference of averages at most √(sd² + sd²), with sd over seeds",
        within_seed_variance,
        unit="difference",
    ),
    Claim(
        "one_shot_gain_over_full_dense",
        "§6 few-shot",
        "At 1 shot rank 4 is better than the full dense prompt.",
        SAME_NUMBER + "better at the smallest shot count",
        one_shot_gain_over_full_dense,
        unit="seed",
    ),
    Claim(
        "full_dense_within_half_point",
        "§6 few-shot",
        "At higher shot counts rank 4 is within half a point of the full dense prompt.",
        "at most 0.5 points at every such shot count",
        full_dense_within_half_point,
        unit="shot count",
    ),
    Claim(
        "rank_saturation",
        "§6 few-shot",
        "Accuracy is nearly saturated at rank 2 and changes little up to rank 8.",
        "at most 0.5 points from rank 2 to the largest rank, at every shot count",
        rank_saturation,
        unit="shot count",
    ),
)
