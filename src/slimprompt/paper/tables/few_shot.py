"""Few-shot accuracy on all classes: low rank against dense, every rank, and the best rank per dataset."""

from __future__ import annotations

from collections.abc import Sequence

from slimprompt.analysis.arms import BACKBONE_TITLES, Arm, dense, joint
from slimprompt.analysis.results import CellKey, Results, best_of
from slimprompt.analysis.selection import JOINT_CELLS, full_length, headline_rank, sorted_backbones
from slimprompt.paper.published import PrintedKey, best_key
from slimprompt.paper.tables.cells import (
    average_cell,
    average_key,
    dataset_cell,
    difference,
    make_cell,
)
from slimprompt.report.table import Cell, Column, Row, Table, mark_best

_FEW_SHOT = {"metric": "accuracy", "method": {"dense", "factorized"}}  # without transfer


def headline(results: Results) -> Table:
    """Dense of full length, dense of r tokens and low rank r, averaged over the datasets."""
    rank, full = headline_rank(results, "accuracy"), full_length(results)
    arms = {f"Dense-{full}": dense(full), f"Dense-{rank}": dense(rank), f"Fact. r={rank}": joint(rank)}
    backbones = sorted_backbones(results, resnet_first=False, **_FEW_SHOT)
    rows = []
    for backbone in backbones:
        datasets = results.axis("dataset", backbone=backbone, **_FEW_SHOT)
        for index, k in enumerate(results.axis("shots", backbone=backbone, **_FEW_SHOT)):
            cells = [average_cell(results, "headline", backbone, datasets, arm, k) for arm in arms.values()]
            low, short = (results.macro(backbone, datasets, arm, k) for arm in (joint(rank), dense(rank)))
            key = average_key("headline", backbone, datasets, joint(rank), k, "delta_fact_dense4")
            delta = make_cell(difference(low, short), key, signed=True)
            rows.append(Row((backbone, str(k)), (*mark_best(cells), delta), rule=index == 0))
    columns = [Column(title, remark=_count(results, backbones, arm)) for title, arm in arms.items()]
    title = "Low-rank factorization against dense CoOp: mean accuracy (%) over the datasets"
    notes = (f"Δ is factorized minus Dense-{rank}. In brackets: trainable parameters.", datasets_note(results))
    return Table("headline", title, ("Backbone", "Shots"), (*columns, Column("Δ")), tuple(rows), notes)


def _count(results: Results, backbones: Sequence[str], arm: Arm) -> str:
    counts = sorted({count for backbone in backbones if (count := results.parameters(backbone, arm)) is not None})
    return f"({' / '.join(f'{count:,}' for count in counts)})" if counts else ""


def datasets_note(results: Results) -> str:
    """Names the datasets that an average is over."""
    names = results.axis("dataset", **_FEW_SHOT)
    return f"Averages are over {len(names)} datasets ({', '.join(names)}), within each seed first."


def rank_sweep(results: Results) -> Table:
    """Low rank with both factors trained, on every dataset, for all ranks and backbones."""
    backbones = sorted_backbones(results, resnet_first=True, **JOINT_CELLS)
    settings = [(rank, backbone) for rank in results.axis("rank", **JOINT_CELLS) for backbone in backbones]
    rows = []
    for dataset in results.axis("dataset", **JOINT_CELLS):
        for index, k in enumerate(results.axis("shots", **JOINT_CELLS)):
            keys = [CellKey(backbone, dataset, *joint(rank), k) for rank, backbone in settings]
            cells = tuple(dataset_cell(results, "rank_sweep", key) for key in keys)
            rows.append(Row((dataset, str(k)), cells, rule=index == 0))
    columns = tuple(Column(backbone, f"Rank {rank}") for rank, backbone in settings)
    title = "Fully trainable factorized CoOp across datasets, shots, ranks and backbones: accuracy (%)"
    return Table("rank_sweep", title, ("Dataset", "Shots"), columns, tuple(rows))


def best_delta(results: Results) -> Table:
    """The best rank and backbone per dataset and shots, and its differences to rank 4 and to dense."""
    reference, full = headline_rank(results, "accuracy"), full_length(results)
    rows = [
        Row((dataset, str(k)), _best_cells(results, dataset, k, reference, full), rule=index == 0)
        for dataset in results.axis("dataset", **JOINT_CELLS)
        for index, k in enumerate(results.axis("shots", **JOINT_CELLS))
    ]
    labels = (f"Δ Rank{reference}–Best", f"Δ Best–Ctx{reference}", f"Δ Best–Ctx{full}")
    columns = (Column("Best Factorized CoOp"), Column("Best Rank/Backbone"), *(Column(label) for label in labels))
    notes = (
        f"Ctx{reference}, Ctx{full}: dense CoOp with that many tokens on the backbone of the best. "
        "Differences in points.",
    )
    title = f"Best factorized CoOp accuracy (%) and its differences to rank {reference} and to dense CoOp"
    return Table("best_delta", title, ("Dataset", "Shots"), columns, tuple(rows), notes)


def _best_cells(results: Results, dataset: str, shots: int, reference: int, full: int) -> tuple[Cell, ...]:
    candidates = {
        (backbone, rank): found
        for backbone in results.axis("backbone", **JOINT_CELLS)
        for rank in results.axis("rank", **JOINT_CELLS)
        if (found := results.cell(backbone, dataset, joint(rank), shots))
    }
    chosen = best_of(candidates)
    if chosen is None:
        return (Cell(),) * 5
    best, (backbone, rank) = candidates[chosen], chosen
    at_reference, short, long = (
        results.cell(backbone, dataset, arm, shots) for arm in (joint(reference), dense(reference), dense(full))
    )
    # The names carry rank and length, so that only the paper's own ones have published numbers.
    deltas = (
        (f"delta_rank{reference}_best", difference(at_reference, best)),
        (f"delta_best_ctx{reference}", difference(best, short)),
        (f"delta_best_ctx{full}", difference(best, long)),
    )

    # The paper's best is that of both backbones, and always on ViT-B/16, so runs on RN50 alone have nothing to compare with.
    of_paper = backbone in BACKBONE_TITLES.values() and any(one == "ViT-B/16" for one, _ in candidates)

    def key(metric: str) -> PrintedKey | None:
        return best_key("best_delta", CellKey(backbone, dataset, *joint(rank), shots, metric)) if of_paper else None

    return (
        make_cell(best, key("best_accuracy"), show_sd=True),
        Cell(f"Rank {rank}, {backbone}"),
        *(make_cell(delta, key(name), signed=True) for name, delta in deltas),
    )
