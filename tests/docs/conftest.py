"""One cache for all pages and notebooks, as for a reader who tries one after the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of pytest-xdist share."""
    root = tmp_path_factory.getbasetemp()
    return (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "cache-of-documents"


@pytest.fixture(autouse=True)
def _shared_cache(_own_cache: None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(cache))
