"""Worker processes that begin with loaded libraries."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from slimprompt.files import cache_dir
from slimprompt.lab.environment import RunEnvironment
from tests.fork_server import forked_python
from tests.shortcuts import shortcuts  # noqa: F401


@pytest.fixture
def environment(environment: RunEnvironment) -> RunEnvironment:
    """With the cache of the test as a path, which also holds for workers that have the variables of another test."""
    return replace(environment, cache=cache_dir())


@pytest.fixture(scope="session")
def worker_server() -> None:
    """A process that has loaded the libraries, from which workers are forked: itself a fork of the tests' server."""
    resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        multiprocessing.set_executable(forked_python())
        forkserver.ensure_running()
        multiprocessing.set_executable(sys.executable)


@pytest.fixture
def quick_workers(worker_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes without the seconds in which Python starts and imports torch."""
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr("slimprompt.lab.executors.processes.multiprocessing.get_context", lambda _: context)


def note_imports(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A basis of one's own; every process that imports it writes what it has imported, for `noted_imports`."""
    (folder / "noting.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        "Path(__file__).with_name(f'noting-{os.getpid()}.txt').write_text(' '.join(sys.modules))\n"
        "def basis(p0, rank, generator):\n    return p0[:, :rank]\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # for workers of Ray
    return "noting:basis"


def noted_imports(folder: Path) -> dict[int, set[str]]:
    """Process id → names of the modules that it had imported."""
    files = folder.glob("noting-*.txt")
    return {int(path.stem.removeprefix("noting-")): set(path.read_text().split()) for path in files}
