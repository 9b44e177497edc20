"""Import of prompts that were trained with CoOp's own code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from slimprompt.classifier import Classifier
from slimprompt.clip.backbone import Backbone
from slimprompt.clip.torch_files import read_torch_file
from slimprompt.errors import InputError, first_few
from slimprompt.prompts.prompt import Prompt
from slimprompt.prompts.spec import Position, make_spec
from slimprompt.text.tokens import name_tokens


class CoOpCheckpoint(NamedTuple):
    """The prompt in a CoOp checkpoint (`model.pth.tar-N`)."""

    context: Tensor
    """Context vectors, (n_ctx, width)."""
    suffix: Tensor | None
    """Embeddings of each class's tokens after the context, (n_classes, length, width), if the file contains them."""
    epoch: int | None
    """Number of training epochs, if the file contains it."""


def read_coop_checkpoint(path: str | Path) -> CoOpCheckpoint:
    """Read the prompt in a CoOp checkpoint without executing code from the file; a context per class (CSC) is an error."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint file at {path}")
    try:
        content = read_torch_file(path)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} is not a readable PyTorch checkpoint ({type(error).__name__}: {error}). A file of PyTorch before 1.6 must be "
            "saved again by a newer one"
        ) from None
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    context = state.get("ctx") if isinstance(state, dict) else None
    if not isinstance(state, dict) or not isinstance(context, Tensor):
        found = first_few([*map(str, state)]) if isinstance(state, dict) else f"a {type(content).__name__}"
        raise InputError(
            f"{path} is not a CoOp prompt: expected a tensor 'ctx' in its state dict, found {found}. "
            "Give the file prompt_learner/model.pth.tar-N of CoOp's output folder"
        )
    if context.ndim != 2:
        raise InputError(
            f"the context in {path} has shape {tuple(context.shape)}: a context per class (CSC) cannot be applied to other class "
            "names; only a unified context (n_ctx, width) can be imported"
        )
    suffix, epoch = state.get("token_suffix"), content.get("epoch")
    return CoOpCheckpoint(
        context.float(), suffix if isinstance(suffix, Tensor) else None, epoch if isinstance(epoch, int) else None
    )


def import_coop(
    path: str | Path, backbone: Backbone, class_names: Sequence[str] | None = None, position: Position = "end"
) -> Classifier:
    """A fitted classifier with the context of a CoOp checkpoint as a dense prompt.

    Class names are given in the order of training, and must have the tokens that the file has; None reads them from the file, which
    knows their tokens but not their spelling: "707-320" is read as "7 0 7 - 3 2 0".
    """
    checkpoint = read_coop_checkpoint(path)
    n_ctx, width = checkpoint.context.shape
    if width != backbone.text_width:
        raise InputError(
            f"the context in {path} has width {width}, but {backbone.name} reads {backbone.text_width}: the prompt belongs to another model"
        )
    if checkpoint.suffix is not None:
        tokens = _name_tokens(checkpoint.suffix, backbone)
        if class_names is None:
            class_names = _decode(tokens, backbone)
        else:
            _check_names(path, class_names, tokens, backbone)
    elif class_names is None:
        raise InputError(f"{path} does not list its classes; give their names in the order of training")
    imported = {"from": Path(path).name, "epoch": checkpoint.epoch}
    prompt = Prompt(torch.eye(n_ctx), checkpoint.context, "A")
    spec = make_spec(variant="dense", n_ctx=n_ctx, position=position)
    return Classifier.of_prompt(backbone, prompt, spec, class_names, imported=imported)


def _name_tokens(suffix: Tensor, backbone: Backbone) -> list[list[int]]:
    """Token ids of `name . EOT` of each class, from embeddings (n_classes, length, width) that may be rounded to fp16."""
    table = backbone.text_tower.token_embedding.weight.detach().float().cpu()  # (vocab_size, width)
    end_token = backbone.tokenize("a")[-1]
    tolerance = 0.05 * table.norm(dim=1).mean()
    if suffix.ndim != 3 or suffix.shape[2] != table.shape[1]:
        raise _other_tokens()
    sequences: list[list[int]] = [[] for _ in suffix]
    for rows in suffix.float().unbind(1):  # (n_classes, width): the tokens at one position
        distance, ids = torch.cdist(rows, table).min(1)  # (n_classes,) each
        for sequence, token, error in zip(sequences, ids.tolist(), distance, strict=True):
            if end_token not in sequence[-1:]:
                if error > tolerance:
                    raise _other_tokens()
                sequence.append(token)
        if all(sequence[-1] == end_token for sequence in sequences):
            break
    return sequences


def _other_tokens() -> InputError:
    return InputError(
        "the class tokens in this checkpoint do not belong to this model; use the weights that it was trained with"
    )


def _decode(sequences: Sequence[Sequence[int]], backbone: Backbone) -> list[str]:
    texts = (backbone.tokenizer.decode(sequence[:-1]) for sequence in sequences)
    return [" ".join(text.split()).removesuffix(".").strip() for text in texts]


def _check_names(
    path: str | Path, given: Sequence[str], sequences: Sequence[Sequence[int]], backbone: Backbone
) -> None:
    """Raise an error unless each name has the tokens of its class in the file."""
    if len(given) != len(sequences):
        raise InputError(f"{path} was trained on {len(sequences)} classes, but {len(given)} names were given")
    for number, (name, sequence) in enumerate(zip(given, sequences, strict=True), 1):
        if list(name_tokens(backbone, name)[-len(sequence) :]) != list(sequence):
            (found,) = _decode([sequence], backbone)
            raise InputError(
                f"class {number} of {path} is {found!r}, but {name!r} was given; give the names in the order of training"
            )
