"""Token sequences of the prompts, `SOS context name . EOT`, with a marker for each context vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, get_args

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, printable, shown, unknown
from slimprompt.prompts.spec import Position

CONTEXT = -1
"""Placeholder for a context vector in a token sequence."""


def prompt_tokens(
    backbone: Backbone, class_names: Sequence[str], n_ctx: int, position: Position = "end"
) -> list[list[int]]:
    """Token sequence of each class, `SOS context name . EOT`, with `CONTEXT` in place of each context vector.

    Underscores of a name become spaces. The position "end" puts all context vectors before the name, "middle" half of them (the
    larger half after it if `n_ctx` is odd), "front" none. A sequence longer than the context length is an error.
    """
    if position not in get_args(Position):
        raise unknown("position", position, get_args(Position))
    if not class_names:
        raise InputError("no class names were given: at least one is needed")
    has_start = has_start_token(backbone.tokenizer)
    n_before = {"end": n_ctx, "middle": n_ctx // 2, "front": 0}[position]
    sequences = []
    for class_name in class_names:
        name = " ".join(class_name.replace("_", " ").split())
        if not name:
            raise InputError(f"an empty class name was given among {list(class_names)[:5]}…: every class needs a name")
        if printable(name) != name:
            raise InputError(f"the class name {shown(name)} holds bytes that are not UTF-8; give it as text")
        tokens = backbone.tokenize(f"{name}.")
        start, rest = (tokens[:1], tokens[1:]) if has_start else ([], tokens)
        # the length of the name, without the end-of-text token
        split = 0 if position == "end" else len(backbone.tokenize(name)) - len(start) - 1
        sequence = [*start, *[CONTEXT] * n_before, *rest[:split], *[CONTEXT] * (n_ctx - n_before), *rest[split:]]
        if len(sequence) > backbone.context_length:
            raise InputError(
                f"the class name {shown(class_name)} does not fit: with {n_ctx} context tokens it makes {len(sequence)} tokens and "
                f"{backbone.name} reads at most {backbone.context_length}. Shorten the name or lower n_ctx."
            )
        sequences.append(sequence)
    return sequences


@lru_cache(maxsize=4)
def has_start_token(tokenizer: Any) -> bool:
    """Whether a tokenizer begins every text with a start token."""
    one, other = tokenizer(["a", "the"], context_length=32)[:, 0].tolist()
    return one == other


def name_tokens(backbone: Backbone, class_name: str) -> tuple[int, ...]:
    """Token ids of a class in a prompt without context, `SOS name . EOT`: equal for two spellings of one class."""
    (sequence,) = prompt_tokens(backbone, [class_name], 0)
    return tuple(sequence)


def shared_prefix_length(sequences: Sequence[Sequence[int]]) -> int:
    """Number of leading tokens that all classes share: the start token and the context before the class name."""
    if len({sequence[0] for sequence in sequences}) > 1:
        return 0  # no start token, and the class name comes first
    length = 1
    while sequences[0][length] == CONTEXT:
        length += 1
    return length
