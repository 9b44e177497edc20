"""Checkpoint files, read without executing code from them.

`read_state_dict` reads the weights of a model. `read_tensors_only` reads files that contain other objects too, such as
CoOp's checkpoints with their optimizers and schedulers: it keeps tensors and containers and replaces everything else by
an empty placeholder.

Three formats are supported: safetensors, PyTorch's own format (read with `weights_only`), and the TorchScript archives in
which OpenAI published CLIP. The latter are zip files; the pickle inside is read by an unpickler that only knows tensors
and standard containers.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimprompt.errors import InputError


def read_checkpoint(path: Path) -> tuple[dict[str, Any], bool]:
    """Read a checkpoint file in any supported format.

    Parameters
    ----------
    path
        The checkpoint file.

    Returns
    -------
    content : dict
        The dictionary in the file.
    is_torchscript : bool
        Whether the file is a TorchScript archive, as OpenAI's CLIP files are.

    Raises
    ------
    InputError
        If the file is missing, damaged, or contains objects other than weights.
    """
    if not path.is_file():
        raise InputError(f"no checkpoint file at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path), False
        if _is_torchscript(path):
            return _read_torchscript(path), True
        return torch.load(path, map_location="cpu", weights_only=True), False
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path} holds more than weights and is not loaded, because that could execute code from it ({reason}). "
            "Save it as safetensors or as a dictionary of tensors."
        ) from None
    except Exception as error:
        raise InputError(f"{path} is not a readable checkpoint ({type(error).__name__}: {error})") from None


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
        Whether OpenAI published the file.
    """
    content, is_torchscript = read_checkpoint(path)
    state = content.get("state_dict", content)
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise InputError(
            f"{path} contains no state dict; found the entries {', '.join(map(str, list(content)[:5])) or 'none'}"
        )
    tensors = {name.removeprefix("module."): value for name, value in state.items() if isinstance(value, Tensor)}
    # OpenAI's files list three sizes of the model among the weights.
    is_openai = is_torchscript or "input_resolution" in tensors
    for name in ("input_resolution", "context_length", "vocab_size"):
        tensors.pop(name, None)
    return tensors, is_openai


def read_tensors_only(path: Path) -> dict[str, Any]:
    """Read the dictionary in a PyTorch file, with a placeholder for every object other than tensors and basic types.

    Parameters
    ----------
    path
        A file in PyTorch's zip format.
    """
    if not path.is_file():
        raise InputError(f"no checkpoint file at {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            content = _TensorUnpickler(archive, pickled[: -len("data.pkl")], strict=False).load()
    except Exception as error:
        raise InputError(f"{path} is not a readable PyTorch checkpoint ({type(error).__name__}: {error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} contains a {type(content).__name__} instead of a dictionary")
    return content


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_torchscript(path: Path) -> dict[str, Tensor]:
    """All tensors of a TorchScript archive by their dotted names."""
    with zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        root = pickled[: -len("data.pkl")]
        module = _TensorUnpickler(archive, root).load()
    tensors: dict[str, Tensor] = {}

    def collect(value: object, name: str) -> None:
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, _Module):
            for key, child in value.attributes.items():
                collect(child, f"{name}.{key}" if name else key)

    collect(module, "")
    return {name: value for name, value in tensors.items() if not name.endswith("attn_mask")}


class _Module:
    """Placeholder for a TorchScript module or any other object: keeps its attributes, not its code."""

    def __init__(self, *_: object) -> None:
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.attributes = state


class _TensorUnpickler(pickle.Unpickler):
    """Loads tensors and ordered dictionaries; other globals raise an error if `strict`, else become a `_Module`."""

    def __init__(self, archive: zipfile.ZipFile, root: str, *, strict: bool = True) -> None:
        super().__init__(io.BytesIO(archive.read(root + "data.pkl")))
        self._strict = strict
        self._archive, self._root = archive, root
        self._storages: dict[str, torch.UntypedStorage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return _Module
        if module == "torch" and name.endswith("Storage"):
            return name  # used in persistent_load only
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle":  # type tags and typed lists: the value is the first argument
            return lambda value, *_: value
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if not self._strict:
            return _Module
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a file of weights")

    def persistent_load(self, pid: Any) -> Any:
        kind, storage_type, key = pid[0], pid[1], pid[2]
        if kind != "storage":
            raise pickle.UnpicklingError(f"unknown kind of record {kind!r}")
        if key not in self._storages:
            data = bytearray(self._archive.read(f"{self._root}data/{key}"))
            self._storages[key] = (
                torch.frombuffer(data, dtype=torch.uint8).untyped_storage() if data else torch.UntypedStorage(0)
            )
        return self._storages[key], _STORAGE_DTYPES[storage_type]


def _rebuild_tensor(
    storage: tuple[torch.UntypedStorage, torch.dtype], offset: int, size: Any, stride: Any, *_: object
) -> Tensor:
    untyped, dtype = storage
    return torch.empty(0, dtype=dtype).set_(untyped, offset, tuple(size), tuple(stride))


_STORAGE_DTYPES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
