"""Grids: the axes of a study, and the list of specs that they span."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from slimprompt.errors import InputError, choose, one_line, shown, unknown, validate
from slimprompt.files import read_text
from slimprompt.lab.spec import PROMPT, RunSpec, one_spelling
from slimprompt.methods.table import METHODS, find_method
from slimprompt.prompts.spec import FIXED_BASES, check_rank
from slimprompt.training.recipe import RECIPES, Recipe, replace_fields
from slimprompt.user_functions import is_user_function

#: Runs that one grid may span, and bytes and nesting of a grid file.
_MOST_RUNS, _MOST_BYTES, _MOST_DEPTH = 100_000, 2**20, 20


def _dataset_name(given: str) -> str:
    # Imported here, so that the command line can read the fields of a grid without importing numpy and Pillow.
    from slimprompt.data.catalogue import dataset_name

    return dataset_name(given)


def _basis_name(given: str) -> str:
    if given not in FIXED_BASES and not is_user_function(given):
        raise unknown("basis", given, FIXED_BASES)
    return given


def _method_name(given: str) -> str:
    find_method(given)
    return given


Count = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
DatasetName = Annotated[str, AfterValidator(_dataset_name)]
BasisName = Annotated[str, AfterValidator(_basis_name)]
MethodName = Annotated[str, AfterValidator(_method_name)]


class Grid(BaseModel):
    """The axes of a study. These are also the fields of a grid file; a single value may replace a list of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    study: tuple[str, ...] = Field(("all",), description="names of studies")
    backbones: tuple[str, ...] = Field(
        description="models, as NAME or NAME=WEIGHTS (an open_clip tag or a checkpoint file)"
    )
    datasets: tuple[DatasetName, ...] = Field(description="benchmarks, or folders of your own images")
    shots: tuple[Count, ...] = Field(description="training images per class")
    seeds: tuple[Seed, ...] = Field(
        description="seeds of the few-shot sample, the start, the image order and the views"
    )
    ranks: tuple[Count, ...] = Field((1, 2, 4, 8), description="ranks of the factorised prompts")
    bases: tuple[BasisName, ...] = Field(
        FIXED_BASES, description=f"fixed token bases: {', '.join(FIXED_BASES)}, or your own, module:function"
    )
    methods: tuple[MethodName, ...] | None = Field(
        None,
        description=f"methods of the study baselines: {', '.join(METHODS)}, or your own, module:function; default: all of slimprompt's",
    )
    pairs: tuple[tuple[DatasetName, DatasetName], ...] | None = Field(
        None,
        description="transfers as [source, target]; empty: the paper's, or for other datasets each from the two before it",
    )
    n_ctx: int = Field(16, ge=1, le=1024, description="context tokens of factorised and long dense prompts")
    short_ctx: int | None = Field(
        4, ge=1, le=1024, description="context tokens of the short dense prompt; none = no short prompt"
    )
    position: Literal["end", "middle", "front"] = Field("end", description="position of the class name")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="precision of the frozen forward passes")
    recipe: Recipe = Field(default_factory=Recipe, description="how prompts are trained: a recipe's name or its fields")

    @field_validator("shots", "seeds", "ranks", mode="before")
    @classmethod
    def _whole_numbers(cls, values: Any) -> Any:
        for value in values if isinstance(values, list | tuple) else (values,):
            if not (isinstance(value, int | float) or (isinstance(value, str) and value.lstrip("+-").isdigit())):
                raise ValueError("write whole numbers, such as 1 or [1, 2, 3]")
        return values

    @field_validator("pairs", mode="before")
    @classmethod
    def _pairs_of_names(cls, pairs: Any) -> Any:
        rows = [] if pairs is None else pairs if isinstance(pairs, list | tuple) else [pairs]
        if not all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
            raise ValueError("write a list of [source, target], such as [[dtd, food101]]")
        return pairs

    @field_validator("backbones", "datasets", "shots", "seeds", "ranks", "bases", "methods", "study")
    @classmethod
    def _no_repetition(cls, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if values is None:
            return None
        if not values:
            raise ValueError("at least one value is needed")
        return tuple(dict.fromkeys(values))

    @model_validator(mode="after")
    def _not_endless(self) -> Grid:
        """Counts the runs before any of them is built."""
        pairs = len(self.pairs or ()) * len(self.backbones) * len(self.seeds)
        for kinds, more in ((("ranks", "bases"), pairs), (("methods",), 0)):
            axes = {
                name: len(getattr(self, name) or ()) for name in ("backbones", "datasets", "shots", "seeds", *kinds)
            }
            if math.prod(axes.values()) + more > _MOST_RUNS:
                sizes = " × ".join(f"{number:,} {name}" for name, number in axes.items())
                raise ValueError(f"{sizes} are more than {_MOST_RUNS:,} runs; divide the grid into several")
        return self

    def specs(self, **fields: Any) -> list[RunSpec]:
        """One spec per backbone, dataset, number of shots and seed.

        `fields` give the variant and what belongs to it, or the method.
        """
        how: dict[str, Any] = {"precision": self.precision}
        if fields.get("method", PROMPT) == PROMPT:
            how |= {"position": self.position, "recipe": self.recipe}
            if not fields.get("words"):  # words decide the length
                how["n_ctx"] = self.n_ctx
                self._check_rank(fields.get("rank"))
        found = []
        for text, dataset, shots, seed in product(self.backbones, self.datasets, self.shots, self.seeds):
            backbone, pretrained = parse_backbone(text)
            axes = {"backbone": backbone, "pretrained": pretrained, "dataset": dataset, "shots": shots, "seed": seed}
            found.append(validate(RunSpec, {**axes, **how, **fields}, "run"))
        return found

    def _check_rank(self, rank: int | None) -> None:
        """A study may use some of the ranks only, so they are checked when they are used."""
        if rank is not None:
            try:
                check_rank(rank, self.n_ctx)
            except InputError as error:
                given = ", ".join(map(str, self.ranks))
                raise InputError(f"{error}. The ranks of the grid are {given}; give others (--ranks)") from None


#: Fields of a grid in which a single value may replace a list of one.
AXES = ("study", "backbones", "datasets", "shots", "seeds", "ranks", "bases", "methods")


def complete_grid(fields: Mapping[str, Any], defaults: Grid) -> Grid:
    """A grid from some of its fields; the others are taken from `defaults`."""
    given = {
        name: [value] if name in AXES and not isinstance(value, list | tuple | None) else value
        for name, value in fields.items()
    }
    if isinstance(recipe := given.get("recipe"), str):
        given["recipe"] = choose("recipe", recipe, RECIPES)
    elif isinstance(recipe, Mapping):
        for name in recipe:
            choose("recipe field", name, Recipe.model_fields)
        given["recipe"] = replace_fields(defaults.recipe, recipe)
    return validate(Grid, {**{name: getattr(defaults, name) for name in Grid.model_fields}, **given}, "grid")


def unused_values(grid: Grid, specs: Sequence[RunSpec]) -> dict[str, list[str]]:
    """Field of the grid → its values that no spec uses; fields without such values are left out.

    A study may use some of the values only. A dataset is also used by the runs that transfer from it or are evaluated on it.
    """
    used: dict[str, set[Any]] = {
        "backbones": {(spec.backbone, spec.pretrained) for spec in specs},
        "datasets": {name for spec in specs for name in (spec.dataset, spec.source, *spec.evaluate_on)},
        "pairs": {(spec.source, spec.dataset) for spec in specs},
        "short_ctx": {spec.n_ctx for spec in specs},
    }
    one_value = {"shots": "shots", "seeds": "seed", "ranks": "rank", "bases": "basis", "methods": "method"}
    used |= {name: {getattr(spec, field) for spec in specs} for name, field in one_value.items()}
    given: dict[str, Sequence[Any]] = {name: getattr(grid, name) or () for name in AXES if name != "study"}
    given |= {"pairs": grid.pairs or (), "short_ctx": () if grid.short_ctx is None else (grid.short_ctx,)}
    found: dict[str, list[str]] = {}
    for name, values in given.items():
        for value in values:
            if (parse_backbone(value) if name == "backbones" else value) not in used[name]:
                found.setdefault(name, []).append(" → ".join(value) if name == "pairs" else str(value))
    return found


def read_grid_file(path: Path) -> tuple[dict[str, Any], bool]:
    """The fields in a YAML grid file, and whether it says `pocket: true`."""
    data = _read_fields(path, "grid", "`study: headline` and `datasets: [dtd]`")
    if not isinstance(pocket := data.pop("pocket", False), bool):
        raise InputError(f"{path}: pocket must be true or false, not {shown(pocket)}")
    for name in data:
        choose(f"field in {path}", name, dict.fromkeys((*Grid.model_fields, "pocket")))
    return data, pocket


def read_recipe_file(path: Path) -> dict[str, Any]:
    """The fields in a YAML file of a recipe; the names are checked."""
    fields = _read_fields(path, "recipe", "`epochs: 50` and `lr: 0.002`")
    for name in fields:
        choose(f"recipe field in {path}", name, Recipe.model_fields)
    return fields


def _read_fields(path: Path, kind: str, example: str) -> dict[str, Any]:
    try:
        text = read_text(path, most=_MOST_BYTES)
        _check_nesting(text)
        data = yaml.load(text, _Loader)
    except InputError as error:
        raise InputError(f"cannot read the {kind} file {path}: {error}") from None
    except (ValueError, yaml.YAMLError) as error:  # ValueError: a number or a date that Python does not accept
        raise InputError(f"cannot read the {kind} file {path}: {one_line(str(error), 300)}") from None
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise InputError(f"{path} is not a {kind}: expected lines such as {example}")
    return data


class _Loader(yaml.SafeLoader):
    """YAML in which every key is given once; otherwise the last one would count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, count in counts.most_common(1):
            if count > 1:
                raise InputError(f"{shown(name)} is given {count} times; give every field once")
        return super().construct_mapping(node, deep)


def _check_nesting(text: str) -> None:
    """Refuse aliases, which can stand for more values than fit into memory, and deep nesting, before anything is built."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"it uses the alias *{one_line(str(event.anchor), 40)}; write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise InputError("it is nested too deeply; a grid is one table of lists")


def parse_backbone(text: str) -> tuple[str, str | None]:
    """(name, weights) of NAME or NAME=WEIGHTS; without WEIGHTS it is OpenAI's, unless the model brings its own.

    >>> parse_backbone("ViT-B/16"), parse_backbone("RN50=cc12m"), parse_backbone("pocket")
    (('ViT-B-16', 'openai'), ('RN50', 'cc12m'), ('pocket', None))
    """
    name, sign, weights = text.partition("=")
    if not name or (sign and not weights):
        raise InputError(f"{shown(text)} is not a backbone: write NAME or NAME=WEIGHTS, such as ViT-B-16=openai")
    has_own_weights = ":" in name or name.split("-")[0] == "pocket"
    return one_spelling(name), weights or (None if has_own_weights else "openai")
