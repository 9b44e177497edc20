"""Transfer: one factor is frozen at the values trained on a source dataset, or at random, and the other is trained."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from slimprompt.analysis.arms import BEST_DENSE, TRANSFER_MODES, Arm, joint, transfer
from slimprompt.analysis.results import CellKey, Estimate, Results, average, best_of
from slimprompt.paper.published import PrintedKey, best_key, published_pairs
from slimprompt.paper.tables.cells import dataset_cell, difference, make_cell
from slimprompt.report.table import Cell, Column, Row, Table, mark_best

#: Frozen factor → the paper's name of the mode, in the order of its appendix.
_MODES = {
    "source-A": "Freeze A, Train B",
    "source-B": "Freeze B, Train A",
    "random-A": "Freeze Random A, Train B",
    "random-B": "Freeze Random B, Train A",
}


class _Setting(NamedTuple):
    backbone: str
    rank: int
    shots: int

    @property
    def title(self) -> str:
        return f"{self.backbone}, rank {self.rank}, {self.shots}-shot"


class _Pair(NamedTuple):
    setting: _Setting
    target: str
    source: str

    def key(self, arm: Arm) -> CellKey:
        return CellKey(self.setting.backbone, self.target, *arm, self.setting.shots, source=self.source)

    def estimate(self, results: Results, arm: Arm) -> Estimate | None:
        return results.cell(self.setting.backbone, self.target, arm, self.setting.shots, source=self.source)


def _find_pairs(results: Results) -> list[_Pair]:
    """All transfer pairs; the sources of a target are in the paper's order, then alphabetical."""
    order = {pair: index for index, pair in enumerate(published_pairs("transfer_four_modes"))}
    found = {
        _Pair(_Setting(key.backbone, key.rank, key.shots), key.dataset, key.source)
        for key in results.cells
        if key.basis in ("source-A", "source-B") and key.source
    }

    def position(pair: _Pair) -> tuple[_Setting, str, int, str]:
        return pair.setting, pair.target, order.get((pair.target, pair.source), len(order)), pair.source

    return sorted(found, key=position)


def _row(pairs: Sequence[_Pair], index: int, cells: Sequence[Cell]) -> Row:
    """The row of one pair; a rule separates targets."""
    pair = pairs[index]
    new_target = index == 0 or (pairs[index - 1].setting, pairs[index - 1].target) != (pair.setting, pair.target)
    return Row((pair.target, pair.source), tuple(cells), _section(pairs, pair.setting), rule=new_target)


def _section(pairs: Sequence[_Pair], setting: _Setting) -> str:
    """Title above the rows, needed only if there are several settings."""
    return setting.title if len({pair.setting for pair in pairs}) > 1 else ""


def _settings_note(pairs: Sequence[_Pair]) -> str:
    titles = sorted({pair.setting.title for pair in pairs})
    return f"{titles[0]}." if len(titles) == 1 else "The section titles give the settings."


def transfer_pairs(results: Results) -> Table:
    """The four modes per pair, and dense and joint prompts of the target as references."""
    every = _find_pairs(results)
    shown = [pair for pair in every if (pair.target, pair.source) in published_pairs()] or every
    rows: list[Row] = []
    for setting, group in groupby(shown, key=lambda pair: pair.setting):
        pairs = list(group)
        arms = (*(transfer(mode, setting.rank) for mode in TRANSFER_MODES), BEST_DENSE, joint(setting.rank))
        for pair in pairs:
            cells = [dataset_cell(results, "transfer_pairs", pair.key(arm), show_sd=False) for arm in arms]
            rows.append(_row(shown, shown.index(pair), _mark_modes(cells)))
        as_published = [(pair.target, pair.source) for pair in pairs] == published_pairs()
        averages = []
        for arm in arms:
            key = PrintedKey("transfer_pairs", CellKey(setting.backbone, "Average", *arm, setting.shots))
            over_pairs = average(pair.estimate(results, arm) for pair in pairs)
            averages.append(make_cell(over_pairs, key if as_published else None))
        rows.append(Row(("Average", ""), tuple(_mark_modes(averages)), _section(shown, setting), rule=True))
    groups = ("Train A (freeze B)",) * 2 + ("Train B (freeze A)",) * 2 + ("Reference",) * 2
    labels = ("Src B", "Rand B", "Src A", "Rand A", "Dense", "Fact.")
    columns = tuple(Column(label, group) for label, group in zip(labels, groups, strict=True))
    notes = []
    if shown:
        notes.append(f"{_settings_note(shown)} Dense: the better of the context lengths; Fact.: both factors trained.")
    if omitted := [f"{pair.target} from {pair.source}" for pair in every if pair not in shown]:
        notes.append(f"Omitted here as in the paper, listed in transfer_four_modes: {'; '.join(omitted)}.")
    title = "Per-pair transfer: one factor is trained, the other is frozen at the source's values or at random"
    return Table("transfer_pairs", title, ("Target", "Source"), columns, tuple(rows), tuple(notes))


def _mark_modes(cells: Sequence[Cell]) -> list[Cell]:
    """The best mode in bold; the references after the modes do not take part."""
    n = len(TRANSFER_MODES)
    return [*mark_best(cells[:n]), *cells[n:]]


def transfer_four_modes(results: Results) -> Table:
    """All pairs in all four modes."""
    pairs = _find_pairs(results)
    rows = []
    for index, pair in enumerate(pairs):
        keys = [pair.key(transfer(mode, pair.setting.rank)) for mode in _MODES]
        cells = mark_best([dataset_cell(results, "transfer_four_modes", key) for key in keys])
        rows.append(_row(pairs, index, cells))
    title = "Transfer in four modes: accuracy (%) on the target"
    columns = tuple(Column(label) for label in _MODES.values())
    notes = (_settings_note(pairs),) if pairs else ()
    return Table("transfer_four_modes", title, ("Target Dataset", "Source Dataset"), columns, tuple(rows), notes)


def transfer_best_delta(results: Results) -> Table:
    """The best of the four modes per pair, and its differences to dense and to the best joint prompt."""
    pairs = _find_pairs(results)
    rows = [_row(pairs, index, _best_cells(results, pair)) for index, pair in enumerate(pairs)]
    labels = ("Best Transfer Result", "Best Mode", "Δ Rand–Freeze", "Δ Best–Dense", "Δ Best–Factorized")
    notes = (
        *((_settings_note(pairs),) if pairs else ()),
        "Rand–Freeze: frozen random B minus frozen source B. Dense, Factorized: the best over lengths and ranks.",
    )
    title = "Best transfer result per pair: accuracy (%)"
    columns = tuple(Column(label) for label in labels)
    return Table("transfer_best_delta", title, ("Target Dataset", "Source Dataset"), columns, tuple(rows), notes)


def _best_cells(results: Results, pair: _Pair) -> list[Cell]:
    backbone, rank, _ = pair.setting
    modes = {mode: pair.estimate(results, transfer(mode, rank)) for mode in _MODES}
    known = {mode: found for mode, found in modes.items() if found}
    best_mode = best_of(known)
    if best_mode is None:
        return [Cell()] * 5
    best = known[best_mode]
    ranks = results.axis("rank", backbone=backbone, method="factorized", basis="trainable", metric="accuracy")
    low = {r: found for r in ranks if (found := pair.estimate(results, joint(r)))}
    best_rank = best_of(low)
    deltas = {
        "delta_rand_freeze": difference(modes["random-B"], modes["source-B"]),
        "delta_best_dense": difference(best, pair.estimate(results, BEST_DENSE)),
        "delta_best_factorized": difference(best, None if best_rank is None else low[best_rank]),
    }

    def key(metric: str) -> PrintedKey:
        return best_key("transfer_best_delta", pair.key(transfer(best_mode, rank))._replace(metric=metric))

    return [
        make_cell(best, key("best_accuracy"), show_sd=True),
        Cell(_MODES[best_mode]),
        *(make_cell(delta, key(name), signed=True) for name, delta in deltas.items()),
    ]
