"""The 19 tables of the paper in its own layout, from one's own runs or from the published numbers.

Rows and columns follow what the runs contain: other datasets, shots, ranks and backbones give the same tables with
other rows. A cell without runs is missing and stays so; an average needs all the datasets that its table shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd

from slimprompt.analysis.geometry import AXES
from slimprompt.analysis.observations import (
    BACKBONE_TITLES,
    BEST_DENSE,
    Arm,
    Estimate,
    Results,
    dense,
    fixed_basis,
    joint,
    transfer,
)
from slimprompt.paper.published import printed_numbers, published_geometry, published_pairs, published_results
from slimprompt.report.table import Cell, Column, Row, Table

METRICS = ("seen", "unseen", "harmonic")
#: Column title → basis, in the order of the fixed-basis table and of the ablation tables.
FIXED_COLUMNS = {"Train.": "trainable", "Gauss.": "gaussian", "Orth.": "orthogonal", "SVD": "svd", "Learn.": "learned"}
ABLATION_COLUMNS = {
    "Trainable BA": "trainable",
    "Gaussian B": "gaussian",
    "Learned B": "learned",
    "Orthogonal B": "orthogonal",
    "SVD B": "svd",
}
#: Frozen factor → what the paper calls the mode.
MODES = {
    "source-A": "Freeze A, Train B",
    "source-B": "Freeze B, Train A",
    "random-A": "Freeze Random A, Train B",
    "random-B": "Freeze Random B, Train A",
}


# ---------------------------------------------------------------- cells


def _cell(estimate: Estimate | None, key: tuple[Any, ...] | None = None, **look: Any) -> Cell:
    if estimate is None:
        return Cell(key=key, **look)
    return Cell(estimate.mean, estimate.sd, estimate.n, estimate.runs, key=key, **look)


def _difference(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """one − other of the means; its sd is that of the seeds' differences, where both have the same seeds."""
    if one is None or other is None:
        return None
    sd = None
    if one.by_seed and set(one.by_seed) == set(other.by_seed) and len(one.by_seed) > 1:
        sd = float(pd.Series({seed: value - other.by_seed[seed] for seed, value in one.by_seed.items()}).std(ddof=1))
    return Estimate(one.mean - other.mean, sd, min(one.n, other.n), (*one.runs, *other.runs))


def _average_key(
    table: str, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str = "accuracy"
) -> tuple[Any, ...] | None:
    """Where the paper prints this average; nothing for an average over other datasets than the paper's."""
    same = list(datasets) == published_results().axis("dataset")
    return (table, backbone, "Average", *arm, shots, metric, "") if same else None


def _mark_best(cells: Sequence[Cell]) -> list[Cell]:
    """Bold for the best as printed. Ties are all marked, unless all are tied; one number alone is not best of anything."""
    known = {index: round(cell.number, cell.decimals) for index, cell in enumerate(cells) if cell.number is not None}
    best = max(known.values(), default=None)
    decided = len(known) > 1 and min(known.values()) != best
    return [replace(cell, bold=decided and known.get(index) == best) for index, cell in enumerate(cells)]


def _mark_groups(cells: Sequence[Cell], size: int) -> list[Cell]:
    """The best of every `size` cells."""
    return [cell for start in range(0, len(cells), size) for cell in _mark_best(cells[start : start + size])]


def _mark_columns(block: list[list[Cell]]) -> list[list[Cell]]:
    """The best of each column over the rows of a block."""
    marked = [_mark_best([row[index] for row in block]) for index in range(len(block[0]))]
    return [[column[index] for column in marked] for index in range(len(block))]


# ---------------------------------------------------------------- axes


def _is_resnet(backbone: str) -> bool:
    return re.search(r"rn|resnet", backbone.lower()) is not None


def _backbones(results: Results, *, resnet_first: bool, **where: Any) -> list[str]:
    names = results.axis("backbone", **where)
    return sorted(names, key=lambda name: (_is_resnet(name) != resnet_first, name))


def headline_rank(results: Results, metric: str) -> int:
    """Rank 4, as in the paper, or the nearest there is."""
    ranks = results.axis("rank", method="factorized", basis="trainable", metric=metric)
    return min(ranks, key=lambda rank: (abs(rank - 4), rank), default=4)


def full_length(results: Results) -> int:
    """Tokens of the longest dense prompt."""
    return max(results.dense_lengths(), default=16)


def _slug(backbone: str) -> str:
    return re.sub(r"[^a-z0-9]", "", backbone.lower())


def _few_shot(results: Results, name: str, backbone: str | None = None) -> list[Any]:
    """Values of one field among the few-shot cells without transfer."""
    where = {} if backbone is None else {"backbone": backbone}
    return results.axis(name, metric="accuracy", method={"dense", "factorized"}, **where)


def _shots_label(shots: int) -> str:
    return f"{shots}-shot"


# ---------------------------------------------------------------- the tables


def headline(results: Results) -> Table:
    """Dense of full length, dense of r tokens and low rank r, averaged over the datasets."""
    rank, full = headline_rank(results, "accuracy"), full_length(results)
    arms = (dense(full), dense(rank), joint(rank))
    titles = (f"Dense-{full}", f"Dense-{rank}", f"Fact. r={rank}")
    backbones = _backbones(results, resnet_first=False, metric="accuracy", method={"dense", "factorized"})
    columns = [Column(title, remark=_count(results, backbones, arm)) for title, arm in zip(titles, arms, strict=True)]
    rows = []
    for backbone in backbones:
        datasets = _few_shot(results, "dataset", backbone)
        for index, k in enumerate(_few_shot(results, "shots", backbone)):
            means = [results.macro(backbone, datasets, arm, k) for arm in arms]
            keys = [_average_key("headline", backbone, datasets, arm, k) for arm in arms]
            cells = _mark_best([_cell(mean, key) for mean, key in zip(means, keys, strict=True)])
            key = _average_key("headline", backbone, datasets, joint(rank), k, "delta_fact_dense4")
            delta = _cell(_difference(means[2], means[1]), key, signed=True)
            rows.append(Row((backbone, str(k)), (*cells, delta), rule=index == 0))
    title = "Low-rank factorization against dense CoOp: mean accuracy (%) over the datasets"
    notes = (
        f"Δ is factorized minus Dense-{rank}. In brackets: trainable parameters.",
        _datasets_note(results, "accuracy"),
    )
    return Table("headline", title, ("Backbone", "Shots"), (*columns, Column("Δ")), tuple(rows), notes)


def _count(results: Results, backbones: Sequence[str], arm: Arm) -> str:
    counts = sorted({count for backbone in backbones if (count := results.parameters(backbone, arm)) is not None})
    return f"({' / '.join(f'{count:,}' for count in counts)})" if counts else ""


def _datasets_note(results: Results, metric: str) -> str:
    names = results.axis("dataset", metric=metric, method={"dense", "factorized"})
    return f"Averages are over {len(names)} datasets ({', '.join(names)}), within each seed first."


def base2new(results: Results) -> Table:
    """Seen, unseen and harmonic mean of dense and low rank."""
    rank, full = headline_rank(results, "harmonic"), full_length(results)
    arms = {"Dense": dense(full), f"Fact. (r={rank})": joint(rank)}
    shots = results.axis("shots", metric="harmonic")
    rows: list[Row] = []
    for backbone in _backbones(results, resnet_first=True, metric="harmonic"):
        datasets = results.axis("dataset", backbone=backbone, metric="harmonic")

        def entry(dataset: str, arm: Arm, k: int, metric: str, backbone: str = backbone, names: Any = datasets) -> Cell:
            if dataset == "Average":
                key = _average_key("base2new", backbone, names, arm, k, metric)
                return _cell(results.macro(backbone, names, arm, k, metric), key)
            key = ("base2new", backbone, dataset, *arm, k, metric, "")
            return _cell(results.cell(backbone, dataset, arm, k, metric), key, show_sd=True)

        for dataset in (*datasets, "Average"):
            block = [[entry(dataset, arm, k, metric) for k in shots for metric in METRICS] for arm in arms.values()]
            for (label, cells), first in zip(zip(arms, _mark_columns(block), strict=True), (True, False), strict=True):
                rows.append(Row((dataset, label), tuple(cells), backbone, rule=first))
    columns = tuple(Column(letter, _shots_label(k)) for k in shots for letter in ("S", "U", "H"))
    title = f"Base-to-new generalization: factorized CoOp (r={rank}) against dense CoOp"
    notes = ("S, U, H: seen, unseen, and their harmonic mean of each run, averaged. Average rows: over the datasets.",)
    return Table("base2new", title, ("Dataset", "Method"), columns, tuple(rows), notes)


def fixed_b(results: Results) -> Table:
    """The trainable and the four fixed bases, averaged over the datasets, for every rank and shot count."""
    shots = results.axis("shots", metric="accuracy", method="factorized")
    rows = []
    for backbone in _backbones(results, resnet_first=False, metric="accuracy", method="factorized"):
        datasets = results.axis("dataset", backbone=backbone, metric="accuracy", method="factorized")
        ranks = results.axis("rank", backbone=backbone, metric="accuracy", method="factorized")
        for index, rank in enumerate(ranks):
            cells = []
            for k in shots:
                for basis in FIXED_COLUMNS.values():
                    arm = fixed_basis(basis, rank)
                    key = _average_key("fixedB", backbone, datasets, arm, k)
                    cells.append(_cell(results.macro(backbone, datasets, arm, k), key))
            rows.append(Row((backbone, str(rank)), tuple(_mark_groups(cells, len(FIXED_COLUMNS))), rule=index == 0))
    columns = tuple(Column(title, _shots_label(k)) for k in shots for title in FIXED_COLUMNS)
    title = "Fixing the token-side basis B against training it: mean accuracy (%) over the datasets"
    notes = (
        "Fixed-B variants train only A. Best of each row and shot count in bold.",
        _datasets_note(results, "accuracy"),
    )
    return Table("fixedB", title, ("Backbone", "Rank"), columns, tuple(rows), notes)


def _pairs(results: Results) -> list[tuple[str, int, int, str, str]]:
    """(backbone, rank, shots, target, source) of every transfer; in the paper's order where it has them."""
    order = {pair: index for index, pair in enumerate(_paper_order())}
    found = {
        (key.backbone, key.rank, key.shots, key.dataset, key.source)
        for key in results.cells
        if key.basis in ("source-A", "source-B") and key.source
    }
    return sorted(found, key=lambda one: (*one[:3], one[3], order.get((one[3], one[4]), len(order)), one[4]))


def _paper_order() -> list[tuple[str, str]]:
    return list(
        dict.fromkeys((key[2], key[8]) for key in printed_numbers() if key[0] == "transfer_four_modes" and key[8])
    )


def _transfer_cell(results: Results, pair: tuple[str, int, int, str, str], mode: str) -> Estimate | None:
    backbone, rank, k, target, source = pair
    return results.cell(backbone, target, transfer(mode, rank), k, source=source if mode.startswith("source") else "")


def _setting(pair: tuple[str, int, int, str, str]) -> str:
    return f"{pair[0]}, rank {pair[1]}, {_shots_label(pair[2])}"


def _section(pairs: Sequence[tuple[str, int, int, str, str]], pair: tuple[str, int, int, str, str]) -> str:
    """A title over the rows only where there are several settings."""
    return _setting(pair) if len({one[:3] for one in pairs}) > 1 else ""


def _settings_note(pairs: Sequence[tuple[str, int, int, str, str]]) -> str:
    settings = sorted({_setting(pair) for pair in pairs})
    return f"{settings[0]}." if len(settings) == 1 else "Settings are in the section titles."


def transfer_pairs(results: Results) -> Table:
    """The four modes per pair and the two references on the target."""
    everything = _pairs(results)
    shown = [pair for pair in everything if pair[3:] in published_pairs()] or everything
    left_out = [pair for pair in everything if pair not in shown]
    modes = ("source-B", "random-B", "source-A", "random-A")
    rows: list[Row] = []
    for setting in sorted({pair[:3] for pair in shown}):
        pairs = [pair for pair in shown if pair[:3] == setting]
        backbone, rank, k = setting
        arms = (*(transfer(mode, rank) for mode in modes), BEST_DENSE, joint(rank))
        estimates: list[list[Estimate | None]] = []
        for index, pair in enumerate(pairs):
            references = [results.cell(backbone, pair[3], arm, k) for arm in arms[4:]]
            estimates.append([*(_transfer_cell(results, pair, mode) for mode in modes), *references])
            keys = [("transfer_pairs", backbone, pair[3], *arm, k, "accuracy", pair[4]) for arm in arms]
            cells = [_cell(estimate, key) for estimate, key in zip(estimates[-1], keys, strict=True)]
            new_target = index == 0 or pairs[index - 1][3] != pair[3]
            section = _section(shown, pair)
            rows.append(Row((pair[3], pair[4]), (*_mark_best(cells[:4]), *cells[4:]), section, rule=new_target))
        as_published = [pair[3:] for pair in pairs] == published_pairs()
        average = ("transfer_pairs", backbone, "Average")
        marks = [(*average, *arm, k, "accuracy", "") if as_published else None for arm in arms]
        means = [_cell(_mean(column), key) for column, key in zip(zip(*estimates, strict=True), marks, strict=True)]
        rows.append(Row(("Average", ""), (*_mark_best(means[:4]), *means[4:]), _section(shown, pairs[0]), rule=True))
    groups = ("Train A (freeze B)",) * 2 + ("Train B (freeze A)",) * 2 + ("Reference",) * 2
    labels = ("Src B", "Rand B", "Src A", "Rand A", "Dense", "Fact.")
    columns = tuple(Column(label, group) for label, group in zip(labels, groups, strict=True))
    notes = (
        [f"{_settings_note(shown)} Dense: the better of the context lengths; Fact.: both factors trained."]
        if shown
        else []
    )
    if left_out:
        names = "; ".join(f"{pair[3]} from {pair[4]}" for pair in left_out)
        notes.append(f"Left out here as in the paper, and in transfer_four_modes: {names}.")
    title = "Per-pair transfer: one factor is trained, the other is frozen at the source's or at random"
    return Table("transfer_pairs", title, ("Target", "Source"), columns, tuple(rows), tuple(notes))


def _mean(estimates: Iterable[Estimate | None]) -> Estimate | None:
    """Mean over the rows of a column; missing where a row is. Within each seed first, where there are seeds."""
    known = list(estimates)
    if not known or any(one is None for one in known):
        return None
    parts = [one for one in known if one is not None]
    mean = sum(one.mean for one in parts) / len(parts)
    runs = tuple(dict.fromkeys(run for one in parts for run in one.runs))
    seeds = sorted(set.intersection(*(set(one.by_seed) for one in parts)))
    by_seed = {seed: sum(one.by_seed[seed] for one in parts) / len(parts) for seed in seeds}
    sd = float(pd.Series(by_seed).std(ddof=1)) if len(by_seed) > 1 else None
    return Estimate(mean, sd, min(one.n for one in parts), runs, by_seed)


_AXIS_LABELS = {
    "seed": "Same config, diff. seeds",
    "dataset": "Diff. datasets, same seed",
    "shots": "Diff. shots, same seed",
    "rank": "Diff. ranks, same seed",
}
_AXIS_KEYS = {"seed": "seeds", "dataset": "datasets", "shots": "shots", "rank": "ranks"}


def factor_geometry(medians: pd.DataFrame | None) -> Table:
    """Median overlap and principal angle per factor for pairs that differ in one thing."""
    found = {} if medians is None else {(row["axis"], row["factor"]): row for row in medians.to_dict("records")}
    rows = []
    for index, axis in enumerate(AXES):
        cells: list[Cell] = []
        for metric, column, decimals, sign in (("overlap", "overlap", 2, 1.0), ("angle_deg", "angle", 1, -1.0)):
            group = []
            for factor in ("A", "B", "BA"):
                row = found.get((axis, factor))
                key = ("factor_geometry", "", "", _AXIS_KEYS[axis], factor, 0, 0, metric, "")
                value = float(row[column]) if row else None
                group.append(Cell(value, n=int(row.get("n", 0)) if row else 0, decimals=decimals, key=key))
            best = _mark_best(
                [replace(cell, value=None if cell.number is None else sign * cell.number) for cell in group]
            )
            cells += [replace(cell, bold=mark.bold) for cell, mark in zip(group, best, strict=True)]
        rows.append(Row((_AXIS_LABELS[axis],), tuple(cells), rule=index == 0))
    groups = ("Subspace overlap", "Principal angle (°)")
    columns = tuple(Column(factor, group) for group in groups for factor in ("A", "B", "BA"))
    counts = [f"{axis} {int(row['n'])}" for axis in AXES if (row := found.get((axis, "B"))) and "n" in row]
    notes = ["Medians over pairs of runs. B by columns, A and BA by rows. The most stable factor in bold."]
    notes += [f"Pairs: {', '.join(counts)}."] if counts else []
    title = "Factor geometry across independently trained runs"
    return Table("factor_geometry", title, ("Comparison",), columns, tuple(rows), tuple(notes))


def rank_sweep(results: Results) -> Table:
    """The joint factorisation on every dataset, for all ranks and backbones."""
    where: dict[str, Any] = {"metric": "accuracy", "method": "factorized", "basis": "trainable"}
    settings = [
        (rank, backbone)
        for rank in results.axis("rank", **where)
        for backbone in _backbones(results, resnet_first=True, **where)
    ]
    rows = []
    for dataset in results.axis("dataset", **where):
        for index, k in enumerate(results.axis("shots", **where)):
            cells = []
            for rank, backbone in settings:
                key = ("rank_sweep", backbone, dataset, *joint(rank), k, "accuracy", "")
                cells.append(_cell(results.cell(backbone, dataset, joint(rank), k), key, show_sd=True))
            rows.append(Row((dataset, str(k)), tuple(cells), rule=index == 0))
    columns = tuple(Column(backbone, f"Rank {rank}") for rank, backbone in settings)
    title = "Fully trainable factorized CoOp across datasets, shots, ranks and backbones: accuracy (%)"
    return Table("rank_sweep", title, ("Dataset", "Shots"), columns, tuple(rows))


def best_delta(results: Results) -> Table:
    """Per dataset and shots the best joint factorisation, and its distance to rank 4 and to dense."""
    where: dict[str, Any] = {"metric": "accuracy", "method": "factorized", "basis": "trainable"}
    reference, full = headline_rank(results, "accuracy"), full_length(results)
    rows = []
    for dataset in results.axis("dataset", **where):
        for index, k in enumerate(results.axis("shots", **where)):
            candidates = [
                (found, backbone, rank)
                for backbone in results.axis("backbone", **where)
                for rank in results.axis("rank", **where)
                if (found := results.cell(backbone, dataset, joint(rank), k))
            ]
            if not candidates:
                rows.append(Row((dataset, str(k)), (Cell(),) * 5, rule=index == 0))
                continue
            best, backbone, rank = max(candidates, key=lambda one: one[0].mean)
            at_reference = results.cell(backbone, dataset, joint(reference), k)
            small, large = (results.cell(backbone, dataset, dense(m), k) for m in (reference, full))
            deltas = (_difference(at_reference, best), _difference(best, small), _difference(best, large))
            names = ("delta_rank4_best", "delta_best_ctx4", "delta_best_ctx16")
            keys = [_key_of_best("best_delta", backbone, dataset, k, name) for name in ("best_accuracy", *names)]
            cells = [_cell(best, keys[0], show_sd=True), Cell(f"Rank {rank}, {backbone}")]
            cells += [_cell(delta, key, signed=True) for delta, key in zip(deltas, keys[1:], strict=True)]
            rows.append(Row((dataset, str(k)), tuple(cells), rule=index == 0))
    labels = (f"Δ Rank{reference}–Best", f"Δ Best–Ctx{reference}", f"Δ Best–Ctx{full}")
    columns = (Column("Best Factorized CoOp"), Column("Best Rank/Backbone"), *(Column(label) for label in labels))
    notes = (
        f"Ctx{reference}, Ctx{full}: dense CoOp with that many tokens, on the backbone of the best. Deltas in points.",
    )
    title = "Best factorized CoOp accuracy (%) and its distances"
    return Table("best_delta", title, ("Dataset", "Shots"), columns, tuple(rows), notes)


def _key_of_best(
    table: str, backbone: str, dataset: str, shots: int, metric: str, source: str = ""
) -> tuple[Any, ...] | None:
    """Where the paper prints it, whichever backbone, rank or mode is the best there; nothing for other backbones."""
    known = backbone in BACKBONE_TITLES.values()
    return (table, "", dataset, "", "", 0, shots, metric, source) if known else None


def transfer_four_modes(results: Results) -> Table:
    """All pairs in all four modes."""
    pairs = _pairs(results)
    rows = []
    for index, pair in enumerate(pairs):
        backbone, rank, k, target, source = pair
        cells = []
        for mode in MODES:
            key = ("transfer_four_modes", backbone, target, *transfer(mode, rank), k, "accuracy", source)
            cells.append(_cell(_transfer_cell(results, pair, mode), key, show_sd=True))
        rule = index == 0 or pairs[index - 1][:4] != pair[:4]
        rows.append(Row((target, source), tuple(_mark_best(cells)), _section(pairs, pair), rule=rule))
    title = "Transfer in four modes: accuracy (%) on the target"
    columns = tuple(Column(label) for label in MODES.values())
    notes = (_settings_note(pairs),) if pairs else ()
    return Table("transfer_four_modes", title, ("Target Dataset", "Source Dataset"), columns, tuple(rows), notes)


def transfer_best_delta(results: Results) -> Table:
    """The best of the four modes per pair, and its distance to dense and to the best joint factorisation."""
    pairs = _pairs(results)
    rows = []
    for index, pair in enumerate(pairs):
        backbone, _, k, target, source = pair
        modes = {mode: _transfer_cell(results, pair, mode) for mode in MODES}
        known = {mode: found for mode, found in modes.items() if found}
        best_mode = max(known, key=lambda mode: known[mode].mean)
        best = known[best_mode]
        ranks = results.axis("rank", backbone=backbone, method="factorized", basis="trainable", metric="accuracy")
        low = [found for r in ranks if (found := results.cell(backbone, target, joint(r), k))]
        deltas = {
            "delta_rand_freeze": _difference(modes["random-B"], modes["source-B"]),
            "delta_best_dense": _difference(best, results.cell(backbone, target, BEST_DENSE, k)),
            "delta_best_factorized": _difference(best, max(low, key=lambda one: one.mean, default=None)),
        }
        key = _key_of_best("transfer_best_delta", backbone, target, k, "best_accuracy", source)
        cells = [_cell(best, key, show_sd=True), Cell(MODES[best_mode])]
        for name, delta in deltas.items():
            key = _key_of_best("transfer_best_delta", backbone, target, k, name, source)
            cells.append(_cell(delta, key, signed=True))
        rule = index == 0 or pairs[index - 1][:4] != pair[:4]
        rows.append(Row((target, source), tuple(cells), _section(pairs, pair), rule=rule))
    labels = ("Best Transfer Result", "Best Mode", "Δ Rand–Freeze", "Δ Best–Dense", "Δ Best–Factorized")
    notes = (
        *((_settings_note(pairs),) if pairs else ()),
        "Rand–Freeze: frozen random B minus frozen source B. Dense, Factorized: the best of the lengths and ranks.",
    )
    title = "Best transfer result per pair: accuracy (%)"
    columns = tuple(Column(label) for label in labels)
    return Table("transfer_best_delta", title, ("Target Dataset", "Source Dataset"), columns, tuple(rows), notes)


def basis_ablation(results: Results, backbone: str, rank: int) -> Table:
    """The trainable and the four fixed bases on every dataset, at one backbone and rank."""
    where: dict[str, Any] = {"backbone": backbone, "metric": "accuracy", "method": "factorized", "rank": rank}
    rows = []
    for dataset in results.axis("dataset", **where):
        for index, k in enumerate(results.axis("shots", **where)):
            cells = []
            for basis in ABLATION_COLUMNS.values():
                key = ("b_ablation", backbone, dataset, *fixed_basis(basis, rank), k, "accuracy", "")
                cells.append(_cell(results.cell(backbone, dataset, fixed_basis(basis, rank), k), key, show_sd=True))
            key = ("b_ablation", backbone, dataset, *BEST_DENSE, k, "accuracy", "")
            reference = _cell(results.cell(backbone, dataset, BEST_DENSE, k), key, show_sd=True)
            rows.append(Row((dataset, str(k)), (reference, *_mark_best(cells)), rule=index == 0))
    columns = (Column("Dense CoOp Best"), *(Column(title) for title in ABLATION_COLUMNS))
    title = f"Token-side basis ablation, {backbone} at rank {rank}: accuracy (%)"
    notes = ("Dense CoOp is a reference: the better of its context lengths. Bold: best of the others.",)
    name = f"b_ablation_rank{rank}_{_slug(backbone)}"
    return Table(name, title, ("Dataset", "Shots"), columns, tuple(rows), notes)


def base_to_new_full(results: Results, backbone: str) -> Table:
    """Seen, unseen and H of all methods of the base-to-new study, on every dataset of one backbone."""
    full = full_length(results)
    arms = {"Dense CoOp": dense(full)}
    for title, basis in (("Factorized CoOp", "trainable"), ("Fixed Orthogonal B", "orthogonal")):
        where: dict[str, Any] = {"backbone": backbone, "metric": "harmonic", "method": "factorized", "basis": basis}
        arms |= {f"{title}, r={rank}": fixed_basis(basis, rank) for rank in results.axis("rank", **where)}
    shots = results.axis("shots", backbone=backbone, metric="harmonic")
    rows: list[Row] = []
    for dataset in results.axis("dataset", backbone=backbone, metric="harmonic"):
        block = []
        for arm in arms.values():
            keys = [("base2new_full", backbone, dataset, *arm, k, metric, "") for k in shots for metric in METRICS]
            found = [results.cell(backbone, dataset, arm, k, metric) for k in shots for metric in METRICS]
            block.append([_cell(one, key, show_sd=True) for one, key in zip(found, keys, strict=True)])
        for index, (label, cells) in enumerate(zip(arms, _mark_columns(block), strict=True)):
            rows.append(Row((dataset, label), tuple(cells), rule=index == 0))
    columns = tuple(Column(label, _shots_label(k)) for k in shots for label in ("Seen", "Unseen", "H"))
    title = f"Per-dataset base-to-new generalization on {backbone} (%)"
    notes = ("Trained on the seen half of the classes. H is that of each run, averaged.",)
    return Table(f"base_to_new_{_slug(backbone)}", title, ("Dataset", "Method"), columns, tuple(rows), notes)


def paper_tables(
    results: Results, medians: pd.DataFrame | None = None, *, compare_published: bool = False
) -> list[Table]:
    """The paper's tables in its order. `medians` is what `geometry` gives; ablations per backbone and rank found.

    With the paper's backbones and ranks these are its 19 tables.
    """
    whole: tuple[Callable[[Results], Table], ...] = (headline, base2new, fixed_b, transfer_pairs)
    appendix: tuple[Callable[[Results], Table], ...] = (
        rank_sweep,
        best_delta,
        transfer_four_modes,
        transfer_best_delta,
    )
    built = [build(results) for build in whole]
    built.append(factor_geometry(medians))
    built += [build(results) for build in appendix]
    where: dict[str, Any] = {"metric": "accuracy", "method": "factorized"}
    for rank in results.axis("rank", **where):
        for backbone in _backbones(results, resnet_first=True, rank=rank, **where):
            built.append(basis_ablation(results, backbone, rank))
    built += [base_to_new_full(results, name) for name in _backbones(results, resnet_first=True, metric="harmonic")]
    built = [_with_seeds_note(table) for table in built]
    return [with_published(table) for table in built] if compare_published else built


def _with_seeds_note(table: Table) -> Table:
    """Say how many seeds the numbers rest on, and how many numbers are missing."""
    if table.name == "factor_geometry":
        return table
    cells = [cell for row in table.rows for cell in row.cells]
    counts = sorted({cell.n for cell in cells if cell.number is not None})
    missing = sum(cell.value is None for cell in cells)
    notes = []
    if counts:
        notes.append(f"n = {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds per number.")
    if missing:
        notes.append(f"{missing} of {len(cells)} cells have no runs (—).")
    if not cells:
        notes.append("There are no runs for this table.")
    return replace(table, notes=(*table.notes, *notes))


def with_published(table: Table) -> Table:
    """The same table with the published number beside each number that the paper prints."""
    printed = printed_numbers()
    rows = []
    for row in table.rows:
        cells = []
        for cell in row.cells:
            found = printed.get(cell.key) if cell.key else None
            cells.append(replace(cell, published=found.mean, published_sd=found.sd) if found else cell)
        rows.append(replace(row, cells=tuple(cells)))
    note = "There are no published numbers for these cells."
    if any(cell.published is not None for row in rows for cell in row.cells):
        note = "In brackets: the published number and the difference; * where it exceeds √(sd² + published sd²)."
    return replace(table, rows=tuple(rows), compare=True, notes=(*table.notes, note))


@cache
def published_tables() -> list[Table]:
    """The paper's own tables, every number as printed. A note says where the printed cells give another number."""
    return [_as_printed(table) for table in paper_tables(published_results(), published_geometry())]


def _as_printed(table: Table) -> Table:
    printed = printed_numbers()
    rows, notes = [], []
    for row in table.rows:
        cells = []
        for column, cell in zip(table.columns, row.cells, strict=True):
            found = printed.get(cell.key) if cell.key else None
            if found and cell.number is not None and abs(cell.number - found.mean) > 0.5 * 10**-cell.decimals + 1e-9:
                where = ", ".join(part for part in (row.section, *row.labels, column.flat) if part)
                notes.append(f"{where}: printed {found.mean:.2f}, the printed cells give {cell.number:.3f}.")
            cells.append(replace(cell, value=found.mean, sd=found.sd) if found else cell)
        rows.append(replace(row, cells=tuple(cells)))
    return replace(table, rows=tuple(rows), notes=(*table.notes, *notes))
