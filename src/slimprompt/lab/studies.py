"""Studies beyond the paper: prompts against other methods, other prompts, and other datasets.

As in every table of studies, a study is a pure function Grid → list of RunSpec. They use rank 4, the orthogonal basis and, for
`cross-dataset`, 16 shots if the grid has them, and otherwise the grid's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from slimprompt.errors import InputError
from slimprompt.lab.grid import Grid
from slimprompt.lab.spec import RunSpec
from slimprompt.methods.table import METHODS
from slimprompt.training.recipe import make_recipe

T = TypeVar("T")

#: Start of the prompts that start from words, or are anchored at them.
WORDS = "a photo of a"
#: Weight of KgCoOp's loss, and number of layers of the deep prompts.
ANCHOR, DEPTH = 8.0, 3


def baselines(grid: Grid) -> list[RunSpec]:
    """Every method on image features, and dense, joint and fixed-B prompts, on the same samples."""
    return _specs(grid, [*({"method": name} for name in METHODS), *_main_prompts(grid)])


def beyond(grid: Grid) -> list[RunSpec]:
    """Prompts beyond the paper against zero-shot, joint and fixed-B, on all classes and base-to-new."""
    compared = [{"method": "zero-shot"}, *_main_prompts(grid)[1:], *_prompts_beyond(grid)]
    return [spec for split in ("all", "base") for spec in _specs(grid, compared, split=split)]


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


STUDIES: dict[str, Callable[[Grid], list[RunSpec]]] = {
    "baselines": baselines,
    "beyond": beyond,
    "cross-dataset": cross_dataset,
}


def among(given: Sequence[T], own: Sequence[T]) -> tuple[T, ...]:
    """Those of a study's own values that are in the grid, or the grid's values if none is."""
    return tuple(value for value in own if value in given) or tuple(given)


def _specs(grid: Grid, compared: Sequence[dict[str, Any]], **fields: Any) -> list[RunSpec]:
    """Every method or prompt, given by its fields, in every cell of the grid, without repetition."""
    specs = (spec for one in compared for spec in grid.specs(**one, **fields))
    return list({spec.fingerprint: spec for spec in specs}.values())


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
        joint | {"recipe": make_recipe(grid.recipe, anchor=ANCHOR)},
        joint | {"recipe": make_recipe(grid.recipe, prograd=True)},
        fixed | {"depth": DEPTH},
    ]
