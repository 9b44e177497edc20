"""Comparisons of methods: which arms they show, what the arms cost, and averages over other datasets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slimprompt.analysis.arms import Arm, arm_of, backbone_title, dataset_title
from slimprompt.analysis.results import Estimate, Results, average
from slimprompt.analysis.selection import main_arms
from slimprompt.lab.records import Record
from slimprompt.methods.table import METHODS
from slimprompt.user_functions import is_user_function


class MethodArms(NamedTuple):
    """The arms of a comparison of methods."""

    methods: list[Arm]
    """Methods without a prompt, in the order of their table; the user's own come last, by name."""
    prompts: list[Arm]
    """The prompts of the main comparison, then those beyond the paper."""

    @property
    def all(self) -> list[Arm]:
        """Methods, then prompts."""
        return [*self.methods, *self.prompts]


def method_arms(results: Results, metric: str = "accuracy") -> MethodArms:
    """The arms to compare with each other; none if the runs hold neither another method nor a prompt beyond the paper.

    The paper's prompts are represented by those of the main comparison (`main_arms`).
    """
    present = {key.arm for key in results.cells if key.metric == metric and not key.basis}
    own = sorted(arm.method for arm in present if is_user_function(arm.method))
    methods = [arm for name in (*METHODS, *own) if (arm := Arm(name, "", 0)) in present]
    beyond = sorted(present - set(methods))
    if not present:
        return MethodArms([], [])
    main = [arm for role, arm in main_arms(results, metric).items() if role != "dense short"]
    return MethodArms(methods, [*main, *beyond])


class Cost(NamedTuple):
    """What an arm costs on average."""

    trained: float
    """Numbers that come from the training images: trained parameters of a prompt, numbers of a head."""
    seconds: float
    """Wall time of training or fitting, without the encoding of images."""


#: (backbone, dataset, arm, shots) → cost, averaged over seeds.
Costs = dict[tuple[str, str, Arm, int], Cost]


def costs(records: Iterable[Record]) -> Costs:
    """The costs of runs on all classes; runs that did not record both are left out."""
    found: dict[tuple[str, str, Arm, int], list[Cost]] = defaultdict(list)
    for record in records:
        spec, trained = record.spec, record.facts.get("trainable_parameters")
        seconds = record.facts.get("times", {}).get("training")
        if spec.class_subset == "all" and not spec.evaluate_on and trained is not None and seconds is not None:
            key = backbone_title(spec), dataset_title(spec.dataset), arm_of(spec), spec.shots
            found[key].append(Cost(float(trained), float(seconds)))
    return {key: _mean(some) for key, some in found.items()}


def average_cost(found: Costs, backbone: str, datasets: Sequence[str], arm: Arm, shots: int) -> Cost | None:
    """The cost of an arm, averaged over datasets; None if one is not known."""
    parts = [found.get((backbone, dataset, arm, shots)) for dataset in datasets]
    known = [part for part in parts if part is not None]
    return _mean(known) if known and len(known) == len(parts) else None


def _mean(some: Sequence[Cost]) -> Cost:
    return Cost(*(sum(values) / len(values) for values in zip(*some, strict=True)))


def cross_dataset_average(
    results: Results, backbone: str, source: str, others: Sequence[str], arm: Arm, shots: int
) -> Estimate | None:
    """Average over the datasets that were classified by names only; None if one has no runs."""
    return average(results.cell(backbone, other, arm, shots, "cross_dataset", source) for other in others)


def transfer_average(results: Results, backbone: str, datasets: Sequence[str], arm: Arm, shots: int) -> Estimate | None:
    """Accuracy, averaged over the sources of a factor from another dataset, if there are any, then over the datasets."""

    def over_sources(dataset: str) -> Estimate | None:
        where = {"backbone": backbone, "dataset": dataset, "shots": shots, "metric": "accuracy", **arm._asdict()}
        sources = results.axis("source", **where)
        return average(results.cell(backbone, dataset, arm, shots, source=source) for source in sources)

    return average(over_sources(dataset) for dataset in datasets)
