"""Transfer: one factor is frozen at the values trained on a source dataset, or at random, and the other is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from slimprompt.analysis.frame import AVERAGE, BEST_DENSE, CELL, HOW, Measurements, axis, best, select
from slimprompt.paper.published import published_pairs, with_printed
from slimprompt.paper.tables.best import undecided
from slimprompt.paper.tables.pivots import of_datasets
from slimprompt.report.table import Pivot, Table, difference, entries

#: Frozen factor and its origin → column of the main table, in its order.
_SIDES = {
    "fixed-B source": ("Src B", "Train A (freeze B)"),
    "fixed-B random": ("Rand B", "Train A (freeze B)"),
    "fixed-A source": ("Src A", "Train B (freeze A)"),
    "fixed-A random": ("Rand A", "Train B (freeze A)"),
    "dense best": ("Dense", "Reference"),
    "joint": ("Fact.", "Reference"),
}
#: The same modes → the paper's name, in the order of its appendix.
_MODES = {
    "fixed-A source": "Freeze A, Train B",
    "fixed-B source": "Freeze B, Train A",
    "fixed-A random": "Freeze Random A, Train B",
    "fixed-B random": "Freeze Random B, Train A",
}
#: Sources in an order that gives those of each target in the paper's.
_SOURCES = ("", "DTD", "FGVC Aircraft", "Oxford Flowers", "Caltech101", "Food101", "Oxford Pets", "UCF101")
#: One transfer: what all its modes and references have in common.
_PAIR = ("backbone", "dataset", "shots", "source", "setting")


def _pair_cells(results: Measurements) -> Measurements:
    """The cells of all transfers, with the rank of the transfer as the level "setting" and the mode as "mode".

    The cells that do not depend on a source (random factors, the best dense and the joint prompts of the target) stand once per source.
    """
    results = results._replace(frame=of_datasets(select(results.frame, metric="accuracy"))).with_best_dense()
    frame = results.frame
    both = frame.join(results.runs.rename("runs")) if results.runs is not None else frame.assign(runs=None)
    sourced = select(both, variant=["fixed-A", "fixed-B"], basis="source").reset_index()
    sourced["setting"] = sourced["rank"]
    random = select(both, variant=["fixed-A", "fixed-B"], basis="random").reset_index().drop(columns="source")
    pairs = sourced[list(_PAIR)].drop_duplicates()
    places = ["backbone", "dataset", "shots"]
    random = pairs.merge(random.assign(setting=random["rank"]), on=[*places, "setting"])
    others = pd.concat([select(both, variant="joint"), select(both, label=BEST_DENSE)]).reset_index()
    found = pd.concat([sourced, random, pairs.merge(others.drop(columns="source"), on=places)])
    found["mode"] = (found["variant"] + " " + found["basis"]).str.strip()
    found = found.set_index([*CELL, "setting", "mode"]).sort_index()
    runs = found["runs"].droplevel(["setting", "mode"]) if results.runs is not None else None
    return Measurements(found.drop(columns="runs").astype(float), runs)


def _shown_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """The modes, the best dense prompt, and the joint prompt of the rank of the transfer."""
    rank, setting = (frame.index.get_level_values(name) for name in ("rank", "setting"))
    return frame[(frame.index.get_level_values("mode") != "joint") | (rank == setting)]


def _pivot(
    name: str, title: str, column: str, found: pd.DataFrame, notes: Iterable[str], **titles: Mapping[str, str]
) -> Pivot:
    """A table with one row per target and source, and with the settings if there are several."""
    settings = _settings(found)
    place = {"Setting": "{backbone}, rank {setting}, {shots}-shot"} if len(settings) > 1 else {}
    targets, sources = (list(dict.fromkeys(found[name])) if settings else [] for name in ("dataset", "source"))
    order: dict[str, Mapping[str, str]] = {
        "dataset": {name: name for name in (*sorted(set(targets) - {AVERAGE}), AVERAGE)},
        "source": {name: name for name in (*_SOURCES, *sorted(set(sources) - set(_SOURCES)))},
    }
    about = [f"{settings[0]}."] if len(settings) == 1 else ["The first column gives the settings."] if settings else []
    rows = {**place, "Target": "{dataset}", "Source": "{source}"}
    return Pivot(name, title, rows, column, titles=order | titles, notes=(*about, *notes))


def _settings(found: pd.DataFrame) -> list[str]:
    if found.empty:
        return []
    rows = found[["backbone", "setting", "shots"]].drop_duplicates()
    return [f"{row.backbone}, rank {row.setting}, {row.shots}-shot" for row in rows.itertuples()]


def transfer_pairs(results: Measurements) -> Table:
    """The four modes per pair, and dense and joint prompts of the target as references."""
    measured = _pair_cells(results)
    frame = _shown_cells(measured.frame)
    every = frame.index.to_frame(index=False)[["dataset", "source"]].drop_duplicates()
    pairs = list(every.itertuples(index=False, name=None))
    of_paper = published_pairs()
    shown = [pair for pair in pairs if pair in of_paper] or pairs
    targets = zip(*(frame.index.get_level_values(name) for name in ("dataset", "source")), strict=True)
    frame = frame[[pair in shown for pair in targets]]
    how: dict[str, Any] = {"along": (*HOW, "mode"), "among": {"mode": list(_MODES)}}
    parts = [with_printed(entries(frame, measured.runs, **how), "transfer_pairs")]
    for _, group in frame.groupby(level=["backbone", "setting", "shots"]):
        parts.append(_average(group, measured.runs, how))
    found = pd.concat(parts, ignore_index=True)
    found["side"] = [_SIDES[mode][1] for mode in found["mode"]]
    notes = ["Dense: the better of the context lengths; Fact.: both factors trained."] if len(frame) else []
    if omitted := [f"{target} from {source}" for target, source in sorted(pairs) if (target, source) not in shown]:
        notes.append(f"Omitted here as in the paper, listed in transfer_four_modes: {'; '.join(omitted)}.")
    title = "Per-pair transfer: one factor is trained, the other is frozen at the source's values or at random"
    titles = {
        "mode": {mode: label for mode, (label, _) in _SIDES.items()},
        "side": {side: side for _, side in _SIDES.values()},
    }
    pivot = _pivot("transfer_pairs", title, "{mode}", found, notes, **titles)
    return pivot._replace(group="{side}", complete=False).of(found)


def _average(frame: pd.DataFrame, runs: pd.Series | None, how: Mapping[str, Any]) -> pd.DataFrame:
    """The averages over the pairs of one setting, which take the place of datasets here."""
    pairs = _as_datasets(frame)
    datasets = {name: axis(pairs, "dataset", backbone=name) for name in axis(pairs, "backbone")}
    found = entries(pairs, None if runs is None else _as_datasets(runs), datasets=datasets, **how)
    as_published = {tuple(pair.split(" from ")) for pair in axis(pairs, "dataset")} == set(published_pairs())
    return with_printed(found, "transfer_pairs") if as_published else found


def _as_datasets(cells: Any) -> Any:
    """The cells, or their runs, with "target from source" as their dataset, and no source."""
    levels = cells.index.to_frame(index=False)
    levels["dataset"], levels["source"] = levels["dataset"] + " from " + levels["source"], ""
    return cells.set_axis(pd.MultiIndex.from_frame(levels))


def transfer_four_modes(results: Measurements) -> Table:
    """All pairs in all four modes."""
    measured = _pair_cells(results)
    modes = select(measured.frame, mode=list(_MODES))
    found = with_printed(entries(modes, measured.runs, along=(*HOW, "mode"), show_sd=True), "transfer_four_modes")
    title = "Transfer in four modes: accuracy (%) on the target"
    return _pivot("transfer_four_modes", title, "{mode}", found, (), mode=_MODES).of(found)


def transfer_best_delta(results: Measurements) -> Table:
    """The best of the four modes per pair, and its differences to dense and to the best joint prompt."""
    measured = _pair_cells(results)
    frame, runs, along = measured.frame, measured.runs, (*HOW, "mode")
    modes = select(frame, mode=list(_MODES))
    winner = best(modes, along)
    parts = [
        entries(winner, runs, show_sd=True).assign(what="best", metric="best_accuracy"),
        difference(
            select(frame, mode="fixed-B random"),
            select(frame, mode="fixed-B source"),
            _PAIR,
            runs,
            what="freeze",
            metric="delta_rand_freeze",
        ),
        difference(winner, select(frame, mode="dense best"), _PAIR, runs, what="dense", metric="delta_best_dense"),
        difference(
            winner, best(select(frame, mode="joint"), along), _PAIR, runs, what="joint", metric="delta_best_factorized"
        ),
    ]
    which = parts[0][[*_PAIR, "rank", "mode"]].assign(what="which", metric="")
    which["text"] = which["mode"].map(_MODES)
    open_ends = undecided(modes, parts[0], _PAIR)
    of_pair = ("backbone", "dataset", "shots", "metric", "source", "rank")
    titles = {"best": "Best Transfer Result", "which": "Best Mode", "freeze": "Δ Rand–Freeze"}
    titles |= {"dense": "Δ Best–Dense", "joint": "Δ Best–Factorized"}
    found = with_printed(pd.concat([*parts, which, open_ends], ignore_index=True), "transfer_best_delta", on=of_pair)
    note = "Rand–Freeze: frozen random B minus frozen source B. Dense, Factorized: the best over lengths and ranks."
    title = "Best transfer result per pair: accuracy (%)"
    return _pivot("transfer_best_delta", title, "{what}", found, (note,), what=titles).of(found)
