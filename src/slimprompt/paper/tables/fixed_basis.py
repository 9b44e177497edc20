"""Fixed token bases B against a trained one."""

from __future__ import annotations

from slimprompt.analysis.arms import BEST_DENSE, fixed_basis
from slimprompt.analysis.results import CellKey, Results
from slimprompt.analysis.selection import own_bases, sorted_backbones
from slimprompt.paper.tables.base_to_new import slug
from slimprompt.paper.tables.cells import average_cell, dataset_cell
from slimprompt.paper.tables.few_shot import datasets_note
from slimprompt.report.table import Cell, Column, Row, Table, mark_best

#: Column title → basis, in the order of the averaged table and of the tables per dataset.
_AVERAGED = {"Train.": "trainable", "Gauss.": "gaussian", "Orth.": "orthogonal", "SVD": "svd", "Learn.": "learned"}
_PER_DATASET = {
    "Trainable BA": "trainable",
    "Gaussian B": "gaussian",
    "Learned B": "learned",
    "Orthogonal B": "orthogonal",
    "SVD B": "svd",
}


def fixed_b(results: Results) -> Table:
    """The trained basis, the four fixed ones and the user's own, averaged over the datasets, for every rank and shot count."""
    where = {"metric": "accuracy", "method": "factorized"}
    shots = results.axis("shots", **where)
    bases = _AVERAGED | {basis: basis for basis in own_bases(results, metric="accuracy")}
    rows = []
    for backbone in sorted_backbones(results, resnet_first=False, **where):
        datasets = results.axis("dataset", backbone=backbone, **where)
        for index, rank in enumerate(results.axis("rank", backbone=backbone, **where)):
            cells: list[Cell] = []
            for k in shots:
                arms = (fixed_basis(basis, rank) for basis in bases.values())
                cells += mark_best([average_cell(results, "fixedB", backbone, datasets, arm, k) for arm in arms])
            rows.append(Row((backbone, str(rank)), tuple(cells), rule=index == 0))
    columns = tuple(Column(title, f"{k}-shot") for k in shots for title in bases)
    title = "Fixing the token-side basis B against training it: mean accuracy (%) over the datasets"
    notes = (
        "Fixed-B variants train only A. The best number of each row and shot count is bold.",
        datasets_note(results),
    )
    return Table("fixedB", title, ("Backbone", "Rank"), columns, tuple(rows), notes)


def basis_ablation(results: Results, backbone: str, rank: int) -> Table:
    """The trained basis, the four fixed ones and the user's own on every dataset, for one backbone and rank."""
    chosen = {"backbone": backbone, "metric": "accuracy", "rank": rank}
    where = {**chosen, "method": "factorized"}
    bases = _PER_DATASET | {basis: basis for basis in own_bases(results, **chosen)}
    rows = []
    for dataset in results.axis("dataset", **where):
        for index, k in enumerate(results.axis("shots", **where)):
            arms = (BEST_DENSE, *(fixed_basis(basis, rank) for basis in bases.values()))
            keys = (CellKey(backbone, dataset, *arm, k) for arm in arms)
            reference, *cells = (dataset_cell(results, "b_ablation", key) for key in keys)
            rows.append(Row((dataset, str(k)), (reference, *mark_best(cells)), rule=index == 0))
    columns = (Column("Dense CoOp Best"), *(Column(title) for title in bases))
    title = f"Token-side basis ablation, {backbone} at rank {rank}: accuracy (%)"
    notes = ("Dense CoOp is a reference: the better of its context lengths. Bold: the best of the other columns.",)
    name = f"b_ablation_rank{rank}_{slug(backbone)}"
    return Table(name, title, ("Dataset", "Shots"), columns, tuple(rows), notes)
