"""Claims about low-rank and dense prompts on classes seen and unseen in training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from slimprompt.paper.claims.claim import (
    MIN_CELLS,
    SAME_NUMBER,
    Claim,
    Measured,
    Outcome,
    by_shots,
    per_backbone,
    rounds_to,
)
from slimprompt.paper.claims.evidence import Evidence, MatchedCell, lines_of, matched_cells
from slimprompt.training.metrics import harmonic_mean

_GAINS = {"RN50": {1: 4.21, 4: 3.01, 16: 2.05}, "ViT-B/16": {1: 3.58, 4: 4.25, 16: 1.74}}
_GAINS_TEXT = {backbone: by_shots(gains) for backbone, gains in _GAINS.items()}
_NEEDS = f"dense and low-rank base-to-new runs in {MIN_CELLS} cells"


def _cells(e: Evidence, backbone: str, metric: str) -> list[MatchedCell]:
    """Cells with low-rank and dense results in one metric: seen, unseen or harmonic."""
    return matched_cells(e, backbone, e.low_rank(backbone, metric), e.full_dense(), metric)


def _gain_by_shots(cells: Sequence[MatchedCell]) -> dict[int, float]:
    """Mean gap over datasets per shot count."""
    shots = sorted({cell.shots for cell in cells})
    return {k: statistics.fmean(cell.gap for cell in cells if cell.shots == k) for k in shots}


def _cells_won(e: Evidence, metric: str, printed: dict[str, int], *, ties_count: bool) -> list[Outcome]:
    """Number of cells in which low rank is better than dense, or equal if `ties_count`."""

    def measure(backbone: str) -> Measured | None:
        cells = _cells(e, backbone, metric)
        if len(cells) < MIN_CELLS:
            return None
        won = [cell for cell in cells if cell.gap > 0 or (ties_count and cell.gap == 0)]
        lost = [cell for cell in cells if cell not in won]
        if e.published:
            holds = len(won) == printed[backbone]
        elif backbone in printed:
            holds = len(won) / len(cells) >= printed[backbone] / 21
        else:
            holds = 2 * len(won) > len(cells)
        lines = ("not counted:", *lines_of(lost), "counted:", *lines_of(won))
        return Measured(f"{len(won)} of {len(cells)}", holds, len(cells), lines)

    paper = {backbone: f"{count} of 21" for backbone, count in printed.items()}
    return per_backbone(e, metric, paper, _NEEDS, measure)


def harmonic_wins(e: Evidence) -> list[Outcome]:
    """Number of cells in which low rank has a higher H than dense."""
    return _cells_won(e, "harmonic", {"RN50": 17, "ViT-B/16": 21}, ties_count=False)


def seen_wins(e: Evidence) -> list[Outcome]:
    """Number of cells in which low rank is at least as accurate as dense on seen classes."""
    return _cells_won(e, "seen", {"RN50": 15, "ViT-B/16": 14}, ties_count=True)


def harmonic_gain(e: Evidence) -> list[Outcome]:
    """Mean gain in H over datasets per shot count."""

    def measure(backbone: str) -> Measured | None:
        cells = _cells(e, backbone, "harmonic")
        if len(cells) < MIN_CELLS:
            return None
        gains = _gain_by_shots(cells)
        if e.published:
            holds = all(rounds_to(gain, _GAINS[backbone][k]) for k, gain in gains.items())
        else:
            holds = all(gain > 0 for gain in gains.values())
        return Measured(by_shots(gains), holds, len(cells), lines_of(cells), _of_averages(e, backbone))

    return per_backbone(e, "harmonic", _GAINS_TEXT, _NEEDS, measure)


def _of_averages(e: Evidence, backbone: str) -> str:
    """The gain with H computed from the averaged S and U of each cell, a common alternative definition."""
    unseen = {cell.name: cell for cell in _cells(e, backbone, "unseen")}
    gains: dict[int, list[float]] = {}
    for s in _cells(e, backbone, "seen"):
        u = unseen.get(s.name)
        if u:
            first, second = harmonic_mean(s.first.mean, u.first.mean), harmonic_mean(s.second.mean, u.second.mean)
            gains.setdefault(s.shots, []).append(first - second)
    means = {k: statistics.fmean(values) for k, values in sorted(gains.items())}
    return f"with H of the averaged S and U: {by_shots(means)}" if means else ""


def harmonic_gain_low_shot(e: Evidence) -> list[Outcome]:
    """Whether the gain in H is smallest at the largest shot count."""

    def measure(backbone: str) -> Measured | None:
        gains = _gain_by_shots(_cells(e, backbone, "harmonic"))
        if len(gains) < 2:
            return None
        largest = max(gains, key=lambda k: gains[k])
        note = (
            "" if largest == min(gains) else f"the largest gain is at {largest} shots, not at the smallest shot count"
        )
        smallest_at_most = min(gains, key=lambda k: gains[k]) == max(gains)
        return Measured(by_shots(gains), smallest_at_most, len(gains), note=note)

    return per_backbone(e, "harmonic", _GAINS_TEXT, "base-to-new runs at two shot counts", measure)


def gain_on_unseen(e: Evidence) -> list[Outcome]:
    """Mean gain on unseen and on seen classes."""

    def measure(backbone: str) -> Measured | None:
        seen, unseen = (_cells(e, backbone, metric) for metric in ("seen", "unseen"))
        if len(seen) < MIN_CELLS or len(unseen) < MIN_CELLS:
            return None
        on_seen, on_unseen = (statistics.fmean(cell.gap for cell in cells) for cells in (seen, unseen))
        lines = ("unseen:", *lines_of(unseen), "seen:", *lines_of(seen))
        return Measured(f"unseen {on_unseen:+.2f}, seen {on_seen:+.2f}", on_unseen > on_seen, len(unseen), lines)

    return per_backbone(e, "harmonic", {"": "unseen > seen"}, _NEEDS, measure)


def dense_seen_edge_at_more_shots(e: Evidence) -> list[Outcome]:
    """Of the cells in which dense is better on seen classes, the number above the smallest shot count."""

    def measure(backbone: str) -> Measured | None:
        fewest = min(e.shots(backbone, "seen"))
        lost = [cell for cell in _cells(e, backbone, "seen") if cell.gap < 0]
        if not lost or len(e.shots(backbone, "seen")) < 2:
            return None
        later = [cell for cell in lost if cell.shots > fewest]
        value = f"{len(later)} of {len(lost)} above {fewest} shot{'s' if fewest > 1 else ''}"
        return Measured(value, 2 * len(later) > len(lost), len(lost), lines_of(lost))

    needs = "cells in which dense is better on seen classes"
    return per_backbone(e, "seen", {"": "mainly at higher shots"}, needs, measure)


def harmonic_ahead_despite_dense_seen(e: Evidence) -> list[Outcome]:
    """Of the higher-shot cells in which dense is better on seen classes, the number with low rank better on H."""

    def measure(backbone: str) -> Measured | None:
        fewest = min(e.shots(backbone, "seen"))
        lost = {cell.name for cell in _cells(e, backbone, "seen") if cell.gap < 0 and cell.shots > fewest}
        cells = [cell for cell in _cells(e, backbone, "harmonic") if cell.name in lost]
        if not cells:
            return None
        behind = [cell for cell in cells if cell.gap <= 0]
        note = "dense is also better on H in " + "; ".join(cell.name for cell in behind) if behind else ""
        value = f"{len(cells) - len(behind)} of {len(cells)}"
        return Measured(value, not behind, len(cells), lines_of(cells), note)

    needs = "cells above the smallest shot count in which dense is better on seen classes"
    return per_backbone(e, "seen", {"": "in all of them"}, needs, measure)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "harmonic_wins",
        "§6 new classes",
        "Rank 4 has a higher harmonic mean than dense in nearly every dataset–shot cell.",
        "at least the paper's share of cells (other backbones: more than half)",
        harmonic_wins,
    ),
    Claim(
        "harmonic_gain",
        "§6 new classes",
        "The gain in H, averaged over the datasets, is positive at every shot count.",
        SAME_NUMBER + "positive at every shot count",
        harmonic_gain,
    ),
    Claim(
        "harmonic_gain_low_shot",
        "abstract, §6 new classes",
        "The gain in H is largest with few shots.",
        "smallest at the largest shot count",
        harmonic_gain_low_shot,
        unit="shot count",
    ),
    Claim(
        "gain_on_unseen",
        "§6 new classes",
        "The gains concentrate on the unseen classes.",
        "mean gain on unseen classes above that on seen classes",
        gain_on_unseen,
    ),
    Claim(
        "seen_wins",
        "§6 new classes",
        "Rank 4 matches or improves on dense on the seen classes in most cells.",
        "at least the paper's share of cells (other backbones: more than half)",
        seen_wins,
    ),
    Claim(
        "dense_seen_edge_at_more_shots",
        "§6 new classes",
        "Dense is better on seen classes mainly at higher shot counts.",
        "more than half of such cells are above the smallest shot count",
        dense_seen_edge_at_more_shots,
    ),
    Claim(
        "harmonic_ahead_despite_dense_seen",
        "§6 new classes",
        "Even where dense is better on seen classes at higher shot counts, rank 4 is better on H.",
        "in all such cells",
        harmonic_ahead_despite_dense_seen,
    ),
)
