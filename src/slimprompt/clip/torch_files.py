"""Tensors in PyTorch files, found without executing code and without reading values that are not needed.

`open_torch_file` reads the pickle in a file with an unpickler that only knows tensors and standard containers. Any other
object, such as the optimizers and schedulers in CoOp's checkpoints, becomes an empty placeholder. TorchScript archives
(OpenAI's CLIP files), files of `torch.save`, and its format before PyTorch 1.6 are supported.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from slimprompt.errors import InputError

_MAX_COMPRESSED = 64 * 2**20
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in an open file, whose values are read by `load`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    read_storage: Callable[[], bytes]

    def load(self) -> Tensor:
        """Read the values."""
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        values = torch.frombuffer(bytearray(self.read_storage()), dtype=self.dtype)
        if math.prod(self.shape) > len(values):  # a zero stride would repeat the values without end
            raise ValueError(f"a tensor of shape {self.shape} is larger than its {len(values)} stored values")
        return values.as_strided(self.shape, self.stride, self.offset)


class Placeholder:
    """Stands for an object of any class: keeps the attributes, executes nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.attributes = state

    def __call__(self, *_: object, **__: object) -> Placeholder:
        """Another placeholder, for the result of a call."""
        return Placeholder()

    def ignore(self, *_: object, **__: object) -> None:
        """Accept the content of a container and drop it."""

    __setitem__ = append = extend = add = update = ignore


@contextmanager
def open_torch_file(path: Path, *, weights_only: bool = False) -> Iterator[Any]:
    """Yield the object in a PyTorch file, with a `StoredTensor` for every tensor, to be loaded inside the block.

    Parameters
    ----------
    path
        A file of `torch.save` or `torch.jit.save`.
    weights_only
        Raise `pickle.UnpicklingError` for an object other than tensors, modules and containers, instead of using a
        `Placeholder`.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_entry_sizes(archive)
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
            with archive.open(f"{root}data.pkl") as file:
                content = _TensorUnpickler(file, lambda key: archive.read(f"{root}data/{key}"), weights_only).load()
            yield content
    else:
        with path.open("rb") as file:
            yield _read_legacy(file, weights_only)


def check_entry_sizes(archive: zipfile.ZipFile) -> None:
    """Refuse an archive that would inflate to far more than its own size; PyTorch stores tensors uncompressed."""
    compressed = [entry for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    total = sum(entry.file_size for entry in compressed)  # many entries are as bad as a large one
    if total > _MAX_COMPRESSED:
        largest = max(compressed, key=lambda entry: entry.file_size)
        one = len(compressed) == 1 or largest.file_size > _MAX_COMPRESSED
        what = f"its entry {largest.filename} is" if one else f"{len(compressed):,} of its entries are"
        size = largest.file_size if one else total
        raise InputError(
            f"{archive.filename} is not loaded: {what} compressed and would take {size / 1e9:.1f} GB; PyTorch stores tensors "
            "uncompressed. Save the checkpoint again with torch.save"
        )


def _read_legacy(file: IO[bytes], weights_only: bool) -> Any:
    """The object in a file of PyTorch before 1.6: pickles of a header, of the object and of the storage keys; storages."""
    position: dict[str, tuple[int, int]] = {}

    def read_storage(key: str) -> bytes:
        start, size = position[key]
        file.seek(start)
        return file.read(size)

    def unpickler() -> _TensorUnpickler:
        return _TensorUnpickler(file, read_storage, weights_only)

    if unpickler().load() != _LEGACY_MAGIC:
        raise ValueError("it does not start as a PyTorch file does")
    unpickler().load()  # version of the format
    unpickler().load()  # byte order and sizes of integers
    objects = unpickler()
    content = objects.load()
    for key in unpickler().load():
        size = int.from_bytes(file.read(8), "little") * objects.item_sizes[key]
        position[key] = file.tell(), size
        file.seek(size, 1)
    return content


class _TensorUnpickler(pickle.Unpickler):
    """Finds tensors, ordered dictionaries and modules; other classes are an error if `weights_only`, else a placeholder."""

    def __init__(self, file: IO[bytes], read_storage: Callable[[str], bytes], weights_only: bool) -> None:
        super().__init__(file)
        self._read_storage, self._weights_only = read_storage, weights_only
        self.item_sizes: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]  # used in persistent_load only
        if module.startswith("__torch__"):
            return Placeholder
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle":  # type tags and typed lists: the value is the first argument
            return lambda value, *_: value
        if not self._weights_only:
            return Placeholder
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key = pid[0], pid[1], pid[2]
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise ValueError(f"unknown kind of record {kind!r}")
        self.item_sizes[key] = dtype.itemsize
        return lambda: self._read_storage(key), dtype


def _rebuild_tensor(
    storage: tuple[Callable[[], bytes], torch.dtype], offset: int, size: Any, stride: Any, *_: object
) -> StoredTensor:
    read_storage, dtype = storage
    return StoredTensor(tuple(size), tuple(stride), offset, dtype, read_storage)


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
