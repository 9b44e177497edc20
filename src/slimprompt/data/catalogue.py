"""Look up a benchmark by name, find its files and load it."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path

from slimprompt.data.benchmark import Benchmark
from slimprompt.data.benchmarks import BENCHMARKS, BenchmarkInfo
from slimprompt.data.folder import load_folder
from slimprompt.errors import InputError, first_few, unknown
from slimprompt.files import cache_dir
from slimprompt.pocket.benchmarks import render_benchmark

#: Environment variable with the folder that holds all benchmark folders.
DATA_ROOT = "SLIMPROMPT_DATA"


def benchmark_info(name: str) -> BenchmarkInfo:
    """The table row of a benchmark, by name or published title; case and punctuation are ignored.

    >>> benchmark_info("Oxford Pets").name
    'oxford_pets'
    """
    key = "" if "/" in name or os.sep in name else _key(name)  # ./food-101 is a folder
    for info in BENCHMARKS.values():
        if key and key in (_key(info.name), _key(info.title)):
            return info
    raise unknown("benchmark", name, BENCHMARKS, next_step="To use your own images, give their folder instead.")


def _key(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def benchmark_folder(info: BenchmarkInfo, root: str | Path | None = None, cache: Path | None = None) -> Path:
    """`<root>/<folder of the benchmark>`.

    The root is by default the environment variable SLIMPROMPT_DATA. Rendered benchmarks are in `cache`, the cache directory, if no
    root is given.
    """
    if root is None and info.rendered:
        return (cache or cache_dir()) / "data" / info.folder
    root = root if root is not None else os.environ.get(DATA_ROOT) or None
    if root is None:
        raise InputError(
            f"no data root for {info.name}: give the folder that holds {info.folder}/ (--data-root in a command, root= "
            f"in Python), or set the environment variable {DATA_ROOT}"
        )
    base = Path(root).expanduser()
    if not base.is_dir() and not info.rendered:
        raise InputError(
            f"the data root {base} is not a folder; it should hold {info.folder}/ with the files of {info.title}"
        )
    return base / info.folder


def dataset_name(given: str) -> str:
    """The canonical name of a benchmark, or the path of an existing folder or CSV file: `photos` for `./photos/`.

    A folder with the name of a benchmark keeps its `./`.
    """
    try:
        return benchmark_info(given).name
    except InputError:
        with suppress(OSError, ValueError):  # a text that cannot be a path is an unknown name
            if Path(given).exists():
                path = str(Path(given))
                with suppress(InputError):
                    benchmark_info(path)
                    path = os.path.join(".", path)
                return path
        raise


def open_dataset(given: str, root: str | Path | None = None, cache: Path | None = None) -> Benchmark:
    """Load a benchmark by name, or a folder or CSV file of the user's own images."""
    name = dataset_name(given)
    return load_benchmark(name, root, cache) if name in BENCHMARKS else load_folder(name)


def load_benchmark(name: str, root: str | Path | None = None, cache: Path | None = None) -> Benchmark:
    """Read the classes and items of a benchmark from its annotation files; the image files are not needed.

    A rendered benchmark is rendered first if it does not exist yet. A warning is issued if the files hold another number of items
    than the published split.

    Parameters
    ----------
    name
        Name or published title.
    root, cache
        Folder of the benchmarks, and of rendered ones without a root; see `benchmark_folder`.

    Raises
    ------
    InputError
        If the name is unknown, or the annotation files are missing, damaged or incomplete.
    """
    info = benchmark_info(name)
    folder = benchmark_folder(info, root, cache)
    if info.rendered and info.source.missing(folder):
        render_benchmark(info.name, folder.parent)
    if missing := info.source.missing(folder):
        raise InputError(
            f"{info.title} cannot be read: {' and '.join(missing)} not found in {folder}. "
            f"Run `slimprompt data download {info.name}` or see {info.site}"
        )
    annotations = info.source.read(folder)
    names = annotations.class_names
    if len(names) != info.classes:
        raise InputError(
            f"{info.title} has {info.classes} classes, but {' + '.join(info.source.needs)} in {folder} gives {len(names)}; "
            "is the download complete, and do the files belong to this benchmark?"
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:  # two of ImageNet's
        warnings.warn(
            f"{info.title}: {len(repeated)} class names belong to more than one class ({first_few(repeated)}); a prompt "
            "cannot tell these classes apart",
            stacklevel=2,
        )
    benchmark = Benchmark(info.name, folder / info.images, *annotations, templates=info.templates, decode=info.decode)
    if benchmark.sizes != info.sizes:
        warnings.warn(
            f"{info.title}: train, val and test have {benchmark.sizes} items; the published split has {info.sizes}. "
            "Results are not comparable with published ones",
            stacklevel=2,
        )
    return benchmark
