"""Base-to-new generalization: trained on the base (seen) classes, tested on base and new (unseen) classes."""

from __future__ import annotations

import re

from slimprompt.analysis.arms import Arm, dense, fixed_basis, joint
from slimprompt.analysis.results import CellKey, Results
from slimprompt.analysis.selection import full_length, headline_rank, sorted_backbones
from slimprompt.paper.tables.cells import average_cell, dataset_cell
from slimprompt.report.table import Cell, Column, Row, Table, mark_columns

_METRICS = ("seen", "unseen", "harmonic")


def base2new(results: Results) -> Table:
    """Seen, unseen and harmonic mean of dense and low rank, per dataset and averaged."""
    rank, full = headline_rank(results, "harmonic"), full_length(results)
    arms = {"Dense": dense(full), f"Fact. (r={rank})": joint(rank)}
    shots = results.axis("shots", metric="harmonic")
    columns = [(k, metric) for k in shots for metric in _METRICS]
    rows: list[Row] = []
    for backbone in sorted_backbones(results, resnet_first=True, metric="harmonic"):
        datasets = results.axis("dataset", backbone=backbone, metric="harmonic")
        for dataset in datasets:
            rows += _block(results, "base2new", backbone, dataset, arms, shots, section=backbone)
        averages = [
            [average_cell(results, "base2new", backbone, datasets, arm, k, metric) for k, metric in columns]
            for arm in arms.values()
        ]
        rows += _rows("Average", arms, averages, section=backbone)
    title = f"Base-to-new generalization: factorized CoOp (r={rank}) against dense CoOp"
    notes = (
        "S, U, H: accuracy on seen and unseen classes, and their harmonic mean per run, averaged. "
        "Average rows are over the datasets.",
    )
    letters = tuple(Column(letter, f"{k}-shot") for k in shots for letter in ("S", "U", "H"))
    return Table("base2new", title, ("Dataset", "Method"), letters, tuple(rows), notes)


def base_to_new_full(results: Results, backbone: str) -> Table:
    """Seen, unseen and H of all arms of the base-to-new study, on every dataset of one backbone."""
    arms = {"Dense CoOp": dense(full_length(results))}
    for title, basis in (("Factorized CoOp", "trainable"), ("Fixed Orthogonal B", "orthogonal")):
        ranks = results.axis("rank", backbone=backbone, metric="harmonic", method="factorized", basis=basis)
        arms |= {f"{title}, r={rank}": fixed_basis(basis, rank) for rank in ranks}
    shots = results.axis("shots", backbone=backbone, metric="harmonic")
    rows: list[Row] = []
    for dataset in results.axis("dataset", backbone=backbone, metric="harmonic"):
        rows += _block(results, "base2new_full", backbone, dataset, arms, shots)
    columns = tuple(Column(label, f"{k}-shot") for k in shots for label in ("Seen", "Unseen", "H"))
    title = f"Per-dataset base-to-new generalization on {backbone} (%)"
    notes = ("Trained on the seen half of the classes. H is computed per run, then averaged.",)
    name = f"base_to_new_{slug(backbone)}"
    return Table(name, title, ("Dataset", "Method"), columns, tuple(rows), notes)


def slug(backbone: str) -> str:
    """The backbone's name in file names: `vitb16`."""
    return re.sub(r"[^a-z0-9]", "", backbone.lower())


def _block(
    results: Results, table: str, backbone: str, dataset: str, arms: dict[str, Arm], shots: list[int], section: str = ""
) -> list[Row]:
    """The rows of one dataset, one per arm."""
    cells = [
        [
            dataset_cell(results, table, CellKey(backbone, dataset, *arm, k, metric))
            for k in shots
            for metric in _METRICS
        ]
        for arm in arms.values()
    ]
    return _rows(dataset, arms, cells, section)


def _rows(dataset: str, arms: dict[str, Arm], cells: list[list[Cell]], section: str) -> list[Row]:
    marked = zip(arms, mark_columns(cells), strict=True)
    return [Row((dataset, label), row, section, rule=index == 0) for index, (label, row) in enumerate(marked)]
