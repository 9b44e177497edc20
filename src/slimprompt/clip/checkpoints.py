"""Weights of a model from a checkpoint file, read without executing code from it.

Three formats are supported: safetensors, PyTorch's own format, and the TorchScript archives in which OpenAI published
CLIP.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimprompt.clip.torch_files import Placeholder, StoredTensor, check_entry_sizes, open_torch_file
from slimprompt.errors import InputError, first_few

#: Sizes of the model that OpenAI's files list among the weights.
_OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")


def read_state_dict(path: Path) -> tuple[dict[str, Tensor], bool]:
    """Read the weights of a model.

    Parameters
    ----------
    path
        A checkpoint file; the weights may be nested under "state_dict" and prefixed with "module.".

    Returns
    -------
    state : dict of str to Tensor
        The weights by name.
    is_openai : bool
        Whether the file has the form of OpenAI's: a TorchScript archive, or weights with their three size entries.

    Raises
    ------
    InputError
        If the file is missing or damaged, or contains anything but weights.
    """
    content, is_torchscript = _read(path)
    state = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(state, dict):
        raise InputError(f"{path} contains a {type(state).__name__}; expected a dictionary of weights by name")
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{path} contains no weights; found the entries {first_few([*map(str, state)]) or 'none'}")
    tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    is_openai = is_torchscript or _OPENAI_SIZES[0] in tensors
    return {name: value for name, value in tensors.items() if name not in _OPENAI_SIZES}, is_openai


def _read(path: Path) -> tuple[Any, bool]:
    """The object in a checkpoint file, and whether the file is a TorchScript archive."""
    if not path.is_file():
        raise InputError(f"no checkpoint file at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path), False
        if _is_torchscript(path):
            return _read_torchscript(path), True
        return torch.load(path, map_location="cpu", weights_only=True), False
    except InputError:
        raise
    except Exception as error:
        raise refusal(str(path), error) from None


def refusal(what: str, error: Exception) -> InputError:
    """The error for weights that cannot be read.

    PyTorch's own text advises to load the file without protection, so only the name of the object is taken from it.
    """
    named = re.search(r"GLOBAL (\S+)|^([\w.]+)$", str(error)) if isinstance(error, pickle.UnpicklingError) else None
    if named:
        return InputError(
            f"{what} holds more than weights ({named[1] or named[2]}) and is not loaded, because that could execute "
            "code from it. Save it as safetensors or as a dictionary of tensors"
        )
    return InputError(
        f"{what} is not a readable checkpoint: damaged, cut off, or neither PyTorch nor safetensors. Download or save it again"
    )


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        check_entry_sizes(archive)
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_torchscript(path: Path) -> dict[str, Tensor]:
    """All tensors of a TorchScript archive by their dotted names."""
    with open_torch_file(path, weights_only=True) as module:
        return {name: value.load() for name, value in _tensors(module, "") if not name.endswith("attn_mask")}


def _tensors(value: object, name: str) -> Iterator[tuple[str, StoredTensor]]:
    if isinstance(value, StoredTensor):
        yield name, value
    elif isinstance(value, Placeholder):
        for key, child in value.attributes.items():
            yield from _tensors(child, f"{name}.{key}" if name else key)
