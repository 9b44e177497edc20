"""Where everything that can be made again is kept: feature banks and drawn benchmarks."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The environment variable SLIMPROMPT_CACHE, else `~/.cache/slimprompt`; not created here.

    A relative value is taken from the current folder, once, so that a later change of folder does not move the cache.
    """
    given = os.environ.get("SLIMPROMPT_CACHE")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "slimprompt"
