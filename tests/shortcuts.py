"""What takes time in many tests and is tested by none of them is left out; a `conftest.py` imports these fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import open_clip.factory
import pytest


@pytest.fixture(autouse=True, scope="session")
def shortcuts() -> Iterator[None]:
    """Tokenizers are built once, because they do not change by use; and the disk is not waited for: no test crashes a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_clip.factory, "SimpleTokenizer", cache(open_clip.factory.SimpleTokenizer))
        patch.setattr(os, "fsync", lambda _: None)
        yield
