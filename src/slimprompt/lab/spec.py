"""RunSpec: everything that decides the outcome of one run, as one frozen, validated value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, field_validator, model_validator

from slimprompt.errors import InputError, validate
from slimprompt.files import sha256
from slimprompt.methods.table import METHODS, PROMPT, find_method
from slimprompt.prompts.spec import BASES_FROM_A_RUN, FIXED_BASES, TRANSFER_BASES, VARIANTS, PromptSpec
from slimprompt.training.recipe import Recipe
from slimprompt.user_functions import import_user_function


def one_spelling(backbone: str) -> str:
    """The paper writes ViT-B/16, open_clip ViT-B-16: one run, one name. Hub ids and folders keep their slashes."""
    return backbone if ":" in backbone else backbone.replace("/", "-")


class Model(NamedTuple):
    """The frozen model of a run."""

    backbone: str
    pretrained: str | None
    precision: str


class SampleKey(NamedTuple):
    """The few-shot sample of a run; without shots, all images of the dataset."""

    dataset: str
    class_subset: str
    shots: int | None
    seed: int | None


class RunSpec(PromptSpec):
    """Everything that decides the outcome of one run: backbone, dataset, sample, and the prompt and its recipe or the method.

    A method other than a prompt has no settings: the fields of prompts keep their defaults, and the variant is None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    backbone: str = Field(description="open_clip model name, 'hf-hub:…' id, or an embedded model such as 'pocket'")
    pretrained: str | None = Field(
        None, description="open_clip tag or checkpoint file; empty for hub and embedded models"
    )
    dataset: str = Field(description="benchmark name, or a folder or CSV file of your own images")
    class_subset: Literal["all", "base"] = Field(
        "all", description="class subset to train on: all, or base (evaluated on base and new classes)"
    )
    shots: int = Field(ge=1, description="training images per class")
    seed: int = Field(ge=0, description="seed of the few-shot sample, the start, the image order and the train views")
    method: str = Field(
        PROMPT,
        description=f"way to adapt: {PROMPT}, or without a prompt {', '.join(METHODS)}, or your own, module:function; the fields "
        "below are for prompts",
    )
    basis: str | None = Field(
        None,
        description=f"where the frozen factor comes from: {', '.join(FIXED_BASES)}, or your own, module:function; in transfers "
        + ", ".join(TRANSFER_BASES),
    )
    source: str | None = Field(None, description="with basis 'source': the dataset whose trained factor is used")
    source_depth: int | None = Field(
        None, ge=1, description="with a basis B from another run: the depth of that run; empty: the same depth"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="precision of the frozen forward passes")
    evaluate_on: tuple[str, ...] = Field(
        (), description="other datasets whose test images are classified too, by the names of their classes only"
    )
    recipe: Recipe = Field(Recipe(), description="how it is trained")

    @field_validator("backbone")
    @classmethod
    def _one_spelling(cls, name: str) -> str:
        return one_spelling(name)

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, fields: Any) -> Any:
        """A method has no variant unless one is given, which is then an error; `source_depth` is only set if it differs."""
        if isinstance(fields, dict) and fields.get("method", PROMPT) != PROMPT:
            fields = {"variant": None, **fields}
        if isinstance(fields, dict) and fields.get("source_depth") == fields.get("depth", 1):
            fields = {**fields, "source_depth": None}
        return fields

    @field_validator("evaluate_on")
    @classmethod
    def _one_order(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(names)))

    @model_validator(mode="after")
    def _consistent(self) -> RunSpec:
        if self.dataset in self.evaluate_on:
            raise ValueError(f"evaluate_on names other datasets than the one of the run, {self.dataset!r}")
        if self.evaluate_on and self.class_subset != "all":
            raise ValueError(f"evaluate_on needs a run on all classes, not on the class subset {self.class_subset!r}")
        if self.method != PROMPT:
            self._check_method()
            return self
        if self.variant is None:
            raise InputError(f"a prompt needs a variant: {', '.join(VARIANTS)}")
        if self.anchored and (self.source_depth or 1) > 1:
            raise ValueError("an anchored prompt has no deeper layers, so its source has none")
        if (self.basis == "source") != (self.source is not None):
            raise ValueError("basis 'source' and the source dataset go together: give both or neither")
        if self.source_depth is not None and not (self.variant == "fixed-B" and self.basis in BASES_FROM_A_RUN):
            raise ValueError(
                f"source_depth needs a fixed-B prompt whose basis comes from a run: {' or '.join(BASES_FROM_A_RUN)}"
            )
        if self.source == self.dataset:
            raise ValueError(f"the source of a transfer must be another dataset than the target {self.dataset!r}")
        return self

    def _check_method(self) -> None:
        """A method has no fields of prompts, so that each method is one run per backbone, dataset, sample and class subset."""
        row = find_method(self.method, also=[PROMPT])
        defaults = {name: field.get_default(call_default_factory=True) for name, field in RunSpec.model_fields.items()}
        defaults["variant"] = None
        given = [name for name in _PROMPT_FIELDS if getattr(self, name) != defaults[name]]
        if given:
            raise InputError(
                f"the method {self.method} trains no prompt, so it takes no {', '.join(given)}; leave them out"
            )
        if self.evaluate_on and not row.takes_new_names:
            able = ", ".join((PROMPT, *(name for name, row in METHODS.items() if row.takes_new_names)))
            raise InputError(
                f"{self.method} cannot classify other datasets by their class names; methods that can: {able}"
            )

    @property
    def is_prompt(self) -> bool:
        """Whether the run trains a prompt."""
        return self.method == PROMPT

    @property
    def beyond(self) -> list[str]:
        """What a prompt has beyond P = B A from a random start, trained by cross-entropy alone: `depth 3`, `anchor 8`."""
        losses = (
            self.recipe.anchor and f"anchor {self.recipe.anchor:g}",
            self.recipe.prograd and "prograd",
            self.recipe.class_weights == "balanced" and "balanced",
        )
        origin = [f"B of depth {self.source_depth}"] if self.source_depth else []
        return [*self.start, *origin, *(loss for loss in losses if loss)]

    @property
    def model(self) -> Model:
        """The frozen model."""
        return Model(self.backbone, self.pretrained, self.precision)

    @property
    def sample(self) -> SampleKey:
        """The few-shot sample."""
        return SampleKey(self.dataset, self.class_subset, self.shots, self.seed)

    @property
    def fingerprint(self) -> str:
        """Hash of the canonical JSON of the fields that differ from their defaults; names the run folder.

        A field that is added later does not rename the runs made before. The default of a field must therefore never change.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True)
        return sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())[:16]

    @property
    def label(self) -> str:
        """Short name: `fixed-B orthogonal r4`, `joint r2 anchored at “a photo of a”`, `tip-adapter`."""
        if not self.is_prompt:
            return self.method
        size = f"r{self.rank}" if self.rank else self.n_ctx and f"m{self.n_ctx}"
        parts = (self.variant, self.basis, self.source and f"from {self.source}", size, *self.beyond)
        return " ".join(part for part in parts if part)

    @property
    def title(self) -> str:
        """The whole run in one line: `pocket pocket-sketch base 4-shot seed 1: joint r4`."""
        subset = "" if self.class_subset == "all" else f" {self.class_subset}"
        others = f", on {len(self.evaluate_on)} other datasets" if self.evaluate_on else ""
        return f"{self.backbone} {self.dataset}{subset} {self.shots}-shot seed {self.seed}: {self.label}{others}"

    def flat(self) -> dict[str, Any]:
        """Every field by its dotted name: `shots`, `recipe.epochs`. Those that the method does not use are None."""
        fields = {name: getattr(self, name) for name in RunSpec.model_fields if name != "recipe"}
        fields["evaluate_on"] = " ".join(self.evaluate_on) or None
        fields |= {f"recipe.{name}": getattr(self.recipe, name) for name in Recipe.model_fields}
        if self.is_prompt:
            return fields
        return {name: None if name.split(".")[0] in _PROMPT_FIELDS else value for name, value in fields.items()}

    def source_spec(self) -> RunSpec | None:
        """The joint run whose final factors this one uses, for a learned basis or a transfer; None otherwise."""
        if self.basis not in BASES_FROM_A_RUN:
            return None
        fields = {name: getattr(self, name) for name in RunSpec.model_fields}
        return RunSpec(
            **fields
            | {"variant": "joint", "basis": None, "source": None, "dataset": self.source or self.dataset}
            | {"depth": self.source_depth or self.depth, "source_depth": None, "evaluate_on": ()}
        )


#: Fields that only prompts use.
_PROMPT_FIELDS = (*PromptSpec.model_fields, "source", "source_depth", "recipe")


def distinct(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The specs without repetition, in their order."""
    return list({spec.fingerprint: spec for spec in specs}.values())


def parse_spec(fields: dict[str, Any]) -> RunSpec:
    """A RunSpec from plain data; an invalid field is an `InputError` of one sentence."""
    return validate(RunSpec, fields, "run")


def import_user_functions(specs: Iterable[RunSpec]) -> None:
    """Import the modules of the bases and methods `module:function` that runs use."""
    for kind, name in dict.fromkeys(
        pair for spec in specs for pair in (("basis", spec.basis), ("method", spec.method))
    ):
        import_user_function(kind, name)
