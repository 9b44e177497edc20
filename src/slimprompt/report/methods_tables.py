"""Tables that compare methods: accuracy by shots, base-to-new, other datasets by name only, and the origin of the basis.

The key of a cell is the tuple of the `CellKey`s that it averages, so that published numbers can be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

from slimprompt.analysis.arms import Arm, arm_label, arm_of
from slimprompt.analysis.methods import Costs, average_cost, cross_dataset_average, method_arms, transfer_average
from slimprompt.analysis.results import CellKey, Estimate, Results
from slimprompt.analysis.selection import best_covered, headline_rank
from slimprompt.lab.spec import RunSpec
from slimprompt.lab.studies import BASIS_ROWS, DEPTH, BasisRow
from slimprompt.report.table import Cell, Column, Row, Table, mark_columns

_METRICS = {"seen": "Base", "unseen": "New", "harmonic": "H"}
_SPREAD = "Percent: mean ± standard deviation over seeds; an average is over the datasets within each seed first."
_COST = (
    "Trained numbers and training time (without encoding images), averaged over datasets and seeds, at {shots} shots. In a prompt "
    "batch the time is divided by the number of prompts."
)
_NO_NAMES = "A dash: there are no runs, or the method learned its classes from their images and takes no new names."


def methods_tables(results: Results, costs: Costs) -> list[Table]:
    """All tables that compare methods; empty if there are no runs of other methods or of prompts beyond the paper.

    Parameters
    ----------
    results
        Cells of runs.
    costs
        Result of `slimprompt.analysis.methods.costs`.
    """
    built = [
        methods_by_shots(results, costs),
        methods_base_to_new(results),
        cross_dataset(results),
        basis_transfer(results),
        methods_by_dataset(results),
        methods_base_to_new(results, by_dataset=True),
    ]
    return [table for table in built if not table.empty]


def methods_by_shots(results: Results, costs: Costs) -> Table:
    """Accuracy of every method by shots, averaged over datasets, with what it costs at the highest number of shots."""
    arms, shots = method_arms(results).all, _shots(results, ("accuracy",))
    rows: list[Row] = []
    used: dict[str, list[str]] = {}
    for backbone in results.axis("backbone", metric="accuracy") if arms else ():
        datasets = best_covered(results, backbone, [(arm, k) for arm in arms for k in shots], "accuracy")
        used[backbone] = datasets
        cells = [[_average(results, backbone, datasets, arm, k, "accuracy") for k in shots] for arm in arms]
        for index, (arm, mine) in enumerate(zip(arms, mark_columns(cells), strict=True)):
            cost = average_cost(costs, backbone, datasets, arm, shots[-1])
            price = (Cell(cost.trained, decimals=0), Cell(cost.seconds)) if cost else (Cell(), Cell())
            rows.append(Row((backbone, arm_label(arm)), (*mine, *price), rule=index == 0))
    group = f"At {shots[-1]} shots" if shots else ""
    columns = (*_shot_columns(shots), Column("Trained numbers", group), Column("Seconds", group))
    averaged = [f"{backbone}: average over {', '.join(datasets)}." for backbone, datasets in used.items()]
    notes = (_SPREAD, *averaged, *([_COST.format(shots=shots[-1])] if shots else []))
    return Table("methods", "Methods by shots", ("Backbone", "Method"), columns, _filled(rows), notes)


def methods_by_dataset(results: Results) -> Table:
    """Accuracy of every method by shots on each dataset."""
    arms, shots = method_arms(results).all, _shots(results, ("accuracy",))
    rows: list[Row] = []
    for backbone in results.axis("backbone", metric="accuracy") if arms else ():
        for dataset in results.axis("dataset", backbone=backbone, metric="accuracy"):
            cells = [[_average(results, backbone, [dataset], arm, k, "accuracy") for k in shots] for arm in arms]
            for index, (arm, mine) in enumerate(zip(arms, mark_columns(cells), strict=True)):
                rows.append(Row((backbone, dataset, arm_label(arm)), mine, rule=index == 0))
    headers = ("Backbone", "Dataset", "Method")
    title = "Methods by shots on each dataset"
    return Table("methods_by_dataset", title, headers, _shot_columns(shots), _filled(rows), (_SPREAD,))


def methods_base_to_new(results: Results, *, by_dataset: bool = False) -> Table:
    """Accuracy on base and new classes, and H, averaged over datasets or on each dataset."""
    arms, shots = method_arms(results, "seen").all, _shots(results, tuple(_METRICS))
    rows: list[Row] = []
    for backbone in results.axis("backbone", metric="seen") if arms else ():
        present = results.axis("dataset", backbone=backbone, metric="seen")
        covered = best_covered(results, backbone, [(arm, k) for arm in arms for k in shots], "seen")
        for datasets in [[one] for one in present] if by_dataset else [covered]:
            cells = [
                [_average(results, backbone, datasets, arm, k, metric) for k in shots for metric in _METRICS]
                for arm in arms
            ]
            for index, (arm, mine) in enumerate(zip(arms, mark_columns(cells), strict=True)):
                labels = (backbone, *(datasets if by_dataset else ()), arm_label(arm))
                rows.append(Row(labels, mine, rule=index == 0))
    columns = tuple(Column(label, f"{k}-shot") for k in shots for label in _METRICS.values())
    headers = ("Backbone", *(("Dataset",) if by_dataset else ()), "Method")
    name = "methods_base_to_new" + ("_by_dataset" if by_dataset else "")
    title = "Methods on base and new classes" + (" of each dataset" if by_dataset else "")
    filled = _filled(rows)
    dashes = any(cell.value is None for row in filled for cell in row.cells)
    notes = ("Trained on the base half of the classes, tested on each half.", *([_NO_NAMES] if dashes else []), _SPREAD)
    return Table(name, title, headers, columns, filled, notes)


def cross_dataset(results: Results) -> Table:
    """Accuracy on the dataset that was trained on, on the others by the names of their classes, and their average."""
    metric = "cross_dataset"
    others = results.axis("dataset", metric=metric)
    arms = method_arms(results, metric).all
    rows: list[Row] = []
    for backbone in results.axis("backbone", metric=metric) if arms else ():
        for source in results.axis("source", backbone=backbone, metric=metric):
            for k in results.axis("shots", backbone=backbone, metric=metric, source=source):
                cells = [_cross_cells(results, backbone, source, others, arm, k) for arm in arms]
                for index, (arm, mine) in enumerate(zip(arms, mark_columns(cells), strict=True)):
                    rows.append(Row((backbone, source, str(k), arm_label(arm)), mine, rule=index == 0))
    columns = (
        Column("Source"),
        *(Column(name, "Other datasets") for name in others),
        Column("Average", "Other datasets"),
    )
    headers = ("Backbone", "Trained on", "Shots", "Method")
    notes = (
        "Trained on all classes of one dataset. The others are classified by the names of their classes only, without their images.",
        _SPREAD,
    )
    return Table(metric, "Other datasets by name only", headers, columns, _filled(rows), notes)


def _cross_cells(
    results: Results, backbone: str, source: str, others: Sequence[str], arm: Arm, shots: int
) -> list[Cell]:
    own = results.cell(backbone, source, arm, shots, "source_accuracy", source)
    each = {name: results.cell(backbone, name, arm, shots, "cross_dataset", source) for name in others}
    evaluated = results.axis("dataset", metric="cross_dataset", source=source, backbone=backbone)
    average = cross_dataset_average(results, backbone, source, evaluated, arm, shots)
    return [_cell(own), *(_cell(each[name]) for name in others), _cell(average)]


def basis_transfer(results: Results) -> Table:
    """Accuracy by the origin of B and the depth at which it is used; empty without a B that was learned at another depth."""
    rank, used_at = headline_rank(results, "accuracy"), (1, DEPTH)
    arms = {row.title: [_basis_arm(row, rank, depth) for depth in used_at] for row in BASIS_ROWS}
    moved = {_basis_arm(row, rank, depth) for row in BASIS_ROWS for depth in used_at if row.moves(depth)}
    cells = {(key.backbone, key.shots) for key in results.cells if key.arm in moved}
    rows: list[Row] = []
    used: dict[str, list[str]] = {}
    for backbone, k in sorted(cells):
        datasets = sorted({key.dataset for key in results.cells if key.arm in moved and key.backbone == backbone})
        used[backbone] = datasets
        found = [
            [_cell(transfer_average(results, backbone, datasets, arm, k)) for arm in pair] for pair in arms.values()
        ]
        for index, (title, mine) in enumerate(zip(arms, mark_columns(found), strict=True)):
            rows.append(Row((backbone, str(k), title), mine, rule=index == 0))
    columns = tuple(Column(f"depth {depth}", "Used at") for depth in used_at)
    averaged = [f"{backbone}: average over {', '.join(datasets)}." for backbone, datasets in used.items()]
    about = (
        f"Prompts P_l = B A_l of rank {rank}, l = 0 … depth − 1, with one B; A is always trained on the dataset itself."
    )
    headers = ("Backbone", "Shots", "Basis B")
    return Table(
        "basis_transfer",
        "One basis across layers and datasets",
        headers,
        columns,
        _filled(rows),
        (about, _SPREAD, *averaged),
    )


def _basis_arm(row: BasisRow, rank: int, depth: int) -> Arm:
    source = {"source": "source"} if row.fields.get("basis") == "source" else {}
    return arm_of(
        RunSpec(backbone="any", dataset="any", shots=1, seed=1, rank=rank, depth=depth, **row.fields, **source)
    )


def _average(results: Results, backbone: str, datasets: Sequence[str], arm: Arm, shots: int, metric: str) -> Cell:
    keys = tuple(CellKey(backbone, dataset, *arm, shots, metric) for dataset in datasets)
    return _cell(results.macro(backbone, datasets, arm, shots, metric), keys)


def _cell(estimate: Estimate | None, keys: tuple[CellKey, ...] = ()) -> Cell:
    if estimate is None:
        return Cell(decimals=1, key=keys)
    numbers = (estimate.mean, estimate.sd, estimate.n, estimate.runs)
    return Cell(*numbers, decimals=1, show_sd=True, key=keys, estimate=estimate)


def _shots(results: Results, metrics: Sequence[str]) -> list[int]:
    """Numbers of shots at which an arm of a comparison of methods has results."""
    found: set[int] = set()
    for metric in metrics:
        for arm in method_arms(results, metric).all:
            found.update(results.axis("shots", metric=metric, **arm._asdict()))
    return sorted(found)


def _shot_columns(shots: Sequence[int]) -> tuple[Column, ...]:
    return tuple(Column(str(k), "Accuracy by shots") for k in shots)


def _filled(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with at least one number."""
    return tuple(row for row in rows if any(cell.value is not None for cell in row.cells))
