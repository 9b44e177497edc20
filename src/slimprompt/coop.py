"""Prompts trained with CoOp's own code, taken over from its checkpoint files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from slimprompt.classifier import PromptClassifier
from slimprompt.clip.backbone import Backbone
from slimprompt.clip.checkpoints import read_tensors_only
from slimprompt.errors import InputError
from slimprompt.prompts.prompt import Prompt
from slimprompt.text.tokens import Position, prompt_tokens


class CoOpCheckpoint(NamedTuple):
    """What of a `model.pth.tar-N` is a prompt."""

    context: Tensor
    """(n_ctx, width)"""
    suffix: Tensor | None
    """(n_classes, length, width): embeddings of each class's tokens after the context, if the file has them."""
    epoch: int | None


def read_coop_checkpoint(path: str | Path) -> CoOpCheckpoint:
    """The context of a CoOp checkpoint; no code in the file is run and nothing else in it is built."""
    content = read_tensors_only(Path(path))
    state = content.get("state_dict", content)
    context = state.get("ctx") if isinstance(state, dict) else None
    if not isinstance(context, Tensor):
        found = ", ".join(map(str, list(state)[:6])) if isinstance(state, dict) else "no state dict"
        raise InputError(f"{path} is not a CoOp prompt: expected a tensor 'ctx' in its state dict, found {found}")
    if context.ndim != 2:
        raise InputError(
            f"the context in {path} has shape {tuple(context.shape)}: a context per class (CSC) cannot be used on other names; "
            "only a unified context (n_ctx, width) can be taken over"
        )
    suffix = state.get("token_suffix")
    epoch = content.get("epoch")
    return CoOpCheckpoint(
        context.float(), suffix if isinstance(suffix, Tensor) else None, epoch if isinstance(epoch, int) else None
    )


def import_coop(
    path: str | Path, backbone: Backbone, class_names: Sequence[str] | None = None, position: Position = "end"
) -> PromptClassifier:
    """A classifier with the prompt of a CoOp checkpoint; its class names are read from the file unless given."""
    checkpoint = read_coop_checkpoint(path)
    n_ctx, width = checkpoint.context.shape
    if width != backbone.text_width:
        raise InputError(
            f"the context in {path} has width {width}, but {backbone.name} reads {backbone.text_width}: it belongs to another model"
        )
    if class_names is None:
        if checkpoint.suffix is None:
            raise InputError(f"{path} does not say which classes it was trained on; give their names in order")
        class_names = _names_in(checkpoint.suffix, backbone)
    elif checkpoint.suffix is not None and len(class_names) != len(checkpoint.suffix):
        raise InputError(
            f"{path} was trained on {len(checkpoint.suffix)} classes, but {len(class_names)} names were given"
        )
    prompt_tokens(backbone, class_names, n_ctx, position)
    classifier = PromptClassifier(backbone, variant="dense", rank=None, basis=None, n_ctx=n_ctx, position=position)
    return classifier.set_prompt(backbone, Prompt(torch.eye(n_ctx), checkpoint.context, "A"), class_names)


def _names_in(suffix: Tensor, backbone: Backbone) -> list[str]:
    """Class names back from the embeddings of `name . EOT`, which are rows of the model's table (rounded, if fp16)."""
    table = backbone.text_tower.token_embedding.weight.detach().float().cpu()
    end_token = backbone.tokenize("a")[-1]
    names = []
    for rows in suffix.float():
        nearest = torch.cdist(rows, table)
        distance, ids = nearest.min(1)
        if distance[0] > 0.05 * table.norm(dim=1).mean():
            raise InputError(
                "the class tokens in this checkpoint are not of this model; are these the weights it was trained on?"
            )
        tokens = ids.tolist()
        text = backbone.tokenizer.decode(tokens[: tokens.index(end_token)] if end_token in tokens else tokens)
        names.append(" ".join(text.split()).removesuffix(".").strip())
    return names
