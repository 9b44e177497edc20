"""The results that claims read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from slimprompt.analysis.arms import Arm, dense, joint
from slimprompt.analysis.results import Estimate, Results, on_common_seeds
from slimprompt.analysis.selection import nearest_rank


@dataclass(frozen=True)
class ParameterCount:
    """Number of trained parameters of one kind of run."""

    variant: str
    n_ctx: int
    width: int
    rank: int
    """0 for a dense prompt."""
    count: int


@dataclass(frozen=True)
class Evidence:
    """Results of a set of runs, or of the published tables.

    Attributes
    ----------
    results
        Cells of results.
    geometry
        Median overlap and angle per axis and factor, as `Geometry.medians` returns them.
    displacement
        Start-to-end geometry of each run, as in `Geometry.displacement`.
    parameters
        Numbers of trained parameters, one entry per kind of run.
    main_pairs
        (target, source) pairs of the paper's main transfer table, which omits some pairs.
    """

    results: Results
    geometry: pd.DataFrame | None = None
    displacement: pd.DataFrame | None = None
    parameters: tuple[ParameterCount, ...] = ()
    main_pairs: tuple[tuple[str, str], ...] = ()

    @property
    def published(self) -> bool:
        """Whether the results are the paper's own tables."""
        return self.results.published

    def backbones(self, metric: str = "accuracy") -> list[str]:
        """Backbones with results in `metric`."""
        return self.results.axis("backbone", metric=metric)

    def shots(self, backbone: str, metric: str = "accuracy") -> list[int]:
        """Shot counts with results in `metric`."""
        return self.results.axis("shots", backbone=backbone, metric=metric)

    def datasets(self, backbone: str, metric: str = "accuracy") -> list[str]:
        """Datasets with results in `metric`."""
        return self.results.axis("dataset", backbone=backbone, metric=metric)

    def ranks(self, backbone: str, basis: str = "trainable", metric: str = "accuracy", **where: int) -> list[int]:
        """Ranks with results for one basis, of the cells that match `where`."""
        return self.results.axis("rank", backbone=backbone, method="factorized", basis=basis, metric=metric, **where)

    def low_rank(self, backbone: str, metric: str = "accuracy") -> Arm | None:
        """The joint prompt of rank 4, as in the paper, or of the available rank nearest to 4."""
        ranks = self.ranks(backbone, metric=metric)
        return joint(nearest_rank(ranks)) if ranks else None

    def full_dense(self) -> Arm | None:
        """The longest dense prompt."""
        lengths = self.results.dense_lengths()
        return dense(lengths[-1]) if lengths else None


@dataclass(frozen=True)
class MatchedCell:
    """Results of two arms on one dataset and shot count."""

    dataset: str
    shots: int
    first: Estimate
    second: Estimate

    @property
    def gap(self) -> float:
        """First minus second, rounded so that equal printed numbers differ by exactly 0."""
        return round(self.first.mean - self.second.mean, 9)

    @property
    def name(self) -> str:
        """Dataset and shot count, as `DTD, 4-shot`."""
        return f"{self.dataset}, {self.shots}-shot"

    def __str__(self) -> str:
        return f"{self.name}: {self.first.mean:.2f} against {self.second.mean:.2f} ({self.gap:+.2f})"


def matched_cells(e: Evidence, backbone: str, first: Arm | None, second: Arm | None, metric: str) -> list[MatchedCell]:
    """All datasets and shot counts with results of both arms, over the seeds that both have."""
    if first is None or second is None:
        return []
    found = []
    for dataset in e.datasets(backbone, metric):
        for k in e.shots(backbone, metric):
            one, other = (e.results.cell(backbone, dataset, arm, k, metric) for arm in (first, second))
            if one and other and (pair := on_common_seeds((one, other))):
                found.append(MatchedCell(dataset, k, *pair))
    return found


def lines_of(cells: Iterable[MatchedCell]) -> tuple[str, ...]:
    """One line of text per cell."""
    return tuple(str(cell) for cell in cells)
