"""Subspace overlap and principal angles of the factors of independently trained prompts."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from slimprompt.analysis.geometry import AXES
from slimprompt.analysis.results import CellKey
from slimprompt.lab.spec import RunSpec
from slimprompt.paper.published import AXIS_NAMES, PrintedKey
from slimprompt.report.table import Cell, Column, Row, Table, mark_best

#: Axis → row label.
_LABELS = {
    "seed": "Same config, diff. seeds",
    "dataset": "Diff. datasets, same seed",
    "shots": "Diff. shots, same seed",
    "rank": "Diff. ranks, same seed",
}
_FACTORS = ("A", "B", "BA")


def factor_geometry(medians: pd.DataFrame | None, compared: Sequence[RunSpec] = ()) -> Table:
    """Median overlap and principal angle per factor, for pairs of runs that differ in one field.

    Parameters
    ----------
    medians
        Columns axis, factor, overlap, angle and optionally n, as `Geometry.medians` returns them; None for an empty
        table.
    compared
        The runs behind the medians; empty for the published medians, which are over runs on all classes.
    """
    found = {} if medians is None else {(row["axis"], row["factor"]): row for row in medians.to_dict("records")}
    rows = []
    for index, axis in enumerate(AXES):
        cells: list[Cell] = []
        for metric, column, decimals in (("overlap", "overlap", 2), ("angle_deg", "angle", 1)):
            group = []
            for factor in _FACTORS:
                row = found.get((axis, factor))
                key = PrintedKey("factor_geometry", CellKey("", "", AXIS_NAMES[axis], factor, 0, 0, metric))
                value = float(row[column]) if row else None
                group.append(Cell(value, n=int(row.get("n", 0)) if row else 0, decimals=decimals, key=key))
            cells += mark_best(group, lowest=column == "angle")
        rows.append(Row((_LABELS[axis],), tuple(cells), rule=index == 0))
    groups = ("Subspace overlap", "Principal angle (°)")
    columns = tuple(Column(factor, group) for group in groups for factor in _FACTORS)
    counts = [f"{axis} {int(row['n'])}" for axis in AXES if (row := found.get((axis, "B"))) and "n" in row]
    subsets = " and ".join(sorted({spec.class_subset for spec in compared})) or "all"
    notes = [
        f"Medians over pairs of runs on {subsets} classes. B is compared by its columns, A and BA by their rows. "
        "The most stable factor is bold."
    ]
    notes += [f"Pairs: {', '.join(counts)}."] if counts else []
    title = "Factor geometry across independently trained runs"
    return Table("factor_geometry", title, ("Comparison",), columns, tuple(rows), tuple(notes))
