"""The figures of a set of runs. Each is a function of the analysis; one that lacks runs says which runs it needs.

- `accuracy`: accuracy against shots and against rank.
- `differences`: low rank against dense, and fixed against trained B.
- `transfer`: cost of a frozen factor per source and target.
- `geometry`: overlap of the factors between runs, and their distance to the start.
- `training`: learning curves.
"""

from collections.abc import Callable, Sequence

from slimprompt.analysis.geometry import Geometry
from slimprompt.analysis.results import Results
from slimprompt.analysis.selection import chance_levels
from slimprompt.lab.records import Record
from slimprompt.paper.figures.accuracy import rank_curve, shots_curve
from slimprompt.paper.figures.differences import fixed_against_trained, gain_over_dense
from slimprompt.paper.figures.geometry import displacement, geometry_violin
from slimprompt.paper.figures.training import learning_curves
from slimprompt.paper.figures.transfer import transfer_matrix
from slimprompt.report.plotting import Figure

__all__ = [
    "all_figures",
    "displacement",
    "figure_functions",
    "fixed_against_trained",
    "gain_over_dense",
    "geometry_violin",
    "learning_curves",
    "rank_curve",
    "shots_curve",
    "transfer_matrix",
]


def figure_functions(records: Sequence[Record], results: Results, geometry: Geometry) -> list[Callable[[], Figure]]:
    """A function for every figure, in the order of the report."""
    return [
        lambda: shots_curve(results, chance_levels(records)),
        lambda: gain_over_dense(results),
        lambda: rank_curve(results),
        lambda: fixed_against_trained(results),
        lambda: transfer_matrix(results),
        lambda: geometry_violin(geometry),
        lambda: displacement(geometry),
        lambda: learning_curves(records),
    ]


def all_figures(records: Sequence[Record], results: Results, geometry: Geometry) -> list[Figure]:
    """Every figure, in the order of the report."""
    return [plot() for plot in figure_functions(records, results, geometry)]
