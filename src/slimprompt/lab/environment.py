"""Where and with what runs are executed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from slimprompt.errors import InputError
from slimprompt.images.store import StorePrecision, default_store_precision


@dataclass(frozen=True)
class RunEnvironment:
    """Folders, device and threads. They are recorded with every run, but do not identify it.

    The number of threads of one run is fixed, the same for every executor, because float sums are rounded in another
    order with another number of threads. Many runs on one thread each are also faster than one run on many threads.
    """

    runs: Path
    """Folder of the run folders; on a cluster, one that all machines share."""
    data_root: Path | None = None
    """Folder of the benchmarks; None: the environment variable SLIMPROMPT_DATA."""
    cache: Path | None = None
    """Cache directory; None: `files.cache_dir()`."""
    features: StorePrecision = field(default_factory=default_store_precision)
    """Precision of stored image features."""
    threads: int = 1
    """Threads of one run."""
    device: str = "auto"
    invocation: tuple[str, ...] = ()
    """The command that started the runs."""
    executor: str = "inline"
    """The executor that runs them: "inline", "processes" or "ray"."""
    imports: tuple[str, ...] = ()
    """Modules of your own that every worker imports; they contain the functions of the bases and methods of its runs."""


def import_modules(names: Iterable[str]) -> None:
    """Import modules of the user's own; one that cannot be imported is an `InputError`."""
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # the module may raise anything
            message = f"cannot import {name}: {type(error).__name__}: {error}"
            if name.endswith(".py"):
                message += f". Give the name of the module, without .py: --import {name.removesuffix('.py')}"
            elif isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
                message += ". It must be on Python's path; for a file in this folder, set PYTHONPATH=."
            raise InputError(message) from error


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Inside, torch computes with this many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
