"""RunSpec: everything that decides the outcome of one run, as one frozen, validated value."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from slimprompt.errors import InputError, unknown
from slimprompt.training.recipe import Recipe

Variant = Literal["dense", "joint", "fixed-B", "fixed-A"]
Basis = Literal["svd", "gaussian", "orthogonal", "learned", "source", "random"]

#: Which bases a variant may name. "source" and "random" are the transfer study's frozen factors.
BASES: dict[str, tuple[str, ...]] = {
    "dense": (),
    "joint": (),
    "fixed-B": ("svd", "gaussian", "orthogonal", "learned", "source", "random"),
    "fixed-A": ("svd", "source", "random"),
}


class RunSpec(BaseModel):
    """One training run: what is adapted, to what, from which start, how.

    dense: P trains (m·d). joint: B and A train (r(m+d)). fixed-B: A trains (r·d). fixed-A: B trains (m·r).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str = Field(description="open_clip model name, 'hf-hub:…' id, or an embedded model such as 'pocket'")
    pretrained: str | None = Field(
        None, description="open_clip tag or checkpoint file; empty for hub and embedded models"
    )
    dataset: str = Field(description="benchmark name, or a folder or CSV file of one's own images")
    split: Literal["all", "base"] = Field(
        "all", description="all classes, or train on the base half and test on base and new"
    )
    shots: int = Field(ge=1, description="training images per class")
    seed: int = Field(ge=0, description="seed of the draw, the start, the order and the views")
    variant: Variant = Field(description="which factor trains")
    rank: int | None = Field(None, ge=1, description="r; empty for dense")
    n_ctx: int = Field(16, ge=1, description="context tokens m")
    basis: Basis | None = Field(None, description="where the frozen factor comes from")
    source: str | None = Field(None, description="with basis 'source': the dataset whose trained factor is taken over")
    position: Literal["end", "middle", "front"] = Field("end", description="where the class name stands")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="precision of the frozen forward passes")
    recipe: Recipe = Field(default_factory=Recipe, description="how it is trained")

    @field_validator("backbone")
    @classmethod
    def _one_spelling(cls, name: str) -> str:
        """The paper writes ViT-B/16, open_clip ViT-B-16: one run, one name. Hub ids and folders keep their slashes."""
        return name if ":" in name else name.replace("/", "-")

    @model_validator(mode="after")
    def _consistent(self) -> RunSpec:
        if self.variant == "dense":
            if self.rank is not None:
                raise ValueError(f"a dense prompt has no rank (given: {self.rank}); leave it empty")
        elif self.rank is None:
            raise ValueError(f"variant {self.variant} needs a rank between 1 and n_ctx={self.n_ctx}")
        elif self.rank > self.n_ctx:
            raise ValueError(
                f"rank {self.rank} is above n_ctx={self.n_ctx}; a prompt of {self.n_ctx} tokens has at most that rank"
            )
        allowed = BASES[self.variant]
        if not allowed and self.basis is not None:
            raise ValueError(f"variant {self.variant} freezes nothing, so it takes no basis (given: {self.basis})")
        if allowed and self.basis not in allowed:
            raise ValueError(f"variant {self.variant} needs a basis out of {', '.join(allowed)} (given: {self.basis})")
        if (self.basis == "source") != (self.source is not None):
            raise ValueError("basis 'source' and the source dataset go together: give both or neither")
        if self.source == self.dataset:
            raise ValueError(f"the source of a transfer must be another dataset than the target {self.dataset!r}")
        return self

    @property
    def fingerprint(self) -> str:
        """Hash of the canonical JSON of the spec; names the run folder."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """Short name for people: `fixed-B orthogonal r4`."""
        size = f"r{self.rank}" if self.rank else f"m{self.n_ctx}"
        parts = (self.variant, self.basis, self.source and f"from {self.source}", size)
        return " ".join(part for part in parts if part)

    @property
    def title(self) -> str:
        """The whole run in one line: `pocket pocket-sketch base 4-shot seed 1: joint r4`."""
        split = "" if self.split == "all" else f" {self.split}"
        return f"{self.backbone} {self.dataset}{split} {self.shots}-shot seed {self.seed}: {self.label}"

    def flat(self) -> dict[str, Any]:
        """Every field by its dotted name: `shots`, `recipe.epochs`."""
        fields = {name: getattr(self, name) for name in RunSpec.model_fields if name != "recipe"}
        return fields | {f"recipe.{name}": getattr(self.recipe, name) for name in Recipe.model_fields}

    def needs(self) -> RunSpec | None:
        """The run whose final factors this one starts from: the matching joint run of a learned basis or of a transfer."""
        if self.basis not in ("learned", "source"):
            return None
        fields = {name: getattr(self, name) for name in RunSpec.model_fields}
        return RunSpec(
            **fields | {"variant": "joint", "basis": None, "source": None, "dataset": self.source or self.dataset}
        )


def parse_spec(fields: dict[str, Any]) -> RunSpec:
    """A RunSpec from plain data; a wrong field is an `InputError` in plain words."""
    return validated(RunSpec, fields, "run")


def validated(model: type[BaseModel], fields: dict[str, Any], what: str) -> Any:
    """`model(**fields)`, with pydantic's errors in one plain sentence and "did you mean" for an unknown field."""
    for name in fields:
        if name not in model.model_fields:
            raise unknown(f"{what} field", name, model.model_fields)
    try:
        return model(**fields)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            message = problem["msg"].removeprefix("Value error, ")
            problems.append(f"{where}: {message} (given: {problem['input']!r})" if where else message)
        raise InputError(f"this {what} cannot be used: " + "; ".join(problems)) from None
