"""The paper's two questions as paired differences: is low rank enough, and must B be trained?"""

from __future__ import annotations

import pandas as pd

from slimprompt.analysis.frame import axis, dense, differences, fixed_b, full_length, headline_rank, joint
from slimprompt.analysis.statistics import compare
from slimprompt.report.html import signed
from slimprompt.report.table import Cell, Column, Table, make_table

_METRICS = {"accuracy": "accuracy", "harmonic": "H"}


def questions_table(frame: pd.DataFrame) -> Table:
    """The differences, at the highest shot count of each backbone."""
    rows = []
    for metric in _METRICS:
        for backbone in axis(frame, "backbone", metric=metric):
            rank, shots = (
                headline_rank(frame, backbone, metric),
                axis(frame, "shots", backbone=backbone, metric=metric)[-1],
            )
            low = joint(rank)
            questions = {
                "Is low rank enough?": (low, dense(full_length(frame, backbone))),
                "Must B be trained?": (fixed_b("orthogonal", rank), low),
            }
            for question, pair in questions.items():
                found = differences(frame, *pair, backbone=backbone, shots=shots, metric=metric)
                if found:
                    test = compare(list(found.values()))
                    interval = (
                        "—"
                        if test.low is None or test.high is None
                        else f"{signed(test.low, 2)} to {signed(test.high, 2)}"
                    )
                    labels = (question, " − ".join(pair), backbone, _METRICS[metric], f"{shots}")
                    rows.append((labels, [Cell(test.mean, n=test.n, signed=True), Cell(interval), Cell(f"{test.n}")]))
    columns = [Column("Difference (points)"), Column("95 % interval"), Column("Datasets")]
    note = (
        "Paired by seed within each dataset; the confidence interval is over datasets, so one dataset has none. "
        "An interval that contains zero is compatible with no difference. "
        "“Paired comparisons” below lists all shots and ranks, with tests of difference and of equivalence."
    )
    headers = ("Question", "Compared", "Backbone", "Metric", "Shots")
    return make_table(
        "questions", "The two questions, at the highest shot count", headers, columns, sorted(rows), [note]
    )
