"""The variants of a prompt `P = B A`: what trains, which bases they take, how many numbers they train.

Specs, start rules, command-line help, tables and claims read this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from slimprompt.errors import InputError, choose, unknown
from slimprompt.own_functions import is_own

#: Which factor of `P = B A` receives gradients.
Trainable = Literal["A", "B", "AB"]

#: Fixed token bases whose coefficients start from least squares, A0 = B† P0, in the order of the paper's tables.
FIXED_BASES = ("gaussian", "orthogonal", "svd", "learned")
#: Frozen factors of the transfer study; the trainable factor keeps its own start.
TRANSFER_BASES = ("source", "random")
#: Bases that come from another finished run.
BASES_FROM_A_RUN = ("learned", "source")


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
    """The basis of a prompt that is fitted without naming one."""


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


def used_settings(variant: str, *, rank: int | None, basis: str | None) -> dict[str, Any]:
    """The rank and basis that the variant uses: a dense prompt has no rank, and a variant that freezes nothing no basis.

    >>> used_settings("fixed-A", rank=4, basis=None), used_settings("joint", rank=4, basis="svd")
    ({'rank': 4, 'basis': 'svd'}, {'rank': 4, 'basis': None})
    """
    row: Variant = choose("variant", variant, VARIANTS)
    return {"rank": None if variant == "dense" else rank, "basis": basis or row.default_basis if row.bases else None}


def bases_without_a_run(variant: str) -> list[str]:
    """The bases of a variant that need no other run.

    >>> bases_without_a_run("fixed-B"), bases_without_a_run("fixed-A")
    (['gaussian', 'orthogonal', 'svd', 'random'], ['svd', 'random'])
    """
    return [name for name in VARIANTS[variant].bases if name not in BASES_FROM_A_RUN]


def check_without_a_run(variant: str, basis: str | None) -> None:
    """Outside of studies, there is no other run from which a basis could come."""
    if basis in BASES_FROM_A_RUN:
        raise InputError(
            f"basis {basis!r} is a factor of another run, which only a study has; use "
            + ", ".join(bases_without_a_run(variant))
            + (", or your own, module:function" if variant == "fixed-B" else "")
        )


def check_variant(variant: str, *, rank: int | None, basis: str | None, n_ctx: int) -> Variant:
    """The variant's row, if it can be combined with this rank and basis; an `InputError` otherwise."""
    row: Variant = choose("variant", variant, VARIANTS)
    if variant == "dense":
        if rank is not None:
            raise InputError(f"a dense prompt has no rank (given: {rank}); leave it empty")
    elif rank is None:
        raise InputError(f"variant {variant} needs a rank between 1 and n_ctx={n_ctx}")
    else:
        check_rank(rank, n_ctx)
    if not row.bases and basis is not None:
        raise InputError(f"variant {variant} freezes no factor, so it takes no basis (given: {basis})")
    if row.bases and basis is None:
        raise InputError(f"variant {variant} needs a basis; allowed: {', '.join(row.bases)}")
    if row.bases and basis not in row.bases and not (variant == "fixed-B" and is_own(basis)):
        raise unknown(f"basis for {variant}", str(basis), row.bases)
    return row


def check_words(*, words: bool, anchored: bool, depth: int) -> None:
    """An anchored prompt is W + B A, so it needs words, and only the first layer of the text tower has words."""
    if depth < 1:
        raise InputError(f"depth must be at least 1, not {depth}: 1 is a prompt in the first layer only")
    if anchored and not words:
        raise InputError("an anchored prompt needs words, such as 'a photo of a'")
    if anchored and depth > 1:
        raise InputError(
            f"an anchored prompt has no deeper layers (depth {depth}): replacing their rows would leave the words, so it "
            "would not start at zero-shot. Use depth 1, or the words as a start only"
        )


def describe_start(*, words: str | None, anchored: bool, depth: int) -> list[str]:
    """What a prompt has beyond a random start in the first layer, for people: `anchored at “a photo of a”`, `depth 3`.

    >>> describe_start(words="a photo of a", anchored=False, depth=3), describe_start(words=None, anchored=False, depth=1)
    (['from “a photo of a”', 'depth 3'], [])
    """
    found = [f"{'anchored at' if anchored else 'from'} “{words}”"] if words else []
    return found + ([f"depth {depth}"] if depth > 1 else [])


def check_rank(rank: int, n_ctx: int) -> None:
    """A rank must lie between 1 and the number of context tokens."""
    if not 1 <= rank <= n_ctx:
        raise InputError(
            f"rank {rank} does not fit: it must be between 1 and the number of context tokens, n_ctx={n_ctx}"
        )
