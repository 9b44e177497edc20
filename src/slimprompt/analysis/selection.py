"""Which arms, ranks and datasets tables and figures compare, and the reference levels they show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from slimprompt.analysis.arms import Arm, dataset_title, dense, fixed_basis, joint
from slimprompt.analysis.results import Results
from slimprompt.lab.records import Record
from slimprompt.training.metrics import harmonic_mean
from slimprompt.user_functions import is_user_function

#: Key fields of the accuracies of prompts that train both factors, for `Results.axis`.
JOINT_CELLS: dict[str, Any] = {"metric": "accuracy", "method": "factorized", "basis": "trainable"}


def nearest_rank(ranks: Iterable[int]) -> int:
    """Rank 4, as in the paper, or the nearest of `ranks`."""
    return min(ranks, key=lambda rank: (abs(rank - 4), rank), default=4)


def headline_rank(results: Results, metric: str) -> int:
    """The rank that represents low rank in the main comparison: 4, or the nearest one with results."""
    return nearest_rank(results.axis("rank", method="factorized", basis="trainable", metric=metric))


def own_bases(results: Results, **where: Any) -> list[str]:
    """The fixed bases of the user's own, `module:function`, of the cells that match `where`."""
    return [basis for basis in results.axis("basis", method="factorized", **where) if is_user_function(basis)]


def full_length(results: Results) -> int:
    """Number of tokens of the longest dense prompt."""
    return max(results.dense_lengths(), default=16)


def main_arms(results: Results, metric: str) -> dict[str, Arm]:
    """The arms of the main comparison that have results, by role.

    The roles are "dense", "dense short" (as many tokens as the rank), "trainable" and "orthogonal".
    """
    rank, full = headline_rank(results, metric), full_length(results)
    arms = {
        "dense": dense(full),
        "dense short": dense(rank),
        "trainable": joint(rank),
        "orthogonal": fixed_basis("orthogonal", rank),
    }
    if full == rank:
        del arms["dense short"]
    return {role: arm for role, arm in arms.items() if results.axis("shots", metric=metric, **arm._asdict())}


def sorted_backbones(results: Results, *, resnet_first: bool, **where: Any) -> list[str]:
    """Backbones with results that match `where`, ResNets before or after the others, as in the paper's tables."""
    return sorted(results.axis("backbone", **where), key=lambda name: (_is_resnet(name) != resnet_first, name))


def _is_resnet(backbone: str) -> bool:
    return re.search(r"rn|resnet", backbone.lower()) is not None


def best_covered(results: Results, backbone: str, cells: Sequence[tuple[Arm, int]], metric: str) -> list[str]:
    """The datasets that have results in most of the (arm, shots) cells; averages are over these datasets."""
    counts = Counter(
        dataset
        for dataset in results.axis("dataset", backbone=backbone, metric=metric)
        for arm, k in cells
        if results.cell(backbone, dataset, arm, k, metric)
    )
    most = max(counts.values(), default=0)
    return [dataset for dataset in sorted(counts) if counts[dataset] == most]


def chance_levels(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """(dataset, metric) → accuracy of guessing in percent, as recorded by the runs.

    The chance level of H is the harmonic mean of those of the base and the new classes.
    """
    found: dict[tuple[str, str], float] = {}
    for record in records:
        levels = dict(record.facts.get("chance") or {})
        if "seen" in levels and "unseen" in levels:
            levels["harmonic"] = harmonic_mean(levels["seen"], levels["unseen"])
        for metric, value in levels.items():
            found[dataset_title(record.spec.dataset), metric] = float(value)
    return found


def zero_shot(results: Results, backbone: str, datasets: Sequence[str], shots: int, metric: str) -> float | None:
    """Accuracy of the hand-written prompt, averaged over datasets; None if one has no runs.

    It is the same for all arms. In a folder without test images, the images that are held out depend on shots and seed.
    """
    parts = (results.of_any_arm(backbone, dataset, shots, f"zero_shot_{metric}") for dataset in datasets)
    return mean_if_complete([mean_if_complete(list(by_seed.values())) for by_seed in parts])


def mean_if_complete(values: Sequence[float | None]) -> float | None:
    """The mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
