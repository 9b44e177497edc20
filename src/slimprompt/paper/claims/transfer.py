"""Claims about transfer: one factor is frozen, from another dataset or random, and the other is trained."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slimprompt.analysis.arms import BEST_DENSE, TRANSFER_MODES, joint, transfer
from slimprompt.analysis.results import Estimate, on_common_seeds
from slimprompt.analysis.statistics import compare
from slimprompt.paper.claims.claim import (
    HALF_POINT,
    ROUNDING,
    SAME_NUMBER,
    Claim,
    Measured,
    Outcome,
    describe_test,
    missing,
    wide_interval,
)
from slimprompt.paper.claims.evidence import Evidence

#: Frozen factors of the modes that train A, and of those that train B.
_TRAIN_A, _TRAIN_B = ("source-B", "random-B"), ("source-A", "random-A")
_NEEDS = "transfer runs in all four modes"


@dataclass(frozen=True)
class _Transfer:
    """Accuracies of the four modes for one target and source, and of dense and joint prompts on the target."""

    setting: str
    """Backbone, rank and shots; empty if all pairs have the same."""
    target: str
    source: str
    modes: dict[str, float]
    dense: float | None
    joint: float | None

    @property
    def place(self) -> str:
        """Target and setting."""
        return f"{self.target}{self.setting}"

    @property
    def name(self) -> str:
        """Target, source and setting."""
        return f"{self.target} from {self.source}{self.setting}"

    @property
    def source_minus_random(self) -> float:
        """Gain of a source-trained B over a random one, rounded so that equal printed numbers differ by exactly 0."""
        return round(self.modes["source-B"] - self.modes["random-B"], 9)


def _transfers(e: Evidence) -> list[_Transfer]:
    """All target–source pairs with results in the four modes, over the seeds that all of them have."""
    found = []
    keys = sorted(
        {
            (key.backbone, key.dataset, key.source, key.rank, key.shots)
            for key in e.results.cells
            if key.basis == "source-B"
        }
    )
    several = len({(backbone, rank, shots) for backbone, _, _, rank, shots in keys}) > 1
    for backbone, target, source, rank, shots in keys:
        cells = [
            e.results.cell(backbone, target, transfer(mode, rank), shots, source=source) for mode in TRANSFER_MODES
        ]
        known = on_common_seeds([cell for cell in cells if cell])
        if len(known) == len(TRANSFER_MODES):
            modes = {mode: cell.mean for mode, cell in zip(TRANSFER_MODES, known, strict=True)}
            references = (e.results.cell(backbone, target, arm, shots) for arm in (BEST_DENSE, joint(rank)))
            setting = f", {backbone}, r={rank}, {shots}-shot" if several else ""
            found.append(_Transfer(setting, target, source, modes, *(_reference(one, known[0]) for one in references)))
    return found


def _reference(cell: Estimate | None, mode: Estimate) -> float | None:
    """The mean of a reference over the seeds of a mode; None if it lacks one of them."""
    pair = on_common_seeds((cell, mode)) if cell else []
    return pair[0].mean if pair and pair[1].n == mode.n else None


def _pair_sets(e: Evidence) -> dict[str, list[_Transfer]]:
    """Scope → pairs: the pairs of the paper's main table, if it omits some, and all pairs."""
    everything = _transfers(e)
    shown = [pair for pair in everything if (pair.target, pair.source) in e.main_pairs]
    if shown and len(shown) < len(everything):
        return {f"the {len(shown)} pairs of the main table": shown, f"all {len(everything)} pairs": everything}
    return {"": everything} if everything else {}


def _mean(pairs: Sequence[_Transfer], *modes: str) -> float:
    """Mean accuracy over pairs and modes."""
    return statistics.fmean(pair.modes[mode] for pair in pairs for mode in modes)


def _on_both_sets(
    e: Evidence, paper: str, measure: Callable[[list[_Transfer]], Measured | None], needs: str = _NEEDS
) -> list[Outcome]:
    """Evaluate a claim on the pairs of the main table and on all pairs."""
    outcomes = []
    for scope, pairs in _pair_sets(e).items():
        found = measure(pairs)
        if found:
            outcomes.append(found.outcome(paper, scope))
    return outcomes or missing(paper, needs)


def _is_main(e: Evidence, pairs: Sequence[_Transfer]) -> bool:
    """Whether these are the published pairs whose averages the text gives."""
    return e.published and len(pairs) == len(e.main_pairs)


def train_a_beats_train_b(e: Evidence) -> list[Outcome]:
    """Average accuracy of the train-A modes and of the train-B modes."""

    def measure(pairs: list[_Transfer]) -> Measured:
        a, b = _mean(pairs, *_TRAIN_A), _mean(pairs, *_TRAIN_B)
        holds = a - b >= 10 and (not _is_main(e, pairs) or (round(a), round(b)) == (89, 78))
        lines = tuple(f"{mode} frozen: {_mean(pairs, mode):.2f}" for mode in TRANSFER_MODES)
        return Measured(f"{a:.2f} against {b:.2f} (gap {a - b:.2f})", holds, len(pairs), lines)

    return _on_both_sets(e, "about 89 against about 78, a ten-point gap", measure)


def _target_gaps(pairs: Sequence[_Transfer]) -> dict[str, float]:
    """Train-A minus train-B per target, averaged over sources and over source and random factors."""
    gaps = {}
    for target in sorted({pair.target for pair in pairs}):
        group = [pair for pair in pairs if pair.target == target]
        gaps[target] = _mean(group, *_TRAIN_A) - _mean(group, *_TRAIN_B)
    return gaps


def _gap_lines(gaps: dict[str, float]) -> tuple[str, ...]:
    """One line of text per target."""
    return tuple(f"{target}: {gap:+.2f}" for target, gap in gaps.items())


def train_a_ahead_on_every_target(e: Evidence) -> list[Outcome]:
    """Number of targets on which training A is better than training B."""

    def measure(pairs: list[_Transfer]) -> Measured:
        gaps = _target_gaps(pairs)
        behind = [target for target, gap in gaps.items() if gap <= 0]
        value = f"{len(gaps) - len(behind)} of {len(gaps)} targets"
        value += f"; not on {', '.join(behind)}" if behind else ""
        return Measured(value, set(behind) <= {"Food101"}, len(gaps), _gap_lines(gaps))

    return _on_both_sets(e, "every target except Food101", measure)


def ten_point_gap_on_every_target(e: Evidence) -> list[Outcome]:
    """Number of targets other than Food101 with a gap of at least ten points, the literal reading of the sentence."""

    def measure(pairs: list[_Transfer]) -> Measured | None:
        gaps = {target: gap for target, gap in _target_gaps(pairs).items() if target != "Food101"}
        small = [f"{target} ({gap:+.2f})" for target, gap in gaps.items() if gap < 10]
        note = f"smaller on {', '.join(small)}" if small else ""
        value = f"{len(gaps) - len(small)} of {len(gaps)} targets"
        return Measured(value, not small, len(gaps), _gap_lines(gaps), note) if gaps else None

    return _on_both_sets(e, "this ten-point gap holds on every target except Food101", measure)


def food_within_a_point(e: Evidence) -> list[Outcome]:
    """Spread of the four modes on Food101."""
    paper = "all four modes within a point"
    pairs = [pair for pair in _transfers(e) if pair.target == "Food101"]
    if not pairs:
        return missing(paper, "transfers to Food101 in all four modes")
    values: dict[str, list[float]] = {}
    for pair in pairs:
        values.setdefault(pair.setting, []).extend(pair.modes.values())
    spread = max(max(some) - min(some) for some in values.values())
    lines = tuple(f"{pair.name}, {mode} frozen: {value:.2f}" for pair in pairs for mode, value in pair.modes.items())
    return [Measured(f"spread {spread:.2f}", spread <= 1.0, len(pairs), lines).outcome(paper)]


def _difference_lines(pairs: Sequence[_Transfer]) -> tuple[str, ...]:
    """One line of text per pair with source minus random B."""
    return tuple(f"{pair.name}: {pair.source_minus_random:+.2f}" for pair in pairs)


def source_b_like_random_b(e: Evidence) -> list[Outcome]:
    """Largest difference between a source-trained and a random frozen B on any pair."""

    def measure(pairs: list[_Transfer]) -> Measured:
        widest = max(pairs, key=lambda pair: abs(pair.source_minus_random))
        size = abs(widest.source_minus_random)
        return Measured(f"{size:.2f} ({widest.name})", size < 0.35, len(pairs), _difference_lines(pairs))

    return _on_both_sets(e, "at most about 0.3 on any pair", measure)


def source_b_like_random_b_on_average(e: Evidence) -> list[Outcome]:
    """Average difference between a source-trained and a random frozen B."""

    def measure(pairs: list[_Transfer]) -> Measured:
        average = statistics.fmean(pair.source_minus_random for pair in pairs)
        size = statistics.fmean(abs(pair.source_minus_random) for pair in pairs)
        note = f"mean of the absolute differences: {size:.3f}"
        return Measured(f"{average:+.3f}", abs(average) < 0.1, len(pairs), _difference_lines(pairs), note)

    return _on_both_sets(e, "less than 0.1 on average", measure)


def source_b_no_advantage(e: Evidence) -> list[Outcome]:
    """Paired t-test of a source-trained against a random frozen B over targets."""

    def measure(pairs: list[_Transfer]) -> Measured:
        # All sources of a target share one random control, so each target is one observation.
        targets = sorted({pair.target for pair in pairs})
        test = compare([statistics.fmean(p.source_minus_random for p in pairs if p.target == t) for t in targets])
        value = f"source ahead in {sum(pair.source_minus_random > 0 for pair in pairs)} of {len(pairs)} pairs"
        if test.p_t is None:
            return Measured(value, None, test.n, note=test.note)
        better = test.p_t < 0.05 and (test.mean or 0.0) > 0
        remarks = [describe_test("over targets", test), "" if better else wide_interval([test])]
        return Measured(value, not better, test.n, _difference_lines(pairs), "; ".join(filter(None, remarks)))

    return _on_both_sets(e, "no advantage (no test is given)", measure)


def same_from_any_source(e: Evidence) -> list[Outcome]:
    """Range of the accuracy with a source-trained frozen B over the sources of a target."""
    paper = "essentially the same: Flowers 96.0–96.2, Caltech101 identical"
    reached: dict[str, list[float]] = {}
    for pair in _transfers(e):
        reached.setdefault(pair.place, []).append(pair.modes["source-B"])
    ranges = {target: (min(values), max(values)) for target, values in reached.items() if len(values) > 1}
    if not ranges:
        return missing(paper, "transfers to one target from two sources")
    widest, (low, high) = max(ranges.items(), key=lambda item: item[1][1] - item[1][0])
    value, holds = f"widest range {high - low:.2f} ({widest}: {low:.2f} to {high:.2f})", high - low <= HALF_POINT
    if e.published:
        flowers, caltech = ranges["Oxford Flowers"], ranges["Caltech101"]
        holds = holds and tuple(round(end, 1) for end in flowers) == (96.0, 96.2) and caltech[0] == caltech[1]
    lines = tuple(f"{target}: {low:.2f} to {high:.2f}" for target, (low, high) in ranges.items())
    return [Measured(value, holds, len(ranges), lines).outcome(paper)]


def training_b_adds_nothing(e: Evidence) -> list[Outcome]:
    """Average accuracy of joint training and of a source-trained frozen B on the targets."""

    def measure(pairs: list[_Transfer]) -> Measured | None:
        known = [(pair, pair.joint) for pair in pairs if pair.joint is not None]
        if not known:
            return None
        both, frozen = statistics.fmean(value for _, value in known), _mean([pair for pair, _ in known], "source-B")
        holds = abs(both - frozen) <= (ROUNDING if _is_main(e, pairs) else HALF_POINT)
        lines = tuple(f"{p.name}: joint {value:.2f}, frozen B {p.modes['source-B']:.2f}" for p, value in known)
        return Measured(f"joint {both:.2f}, frozen B {frozen:.2f} ({both - frozen:+.2f})", holds, len(known), lines)

    return _on_both_sets(e, "89.01, identical to freezing B", measure, "transfers and joint runs on their targets")


_NEEDS_REFERENCES = "transfers, dense and joint runs on their targets"


def transfer_near_dense(e: Evidence) -> list[Outcome]:
    """Average differences of frozen-B and joint training to dense."""

    def measure(pairs: list[_Transfer]) -> Measured | None:
        known = [(p, p.dense, p.joint) for p in pairs if p.dense is not None and p.joint is not None]
        if not known:
            return None
        full, both = (
            statistics.fmean(values) for values in zip(*((dense, joint) for _, dense, joint in known), strict=True)
        )
        frozen = _mean([pair for pair, _, _ in known], "source-B")
        value = f"frozen B {frozen - full:+.2f}, joint {both - full:+.2f} against dense {full:.2f}"
        holds = abs(frozen - full) < 0.25 and abs(both - full) < 0.25
        lines = tuple(
            f"{p.name}: frozen B {p.modes['source-B'] - dense:+.2f}, joint {joint - dense:+.2f}"
            for p, dense, joint in known
        )
        return Measured(value, holds, len(known), lines)

    return _on_both_sets(e, "within about 0.2 of dense (89.2)", measure, _NEEDS_REFERENCES)


def matches_dense_on(e: Evidence) -> list[Outcome]:
    """Targets on which both frozen B and joint training are at least as accurate as dense."""
    paper, named = "Caltech101, Food101 and Oxford Pets", {"Caltech101", "Food101", "Oxford Pets"}
    groups: dict[str, list[_Transfer]] = {}
    for pair in _transfers(e):
        if pair.dense is not None and pair.joint is not None:
            groups.setdefault(pair.place, []).append(pair)
    if not groups:
        return missing(paper, _NEEDS_REFERENCES)
    targets, behind, lines = dict.fromkeys(group[0].target for group in groups.values()), set(), []
    for place, group in groups.items():
        frozen, full, both = _mean(group, "source-B"), group[0].dense or 0.0, group[0].joint or 0.0
        lines.append(f"{place}: frozen B {frozen:.2f}, joint {both:.2f}, dense {full:.2f}")
        if min(frozen, both) < full:
            behind.add(group[0].target)
    reached = [target for target in targets if target not in behind]
    there = named & set(targets)
    holds = there <= set(reached) if there else bool(reached)
    return [Measured(", ".join(reached) or "none", holds, len(groups), tuple(lines)).outcome(paper)]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "train_a_beats_train_b",
        "§6 transfer",
        "Training A with B frozen is ten points better than training B with A frozen.",
        SAME_NUMBER + "a gap of at least ten points",
        train_a_beats_train_b,
        unit="pair",
    ),
    Claim(
        "train_a_ahead_on_every_target",
        "§6 transfer",
        "Training A is better on every target except Food101.",
        "better on every target except Food101",
        train_a_ahead_on_every_target,
        unit="target",
    ),
    Claim(
        "ten_point_gap_on_every_target",
        "§6 transfer",
        "The ten-point gap holds on every target except Food101.",
        "at least ten points on every target except Food101",
        ten_point_gap_on_every_target,
        unit="target",
    ),
    Claim(
        "food_within_a_point",
        "§6 transfer",
        "On Food101 the four modes lie within a point of each other.",
        "a spread of at most one point",
        food_within_a_point,
        unit="pair",
    ),
    Claim(
        "source_b_like_random_b",
        "§6 transfer",
        "A source-trained and a random frozen B differ by at most about 0.3 on any pair.",
        "below 0.35 points on every pair",
        source_b_like_random_b,
        unit="pair",
    ),
    Claim(
        "source_b_like_random_b_on_average",
        "§6 transfer",
        "They differ by less than 0.1 on average.",
        "average difference below 0.1 points",
        source_b_like_random_b_on_average,
        unit="pair",
    ),
    Claim(
        "source_b_no_advantage",
        "abstract, §6 transfer",
        "A source-trained B has no advantage over a random one.",
        "not significantly better (paired t-test over targets, p ≥ 0.05)",
        source_b_no_advantage,
        unit="target",
    ),
    Claim(
        "same_from_any_source",
        "§6 transfer",
        "A target reaches the same train-A accuracy from any source.",
        "a range of at most 0.5 points on every target",
        same_from_any_source,
        unit="target",
    ),
    Claim(
        "training_b_adds_nothing",
        "§6 transfer",
        "Training both factors gives the same average as training A with B frozen.",
        SAME_NUMBER + "within 0.5 points",
        training_b_adds_nothing,
        unit="pair",
    ),
    Claim(
        "transfer_near_dense",
        "§6 transfer",
        "Both are within about 0.2 points of dense.",
        "below 0.25 points",
        transfer_near_dense,
        unit="pair",
    ),
    Claim(
        "matches_dense_on",
        "§6 transfer",
        "Both match or exceed dense on Caltech101, Food101 and Oxford Pets.",
        "on every available one of the three (other datasets: on at least one)",
        matches_dense_on,
        unit="target",
    ),
)
