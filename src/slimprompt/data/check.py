"""Whether the pictures of a benchmark are there, whole and readable."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from slimprompt.data.benchmark import Benchmark, Item
from slimprompt.data.manifest import Manifest, ManifestItem
from slimprompt.data.splits import PARTS
from slimprompt.errors import InputError
from slimprompt.images.files import file_sha256, open_image


def missing_images(benchmark: Benchmark) -> list[str]:
    """Paths of the items whose picture is not there, in the order of train, val, test."""
    images = str(benchmark.images)
    return [item.path for item in _items(benchmark) if not os.path.isfile(os.path.join(images, item.path))]


def check_images(benchmark: Benchmark) -> None:
    """Every picture of the benchmark is there, else an `InputError` with the first missing ones and how many there are.

    Quick (no picture is opened), so that it can stand at the start of every run.
    """
    missing = missing_images(benchmark)
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(_items(benchmark)):,} images of {benchmark.name} are missing in "
            f"{benchmark.images}: {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}. "
            f"Complete the download, then run `slimprompt data check {benchmark.name}`"
        )


@dataclass(frozen=True)
class CheckReport:
    """What a full check found."""

    benchmark: Benchmark
    missing: tuple[str, ...]
    """Paths of the items without a picture."""
    unreadable: dict[str, str]
    """Path → why it cannot be decoded."""
    sha256: dict[str, str] = field(repr=False)
    """Path → hash of the file, for every picture that is there; in the order of train, val, test."""

    @property
    def ok(self) -> bool:
        """Whether every picture is there and can be decoded."""
        return not self.missing and not self.unreadable

    @property
    def digest(self) -> str:
        """One hash over all paths and file hashes: equal on two machines exactly if their pictures are equal."""
        lines = sorted(f"{digest}  {path}\n" for path, digest in self.sha256.items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def manifest(self) -> Manifest:
        """Every item of the benchmark with its hash."""

        def hashed(items: tuple[Item, ...]) -> tuple[ManifestItem, ...]:
            return tuple(ManifestItem(item.path, item.label, self.sha256.get(item.path)) for item in items)

        b = self.benchmark
        return Manifest(b.name, b.class_names, train=hashed(b.train), val=hashed(b.val), test=hashed(b.test))

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Class name → items in train, val, test."""
        totals = Counter((item.label, part) for part in PARTS for item in getattr(self.benchmark, part))
        return {
            name: (totals[label, "train"], totals[label, "val"], totals[label, "test"])
            for label, name in enumerate(self.benchmark.class_names)
        }


def check_benchmark(
    benchmark: Benchmark, *, workers: int | None = None, advance: Callable[[], None] = lambda: None
) -> CheckReport:
    """Hash and decode every picture of the benchmark, with one thread per core unless told otherwise.

    `advance` is called after each file. Nothing stops the check: all problems are in the report.
    """
    paths = list(dict.fromkeys(item.path for item in _items(benchmark)))
    missing = set(missing_images(benchmark))
    found: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for _ in missing:
        advance()
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:  # decoding and hashing release the interpreter lock
        futures = {
            pool.submit(_hash_and_decode, benchmark.images / path): path for path in paths if path not in missing
        }
        try:
            for future in as_completed(futures):
                digest, problem = future.result()
                if digest:
                    found[futures[future]] = digest
                if problem:
                    unreadable[futures[future]] = problem
                advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    order = [path for path in paths if path not in missing]
    return CheckReport(
        benchmark,
        tuple(path for path in paths if path in missing),
        {path: unreadable[path] for path in order if path in unreadable},
        {path: found[path] for path in order if path in found},
    )


def _hash_and_decode(path: Path) -> tuple[str, str]:
    """(sha256, what is wrong with the picture); either may be empty."""
    try:
        digest = file_sha256(path)
    except InputError as error:
        return "", str(error)
    try:
        open_image(path)
    except InputError as error:
        return digest, str(error)
    return digest, ""


def _items(benchmark: Benchmark) -> tuple[Item, ...]:
    return (*benchmark.train, *benchmark.val, *benchmark.test)
