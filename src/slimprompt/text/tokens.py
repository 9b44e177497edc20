"""Token sequences of prompts: `SOS context name . EOT`, with marked places for the context vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, unknown

Position = Literal["end", "middle", "front"]

CONTEXT = -1  # marks a place in a token sequence that a context vector takes


def prompt_tokens(
    backbone: Backbone, class_names: Sequence[str], n_ctx: int, position: Position = "end"
) -> list[list[int]]:
    """One token sequence per class, `SOS context name . EOT`, with -1 where a context vector goes.

    position "middle" puts the second half of the context after the name, "front" all of it.
    """
    if position not in get_args(Position):
        raise unknown("position", position, get_args(Position))
    if not class_names:
        raise InputError("no class names were given: at least one is needed")
    # A tokenizer with a start token gives it to every text.
    has_start = backbone.tokenize("a")[0] == backbone.tokenize("the")[0]
    sequences = []
    for class_name in class_names:
        name = " ".join(class_name.replace("_", " ").split())
        if not name:
            raise InputError(f"an empty class name was given among {list(class_names)[:5]}…: every class needs a name")
        tokens = backbone.tokenize(f"{name}.")
        start, rest = (tokens[:1], tokens[1:]) if has_start else ([], tokens)
        name_length = len(backbone.tokenize(name)) - len(start) - 1  # without the end token
        before = {"end": n_ctx, "middle": n_ctx // 2, "front": 0}[position]
        after = 0 if position == "end" else name_length
        sequence = [*start, *[CONTEXT] * before, *rest[:after], *[CONTEXT] * (n_ctx - before), *rest[after:]]
        if len(sequence) > backbone.context_length:
            raise InputError(
                f"the class name {class_name!r} does not fit: with {n_ctx} context tokens it makes {len(sequence)} tokens and "
                f"{backbone.name} reads at most {backbone.context_length}. Shorten the name or lower n_ctx."
            )
        sequences.append(sequence)
    return sequences
