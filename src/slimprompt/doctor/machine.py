"""Checks of what is installed and where files are. Nothing is downloaded and no model is loaded."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slimprompt.data.benchmark import missing_images
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import DATA_ROOT, load_benchmark
from slimprompt.doctor.subject import FAILED, OK, SKIPPED, WARNING, Outcome, Subject
from slimprompt.errors import InputError
from slimprompt.files import cache_dir, sha256
from slimprompt.lab.provenance import free_memory_gb, git_state, machine, versions

#: The backbones of the paper, with OpenAI's weights.
PAPER_BACKBONES = ("ViT-B-16", "RN50")
_LITTLE_DISK_GB = 1.0


def check_versions(subject: Subject) -> Iterator[Outcome]:
    """Python, this package and the libraries that results depend on."""
    found = dict(versions())
    git = git_state()
    if git:
        found["slimprompt"] += f" (commit {git['commit'][:12]}{', changed' if git['changed'] else ''})"
    missing = [name for name, version in found.items() if version.startswith("not installed")]
    yield Outcome(WARNING if missing else OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def check_devices(subject: Subject) -> Iterator[Outcome]:
    """System, processor, memory, GPUs and threads."""
    import torch

    facts = machine()
    parts = [
        facts["system"],
        f"{facts['processor']}, {facts['cores']} cores, {torch.get_num_threads()} torch threads",
        f"{facts['memory_gb']} GB of memory, {free_memory_gb():.1f} GB free",
    ]
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        parts.append(f"cuda:{index} {gpu.name}, {gpu.total_memory / 2**30:.1f} GB")
    if torch.backends.mps.is_available():
        parts.append("mps")
    if len(parts) == 3:
        parts.append("no GPU")
    yield Outcome(OK, "; ".join(parts))


def check_cache(subject: Subject) -> Iterator[Outcome]:
    """Image features can be stored: the cache directory is writable, and there is free disk."""
    from slimprompt.images.store import cached_banks

    cache = cache_dir()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        reason = error.strerror or error
        yield Outcome(FAILED, f"{cache} is not writable ({reason}); point SLIMPROMPT_CACHE to another folder")
        return
    free, banks = shutil.disk_usage(cache).free / 1e9, cached_banks()
    features = f"{len(banks)} feature banks of {sum(bank.size for bank in banks) / 1e6:,.1f} MB"
    yield Outcome(
        WARNING if free < _LITTLE_DISK_GB else OK, f"{cache} is writable, {free:.1f} GB free; it holds {features}"
    )


def check_data(subject: Subject) -> Iterator[Outcome]:
    """Which benchmarks have annotation files in the data root, and how many of their images exist."""
    root = subject.benchmarks
    if root is None:
        yield Outcome(SKIPPED, f"no data root: give --data-root or set {DATA_ROOT} to use the published benchmarks")
        return
    if not root.is_dir():
        raise InputError(f"the data root {root} is not a folder")
    found, broken = [], []
    for info in BENCHMARKS.values():
        if info.rendered or info.source.missing(root / info.folder):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                benchmark = load_benchmark(info.name, root)
        except InputError as error:
            broken.append(str(error))
            continue
        total = len(benchmark.items)
        found.append(f"{info.name} ({total - len(missing_images(benchmark)):,} of {total:,} images)")
    listing = ", ".join(found) or "annotation files of no benchmark"
    yield Outcome(WARNING if broken else OK, "; ".join((f"{root}: {listing}", *broken)))


def check_weights(subject: Subject) -> Iterator[Outcome]:
    """Which weight files of the paper's backbones are on this machine, and that they are not damaged."""
    for name in PAPER_BACKBONES:
        files = _files_of_tag(_openai_tag(name))
        if not files:
            yield Outcome(SKIPPED, "not on this machine; downloaded on first use, or give a file as --pretrained", name)
            continue
        damaged = [] if subject.quick else [path for path in files if _is_damaged(path, name)]
        details = ", ".join(f"{path}{' (damaged: delete it)' if path in damaged else ''}" for path in files)
        yield Outcome(FAILED if damaged else OK, f"{details}; any of them can be given as --pretrained", name)


def _files_of_tag(tag: dict[str, Any]) -> list[Path]:
    """The weight files of a tag that OpenAI's package or the Hugging Face hub has stored on this machine."""
    from huggingface_hub import try_to_load_from_cache
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    repository = tag["hf_hub"].rpartition("/")[0]
    downloaded = [try_to_load_from_cache(repository, name) for name in (HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME)]
    files = [Path("~/.cache/clip").expanduser() / tag["url"].rpartition("/")[2]]
    files += [Path(path) for path in downloaded if isinstance(path, str)]
    return [path for path in files if path.is_file()]


def is_openai_file(path: Path, name: str) -> bool:
    """Whether a file is the one that OpenAI published for a backbone, by its hash."""
    return path.is_file() and sha256(path) == _published_sha256(name)


def _is_damaged(path: Path, name: str) -> bool:
    """Whether a .pt file differs from the published one; files of the hub have other hashes."""
    return path.suffix == ".pt" and not is_openai_file(path, name)


def _published_sha256(name: str) -> str:
    """OpenAI puts the hash of each file in its address."""
    return _openai_tag(name)["url"].split("/")[-2]


def _openai_tag(name: str) -> dict[str, Any]:
    from open_clip.pretrained import get_pretrained_cfg

    return get_pretrained_cfg(name, "openai")
