"""Words as context: their token embeddings, and the zero-shot template that they make."""

from __future__ import annotations

import torch
from torch import Tensor

from slimprompt.clip.backbone import Backbone
from slimprompt.errors import InputError, shown
from slimprompt.text.tokens import has_start_token


def word_embeddings(backbone: Backbone, words: str) -> Tensor:
    """Token embeddings of words, (n_tokens, width), fp32, without position embeddings.

    With these rows as the context before the class name, the tokens of a prompt are those of the text `words name.`,
    so its class features are those of the zero-shot template `words_template(words)`, up to float rounding.
    """
    text = " ".join(words.split())
    if not text:
        raise InputError("no words were given to start from: write them as in 'a photo of a'")
    if "{}" in text:
        raise InputError(
            f"the words {shown(text)} hold {{}}: give only those before the class name, as in 'a photo of a'"
        )
    tokens = backbone.tokenize(text)[:-1]  # without the end-of-text token
    ids = torch.tensor(
        tokens[1:] if has_start_token(backbone.tokenizer) else tokens, device=backbone.device
    )  # (n_tokens,)
    return backbone.text_tower.token_embedding(ids).detach().float()


def words_template(words: str) -> str:
    """The zero-shot template in which the words precede the class name.

    >>> words_template("a photo of a")
    'a photo of a {}.'
    """
    return f"{' '.join(words.split())} {{}}."
