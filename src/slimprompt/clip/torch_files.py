"""Content of PyTorch files, without executing code from them.

`torch.load` refuses the optimizers and schedulers in CoOp's checkpoints and the TorchScript archives of OpenAI's CLIP, and
`torch.jit.load` executes code from an archive. The unpickler of this module only knows tensors and standard containers; any
other object becomes an empty placeholder.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import torch
from torch import Tensor

from slimprompt.errors import InputError

_MAX_COMPRESSED = 64 * 2**20


class Placeholder:
    """Stands for an object of any class: keeps the attributes, executes nothing."""

    attributes: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.attributes = state

    def __call__(self, *_: object, **__: object) -> Placeholder:
        """Another placeholder, for the result of a call."""
        return Placeholder()

    def ignore(self, *_: object, **__: object) -> None:
        """Accept the content of a container and drop it."""

    __setitem__ = append = extend = add = update = ignore


def read_torch_file(path: Path) -> Any:
    """The object in a file of `torch.save` or `torch.jit.save`, with a `Placeholder` for everything unknown."""
    with zipfile.ZipFile(path) as archive:
        check_entry_sizes(archive)
        root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
        with archive.open(f"{root}data.pkl") as file:
            return _TensorUnpickler(file, archive, f"{root}data/").load()


def is_torchscript(path: Path) -> bool:
    """Whether a file is a TorchScript archive."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        check_entry_sizes(archive)
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """All tensors of a TorchScript archive by their dotted names, without the causal mask, which is no weight."""
    tensors = dict(_tensors(read_torch_file(path), ""))
    return {name: value for name, value in tensors.items() if not name.endswith("attn_mask")}


def _tensors(value: object, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Placeholder):
        for key, child in value.attributes.items():
            yield from _tensors(child, f"{name}.{key}" if name else key)


def check_entry_sizes(archive: zipfile.ZipFile) -> None:
    """Refuse an archive that would inflate to far more than its own size; PyTorch stores tensors uncompressed."""
    compressed = [entry for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    total = sum(entry.file_size for entry in compressed)
    if total > _MAX_COMPRESSED:
        raise InputError(
            f"{archive.filename} is not loaded: {len(compressed):,} of its entries are compressed and would take "
            f"{total / 1e9:.1f} GB; PyTorch stores tensors uncompressed. Save the checkpoint again with torch.save"
        )


class _TensorUnpickler(pickle.Unpickler):
    """Finds tensors, ordered dictionaries and modules; an object of another class is a placeholder."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self._archive, self._folder = archive, folder
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]  # used in persistent_load only
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle":  # type tags and typed lists: the value is the first argument
            return lambda value, *_: value
        return Placeholder

    def persistent_load(self, pid: Any) -> Tensor:
        """All values of a storage."""
        _, dtype, key, *_ = pid
        if key not in self._storages:
            data = bytearray(self._archive.read(f"{self._folder}{key}"))
            self._storages[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self._storages[key]


def _rebuild_tensor(storage: Tensor, offset: int, size: Any, stride: Any, *_: object) -> Tensor:
    if math.prod(size) > len(storage):  # a zero stride would repeat the values without end
        raise ValueError(f"a tensor of shape {tuple(size)} is larger than its {len(storage)} stored values")
    return storage.as_strided(size, stride, offset)


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
