"""The paper's experiments as lists of specs.

A study is a pure function Grid → list of RunSpec: it can be printed, counted and tested without running anything. `PAPER` is
the paper's grid, `POCKET` that of the embedded models; every axis can be replaced.

Some studies have their own values on an axis (base-to-new uses ranks 4 and 8, for instance). They use those of their values
that are in the grid, or, if none is, the grid's.

To add a study, write such a function and add it to `STUDIES`. Studies that are not the paper's are in `lab/studies.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from slimprompt.errors import InputError, unknown
from slimprompt.lab.grid import Grid, complete_grid, parse_backbone, read_grid_file
from slimprompt.lab.spec import RunSpec, distinct
from slimprompt.lab.studies import STUDIES as LAB_STUDIES
from slimprompt.lab.studies import among
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


def everything(grid: Grid) -> list[RunSpec]:
    """All studies of the paper; runs that several of them share appear once."""
    return distinct([*headline(grid), *rank_sweep(grid), *fixed_basis(grid), *base_to_new(grid), *transfer(grid)])


STUDIES: dict[str, Callable[[Grid], list[RunSpec]]] = {
    "headline": headline,
    "rank-sweep": rank_sweep,
    "fixed-basis": fixed_basis,
    "base-to-new": base_to_new,
    "transfer": transfer,
    "geometry": geometry,
    "all": everything,
}
#: The paper's studies and those of the laboratory; "all" contains only the former.
ALL_STUDIES = {**STUDIES, **LAB_STUDIES}


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


def make_grid(fields: dict[str, Any], *, pocket: bool = False) -> Grid:
    """A grid from some of its fields; the others are those of the paper's grid, or of the pocket grid."""
    grid = complete_grid(fields, POCKET if pocket else PAPER)
    for name in grid.study:
        if name not in ALL_STUDIES:
            raise unknown("study", name, ALL_STUDIES)
    return grid


def read_grid(path: Path, *, pocket: bool = False, **replaced: Any) -> Grid:
    """A grid file: YAML with the fields of `Grid`, and `pocket: true` for the pocket grid; `replaced` fields win."""
    fields, says_pocket = read_grid_file(path)
    return make_grid({**fields, **replaced}, pocket=pocket or says_pocket)


def studies_of(grid: Grid) -> dict[str, list[RunSpec]]:
    """The runs of each study of the grid; "all" stands for every other study of the paper."""
    paper = [name for name in STUDIES if name != "all"] if "all" in grid.study else []
    names = dict.fromkeys([*paper, *(name for name in grid.study if name != "all")])
    return {name: ALL_STUDIES[name](grid) for name in names}


def study_specs(grid: Grid) -> list[RunSpec]:
    """The runs of all studies of the grid without repetition, sorted so that consecutive runs share backbone and images."""
    specs = distinct(spec for name in grid.study for spec in ALL_STUDIES[name](grid))
    if not specs:
        reason = "a transfer needs a source and a target among the datasets"
        if len(grid.datasets) > 1:
            reason = "none of the paper's (source, target) pairs is among the datasets"
        raise InputError(
            f"there are no runs in {', '.join(grid.study)} on {', '.join(grid.datasets)}: {reason}; "
            "give `pairs` in a grid file, such as `pairs: [[dtd, food101]]`"
        )
    backbones = {(spec.backbone, spec.pretrained): None for spec in specs}
    place = {backbone: index for index, backbone in enumerate(backbones)}
    return sorted(  # stable: runs on one sample keep the order of the studies
        specs,
        key=lambda spec: (
            place[spec.backbone, spec.pretrained],
            spec.dataset,
            spec.seed,
            spec.shots,
            spec.class_subset,
        ),
    )


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
