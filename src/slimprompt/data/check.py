"""Find the missing and unreadable images of a benchmark."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from slimprompt.data.benchmark import SPLITS, Benchmark, Item
from slimprompt.data.manifest import Manifest, ManifestItem
from slimprompt.errors import InputError, first_few
from slimprompt.images.decode import Decode, file_sha256, open_image


def missing_images(benchmark: Benchmark) -> list[str]:
    """Paths of the items whose image file does not exist, in the order of train, val, test."""
    if benchmark.listed:  # a million calls for ImageNet
        return []
    images = str(benchmark.images)
    return [item.path for item in benchmark.items if not os.path.isfile(os.path.join(images, item.path))]


def check_images(benchmark: Benchmark) -> None:
    """Raise an `InputError` if image files are missing. Fast, because no image is opened."""
    missing = missing_images(benchmark)
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(benchmark.items):,} images of {benchmark.name} are missing in "
            f"{benchmark.images}: {first_few(missing)}. "
            f"Complete the download, then run `slimprompt data check {benchmark.name}`"
        )


@dataclass(frozen=True)
class CheckReport:
    """Result of a full check."""

    benchmark: Benchmark
    missing: tuple[str, ...]
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

    def manifest(self) -> Manifest:
        """Every item of the benchmark with its hash."""

        def hashed(items: tuple[Item, ...]) -> tuple[ManifestItem, ...]:
            return tuple(ManifestItem(item.path, item.label, self.sha256.get(item.path)) for item in items)

        b = self.benchmark
        return Manifest(b.name, b.class_names, train=hashed(b.train), val=hashed(b.val), test=hashed(b.test))

    def counts(self) -> list[tuple[str, tuple[int, ...]]]:
        """(class name, numbers of items in train, val and test) of each class."""
        totals = Counter((item.label, split) for split in SPLITS for item in getattr(self.benchmark, split))
        names = self.benchmark.class_names
        return [(name, tuple(totals[label, split] for split in SPLITS)) for label, name in enumerate(names)]


def check_benchmark(
    benchmark: Benchmark, *, workers: int | None = None, advance: Callable[[], None] = lambda: None
) -> CheckReport:
    """Hash and decode every image of a benchmark. Bad images do not stop the check; all are in the report.

    `advance` is called after each file; by default there is one thread per core.
    """
    paths = list(dict.fromkeys(item.path for item in benchmark.items))
    missing = set(missing_images(benchmark))
    present = [path for path in paths if path not in missing]
    results: dict[str, tuple[str, str]] = {}
    for _ in missing:
        advance()
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:  # decoding and hashing release the interpreter lock
        futures = {pool.submit(_hash_and_decode, benchmark.images / path, benchmark.decode): path for path in present}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                advance()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return CheckReport(
        benchmark,
        tuple(path for path in paths if path in missing),
        {path: results[path][1] for path in present if results[path][1]},
        {path: results[path][0] for path in present if results[path][0]},
    )


def _hash_and_decode(path: Path, decode: Decode) -> tuple[str, str]:
    """(sha256, error message of decoding); either may be empty."""
    try:
        digest = file_sha256(path)
    except InputError as error:
        return "", str(error)
    try:
        open_image(path, decode)
    except InputError as error:
        return digest, str(error)
    return digest, ""
