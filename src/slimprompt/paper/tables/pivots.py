"""The paper's tables of accuracies: pivots of the cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from slimprompt.analysis.frame import (
    AVERAGE,
    BEST_DENSE,
    HOW,
    Measurements,
    axis,
    dense,
    fixed_b,
    full_length,
    joint,
    main_labels,
    select,
    sorted_backbones,
)
from slimprompt.paper.published import with_printed
from slimprompt.prompts.spec import FIXED_BASES
from slimprompt.report.table import Pivot, Table, difference, entries
from slimprompt.user_functions import is_user_function

#: Levels that differ between the bases of one rank.
_BASES = ("label", "variant", "basis")
_METRICS = {"seen": "S", "unseen": "U", "harmonic": "H"}
_PER_DATASET = {"Dataset": "{dataset}", "Shots": "{shots}"}


def few_shot_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracies of dense and low-rank prompts on all classes, without transfers and prompts beyond the paper."""
    own = own_bases(frame, metric="accuracy")
    bases = ["", *FIXED_BASES, *own]
    return select(frame, metric="accuracy", variant=["dense", "joint", "fixed-B"], basis=bases)


def low_rank_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Those of `few_shot_cells` with a low-rank prompt."""
    return select(few_shot_cells(frame), variant=["joint", "fixed-B"])


def own_bases(frame: pd.DataFrame, **where: Any) -> list[str]:
    """The fixed bases of the user's own, `module:function`, of the cells that match `where`."""
    return [basis for basis in axis(frame, "basis", variant="fixed-B", **where) if is_user_function(basis)]


def datasets_by_backbone(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Backbone → its datasets."""
    return {name: axis(frame, "dataset", backbone=name) for name in axis(frame, "backbone")}


def with_roles(frame: pd.DataFrame, roles: Iterable[str], metrics: Sequence[str]) -> pd.DataFrame:
    """The cells of the main comparison (see `main_labels`) with their role as a further level.

    All metrics are represented by the rank that the last of them has.
    """
    parts = [pd.concat({"": frame.iloc[:0]}, names=["role"])]
    for backbone in axis(frame, "backbone", metric=metrics[-1]):
        labels = main_labels(frame, backbone, metrics[-1])
        for role in (role for role in roles if role in labels):
            chosen = select(frame, backbone=backbone, label=labels[role], metric=list(metrics))
            parts.append(pd.concat({role: chosen}, names=["role"]))
    return pd.concat(parts)


def joined(values: Iterable[Any]) -> str:
    """The distinct values, such as the ranks of several backbones: "4", or "4 / 8"."""
    return " / ".join(str(value) for value in sorted(set(values)))


def backbones_in_order(frame: pd.DataFrame, *, resnet_first: bool) -> dict[Any, str]:
    """The titles of a table's backbones, in its order."""
    return {name: name for name in sorted_backbones(frame, resnet_first=resnet_first)}


def headline(results: Measurements) -> Table:
    """Dense of full length, dense of r tokens and low rank r, averaged over the datasets."""
    few_shot = few_shot_cells(results.frame)
    roles = with_roles(few_shot, ("dense", "dense short", "trainable"), ["accuracy"])
    datasets = datasets_by_backbone(few_shot)
    found = entries(roles, results.runs, datasets=datasets, along=("role", *HOW))
    ranks = {role: joined(found.loc[found["role"] == role, "rank"]) for role in dict.fromkeys(found["role"])}
    short = ranks.get("dense short", ranks.get("dense", ""))
    names = {"dense": "Dense-{}", "dense short": "Dense-{}", "trainable": "Fact. r={}"}
    titles = {role: names[role].format(ranks[role]) for role in names if role in ranks} | {"delta": "Δ"}
    found = pd.concat([found, _gain_over_short_dense(roles, results.runs, datasets)], ignore_index=True)
    pivot = Pivot(
        "headline",
        "Low-rank factorization against dense CoOp: mean accuracy (%) over the datasets",
        {"Backbone": "{backbone}", "Shots": "{shots}"},
        "{role}",
        titles={"backbone": backbones_in_order(few_shot, resnet_first=False), "role": titles},
        notes=(
            f"Δ is factorized minus Dense-{short}. In brackets: trainable parameters.",
            *_ranks_note(found),
            datasets_note(few_shot),
        ),
    )
    return pivot.of(with_printed(found, "headline", datasets), _counts(results, found, titles))


def _gain_over_short_dense(
    roles: pd.DataFrame, runs: pd.Series | None, datasets: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Δ of the headline table, with the labels of the low-rank prompt."""
    has_short = axis(roles, "backbone", role="dense short")
    others = [name for name in datasets if name not in has_short]
    short = pd.concat([select(roles, role="dense short"), select(roles, role="dense", backbone=others)])
    low, fields = select(roles, role="trainable"), {"metric": "delta_fact_dense4", "role": "delta"}
    return difference(low, short, ("backbone", "shots"), runs, datasets=datasets, **fields)


def _ranks_note(found: pd.DataFrame) -> list[str]:
    """Which rank represents low rank on which backbone, if they differ."""
    low = found[found["role"] == "trainable"] if len(found) else found
    ranks = dict(zip(low["backbone"], low["rank"], strict=True)) if len(low) else {}
    return (
        [", ".join(f"{name}: r={rank}" for name, rank in ranks.items()) + "."] if len(set(ranks.values())) > 1 else []
    )


def _counts(results: Measurements, found: pd.DataFrame, titles: Mapping[str, str]) -> dict[str, str]:
    """Column → trainable parameters."""
    if results.costs is None or found.empty:
        return {}
    counts = results.costs["parameters"].groupby(["backbone", "label"]).last()
    remarks = {}
    for role, rows in found[found["role"] != "delta"].groupby("role"):
        known = {counts.get(key) for key in zip(rows["backbone"], rows["label"], strict=True)}
        texts = [f"{int(count):,}" for count in sorted(one for one in known if one is not None and one == one)]
        remarks[titles[str(role)]] = f"({' / '.join(texts)})" if texts else ""
    return remarks


def datasets_note(frame: pd.DataFrame) -> str:
    """Names the datasets that an average is over."""
    names = axis(frame, "dataset")
    return f"Averages are over {len(names)} datasets ({', '.join(names)}), within each seed first."


def rank_sweep(results: Measurements) -> Table:
    """Low rank with both factors trained, on every dataset, for all ranks and backbones."""
    trained = of_datasets(select(results.frame, metric="accuracy", variant="joint"))
    pivot = Pivot(
        "rank_sweep",
        "Fully trainable factorized CoOp across datasets, shots, ranks and backbones: accuracy (%)",
        _PER_DATASET,
        "{backbone}",
        "Rank {rank}",
        {"backbone": backbones_in_order(trained, resnet_first=True)},
    )
    return pivot.of(with_printed(entries(trained, results.runs, show_sd=True), "rank_sweep"))


def of_datasets(frame: pd.DataFrame) -> pd.DataFrame:
    """The cells without printed averages."""
    return select(frame, dataset=axis(frame, "dataset"))


#: Basis → column title, in the order of the averaged table and of the tables per dataset; "" trains B.
_AVERAGED = {"": "Train.", "gaussian": "Gauss.", "orthogonal": "Orth.", "svd": "SVD", "learned": "Learn."}
_BY_DATASET = {"": "Trainable BA", "gaussian": "Gaussian B", "learned": "Learned B"}
_BY_DATASET |= {"orthogonal": "Orthogonal B", "svd": "SVD B"}


def fixed_bases(results: Measurements) -> Table:
    """The trained basis, the four fixed ones and the user's own, averaged over the datasets, for every rank and shot count."""
    low = low_rank_cells(results.frame)
    datasets = datasets_by_backbone(low)
    own = own_bases(low)
    pivot = Pivot(
        "fixedB",
        "Fixing the token-side basis B against training it: mean accuracy (%) over the datasets",
        {"Backbone": "{backbone}", "Rank": "{rank}"},
        "{basis}",
        "{shots}-shot",
        {
            "backbone": backbones_in_order(low, resnet_first=False),
            "basis": _AVERAGED | dict(zip(own, own, strict=True)),
        },
        (
            "Fixed-B variants train only A. The best number of each row and shot count is bold.",
            datasets_note(few_shot_cells(results.frame)),
        ),
    )
    return pivot.of(with_printed(entries(low, results.runs, datasets=datasets, along=_BASES), "fixedB", datasets))


def basis_ablation(results: Measurements, backbone: str, rank: int) -> Table:
    """The trained basis, the four fixed ones and the user's own on every dataset, for one backbone and rank."""
    low = of_datasets(select(low_rank_cells(results.frame), backbone=backbone, rank=rank))
    where = {"backbone": backbone, "dataset": axis(low, "dataset"), "shots": axis(low, "shots")}
    results = results._replace(frame=select(results.frame, metric="accuracy", **where)).with_best_dense()
    reference = select(results.frame, label=BEST_DENSE)
    parts = [entries(reference, results.runs, show_sd=True), entries(low, results.runs, along=_BASES, show_sd=True)]
    own = own_bases(low)
    pivot = Pivot(
        f"b_ablation_rank{rank}_{slug(backbone)}",
        f"Token-side basis ablation, {backbone} at rank {rank}: accuracy (%)",
        _PER_DATASET,
        "{basis}",
        titles={"basis": {"best": "Dense CoOp Best"} | _BY_DATASET | dict(zip(own, own, strict=True))},
        notes=("Dense CoOp is a reference: the better of its context lengths. Bold: the best of the other columns.",),
    )
    return pivot.of(with_printed(pd.concat(parts, ignore_index=True), "b_ablation"))


def base2new(results: Measurements) -> Table:
    """Seen, unseen and harmonic mean of dense and low rank, per dataset and averaged."""
    roles = with_roles(select(results.frame, metric=list(_METRICS)), ("dense", "trainable"), list(_METRICS))
    datasets = datasets_by_backbone(select(results.frame, metric="harmonic"))
    along = ("role", *HOW)
    averages = with_printed(entries(roles, results.runs, datasets=datasets, along=along), "base2new", datasets)
    each = with_printed(entries(of_datasets(roles), results.runs, along=along, show_sd=True), "base2new")
    found = pd.concat([each, averages], ignore_index=True)
    found["method"] = ["Dense" if row.role == "dense" else f"Fact. (r={row.rank})" for row in found.itertuples()]
    ranks = joined(found.loc[found["role"] == "trainable", "rank"])
    pivot = Pivot(
        "base2new",
        f"Base-to-new generalization: factorized CoOp (r={ranks}) against dense CoOp",
        {"Backbone": "{backbone}", "Dataset": "{dataset}", "Method": "{method}"},
        "{metric}",
        "{shots}-shot",
        {
            "backbone": backbones_in_order(roles, resnet_first=True),
            "dataset": {name: name for name in (*axis(roles, "dataset"), AVERAGE)},
            "metric": _METRICS,
        },
        (
            "S, U, H: accuracy on seen and unseen classes, and their harmonic mean per run, averaged. "
            "Average rows are over the datasets.",
        ),
    )
    return pivot.of(found)


def base_to_new_full(results: Measurements, backbone: str) -> Table:
    """Seen, unseen and H of all prompts of the base-to-new study, on every dataset of one backbone."""
    of_backbone = of_datasets(select(results.frame, backbone=backbone, metric=list(_METRICS)))
    titles = {dense(full_length(results.frame, backbone)): "Dense CoOp"}
    ranks = axis(of_backbone, "rank", variant="joint")
    titles |= {joint(rank): f"Factorized CoOp, r={rank}" for rank in ranks}
    ranks = axis(of_backbone, "rank", variant="fixed-B", basis="orthogonal")
    titles |= {fixed_b("orthogonal", rank): f"Fixed Orthogonal B, r={rank}" for rank in ranks}
    chosen = select(of_backbone, label=list(titles))
    pivot = Pivot(
        f"base_to_new_{slug(backbone)}",
        f"Per-dataset base-to-new generalization on {backbone} (%)",
        {"Dataset": "{dataset}", "Method": "{label}"},
        "{metric}",
        "{shots}-shot",
        {"label": titles, "metric": {"seen": "Seen", "unseen": "Unseen", "harmonic": "H"}},
        ("Trained on the seen half of the classes. H is computed per run, then averaged.",),
    )
    return pivot.of(with_printed(entries(chosen, results.runs, along=HOW, show_sd=True), "base2new_full"))


def slug(backbone: str) -> str:
    """The backbone's name in file names: `vitb16`."""
    return re.sub(r"[^a-z0-9]", "", backbone.lower())
