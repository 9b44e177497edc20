"""What takes time in many tests and is tested by none of them is left out, here and in the processes of `fork_server.py`."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

#: Environment variable that names the folder of rendered benchmarks that all processes share.
RENDERED = "SLIMPROMPT_TESTS_RENDERED"


def do_not_wait_for_the_disk() -> None:
    """In this process: no test crashes a machine."""
    os.fsync = lambda _: None  # type: ignore[assignment]


def copy_rendered_benchmarks() -> None:
    """In this process: a benchmark is rendered to the shared folder if it is missing there, and copied from it."""
    if RENDERED not in os.environ:
        return
    from slimprompt.data import catalogue
    from slimprompt.files import draft_folder
    from slimprompt.pocket.benchmarks import render_benchmark

    rendered = Path(os.environ[RENDERED])

    def copy_benchmark(name: str, root: Path) -> None:
        made = render_benchmark(name, rendered)
        if root != rendered:  # else the shared folder itself is used
            with draft_folder(root / name) as draft:
                shutil.copytree(made, draft, dirs_exist_ok=True)
                with suppress(OSError):  # another process has copied it
                    draft.rename(root / name)

    catalogue.render_benchmark = copy_benchmark  # type: ignore[assignment]


def read_vocabulary_once() -> None:
    """In this process and its forks: CLIP's tokenizers of all context lengths share a vocabulary."""
    import open_clip

    read = cache(open_clip.tokenizer.SimpleTokenizer)
    read()

    def make_tokenizer(context_length: int = open_clip.tokenizer.DEFAULT_CONTEXT_LENGTH, **options: Any) -> Any:
        tokenizer = copy.copy(read(**options))
        tokenizer.context_length = context_length
        return tokenizer

    open_clip.factory.SimpleTokenizer = make_tokenizer


@pytest.fixture(autouse=True, scope="session")
def shortcuts() -> Iterator[None]:
    """Nothing waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fsync)  # restored at the end
        do_not_wait_for_the_disk()
        yield
