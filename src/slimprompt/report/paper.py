"""What a paper brings to the laboratory: its studies, tables and claims, and the numbers that it has published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from slimprompt.analysis.frame import Measurements, observations
from slimprompt.lab.records import Record
from slimprompt.report.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from slimprompt.analysis.claims import Claim
    from slimprompt.analysis.geometry import Geometry
    from slimprompt.lab.studies import Catalogue
    from slimprompt.report.plotting import Figure

#: Name of a table → function that makes it.
Tables = Mapping[str, Callable[[], Table]]


@dataclass(frozen=True)
class MeasuredRuns:
    """Complete runs, and what tables and claims read of them, computed when it is needed."""

    records: Sequence[Record]
    class_subset: str | None = "all"
    """Class subset of the runs whose geometry is measured; None for all."""
    draws: int = 500
    """Random pairs of subspaces behind each chance level of the geometry."""
    show: bool = False
    """Show the progress."""

    @cached_property
    def observed(self) -> pd.DataFrame:
        """See `observations`."""
        return observations(self.records)

    @cached_property
    def results(self) -> Measurements:
        """Cells, their runs and costs."""
        return Measurements.of(self.observed)

    @cached_property
    def geometry(self) -> Geometry:
        """The geometry of the factors; reads all of them."""
        from slimprompt.analysis.geometry import measure

        return measure(self.records, class_subset=self.class_subset, draws=self.draws, show=self.show)


class Published(NamedTuple):
    """The published numbers of a paper in the form of runs."""

    observed: pd.DataFrame
    """As `slimprompt.analysis.frame.observations`."""
    medians: pd.DataFrame
    """As `Geometry.medians`."""
    tables: Tables


class Paper(NamedTuple):
    """A list of studies, a list of tables and a list of claims; for a report also figures, and what its page says and shows first."""

    studies: Catalogue
    tables: Callable[[MeasuredRuns, bool], Tables]
    """Maps runs, and whether published numbers are added, to the tables."""
    claims: Sequence[Claim] = ()
    published: Callable[[], Published] | None = None
    figures: Callable[[MeasuredRuns], Sequence[Callable[[], Figure]]] = lambda _: ()
    title: str = "Report"
    question: str = ""
    """What the runs are about, a sentence."""
    answers: Callable[[pd.DataFrame], Table] | None = None
    """Maps cells to the table below the summary, which answers the question."""
    unfolded: Collection[str] = ()
    """Names of the tables that the page does not fold."""
