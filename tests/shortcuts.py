"""What takes time in many tests and is tested by none of them is left out, here and in the processes of `fork_server.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def do_not_wait_for_the_disk() -> None:
    """In this process: no test crashes a machine."""
    os.fsync = lambda _: None  # type: ignore[assignment]


@pytest.fixture(autouse=True, scope="session")
def shortcuts() -> Iterator[None]:
    """Nothing waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fsync)  # restored at the end
        do_not_wait_for_the_disk()
        yield
