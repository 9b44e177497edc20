"""One cache for all pages and notebooks, as for a reader who tries one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _shared_cache(_own_cache: None, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMPROMPT_CACHE", str(shared_cache))
