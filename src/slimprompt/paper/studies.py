"""The paper's experiments as lists of specs.

A study is a pure function Grid → list of RunSpec: it can be printed, counted and tested without running anything. `PAPER` is
the paper's grid, `POCKET` that of the embedded models; every axis can be replaced.

Some studies have their own values on an axis (base-to-new uses ranks 4 and 8, for instance). They use those of their values
that are in the grid, or, if none is, the grid's.

To add a study, write such a function and add it to `_ALL`. Studies that are not the paper's are in `lab/studies.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from slimprompt.lab.grid import Grid, parse_backbone
from slimprompt.lab.spec import RunSpec, distinct
from slimprompt.lab.studies import STUDIES as LAB_STUDIES
from slimprompt.lab.studies import Catalogue, MakeSpecs, among
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.training.recipe import RECIPES

#: The paper's transfers, (source, target).
PAPER_PAIRS = (
    ("oxford_pets", "caltech101"),
    ("ucf101", "caltech101"),
    ("fgvc_aircraft", "dtd"),
    ("oxford_flowers", "dtd"),
    ("dtd", "fgvc_aircraft"),
    ("oxford_pets", "fgvc_aircraft"),
    ("oxford_flowers", "food101"),
    ("ucf101", "food101"),
    ("dtd", "oxford_flowers"),
    ("food101", "oxford_flowers"),
    ("oxford_pets", "oxford_flowers"),
    ("fgvc_aircraft", "oxford_pets"),
    ("oxford_flowers", "oxford_pets"),
    ("caltech101", "oxford_pets"),
    ("caltech101", "ucf101"),
    ("food101", "ucf101"),
)
_PAPER_DATASETS = ("caltech101", "dtd", "fgvc_aircraft", "food101", "oxford_flowers", "oxford_pets", "ucf101")


def headline(grid: Grid) -> list[RunSpec]:
    """Dense prompts of both lengths against joint low rank, r = 4."""
    return [*_dense(grid), *_joint(grid, ranks=among(grid.ranks, (4,)))]


def rank_sweep(grid: Grid) -> list[RunSpec]:
    """Joint low rank at every rank."""
    return _joint(grid, ranks=grid.ranks)


def fixed_basis(grid: Grid) -> list[RunSpec]:
    """Every fixed token basis at every rank; only A trains."""
    return _fixed_b(grid, bases=grid.bases, ranks=grid.ranks)


def base_to_new(grid: Grid) -> list[RunSpec]:
    """Trained on the base half of the classes: dense, joint and orthogonal at r = 4 and 8."""
    ranks, bases = among(grid.ranks, (4, 8)), among(grid.bases, ("orthogonal",))
    return [
        *grid.specs(class_subset="base", variant="dense"),
        *_joint(grid, ranks=ranks, class_subset="base"),
        *_fixed_b(grid, bases=bases, ranks=ranks, class_subset="base"),
    ]


def transfer(grid: Grid) -> list[RunSpec]:
    """One factor frozen, from a source run or random: on ViT, 16 shots, r = 4.

    Each pair has one run per frozen factor and seed. The random control does not depend on the source, so there is one per
    target: (16 pairs × 2 + 7 targets × 2) × 3 seeds are the paper's 138 runs.
    """
    narrowed = grid.model_copy(
        update={"backbones": _vit(grid.backbones), "shots": among(grid.shots, (16,)), "ranks": among(grid.ranks, (4,))}
    )
    pairs = transfer_pairs(grid)
    specs = []
    for target in dict.fromkeys(target for _, target in pairs):
        one = narrowed.model_copy(update={"datasets": (target,)})
        for rank, variant in product(one.ranks, ("fixed-B", "fixed-A")):
            factor = {"variant": variant, "rank": rank}
            for source in (source for source, other in pairs if other == target):
                specs += one.specs(**factor, basis="source", source=source)
            specs += one.specs(**factor, basis="random")
    return specs


def transfer_pairs(grid: Grid) -> list[tuple[str, str]]:
    """(source, target) pairs: the grid's; otherwise the paper's among its datasets; otherwise each target from the two before it."""
    if grid.pairs is not None:
        return list(grid.pairs)
    if set(grid.datasets) <= set(_PAPER_DATASETS):
        return [pair for pair in PAPER_PAIRS if set(pair) <= set(grid.datasets)]
    names = grid.datasets
    pairs = ((names[index - back], target) for index, target in enumerate(names) for back in (1, 2))
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]] if len(names) > 1 else []


def geometry(grid: Grid) -> list[RunSpec]:
    """The joint runs whose factors are compared across seeds, datasets, shots and ranks."""
    return _joint(grid, ranks=grid.ranks)


#: The studies that "all" consists of.
_ALL = {"headline": headline, "rank-sweep": rank_sweep, "fixed-basis": fixed_basis, "base-to-new": base_to_new}
_ALL |= {"transfer": transfer, "geometry": geometry}


def everything(grid: Grid) -> list[RunSpec]:
    """All studies of the paper; runs that several of them share appear once."""
    return distinct(spec for make in _ALL.values() for spec in make(grid))


STUDIES: dict[str, MakeSpecs] = {**_ALL, "all": everything}


PAPER = Grid(
    backbones=("RN50", "ViT-B-16"),
    datasets=_PAPER_DATASETS,
    shots=(1, 4, 16),
    seeds=(1, 2, 3),
    recipe=RECIPES["paper"],
)
# Four of the six benchmarks and the recipe with few steps, so that everything takes minutes.
POCKET = Grid(
    backbones=("pocket-rn", "pocket"),
    datasets=tuple(POCKET_BENCHMARKS)[:4],
    shots=(1, 4, 16),
    seeds=(1, 2, 3),
    recipe=RECIPES["fast"],
)


#: What `slimprompt study` offers: the paper's studies and those of the laboratory; "all" contains only the former.
CATALOGUE = Catalogue({**STUDIES, **LAB_STUDIES}, {"all": tuple(_ALL)}, PAPER, POCKET)
make_grid, read_grid = CATALOGUE.make_grid, CATALOGUE.read_grid
studies_of, study_specs = CATALOGUE.studies_of, CATALOGUE.study_specs


def _dense(grid: Grid) -> list[RunSpec]:
    lengths = dict.fromkeys(length for length in (grid.n_ctx, grid.short_ctx) if length)
    return [spec for length in lengths for spec in grid.specs(variant="dense", n_ctx=length)]


def _joint(grid: Grid, *, ranks: Iterable[int], **fields: Any) -> list[RunSpec]:
    cells = (grid.specs(variant="joint", rank=rank, **fields) for rank in ranks)
    return [spec for some in cells for spec in some]


def _fixed_b(grid: Grid, *, bases: Iterable[str], ranks: Iterable[int], **fields: Any) -> list[RunSpec]:
    return [
        spec
        for basis, rank in product(bases, ranks)
        for spec in grid.specs(variant="fixed-B", basis=basis, rank=rank, **fields)
    ]


def _vit(backbones: Sequence[str]) -> tuple[str, ...]:
    """The vision transformers of the grid, or all its backbones if it has none."""
    names = {text: parse_backbone(text)[0] for text in backbones}
    chosen = tuple(text for text, name in names.items() if name.startswith("ViT-") or name == "pocket")
    return chosen or tuple(backbones)
