"""The best low-rank prompt of each dataset, and its differences to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from slimprompt.analysis.frame import (
    BACKBONE_TITLES,
    CELL,
    HOW,
    Measurements,
    axis,
    best,
    dense,
    full_length,
    headline_rank,
    joint,
    select,
)
from slimprompt.paper.published import with_printed
from slimprompt.paper.tables.pivots import joined, of_datasets
from slimprompt.report.table import Pivot, Table, difference, entries

_PLACE = ("backbone", "dataset", "shots")


def best_delta(results: Measurements) -> Table:
    """The best rank and backbone per dataset and shots, and its differences to the headline rank and to dense."""
    frame, runs = of_datasets(select(results.frame, metric="accuracy")), results.runs
    trained = select(frame, variant="joint")
    ranks = {name: headline_rank(frame, name) for name in axis(trained, "backbone")}
    lengths = {name: full_length(results.frame, name) for name in ranks}
    winner = best(trained, ["backbone", *HOW])

    def of_labels(labels: Mapping[str, str]) -> pd.DataFrame:
        return pd.concat([frame.iloc[:0], *(select(frame, backbone=name, label=one) for name, one in labels.items())])

    reference = of_labels({name: joint(rank) for name, rank in ranks.items()})
    short = of_labels({name: dense(rank) for name, rank in ranks.items()})
    long = of_labels({name: dense(length) for name, length in lengths.items()})
    r, m = joined(ranks.values()), joined(lengths.values())
    titles = {"best": "Best Factorized CoOp", "which": "Best Rank/Backbone", "reference": f"Δ Rank{r}–Best"}
    titles |= {"short": f"Δ Best–Ctx{r}", "long": f"Δ Best–Ctx{m}"}
    parts = [
        entries(winner, runs, show_sd=True).assign(what="best", metric="best_accuracy"),
        difference(reference, winner, _PLACE, runs, what="reference"),
        difference(winner, short, _PLACE, runs, what="short"),
        difference(winner, long, _PLACE, runs, what="long"),
    ]
    # The names carry rank and length, so that only the paper's own ones have published numbers.
    for part, text, sizes in zip(
        parts[1:], ("delta_rank{}_best", "delta_best_ctx{}", "delta_best_ctx{}"), (ranks, ranks, lengths), strict=True
    ):
        part["metric"] = [text.format(sizes[name]) for name in part["backbone"]]
    which = parts[0][list(CELL)].assign(what="which", metric="")
    which["text"] = [f"Rank {row.rank}, {row.backbone}" for row in which.itertuples()]
    found = pd.concat([*parts, which, undecided(trained, parts[0], ("dataset", "shots"))], ignore_index=True)
    found = with_printed(found, "best_delta", on=("dataset", "shots", "metric"))
    if "published" in found:
        # The paper's best is that of both backbones, and always on ViT-B/16, so runs on RN50 alone have nothing to compare with.
        compared = set(select(trained, backbone="ViT-B/16").reset_index()[["dataset", "shots"]].itertuples(index=False))
        places = zip(found["dataset"], found["shots"], strict=True)
        covered = pd.Series([place in compared for place in places], found.index)
        of_paper = found["backbone"].isin(BACKBONE_TITLES.values()) & covered
        found.loc[~of_paper, ["published", "published_sd"]] = float("nan")
    return Pivot(
        "best_delta",
        f"Best factorized CoOp accuracy (%) and its differences to rank {r} and to dense CoOp",
        {"Dataset": "{dataset}", "Shots": "{shots}"},
        "{what}",
        titles={"what": titles},
        notes=(
            f"Ctx{r}, Ctx{m}: dense CoOp with that many tokens on the backbone of the best. Differences in points.",
        ),
    ).of(found)


def undecided(candidates: pd.DataFrame, found: pd.DataFrame, place: Sequence[str]) -> pd.DataFrame:
    """Empty entries of the places whose best is not known, because the candidates have no common seeds."""
    places = candidates.reset_index()[list(place)].drop_duplicates()
    known = set(found[list(place)].itertuples(index=False, name=None))
    missing = [row not in known for row in places.itertuples(index=False, name=None)]
    return places[missing].assign(what="best")
