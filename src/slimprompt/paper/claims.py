"""The paper's empirical claims as data; `slimprompt.analysis.claims` explains and checks them.

The same claims are checked on runs and on the published tables. Where the paper is not quantitative, the bound replaces its words
with a number: "a few tenths", "little" and "on par" are half a point, "most" is more than half. To add a claim, append it to the
list of its topic, and a case that can be solved by hand to tests/paper/test_claims.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from slimprompt.analysis.claims import (
    Bound,
    Claim,
    above,
    at_least,
    at_most,
    below,
    between,
    by_backbone,
    every,
    share,
    together,
    within,
)
from slimprompt.paper.published import published_pairs
from slimprompt.prompts.spec import FIXED_BASES

#: Points that replace "a few tenths", "little", "on par" and "no cost", and the paper's own "within half a point".
HALF_POINT = 0.5
EQUAL = Bound("0", 0.0, 0.0)

# --- trained parameters ------------------------------------------------------------------------------------------------

_shape = partial(
    Claim,
    table="parameters",
    each=("backbone", "variant", "rank", "n_ctx", "width"),
    statistic=every,
    scopes=together,
    unit="prompt shape",
)

PARAMETERS = (
    _shape(
        name="parameter_counts",
        place="§4.1, App. B.2",
        sentence="Dense, joint, fixed-B and fixed-A prompts train md, r(m+d), rd and mr parameters.",
        of=("count", "formula"),
        bound=EQUAL,
        form=".0f",
        paper="8192 / 2112 / 2048 / 64 (dense, joint, fixed-B, fixed-A at m=16, d=512, r=4)",
    ),
    _shape(
        name="parameter_share",
        place="§6 few-shot",
        sentence="The joint rank-4 prompt of 16 tokens trains about a quarter of the parameters of the dense one at width 512.",
        of=("count", "dense"),
        where="variant == 'joint' and rank == 4 and n_ctx == 16 and width == 512",
        value="count / dense",
        bound=between(0.2, 0.3),
        form=".3f",
        paper="roughly a quarter (2112 of 8192; dense about four times larger)",
    ),
    _shape(
        name="matched_parameters",
        place="§6 few-shot",
        sentence="A dense prompt of 4 tokens trains nearly as many parameters as the joint rank-4 prompt of 16 at width 512.",
        of=("short_dense", "count"),
        where="variant == 'joint' and rank == 4 and n_ctx == 16 and width == 512",
        value="short_dense / count",
        bound=at_least(0.95),
        form=".3f",
        paper="2048 against 2112",
    ),
    _shape(
        name="dimension_gap",
        place="§1, §4.3",
        sentence="Training A with B fixed has d/m times as many directions as training B with A fixed.",
        of=("count", "fixed_A"),
        where="variant == 'fixed-B'",
        value="count / fixed_A - width / n_ctx",
        bound=EQUAL,
        form=".0f",
        paper="d/m = 32",
    ),
)

# --- classes that were not trained on ----------------------------------------------------------------------------------

_new = partial(
    Claim,
    place="§6 new classes",
    of=("joint_harmonic", "dense_harmonic"),
    where="rank == 4",
    each=("dataset", "shots"),
)


def _decline(rows: pd.DataFrame) -> pd.Series:
    """The gap at 1 shot minus the gap at the highest number of shots."""
    gaps = (rows.iloc[:, 0] - rows.iloc[:, 1]).unstack("shots")
    return gaps[1] - gaps[gaps.columns.max()] if 1 in gaps and len(gaps.columns) > 1 else gaps.stack()[:0]


def _above_one_shot(rows: pd.DataFrame) -> pd.Series:
    """Whether each cell in which dense is better has more than 1 shot, if there are cells with 1 shot and with more."""
    shots = rows.index.get_level_values("shots")
    worse = rows["joint_seen"] < rows["dense_seen"]
    return pd.Series(shots > 1, rows.index)[worse] if shots.min() == 1 < shots.max() else worse[:0]


NEW_CLASSES = (
    _new(
        name="harmonic_wins",
        sentence="Rank 4 has a higher harmonic mean than dense in most dataset–shot cells.",
        value="joint_harmonic > dense_harmonic",
        statistic=share,
        bound=above(1 / 2),
        unit="cell",
        paper={"RN50": "17 of 21", "ViT-B/16": "21 of 21"},
    ),
    _new(
        name="harmonic_gain",
        sentence="The gain in H, averaged over the datasets, is positive at every shot count.",
        numbers=("shots",),
        bound=above(0),
        paper={"RN50": "+4.21 / +3.01 / +2.05 at 1/4/16 shots", "ViT-B/16": "+3.58 / +4.25 / +1.74 at 1/4/16 shots"},
    ),
    _new(
        name="harmonic_gain_low_shot",
        place="abstract, §6 new classes",
        sentence="The gain in H is larger with 1 shot than with the most shots.",
        measure="gain in H at 1 shot minus that at the most shots",
        value=_decline,
        needs="dense and rank-4 base-to-new runs at 1 shot and at more, on two datasets",
        bound=above(0),
        paper={"RN50": "+4.21 at 1 shot, +2.05 at 16", "ViT-B/16": "+3.58 at 1 shot, +1.74 at 16"},
    ),
    _new(
        name="gain_on_unseen",
        sentence="The gains concentrate on the unseen classes.",
        of=("joint_unseen", "dense_unseen", "joint_seen", "dense_seen"),
        each=("dataset",),
        value="joint_unseen - dense_unseen - joint_seen + dense_seen",
        bound=above(0),
        paper="unseen > seen",
    ),
    _new(
        name="seen_wins",
        sentence="Rank 4 matches or improves on dense on the seen classes in most cells.",
        of=("joint_seen", "dense_seen"),
        value="joint_seen >= dense_seen",
        statistic=share,
        bound=above(1 / 2),
        unit="cell",
        paper={"RN50": "15 of 21", "ViT-B/16": "14 of 21"},
    ),
    _new(
        name="dense_seen_edge_at_more_shots",
        sentence="Dense is better on seen classes mainly at higher shot counts.",
        of=("joint_seen", "dense_seen"),
        measure="of those in which dense is better, it has more than 1 shot",
        value=_above_one_shot,
        needs="base-to-new runs at 1 shot and at more, with cells in which dense is better on seen classes",
        statistic=share,
        bound=above(1 / 2),
        unit="cell",
        paper="mainly at higher shots",
    ),
    _new(
        name="harmonic_ahead_despite_dense_seen",
        sentence="Even where dense is better on seen classes at higher shot counts, rank 4 is better on H.",
        of=("joint_harmonic", "dense_harmonic", "joint_seen", "dense_seen"),
        where="rank == 4 and shots > 1 and joint_seen < dense_seen",
        statistic=every,
        bound=above(0),
        unit="cell",
        paper="in all of them",
    ),
)

# --- few-shot accuracy on all classes ----------------------------------------------------------------------------------

_few_shot = partial(Claim, place="§6 few-shot", each=("dataset",))
_higher_shots = partial(
    _few_shot,
    where="rank == 4 and shots > 1",
    each=("dataset", "shots"),
    numbers=("shots",),
    bound=within(HALF_POINT),
)


def _beyond_spread(rows: pd.DataFrame) -> pd.Series:
    """|difference of the averages over datasets| − √(sd² + sd²) per number of shots, with sd over the seeds with most datasets."""
    datasets = rows.groupby(level=["shots", "seed"]).size()
    most = datasets.groupby(level="shots").transform("max")
    averages = rows.groupby(level=["shots", "seed"]).mean()[datasets == most].groupby(level="shots")
    first, second = averages.mean().to_numpy().T
    return abs(first - second) - (averages.std() ** 2).sum(axis=1, skipna=False) ** 0.5


FEW_SHOT = (
    _few_shot(
        name="one_shot_gain_over_matched_dense",
        sentence="At 1 shot rank 4 is clearly better than the dense prompt of 4 tokens, which trains about as many parameters.",
        of=("joint", "short_dense"),
        where="rank == 4 and shots == 1",
        bound=above(0),
        paper={"RN50": "+1.99 at 1 shot", "ViT-B/16": "+1.93 at 1 shot"},
    ),
    _higher_shots(
        name="matched_dense_indistinguishable",
        sentence="At higher shot counts rank 4 and the dense prompt of 4 tokens are equally accurate.",
        of=("joint", "short_dense"),
        paper="statistically indistinguishable at 4 and 16 shots (no test is given)",
    ),
    _few_shot(
        name="within_seed_variance",
        sentence="At higher shot counts rank 4 and both dense prompts are within seed variance of each other.",
        of={"full": ("joint", "dense"), "4 tokens": ("joint", "short_dense")},
        where="rank == 4 and shots > 1",
        each=("name", "shots", "seed", "dataset"),
        measure="|difference of the averages| − √(sd² + sd²) of the seeds",
        value=_beyond_spread,
        needs="dense and rank-4 prompts above 1 shot with two seeds",
        statistic=every,
        bound=at_most(0),
        unit="difference",
        paper="the three methods fall within seed variance at 4 and 16 shots (no spread is given)",
    ),
    _few_shot(
        name="one_shot_gain_over_full_dense",
        sentence="At 1 shot rank 4 is better than the full dense prompt.",
        of=("joint", "dense"),
        where="rank == 4 and shots == 1",
        bound=above(0),
        paper={"RN50": "+2.00 at 1 shot", "ViT-B/16": "+1.85 at 1 shot"},
    ),
    _higher_shots(
        name="full_dense_within_half_point",
        sentence="At higher shot counts rank 4 is within half a point of the full dense prompt.",
        of=("joint", "dense"),
        paper="within half a point at 4 and 16 shots",
    ),
    _few_shot(
        name="rank_saturation",
        sentence="Accuracy is nearly saturated at rank 2 and changes little up to rank 8.",
        of=("r8", "r2"),
        each=("dataset", "shots"),
        numbers=("shots",),
        bound=within(HALF_POINT),
        paper="near-saturated at r=2, little change up to r=8 (no number given)",
    ),
)

# --- fixed bases -------------------------------------------------------------------------------------------------------

_fixed = partial(
    Claim,
    place="§6 fixed basis",
    each=("backbone", "rank", "shots"),
    scopes=together,
    unit="setting",
)
_each_basis = {basis: (basis, "joint") for basis in FIXED_BASES}
_five = ("joint", *FIXED_BASES)


def _wins(rows: pd.DataFrame, bases: Sequence[str]) -> pd.Series:
    """Whether one of the bases has the highest average, rounded as in tables so that equal printed numbers are tied."""
    return rows.round(2)[list(bases)].max(axis=1) >= rows.round(2).max(axis=1)


FIXED_BASIS = (
    _fixed(
        name="fixed_basis_close",
        place="§1, §6 fixed basis",
        sentence="A fixed basis is usually within a few tenths of a point of the trainable factorisation.",
        of=_each_basis,
        each=("name", "backbone", "rank", "shots"),
        measure=f"the averages differ by at most {HALF_POINT} points",
        value=lambda rows: (rows.iloc[:, 0] - rows.iloc[:, 1]).round(9).abs() <= HALF_POINT,
        statistic=share,
        bound=above(1 / 2),
        unit="gap",
        paper="usually within a few tenths of a point",
    ),
    _fixed(
        name="fixed_basis_worst_gap",
        sentence="The largest gap of a fixed basis is about 1.5 points.",
        of=_each_basis,
        each=("name", "backbone", "rank", "shots"),
        measure="fixed basis - joint",
        statistic=every,
        bound=within(1.55),
        least=3,
        unit="gap",
        paper="within roughly 1.5 points",
    ),
    _fixed(
        name="fixed_basis_best_count",
        sentence="A fixed basis is the best of the five variants in most settings.",
        of=_five,
        measure="a fixed basis has the highest average",
        value=partial(_wins, bases=FIXED_BASES),
        statistic=share,
        bound=above(1 / 2),
        paper="18 of 24",
    ),
    _fixed(
        name="gaussian_often_best",
        sentence="The Gaussian basis wins more settings than its share, one in five.",
        of=_five,
        measure="the Gaussian basis has the highest average",
        value=partial(_wins, bases=("gaussian",)),
        statistic=share,
        bound=above(1 / 5),
        paper="among the most frequent winners",
    ),
    _fixed(
        name="learned_weakest",
        sentence="The learned-then-frozen basis is the weakest of the four.",
        of={basis: ("learned", basis, *_five) for basis in FIXED_BASES if basis != "learned"},
        each=("name", "dataset"),
        numbers=("name",),
        measure="learned - other basis",
        bound=below(0),
        unit="dataset",
        paper="the weakest of the four",
    ),
    _fixed(
        name="fixed_basis_equivalent",
        place="abstract, §6 fixed basis",
        sentence="Fixing B is on par with training it and has no cost in accuracy.",
        of=_each_basis,
        each=("name", "dataset"),
        numbers=("name",),
        scopes=by_backbone,
        measure="fixed basis - joint",
        bound=within(HALF_POINT),
        unit="dataset",
        paper="on par, costs nothing (no test is given)",
    ),
)

# --- transfer of factors -----------------------------------------------------------------------------------------------


def by_pairs(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One finding per backbone for all pairs, and one for the pairs of the paper's main table if these are not all."""
    scopes = {}
    for backbone, group in rows[rows.index.get_level_values("source") != ""].groupby(level="backbone"):
        pairs = group.index.droplevel([name for name in group.index.names if name not in ("dataset", "source")])
        main = pairs.isin(published_pairs())
        if main.any() and not main.all():
            scopes[f"{backbone}, pairs of the main table ({pairs[main].nunique()})"] = group[main]
        scopes[f"{backbone}, all pairs ({pairs.nunique()})"] = group
    return scopes


_transfer = partial(
    Claim,
    place="§6 transfer",
    each=("dataset",),
    scopes=by_pairs,
    unit="target",
)
_modes = ("source_B", "random_B", "source_A", "random_A")
_a_minus_b = "(source_B + random_B - source_A - random_A) / 2"
_not_food = "dataset != 'Food101'"


def _range_over_sources(rows: pd.DataFrame) -> pd.Series:
    """Largest minus smallest accuracy over the sources of each target that has several."""
    by_target = rows["source_B"].groupby(level=[level for level in rows.index.names if level != "source"])
    ranges = (by_target.max() - by_target.min())[by_target.size() > 1]
    return ranges.groupby(level="dataset").max()


TRANSFER = (
    _transfer(
        name="train_a_beats_train_b",
        sentence="Training A with B frozen is ten points better than training B with A frozen.",
        of=_modes,
        value=_a_minus_b,
        bound=at_least(10),
        paper="about 89 against about 78, a ten-point gap",
    ),
    _transfer(
        name="train_a_ahead_on_every_target",
        sentence="Training A is better on every target except Food101.",
        of=_modes,
        where=_not_food,
        value=_a_minus_b,
        statistic=every,
        bound=above(0),
        least=3,
        paper="every target except Food101",
    ),
    _transfer(
        name="ten_point_gap_on_every_target",
        sentence="The ten-point gap holds on every target except Food101.",
        of=_modes,
        where=_not_food,
        value=_a_minus_b,
        statistic=every,
        bound=at_least(10),
        least=3,
        paper="this ten-point gap holds on every target except Food101",
    ),
    _transfer(
        name="food_within_a_point",
        sentence="On Food101 the four modes lie within a point of each other.",
        of=_modes,
        datasets=("Food101",),
        each=("dataset", "source", "rank", "shots"),
        measure="best minus worst mode",
        value=lambda rows: rows.max(axis=1) - rows.min(axis=1),
        statistic=every,
        bound=at_most(1),
        unit="pair",
        paper="all four modes within a point",
    ),
    _transfer(
        name="source_b_like_random_b",
        sentence="A source-trained and a random frozen B differ by at most about 0.3 on any pair.",
        of=("source_B", "random_B"),
        each=("dataset", "source", "rank", "shots"),
        statistic=every,
        bound=within(0.349),
        least=3,
        unit="pair",
        paper="at most about 0.3 on any pair",
    ),
    _transfer(
        name="source_b_like_random_b_on_average",
        sentence="They differ by less than 0.1 on average.",
        of=("source_B", "random_B"),
        bound=within(0.1),
        paper="less than 0.1 on average",
    ),
    _transfer(
        name="source_b_no_advantage",
        place="abstract, §6 transfer",
        sentence="A source-trained B has no advantage over a random one.",
        of=("source_B", "random_B"),
        bound=at_most(HALF_POINT),
        paper="no advantage (no test is given)",
    ),
    _transfer(
        name="same_from_any_source",
        sentence="A target reaches the same train-A accuracy from any source.",
        of=("source_B",),
        each=("dataset", "source", "rank", "shots"),
        measure="range over sources",
        value=_range_over_sources,
        needs="transfers of a source-trained B to one target from two sources",
        statistic=every,
        bound=at_most(HALF_POINT),
        form=".2f",
        paper="essentially the same: Flowers 96.0–96.2, Caltech101 identical",
    ),
    _transfer(
        name="training_b_adds_nothing",
        sentence="Training both factors gives the same average as training A with B frozen.",
        of=("joint", "source_B"),
        bound=within(HALF_POINT),
        paper="89.01, identical to freezing B",
    ),
    _transfer(
        name="transfer_near_dense",
        sentence="Both are within about 0.2 points of dense.",
        of={"frozen B": ("source_B", "best_dense"), "joint": ("joint", "best_dense", "source_B")},
        each=("name", "dataset"),
        numbers=("name",),
        measure="source B - best dense, joint - best dense",
        bound=within(0.25),
        paper="within about 0.2 of dense (89.2)",
    ),
    _transfer(
        name="matches_dense_on",
        sentence="Both match or exceed dense on Caltech101, Food101 and Oxford Pets.",
        of=("source_B", "joint", "best_dense"),
        datasets=("Caltech101", "Food101", "Oxford Pets"),
        measure="the worse of frozen B and joint, minus dense",
        value=lambda rows: rows[["source_B", "joint"]].min(axis=1) - rows["best_dense"],
        statistic=every,
        bound=at_least(0),
        paper="Caltech101, Food101 and Oxford Pets",
    ),
)

# --- subspaces of the trained factors ----------------------------------------------------------------------------------

_median = partial(
    Claim,
    place="§6 geometry",
    table="geometry",
    each=("axis",),
    statistic=every,
    needs="joint prompts that differ only in dataset, shots, rank or seed, and their factors",
    scopes=together,
    unit="comparison",
)
_tasks = "axis in ('dataset', 'shots', 'rank')"


def _margins_of_b(rows: pd.DataFrame) -> pd.Series:
    """How much more alike B is than the other factor that is most alike, by overlap and, over 90°, by angle."""
    overlap = rows["B"] - rows[["A", "BA"]].max(axis=1)
    angle = (rows[["A_angle", "BA_angle"]].min(axis=1) - rows["B_angle"]) / 90
    return pd.concat([overlap, angle], axis=1).min(axis=1)


def _seeds_below_tasks(rows: pd.DataFrame) -> pd.Series:
    """The smallest overlap over tasks minus that over seeds."""
    tasks = rows["B"].drop("seed", errors="ignore")
    return rows["B"].loc[rows.index == "seed"].rsub(tasks.min()) if len(tasks) else tasks


GEOMETRY = (
    _median(
        name="b_overlap_across_tasks",
        sentence="B spans nearly the same subspace across datasets, shots and ranks.",
        of=("B",),
        where=_tasks,
        value="B",
        measure="median overlap of B",
        bound=at_least(0.8),
        form=".2f",
        least=3,
        paper="0.86 to 0.89 (angles near 27–30°)",
    ),
    _median(
        name="a_overlap_across_tasks",
        sentence="A and BA are weakly aligned across datasets, shots and ranks.",
        of={"A": ("A",), "BA": ("BA",)},
        where=_tasks,
        each=("name", "axis"),
        value=lambda rows: rows.iloc[:, 0],
        measure="median overlap of A and of BA",
        bound=at_most(0.4),
        form=".2f",
        least=6,
        paper="0.17 to 0.35 (angles near 70–80°)",
    ),
    _median(
        name="b_most_stable",
        place="Table factor_geometry",
        sentence="B is more stable than A and BA in every comparison.",
        of=("B", "A", "BA", "B_angle", "A_angle", "BA_angle"),
        where="axis != 'start'",
        value=_margins_of_b,
        measure="margin of B in overlap and in angle over 90°",
        bound=above(0),
        least=4,
        paper="B in all four comparisons",
    ),
    _median(
        name="b_least_alike_across_seeds",
        sentence="B is less similar across seeds than across any other axis.",
        of=("B",),
        where="axis != 'start'",
        value=_seeds_below_tasks,
        measure="smallest median overlap across datasets, shots and ranks, minus that across seeds",
        bound=above(0),
        unit="comparison",
        paper="0.41 across seeds, 0.86 to 0.89 across tasks",
    ),
    _median(
        name="b_hardly_moves",
        sentence="Training moves B very little from its initial value.",
        of=("B",),
        where="axis == 'start'",
        value="B",
        measure="median overlap of B",
        bound=at_least(0.9),
        form=".2f",
        unit="median",
        needs="joint prompts with their initial and final factors",
        paper="moves very little (not measured in the paper)",
    ),
)

#: Every quantitative empirical claim of the paper, grouped by topic.
CLAIMS = (*PARAMETERS, *NEW_CLASSES, *FEW_SHOT, *FIXED_BASIS, *TRANSFER, *GEOMETRY)
