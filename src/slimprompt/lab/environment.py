"""Where and with what runs are executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


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
    threads: int = 1
    """Threads of one run."""
    device: str = "auto"
    invocation: tuple[str, ...] = ()
    """The command that started the runs."""
    executor: str = "inline"
    """The executor that runs them: "inline", "processes" or "ray"."""


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
