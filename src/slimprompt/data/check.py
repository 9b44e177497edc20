"""Decode and hash every image of a benchmark, to find the missing and unreadable ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slimprompt.data.benchmark import Benchmark, missing_images
from slimprompt.errors import InputError
from slimprompt.images.decode import Decode, file_sha256, open_image


@dataclass(frozen=True)
class CheckReport:
    """Result of a full check."""

    missing: list[str]
    """Paths of the items without an image file."""
    unreadable: dict[str, str]
    """Path → why the file cannot be decoded."""
    sha256: dict[str, str] = field(repr=False)
    """Path → hash of the file, for every existing image; in the order of train, val, test."""

    @property
    def ok(self) -> bool:
        """Whether every image exists and can be decoded."""
        return not self.missing and not self.unreadable

    @property
    def digest(self) -> str:
        """One hash over all paths and file hashes: equal on two machines if and only if their images are equal."""
        lines = sorted(f"{digest}  {path}\n" for path, digest in self.sha256.items())
        return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def check_benchmark(
    benchmark: Benchmark, *, workers: int | None = None, advance: Callable[[], object] = lambda: None
) -> CheckReport:
    """Hash and decode every image of a benchmark. Bad images do not stop the check; all are in the report.

    `advance` is called after each existing file; by default there is one thread per core.
    """
    missing = list(dict.fromkeys(missing_images(benchmark)))
    absent = set(missing)
    paths = [path for path in dict.fromkeys(item.path for item in benchmark.items) if path not in absent]
    files = (benchmark.images / path for path in paths)
    unreadable, hashes = {}, {}
    results = in_threads(lambda file: _hash_and_decode(file, benchmark.decode), files, workers)
    for path, (digest, problem) in zip(paths, results, strict=True):
        advance()
        if digest:
            hashes[path] = digest
        if problem:
            unreadable[path] = problem
    return CheckReport(missing, unreadable, hashes)


def in_threads(call: Callable[[Any], Any], values: Iterable[Any], workers: int | None = None) -> Iterator[Any]:
    """`call` of each value, in order; after an error or Ctrl-C, nothing new is begun. Decoding and hashing release Python's lock."""
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        try:
            yield from pool.map(call, values)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _hash_and_decode(path: Path, decode: Decode) -> tuple[str, str]:
    """(sha256, error message of decoding); either may be empty."""
    digest = ""
    try:
        digest = file_sha256(path)
        open_image(path, decode)
    except InputError as error:
        return digest, str(error)
    return digest, ""
