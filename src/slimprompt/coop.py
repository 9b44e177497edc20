"""Import of prompts that were trained with CoOp's own code."""

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
    """The prompt in a CoOp checkpoint (`model.pth.tar-N`)."""

    context: Tensor
    """Context vectors, (n_ctx, width)."""
    suffix: Tensor | None
    """Embeddings of each class's tokens after the context, (n_classes, length, width), if the file contains them."""
    epoch: int | None
    """Number of training epochs, if the file contains it."""


def read_coop_checkpoint(path: str | Path) -> CoOpCheckpoint:
    """Read the prompt in a CoOp checkpoint without executing code from the file.

    Parameters
    ----------
    path
        A checkpoint file that CoOp saved.

    Returns
    -------
    CoOpCheckpoint
        Context, class suffixes and epoch.

    Raises
    ------
    InputError
        If the file contains no context, or a context per class (CSC).
    """
    content = read_tensors_only(Path(path))
    state = content.get("state_dict", content)
    context = state.get("ctx") if isinstance(state, dict) else None
    if not isinstance(context, Tensor):
        found = ", ".join(map(str, list(state)[:6])) if isinstance(state, dict) else "no state dict"
        raise InputError(f"{path} is not a CoOp prompt: expected a tensor 'ctx' in its state dict, found {found}")
    if context.ndim != 2:
        raise InputError(
            f"the context in {path} has shape {tuple(context.shape)}: a context per class (CSC) cannot be applied to other class names; "
            "only a unified context (n_ctx, width) can be imported"
        )
    suffix = state.get("token_suffix")
    epoch = content.get("epoch")
    return CoOpCheckpoint(
        context.float(), suffix if isinstance(suffix, Tensor) else None, epoch if isinstance(epoch, int) else None
    )


def import_coop(
    path: str | Path, backbone: Backbone, class_names: Sequence[str] | None = None, position: Position = "end"
) -> PromptClassifier:
    """Create a classifier from a CoOp checkpoint.

    Parameters
    ----------
    path
        A checkpoint file that CoOp saved.
    backbone
        The CLIP model that the prompt was trained with.
    class_names
        Class names in the order of training; None reads them from the file.
    position
        Position of the class name: "end", "middle" or "front".

    Returns
    -------
    PromptClassifier
        A fitted classifier with the imported prompt as a dense prompt.

    Raises
    ------
    InputError
        If the checkpoint does not match the backbone or the class names.
    """
    checkpoint = read_coop_checkpoint(path)
    n_ctx, width = checkpoint.context.shape
    if width != backbone.text_width:
        raise InputError(
            f"the context in {path} has width {width}, but {backbone.name} reads {backbone.text_width}: the prompt belongs to another model"
        )
    if class_names is None:
        if checkpoint.suffix is None:
            raise InputError(f"{path} does not list its classes; give their names in the order of training")
        class_names = _names_in(checkpoint.suffix, backbone)
    elif checkpoint.suffix is not None and len(class_names) != len(checkpoint.suffix):
        raise InputError(
            f"{path} was trained on {len(checkpoint.suffix)} classes, but {len(class_names)} names were given"
        )
    prompt_tokens(backbone, class_names, n_ctx, position)
    classifier = PromptClassifier(backbone, variant="dense", rank=None, basis=None, n_ctx=n_ctx, position=position)
    return classifier.set_prompt(backbone, Prompt(torch.eye(n_ctx), checkpoint.context, "A"), class_names)


def _names_in(suffix: Tensor, backbone: Backbone) -> list[str]:
    """Class names decoded from the embeddings of `name . EOT`, which are rows of the token embedding (rounded if fp16)."""
    table = backbone.text_tower.token_embedding.weight.detach().float().cpu()  # (vocab_size, width)
    end_token = backbone.tokenize("a")[-1]
    names = []
    for rows in suffix.float():  # (length, width)
        distance, ids = torch.cdist(rows, table).min(1)  # (length,) each
        if distance[0] > 0.05 * table.norm(dim=1).mean():
            raise InputError(
                "the class tokens in this checkpoint do not belong to this model; use the weights that it was trained with"
            )
        tokens = ids.tolist()
        text = backbone.tokenizer.decode(tokens[: tokens.index(end_token)] if end_token in tokens else tokens)
        names.append(" ".join(text.split()).removesuffix(".").strip())
    return names
