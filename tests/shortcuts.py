"""What takes time in many tests and is tested by none of them is left out; a `conftest.py` imports this fixture."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def shortcuts() -> Iterator[None]:
    """Nothing waits for the disk: no test crashes a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
