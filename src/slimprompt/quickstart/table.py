"""The results table of `slimprompt quickstart`."""

from __future__ import annotations

from slimprompt.quickstart.job import METRICS, Line, Quickstart
from slimprompt.report.table import Cell, Column, Row, Table


def results_table(result: Quickstart) -> Table:
    """Accuracy, base, new, H, trainable parameters and time of every method and shot count."""
    rows = [
        _row(line, rule=index == 0 or line.method != result.lines[index - 1].method)
        for index, line in enumerate(result.lines)
    ]
    levels = [result.chance[metric] for metric in METRICS]
    rows.append(Row(("chance", "—"), (*(Cell(level, decimals=1) for level in levels), Cell(), Cell()), rule=True))
    columns = (
        Column("Accuracy", "All classes (%)"),
        *(Column(label, "Base-to-new (%)") for label in ("Base", "New", "H")),
        Column("Trainable parameters"),
        Column("Time (s)"),
    )
    notes = (
        "Mean ± standard deviation over three seeds of the few-shot sample, the start, the image order and the train views. "
        "Zero-shot and chance do not depend on a seed.",
        "Base-to-new: trained on the first half of the classes (base), tested on it and on the other half (new). "
        "H is the harmonic mean of the two.",
        "Time: training one prompt for all classes on one thread, with the image features already computed.",
    )
    return Table("quickstart", "Few-shot prompts in the pocket world", ("Method", "Shots"), columns, tuple(rows), notes)


def _row(line: Line, *, rule: bool) -> Row:
    scores = [
        Cell(mean, sd, 1 if sd is None else 3, line.runs, decimals=1, show_sd=True)
        for mean, sd in (line.scores[metric] for metric in METRICS)
    ]
    cells = (*scores, Cell(float(line.parameters), decimals=0), Cell(line.seconds, decimals=1))
    return Row((line.method, "0" if line.shots is None else str(line.shots)), cells, rule=rule)
