"""The paper's experiments as lists of specs.

A study is a pure function Grid → list of RunSpec: it can be printed, counted and tested without running anything. The
grid holds the axes; `PAPER` is the paper's, `POCKET` the one of the embedded world, and every axis can be replaced.

Each study has its own values on some axes (base-to-new has ranks 4 and 8, say). Of these it takes the ones that are in
the grid; if none of them is, it takes what the grid has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from slimprompt.data.catalogue import dataset_name
from slimprompt.errors import InputError, unknown, validate
from slimprompt.lab.spec import RunSpec
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.prompts.variants import FIXED_BASES, check_rank
from slimprompt.training.recipe import RECIPES, Recipe, make_recipe

T = TypeVar("T")
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]

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


class Grid(BaseModel):
    """The axes of a study. These are also the fields of a grid file; one value may stand for a list of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    study: tuple[str, ...] = Field(("all",), description="names of studies")
    backbones: tuple[str, ...] = Field(
        description="models, as NAME or NAME=WEIGHTS (an open_clip tag or a checkpoint file)"
    )
    datasets: tuple[str, ...] = Field(description="benchmarks, or folders of one's own images")
    shots: tuple[Count, ...] = Field(description="training images per class")
    seeds: tuple[Seed, ...] = Field(description="seeds of the draw, the start, the order and the views")
    ranks: tuple[Count, ...] = Field((1, 2, 4, 8), description="ranks of the factorised prompts")
    bases: tuple[str, ...] = Field(FIXED_BASES, description="fixed token bases")
    pairs: tuple[tuple[str, str], ...] | None = Field(
        None,
        description="transfers as [source, target]; empty: the paper's, or for other datasets each from the two before it",
    )
    n_ctx: int = Field(16, ge=1, description="context tokens of factorised and long dense prompts")
    short_ctx: int | None = Field(4, ge=1, description="context tokens of the short dense prompt; empty: none")
    position: Literal["end", "middle", "front"] = Field("end", description="where the class name stands")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="precision of the frozen forward passes")
    recipe: Recipe = Field(default_factory=Recipe, description="how it is trained: a recipe's name or its fields")

    @field_validator("study")
    @classmethod
    def _known_studies(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known("study", names, STUDIES)

    @field_validator("bases")
    @classmethod
    def _known_bases(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known("basis", names, FIXED_BASES)

    @field_validator("datasets")
    @classmethod
    def _known_datasets(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dataset_name(name) for name in names)

    @field_validator("pairs")
    @classmethod
    def _known_pairs(cls, pairs: tuple[tuple[str, str], ...] | None) -> tuple[tuple[str, str], ...] | None:
        return pairs and tuple((dataset_name(source), dataset_name(target)) for source, target in pairs)

    @field_validator("backbones", "datasets", "shots", "seeds", "ranks", "bases", "study")
    @classmethod
    def _once_each(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("at least one value is needed")
        return tuple(dict.fromkeys(values))

    @model_validator(mode="after")
    def _ranks_fit(self) -> Grid:
        for rank in self.ranks:
            check_rank(rank, self.n_ctx)
        return self


def _known(kind: str, names: tuple[str, ...], allowed: Collection[str]) -> tuple[str, ...]:
    for name in names:
        if name not in allowed:
            raise unknown(kind, name, allowed)
    return names


PAPER = Grid(
    backbones=("RN50", "ViT-B-16"),
    datasets=_PAPER_DATASETS,
    shots=(1, 4, 16),
    seeds=(1, 2, 3),
    recipe=RECIPES["paper"],
)
# Chosen so that everything takes less than an hour on 2 cores: four of the six benchmarks, and, since a step costs its text
# tokens and hardly its images, few steps with all images in each.
POCKET = Grid(
    backbones=("pocket-rn", "pocket"),
    datasets=tuple(POCKET_BENCHMARKS)[:4],
    shots=(1, 4, 16),
    seeds=(1, 2, 3),
    recipe=RECIPES["fast"],
)


def make_grid(fields: dict[str, Any], *, pocket: bool = False) -> Grid:
    """A grid from plain fields; those not given are the paper's, or the pocket world's."""
    world = POCKET if pocket else PAPER
    given = {name: _listed(name, value) for name, value in fields.items()}
    if isinstance(recipe := given.get("recipe"), str):
        given["recipe"] = make_recipe(recipe)
    elif isinstance(recipe, dict):
        given["recipe"] = make_recipe(world.recipe, **recipe)
    grid: Grid = validate(Grid, {**{name: getattr(world, name) for name in Grid.model_fields}, **given}, "grid")
    return grid


def _listed(name: str, value: Any) -> Any:
    axes = ("study", "backbones", "datasets", "shots", "seeds", "ranks", "bases")
    return [value] if name in axes and not isinstance(value, list | tuple) else value


def read_grid(path: Path, *, pocket: bool = False, **replaced: Any) -> Grid:
    """A grid file: YAML with the fields of `Grid`, and `pocket: true` for the pocket world; `replaced` fields win."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read the grid file {path}: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise InputError(f"{path} is not a grid: expected lines such as `study: headline` and `datasets: [dtd]`")
    if not isinstance(world := data.pop("pocket", False), bool):
        raise InputError(f"{path}: pocket must be true or false, not {world!r}")
    for name in data:
        if name not in Grid.model_fields:
            raise unknown(f"field in {path}", name, (*Grid.model_fields, "pocket"))
    return make_grid({**data, **replaced}, pocket=pocket or world)


# --- the studies -----------------------------------------------------------------------------------------------------


def headline(grid: Grid) -> list[RunSpec]:
    """Dense prompts of both lengths against joint low rank, r = 4."""
    return [*_dense(grid), *_joint(grid, ranks=_of(grid.ranks, (4,)))]


def rank_sweep(grid: Grid) -> list[RunSpec]:
    """Joint low rank at every rank."""
    return _joint(grid, ranks=grid.ranks)


def fixed_basis(grid: Grid) -> list[RunSpec]:
    """Every fixed token basis at every rank; only A trains."""
    return _fixed_b(grid, bases=grid.bases, ranks=grid.ranks)


def base_to_new(grid: Grid) -> list[RunSpec]:
    """Trained on the base half of the classes: dense, joint and orthogonal at r = 4 and 8."""
    ranks, bases = _of(grid.ranks, (4, 8)), _of(grid.bases, ("orthogonal",))
    return [
        *_cells(grid, split="base", variant="dense", n_ctx=grid.n_ctx),
        *_joint(grid, ranks=ranks, split="base"),
        *_fixed_b(grid, bases=bases, ranks=ranks, split="base"),
    ]


def transfer(grid: Grid) -> list[RunSpec]:
    """One factor frozen, taken over from a source run or random: on ViT, 16 shots, r = 4.

    Each pair has a run per frozen factor and seed. The random control does not depend on the source, so it is run once per
    target: 16 pairs × 2 + 7 targets × 2, times 3 seeds, make the paper's 138 runs.
    """
    narrowed = grid.model_copy(
        update={"backbones": _vit(grid.backbones), "shots": _of(grid.shots, (16,)), "ranks": _of(grid.ranks, (4,))}
    )
    pairs = transfer_pairs(grid)
    specs = []
    for target in dict.fromkeys(target for _, target in pairs):
        one = narrowed.model_copy(update={"datasets": (target,)})
        for rank, variant in product(one.ranks, ("fixed-B", "fixed-A")):
            factor = {"variant": variant, "rank": rank, "n_ctx": grid.n_ctx}
            for source in (source for source, other in pairs if other == target):
                specs += _cells(one, **factor, basis="source", source=source)
            specs += _cells(one, **factor, basis="random")
    return specs


def transfer_pairs(grid: Grid) -> list[tuple[str, str]]:
    """(source, target): the grid's own; else the paper's among its datasets; else each target from the two before it."""
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
    """All studies; what several of them share is there once."""
    return _once([*headline(grid), *rank_sweep(grid), *fixed_basis(grid), *base_to_new(grid), *transfer(grid)])


STUDIES: dict[str, Callable[[Grid], list[RunSpec]]] = {
    "headline": headline,
    "rank-sweep": rank_sweep,
    "fixed-basis": fixed_basis,
    "base-to-new": base_to_new,
    "transfer": transfer,
    "geometry": geometry,
    "all": everything,
}


def study_specs(grid: Grid) -> list[RunSpec]:
    """The runs of all studies of the grid, each once, in an order that uses loaded backbones and encoded images well."""
    specs = _once(spec for name in grid.study for spec in STUDIES[name](grid))
    if not specs:
        raise InputError(
            f"there are no runs in {', '.join(grid.study)} on {', '.join(grid.datasets)}: "
            "a transfer needs a source and a target among the datasets, or `pairs` in a grid file"
        )
    backbones = {(spec.backbone, spec.pretrained): None for spec in specs}
    place = {backbone: index for index, backbone in enumerate(backbones)}
    return sorted(  # stable: inside a draw the order of the studies stays
        specs,
        key=lambda spec: (place[spec.backbone, spec.pretrained], spec.dataset, spec.seed, spec.shots, spec.split),
    )


def _dense(grid: Grid) -> list[RunSpec]:
    lengths = dict.fromkeys(length for length in (grid.n_ctx, grid.short_ctx) if length)
    return [spec for length in lengths for spec in _cells(grid, variant="dense", n_ctx=length)]


def _joint(grid: Grid, *, ranks: Iterable[int], **fields: Any) -> list[RunSpec]:
    cells = (_cells(grid, variant="joint", rank=rank, n_ctx=grid.n_ctx, **fields) for rank in ranks)
    return [spec for some in cells for spec in some]


def _fixed_b(grid: Grid, *, bases: Iterable[str], ranks: Iterable[int], **fields: Any) -> list[RunSpec]:
    return [
        spec
        for basis, rank in product(bases, ranks)
        for spec in _cells(grid, variant="fixed-B", basis=basis, rank=rank, n_ctx=grid.n_ctx, **fields)
    ]


def _cells(grid: Grid, **fields: Any) -> list[RunSpec]:
    """One spec per backbone, dataset, number of shots and seed."""
    cells = []
    for text, dataset, shots, seed in product(grid.backbones, grid.datasets, grid.shots, grid.seeds):
        backbone, pretrained = parse_backbone(text)
        axes = {"backbone": backbone, "pretrained": pretrained, "dataset": dataset, "shots": shots, "seed": seed}
        how = {"position": grid.position, "precision": grid.precision, "recipe": grid.recipe}
        cells.append(validate(RunSpec, {**axes, **how, **fields}, "run"))
    return cells


def parse_backbone(text: str) -> tuple[str, str | None]:
    """(name, weights) of NAME or NAME=WEIGHTS; OpenAI's weights where none are named and the model has none of its own.

    >>> parse_backbone("ViT-B/16"), parse_backbone("RN50=cc12m"), parse_backbone("pocket")
    (('ViT-B-16', 'openai'), ('RN50', 'cc12m'), ('pocket', None))
    """
    name, sign, weights = text.partition("=")
    if not name or (sign and not weights):
        raise InputError(f"{text!r} is not a backbone: write NAME or NAME=WEIGHTS, such as ViT-B-16=openai")
    has_own_weights = ":" in name or name.split("-")[0] == "pocket"
    return name if ":" in name else name.replace("/", "-"), weights or (None if has_own_weights else "openai")


def _vit(backbones: Sequence[str]) -> tuple[str, ...]:
    """Transfers are studied on the vision transformer of the world, if it is in the grid."""
    chosen = tuple(text for text in backbones if parse_backbone(text)[0] in ("ViT-B-16", "pocket"))
    return chosen or tuple(backbones)


def _of(given: Sequence[T], own: Sequence[T]) -> tuple[T, ...]:
    """A study's own values that are in the grid, or the grid's if none of them is."""
    return tuple(value for value in own if value in given) or tuple(given)


def _once(specs: Iterable[RunSpec]) -> list[RunSpec]:
    return list({spec.fingerprint: spec for spec in specs}.values())
