"""What a prompt `P = B A` is: the table of variants, and `PromptSpec`, one validated value.

Start rules, runs, saved models, command-line options, tables and claims read these two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slimprompt.errors import InputError, choose, unknown, validate
from slimprompt.user_functions import function_name, is_user_function

#: Which factor of `P = B A` receives gradients.
Trainable = Literal["A", "B", "AB", "none"]
#: The towers of CLIP that a prompt is for.
Tower = Literal["text", "image", "both"]
#: Position of the class name in the prompt.
Position = Literal["end", "middle", "front"]

#: Fixed token bases whose coefficients start from least squares, A0 = B† P0, in the order of the paper's tables.
FIXED_BASES = ("gaussian", "orthogonal", "svd", "learned")
#: Frozen factors of the transfer study; the trainable factor keeps its own start.
TRANSFER_BASES = ("source", "random")
#: Bases that come from another finished run.
BASES_FROM_A_RUN = ("learned", "source")

_N_CTX, _RANK, _N_CTX_IMAGE = 16, 4, 8
#: The text of a prompt that is for the image tower alone.
_FIXED_WORDS = "a photo of a"


class Variant(NamedTuple):
    """One row of the table."""

    trainable: Trainable
    """The factors that train."""
    bases: tuple[str, ...]
    """Where the frozen factor may come from; empty if no factor is frozen."""
    parameters: Callable[[int, int, int, int], int]
    """(n_ctx, width, rank, depth) → number of trained parameters."""
    summary: str
    """One phrase for help texts."""
    default_basis: str | None = None

    @property
    def standalone_bases(self) -> list[str]:
        """The bases that need no other run."""
        return [name for name in self.bases if name not in BASES_FROM_A_RUN]


#: Dense CoOp is the fixed basis B = I of rank n_ctx.
VARIANTS: dict[str, Variant] = {
    "dense": Variant("A", (), lambda m, d, r, depth: m * d * depth, "train P itself, as CoOp does"),
    "joint": Variant("AB", (), lambda m, d, r, depth: r * (m + d * depth), "train both factors"),
    "fixed-B": Variant(
        "A",
        (*FIXED_BASES, *TRANSFER_BASES),
        lambda m, d, r, depth: r * d * depth,
        "train A over a fixed basis B",
        default_basis="orthogonal",
    ),
    "fixed-A": Variant(
        "B",
        ("svd", *TRANSFER_BASES),
        lambda m, d, r, depth: m * r,
        "train B with fixed coefficients A",
        default_basis="svd",
    ),
}


def count_parameters(variant: str, *, n_ctx: int, width: int, rank: int | None = None, depth: int = 1) -> int:
    """Number of trained parameters.

    >>> [count_parameters(name, n_ctx=16, width=512, rank=4) for name in VARIANTS]
    [8192, 2112, 2048, 64]
    """
    return VARIANTS[variant].parameters(n_ctx, width, rank or 0, depth)


class PromptSpec(BaseModel):
    """What a prompt is before training: everything but the backbone and the seed.

    `n_ctx` is None for a prompt of words, which has as many context tokens as the words have, and all fields have their
    defaults if `variant` is None: no prompt.

    >>> PromptSpec(variant="joint", rank=2).label, PromptSpec(words="a photo of a").label
    ('joint r2', 'fixed-B orthogonal r4 from “a photo of a”')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    variant: str | None = Field(
        "fixed-B",
        description="what trains: " + ", ".join(f"{name} ({row.summary})" for name, row in VARIANTS.items()),
    )
    rank: int | None = Field(
        None, ge=1, description=f"rank r of P = B A, from 1 to n_ctx; default: {_RANK}; not used by dense"
    )
    basis: str | None = Field(
        None,
        description="where the fixed factor comes from: gaussian (random numbers), orthogonal (the same, made orthonormal), svd (of a "
        "random dense prompt), random (another random prompt's), or your own, module:function; default: "
        + ", ".join(f"{row.default_basis} for {name}" for name, row in VARIANTS.items() if row.bases),
    )
    n_ctx: int | None = Field(
        None, ge=1, description=f"number of context tokens m; default: {_N_CTX}, or the number of tokens of the words"
    )
    words: str | None = Field(
        None, min_length=1, description="start from the token embeddings of these words, such as 'a photo of a'"
    )
    anchored: bool = Field(
        False,
        description="with words: add the product to them, P = words + B A, from B A = 0, so that training starts exactly at the "
        "zero-shot classifier of the words",
    )
    depth: int = Field(
        1, ge=1, description="layers of the text tower that receive a context B A_l of their own, with one B for all"
    )
    position: Position = Field("end", description="position of the class name: end, middle or front")
    tower: Tower = Field(
        "text",
        description=f"where the prompt is: in the text tower, in the image tower (the text is then “{_FIXED_WORDS} …”, or the words), "
        "or in both",
    )
    n_ctx_image: int | None = Field(
        None, ge=1, description=f"extra rows of the image tower; default: {_N_CTX_IMAGE}, or n_ctx with share_basis"
    )
    image_blocks: str | None = Field(
        None,
        pattern=r"^\d{1,3}:\d{1,3}$",
        description="blocks of the image tower that receive rows B A_l of their own, J:E for J up to E - 1; the blocks below J are "
        "computed once per image; default: the last quarter",
    )
    share_basis: bool = Field(False, description="with both towers: one B for both")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, fields: Any) -> Any:
        """Replace None by the default of the variant, so that equal prompts have equal specs."""
        if not isinstance(fields, dict):
            return fields
        fields = dict(fields)
        if isinstance(fields.get("words"), str):
            fields["words"] = " ".join(fields["words"].split())
        variant = fields.get("variant", "fixed-B")
        if variant is None:
            return fields
        row: Variant = choose("variant", str(variant), VARIANTS)
        tower, shared = fields.get("tower", "text"), fields.get("share_basis", False)
        if tower == "image" and fields.get("words") is None:
            fields["words"] = _FIXED_WORDS
        if fields.get("words") is None and fields.get("n_ctx") is None:
            fields["n_ctx"] = _N_CTX
        if tower != "text" and fields.get("n_ctx_image") is None:
            fields["n_ctx_image"] = fields.get("n_ctx") if shared else _N_CTX_IMAGE
        if fields.get("rank") is None and variant != "dense":
            fields["rank"] = _RANK
        fields["basis"] = row.default_basis if fields.get("basis") is None else function_name(fields["basis"])
        return fields

    @model_validator(mode="after")
    def _check(self) -> PromptSpec:
        if self.variant is None:
            return self
        row = VARIANTS[self.variant]
        if self.variant == "dense" and self.rank is not None:
            raise InputError(f"a dense prompt has no rank (given: {self.rank}); leave it out")
        if self.words is not None and self.n_ctx is not None:
            raise InputError(
                f"the context of words has as many tokens as the words; leave out n_ctx (given: {self.n_ctx})"
            )
        if self.rank is not None and self.n_ctx is not None:
            check_rank(self.rank, self.n_ctx)
        if not row.bases and self.basis is not None:
            raise InputError(f"variant {self.variant} freezes no factor, so it takes no basis (given: {self.basis})")
        own = self.variant == "fixed-B" and is_user_function(self.basis)
        if row.bases and self.basis not in row.bases and not own:
            raise unknown(f"basis for {self.variant}", str(self.basis), row.bases)
        if self.anchored and not self.words:
            raise InputError("an anchored prompt needs words, such as 'a photo of a'")
        if self.anchored and self.depth > 1:
            raise InputError(
                f"an anchored prompt has no deeper layers (depth {self.depth}): replacing their rows would leave the words, so it "
                "would not start at zero-shot. Use depth 1, or the words as a start only"
            )
        self._check_towers()
        return self

    def _check_towers(self) -> None:
        """Raise an error unless the fields of the image tower fit the others."""
        given = {name: getattr(self, name) for name in ("n_ctx_image", "image_blocks") if getattr(self, name)}
        if self.tower == "text" and given:
            raise InputError(f"{' and '.join(given)} is for the image tower; add tower 'image' or 'both'")
        if self.share_basis and self.tower != "both":
            raise InputError(f"share_basis is for both towers (tower: {self.tower})")
        if self.tower == "image" and (self.anchored or self.depth > 1):
            raise InputError("a prompt of the image tower alone leaves the text as it is: leave out anchored and depth")
        if self.tower != "text" and self.basis in BASES_FROM_A_RUN:
            raise InputError(f"basis {self.basis!r} is for prompts of the text tower")
        if self.share_basis and None not in (self.n_ctx, self.n_ctx_image) and self.n_ctx != self.n_ctx_image:
            raise InputError(
                f"with share_basis, both towers have the same number of context tokens (n_ctx {self.n_ctx}, n_ctx_image "
                f"{self.n_ctx_image})"
            )
        if self.rank is not None and self.n_ctx_image is not None:
            check_rank(self.rank, self.n_ctx_image, "n_ctx_image")
        if self.image_blocks is not None and operator.ge(*self.blocks_of(self.image_blocks)):
            raise InputError(f"image_blocks {self.image_blocks!r}: expected J:E with J below E, such as 9:12")

    @staticmethod
    def blocks_of(image_blocks: str) -> tuple[int, int]:
        """The numbers J and E of "J:E"."""
        first, end = image_blocks.split(":")
        return int(first), int(end)

    def check_standalone(self) -> None:
        """Raise an error if the basis comes from another run, which only a study has."""
        if self.basis in BASES_FROM_A_RUN:
            raise InputError(
                f"basis {self.basis!r} is a factor of another run, which only a study has; use "
                + ", ".join(self.row.standalone_bases)
                + (", or your own, module:function" if self.variant == "fixed-B" else "")
            )

    @property
    def row(self) -> Variant:
        """The row of the variant."""
        return VARIANTS[str(self.variant)]

    @property
    def prompt(self) -> PromptSpec:
        """These fields alone, without those that a subclass adds."""
        return PromptSpec.model_construct(**self.prompt_fields())

    def prompt_fields(self) -> dict[str, Any]:
        """The fields of a prompt by name."""
        return {name: getattr(self, name) for name in PromptSpec.model_fields}

    @property
    def start(self) -> list[str]:
        """What a prompt has beyond a random start in the first layer: `anchored at “a photo of a”`, `depth 3`."""
        found = []
        if self.words and (self.tower != "image" or self.words != _FIXED_WORDS):
            found.append(f"{'anchored at' if self.anchored else 'from'} “{self.words}”")
        if self.depth > 1:
            found.append(f"depth {self.depth}")
        if self.tower != "text":
            shared = " with one B" if self.share_basis else ""
            rows = f", {self.n_ctx_image} rows" if self.n_ctx_image else ""
            blocks = f" in blocks {self.image_blocks}" if self.image_blocks else ""
            found.append(f"{'image tower' if self.tower == 'image' else 'both towers'}{shared}{rows}{blocks}")
        return found

    @property
    def label(self) -> str:
        """Short name: `fixed-B orthogonal r4`, `joint r2 anchored at “a photo of a”`, `dense m16`."""
        size = f"r{self.rank}" if self.rank else self.n_ctx and f"m{self.n_ctx}"
        return " ".join(part for part in (self.variant, self.basis, size, *self.start) if part)


def check_rank(rank: int, n_ctx: int, name: str = "n_ctx") -> None:
    """A rank must lie between 1 and the number of context tokens."""
    if not 1 <= rank <= n_ctx:
        raise InputError(
            f"rank {rank} does not fit: it must be between 1 and the number of context tokens, {name}={n_ctx}"
        )


def make_spec(**fields: Any) -> PromptSpec:
    """A `PromptSpec` from its fields; an invalid field is an `InputError` of one sentence."""
    return validate(PromptSpec, fields, "prompt")
