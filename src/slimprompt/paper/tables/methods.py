"""Published numbers beside those of a comparison of methods."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from slimprompt.analysis.frame import BACKBONE_TITLES, CELL, axis, dataset_title
from slimprompt.paper.published import PublishedBaseline, published, published_baselines
from slimprompt.report.table import Table

_METRICS = {"all": "accuracy", "base": "seen", "new": "unseen"}


def published_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """The published numbers of the cells of a frame, in one column: of other methods, and of the paper's prompts.

    The backbone (with OpenAI's weights), dataset, class subset and number of shots are the same; zero-shot accuracies hold for every
    number of shots.
    """
    rows = []
    for row, shots in _baselines(frame):
        place = BACKBONE_TITLES.get(row.backbone, row.backbone), dataset_title(row.dataset)
        rows.append((*place, row.method, "", "", 0, shots, _METRICS[row.class_subset], "", row.accuracy))
    baselines = pd.DataFrame(rows, columns=[*CELL, "mean"]).set_index(list(CELL))
    return pd.concat([published()[["mean"]], baselines]) if rows else published()[["mean"]]


def _baselines(frame: pd.DataFrame) -> list[tuple[PublishedBaseline, int]]:
    """The published results of other methods that the frame has cells for, with the number of shots."""
    present = set(frame.index.droplevel(["variant", "basis", "rank", "source"]))
    found = []
    for row in published_baselines():
        place = BACKBONE_TITLES.get(row.backbone, row.backbone), dataset_title(row.dataset), row.method
        for shots in axis(frame, "shots") if row.method == "zero-shot" else [row.shots]:
            if (*place, shots, _METRICS[row.class_subset]) in present:
                found.append((row, shots))
    return found


def with_protocols(table: Table, frame: pd.DataFrame) -> Table:
    """The table with notes on how its published numbers were obtained: what was chosen on validation or test images."""
    shown = {row.labels[-1] for row in table.rows if any(cell.published is not None for cell in row.cells)}
    if not shown:
        return table.with_notes("There are no published numbers for these cells.")
    protocols = {(row.method, row.protocol, row.source) for row, _ in _baselines(frame) if row.method in shown}
    notes = [f"Published {method}: {protocol} ({source})." for method, protocol, source in sorted(protocols)]
    note = "In brackets: the published number and the difference."
    return replace(table, compare=True).with_notes(note, *notes)
