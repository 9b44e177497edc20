"""Studies beyond the paper: prompts against other methods, other prompts, other datasets and other layers.

As in every table of studies, a study is a pure function Grid → list of RunSpec. They use rank 4 and the orthogonal basis if the
grid has them, and otherwise its first rank and basis. `cross-dataset` and `basis-transfer` use 16 shots, `sites` 4, if the grid has them, and
otherwise all its shots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from slimprompt.errors import InputError, unknown
from slimprompt.lab.grid import Grid, complete_grid, parse_backbone, read_grid_file
from slimprompt.lab.spec import RunSpec, distinct
from slimprompt.methods.table import METHODS
from slimprompt.training.recipe import replace_fields

T = TypeVar("T")

#: Start of the prompts that start from words, or are anchored at them.
WORDS = "a photo of a"
#: Weight of KgCoOp's loss, and number of layers of the deep prompts.
ANCHOR, DEPTH = 8.0, 3
#: Of the study `sites`: context tokens and extra rows of the image tower, ranks and fixed bases.
SITE_ROWS, SITE_RANKS, SITE_BASES = 8, (1, 2, 4), ("gaussian", "orthogonal")


def baselines(grid: Grid) -> list[RunSpec]:
    """Every method on image features, and dense, joint and fixed-B prompts, on the same samples."""
    return _specs(grid, [*({"method": name} for name in grid.methods or METHODS), *_main_prompts(grid)])


def beyond(grid: Grid) -> list[RunSpec]:
    """Prompts beyond the paper against zero-shot, joint and fixed-B, on all classes and base-to-new."""
    compared = [{"method": "zero-shot"}, *_main_prompts(grid)[1:], *_prompts_beyond(grid)]
    return [spec for subset in ("all", "base") for spec in _specs(grid, compared, class_subset=subset)]


def cross_dataset(grid: Grid) -> list[RunSpec]:
    """Prompts trained on all classes of ImageNet, or of the first dataset, evaluated on the others by name only."""
    source = "imagenet" if "imagenet" in grid.datasets else grid.datasets[0]
    others = tuple(name for name in grid.datasets if name != source)
    if not others:
        raise InputError(
            f"cross-dataset needs a dataset to train on and others to evaluate on; the only one is {source}"
        )
    one = grid.model_copy(update={"datasets": (source,), "shots": among(grid.shots, (16,))})
    return _specs(one, [{"method": "zero-shot"}, *_main_prompts(grid), *_prompts_beyond(grid)], evaluate_on=others)


def basis_transfer(grid: Grid) -> list[RunSpec]:
    """B learned at one depth or on another dataset, used fixed at that or another depth; against joint, orthogonal and random."""
    one = grid.model_copy(update={"shots": among(grid.shots, (16,))})
    rank, specs = among(grid.ranks, (4,))[0], []
    for source, target in _basis_pairs(grid):
        on_target = one.model_copy(update={"datasets": (target,)})
        for row in BASIS_ROWS:
            fields = row.fields | ({"source": source} if row.fields.get("basis") == "source" else {})
            specs += [spec for depth in (1, DEPTH) for spec in on_target.specs(**fields, rank=rank, depth=depth)]
    return distinct(specs)


class BasisRow(NamedTuple):
    """Where the basis B of a prompt comes from."""

    title: str
    fields: dict[str, Any]
    """Fields of its runs, without the source and the depth."""

    def moves(self, depth: int) -> bool:
        """Whether B was learned at another depth than the one it is used at."""
        return self.fields.get("source_depth", depth) != depth


#: The origins of B that `basis-transfer` compares; each is used at depth 1 and at depth `DEPTH`.
BASIS_ROWS = (
    BasisRow("trained with A (joint)", {"variant": "joint"}),
    BasisRow("fixed, orthogonal", {"variant": "fixed-B", "basis": "orthogonal"}),
    BasisRow("fixed, random", {"variant": "fixed-B", "basis": "random"}),
    *(
        BasisRow(
            f"learned on {task} dataset at depth {depth}",
            {"variant": "fixed-B", "basis": basis, "source_depth": depth},
        )
        for task, basis in (("the same", "learned"), ("another", "source"))
        for depth in (1, DEPTH)
    ),
)


def sites(grid: Grid) -> list[RunSpec]:
    """Must the token-side factor be learned in the image tower too? Every variant in the text tower, the image tower, and both with two
    bases or one, with 8 rows each, on all classes and base-to-new; of backbones whose image tower takes no prompts nothing."""
    from slimprompt.clip.architectures import model_config, takes_image_prompts  # needs open_clip

    able = tuple(name for name in grid.backbones if takes_image_prompts(model_config(parse_backbone(name)[0]) or {}))
    if not able:
        raise InputError(
            f"the image towers of {', '.join(grid.backbones)} take no prompts; `slimprompt backbones` shows which do"
        )
    grid = grid.model_copy(update={"backbones": able, "shots": among(grid.shots, (4,))})
    rows = {"n_ctx": SITE_ROWS, "n_ctx_image": SITE_ROWS}
    towers: list[dict[str, Any]] = [
        {"n_ctx": SITE_ROWS},
        {"tower": "image", "words": WORDS, "n_ctx_image": SITE_ROWS},
        {"tower": "both", **rows},
        {"tower": "both", "share_basis": True, **rows},
    ]
    variants: list[dict[str, Any]] = [{"variant": "dense"}]
    for rank in among(grid.ranks, SITE_RANKS):
        fixed = [{"variant": "fixed-B", "rank": rank, "basis": basis} for basis in among(grid.bases, SITE_BASES)]
        variants += [{"variant": "joint", "rank": rank}, *fixed, {"variant": "fixed-A", "rank": rank}]
    compared = [{"method": "zero-shot"}, *(variant | tower for tower in towers for variant in variants)]
    return [spec for subset in ("all", "base") for spec in _specs(grid, compared, class_subset=subset)]


def _basis_pairs(grid: Grid) -> list[tuple[str, str]]:
    """(source, target) pairs: the grid's, or each dataset from the one before it."""
    if grid.pairs is not None:
        return list(grid.pairs)
    names = grid.datasets
    if len(names) < 2:
        raise InputError(
            f"basis-transfer needs at least two datasets, a source and a target; the only one is {names[0]}"
        )
    return [(names[index - 1], target) for index, target in enumerate(names)]


MakeSpecs = Callable[[Grid], list[RunSpec]]

STUDIES: dict[str, MakeSpecs] = {
    "baselines": baselines,
    "beyond": beyond,
    "cross-dataset": cross_dataset,
    "basis-transfer": basis_transfer,
    "sites": sites,
}


@dataclass(frozen=True)
class Catalogue:
    """The studies that a command line offers, and the grids that they are made from."""

    studies: Mapping[str, MakeSpecs]
    parts: Mapping[str, tuple[str, ...]]
    """The studies that consist of others, and these."""
    grid: Grid
    pocket: Grid
    """The grid of the embedded models."""

    def make_grid(self, fields: Mapping[str, Any], *, pocket: bool = False) -> Grid:
        """A grid from some of its fields; the others are those of the grid, or of the pocket grid."""
        grid = complete_grid(fields, self.pocket if pocket else self.grid)
        for name in grid.study:
            if name not in self.studies:
                raise unknown("study", name, self.studies)
        return grid

    def read_grid(self, path: Path, *, pocket: bool = False, **replaced: Any) -> Grid:
        """A grid file: YAML with the fields of `Grid`, and `pocket: true` for the pocket grid; `replaced` fields win."""
        fields, says_pocket = read_grid_file(path)
        return self.make_grid({**fields, **replaced}, pocket=pocket or says_pocket)

    def studies_of(self, grid: Grid) -> dict[str, list[RunSpec]]:
        """The runs of each study of the grid, or of the parts that it consists of."""
        names = dict.fromkeys(part for name in grid.study for part in self.parts.get(name, (name,)))
        return {name: self.studies[name](grid) for name in names}

    def study_specs(self, grid: Grid) -> list[RunSpec]:
        """The runs of all studies of the grid without repetition, sorted so that consecutive runs share backbone and images."""
        specs = distinct(spec for some in self.studies_of(grid).values() for spec in some)
        if not specs:
            raise InputError(
                f"there are no runs in {', '.join(grid.study)} on {', '.join(grid.datasets)}: a transfer needs a source and a "
                "target among the datasets; give `pairs` in a grid file, such as `pairs: [[dtd, food101]]`"
            )
        place = {model: index for index, model in enumerate(dict.fromkeys(spec.model for spec in specs))}
        return sorted(  # stable: runs on one sample keep the order of the studies
            specs, key=lambda spec: (place[spec.model], spec.dataset, spec.seed, spec.shots, spec.class_subset)
        )


def among(given: Sequence[T], own: Sequence[T]) -> tuple[T, ...]:
    """Those of a study's own values that are in the grid, or the grid's values if none is."""
    return tuple(value for value in own if value in given) or tuple(given)


def _specs(grid: Grid, compared: Sequence[dict[str, Any]], **fields: Any) -> list[RunSpec]:
    """Every method or prompt, given by its fields, in every cell of the grid, without repetition."""
    return distinct(spec for one in compared for spec in grid.specs(**one, **fields))


def _main_prompts(grid: Grid) -> list[dict[str, Any]]:
    """Fields of the dense, joint and fixed-B prompts of the main comparison."""
    rank, basis = among(grid.ranks, (4,))[0], among(grid.bases, ("orthogonal",))[0]
    return [
        {"variant": "dense"},
        {"variant": "joint", "rank": rank},
        {"variant": "fixed-B", "rank": rank, "basis": basis},
    ]


def _prompts_beyond(grid: Grid) -> list[dict[str, Any]]:
    """Fields of the prompts beyond the paper: word start, anchored, kept close to zero-shot in two ways, deep."""
    _, joint, fixed = _main_prompts(grid)
    words = joint | {"words": WORDS, "rank": min(joint["rank"], len(WORDS.split()))}
    return [
        words,
        words | {"anchored": True},
        joint | {"recipe": replace_fields(grid.recipe, {"anchor": ANCHOR})},
        joint | {"recipe": replace_fields(grid.recipe, {"prograd": True})},
        fixed | {"depth": DEPTH},
    ]
