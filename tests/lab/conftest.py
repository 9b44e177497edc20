"""Worker processes that begin with loaded libraries."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slimprompt.files import cache_dir
from slimprompt.lab.environment import RunEnvironment
from tests.fork_server import fork_context


@pytest.fixture
def environment(environment: RunEnvironment) -> RunEnvironment:
    """With the cache of the test as a path, which also holds for workers that have the variables of another test."""
    return replace(environment, cache=cache_dir())


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes without the seconds in which Python starts and imports torch."""
    context = fork_context()
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
