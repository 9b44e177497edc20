"""`slimprompt data`: list, check, download and sample labelled images."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimprompt.cli.help import App
from slimprompt.cli.options import DataRoot, OutputFormat
from slimprompt.cli.printing import Format, emit, say
from slimprompt.errors import InputError
from slimprompt.files import check_files, check_folder

if TYPE_CHECKING:
    from slimprompt.data import Benchmark
    from slimprompt.data.benchmarks import BenchmarkInfo

app = App(help="List, check, download and sample benchmarks and your own images.", no_args_is_help=True)

Target = Annotated[str, typer.Argument(metavar="NAME", help="Benchmark, or a folder or CSV file of your own images.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Number of threads; default: one per core.")]


@app.command("list")
def list_benchmarks(data_root: DataRoot = None, format: OutputFormat = Format.table) -> None:
    """List the known benchmarks with their size, licence and state on this machine."""
    from slimprompt.data import BENCHMARKS

    rows = [
        {
            "benchmark": info.name,
            "classes": info.classes,
            "images": sum(info.sizes),
            "size": info.size,
            "state": _state(info, data_root),
            "licence": info.licence,
            "site": info.site or None,
        }
        for info in BENCHMARKS.values()
    ]
    shown = ("benchmark", "classes", "images", "size", "state", "licence")
    emit(rows, format, columns={**dict.fromkeys(shown, str), "images": "{:,}".format})
    if format is Format.table:
        say("\nLicences are abbreviated; `slimprompt data download NAME` prints the home page with the terms of use.")


def _state(info: BenchmarkInfo, root: Path | None) -> str:
    from slimprompt.data.benchmark import missing_images
    from slimprompt.data.catalogue import benchmark_folder, load_benchmark

    try:
        folder = benchmark_folder(info, root)
    except InputError:
        return "no data root"
    if info.source.missing(folder):
        return "not rendered" if info.rendered else "missing"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            benchmark = load_benchmark(info.name, root)
    except InputError:
        return "damaged"
    n_missing, n_items = len(missing_images(benchmark)), len(benchmark.items)
    if n_missing == n_items:
        return "no images"
    return "complete" if n_missing == 0 else f"{n_items - n_missing:,}/{n_items:,}"


@app.command("check")
def check(
    target: Target,
    data_root: DataRoot = None,
    workers: Workers = None,
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show the counts of every class."),
    hashes: Path | None = typer.Option(None, help="Write all file hashes as a manifest."),
    against: Path | None = typer.Option(
        None, help="Compare the files with this manifest; of a few-shot sample, only its own."
    ),
) -> None:
    """Decode and hash every image of a benchmark, folder or CSV file."""
    from slimprompt.data import check_benchmark, read_manifest, write_manifest
    from slimprompt.data.manifest import check_listed, list_all, verify_manifest
    from slimprompt.progress import progress

    expected = read_manifest(against) if against else None
    check_files(hashes, read=(Path(target), against))
    benchmark = _load(target, data_root)
    started = time.perf_counter()
    with progress("checking", len(benchmark.items), "files") as advance:
        report = check_benchmark(benchmark, workers=workers, advance=advance)
    seconds = time.perf_counter() - started
    _print_summary(benchmark)
    _print_counts(benchmark, verbose)
    n_files = len(report.sha256)
    say(f"{n_files:,} files in {seconds:.1f} s ({n_files / max(seconds, 1e-9):,.0f} files/s)")
    say(f"sha256 of all files: {report.digest}")
    _print_problems(report.missing, "missing")
    _print_problems(list(report.unreadable.values()), "unreadable")
    if hashes:
        write_manifest(list_all(benchmark, report.sha256), hashes)
        say(f"hashes written to {hashes}")
    if not report.ok:
        raise typer.Exit(1)
    if expected:
        verify_manifest(expected, benchmark.images)
        if expected.shots is None:
            check_listed(expected, benchmark)
            say(f"the files match {against}")
        else:
            say(f"the files of the few-shot sample {against} match; the others were not compared")
    say("all images exist and are readable")


def _print_summary(benchmark: Benchmark) -> None:
    train, val, test = benchmark.sizes
    say(f"{benchmark.name}: {len(benchmark.class_names)} classes in {benchmark.images}")
    say(f"{len(benchmark.items):,} images: train {train:,}, val {val:,}, test {test:,}")
    if ignored := getattr(benchmark, "ignored", 0):
        say(f"{ignored:,} other files ignored")


def _print_counts(benchmark: Benchmark, verbose: bool) -> None:
    from slimprompt.data.benchmark import SPLITS

    totals = Counter((item.label, split) for split in SPLITS for item in getattr(benchmark, split))
    names = benchmark.class_names
    if verbose:
        emit([{"class": name} | {split: totals[label, split] for split in SPLITS} for label, name in enumerate(names)])
        return
    ranges = []
    for split in SPLITS:
        low, *_, high = sorted(totals[label, split] for label in range(len(names)))
        ranges.append(f"{split} {low}" if low == high else f"{split} {low} to {high}")
    say(f"per class: {', '.join(ranges)} (--verbose shows every class)")


def _print_problems(problems: Sequence[str], kind: str) -> None:
    if problems:
        say("\n  ".join((f"{len(problems):,} {kind}:", *problems)), err=True)


@app.command("download")
def download(
    benchmark: str = typer.Argument(..., metavar="NAME", help="Benchmark."), data_root: DataRoot = None
) -> None:
    """Download a benchmark, and print the steps that have to be done by hand."""
    from slimprompt.data.benchmark import missing_images
    from slimprompt.data.catalogue import benchmark_folder, benchmark_info
    from slimprompt.data.download import download_annotations, download_images, manual_steps

    info = benchmark_info(benchmark)
    if data_root:
        try:
            data_root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the data root {data_root}: {error.strerror}") from None
    folder = benchmark_folder(info, data_root)
    if info.rendered:
        say(f"{info.name} is rendered, not downloaded: {_load(info.name, data_root).images}")
        return
    say(f"{info.title}: about {info.size}, licence: {info.licence}; terms of use: {info.site}")
    problems = []
    try:
        downloaded = download_images(info, folder)
        say(f"images: {'downloaded to' if downloaded else 'already in'} {folder / info.images}")
    except InputError as error:
        problems.append(str(error))
    try:
        name = download_annotations(info, folder)
        say(f"annotations: {f'downloaded {name}' if name else 'nothing to download'}")
    except InputError as error:
        problems.append(str(error))
    for problem in problems:
        say(f"failed: {problem}", err=True)
    for step in manual_steps(info, folder) if problems else ():
        say(f"by hand: {step}", err=True)
    if not problems:
        n_missing = len(missing_images(_load(info.name, data_root)))
        if not n_missing:
            say(f"all images exist; to verify that they are readable: slimprompt data check {info.name}")
            return
        say(f"{n_missing:,} images of the split are missing in {folder / info.images}", err=True)
    raise typer.Exit(1)


@app.command("extract-midframes")
def extract(
    videos: Path = typer.Argument(..., help="Folder with <class>/<video>, such as the extracted UCF-101."),
    out: Path | None = typer.Option(None, help="Folder for the frames; default: image folder of UCF101."),
    data_root: DataRoot = None,
    workers: Workers = None,
) -> None:
    """Save the middle frame of every video as a JPEG file, in the layout of UCF101's split."""
    from slimprompt.data.catalogue import benchmark_folder, benchmark_info
    from slimprompt.data.download import extract_midframes
    from slimprompt.progress import progress

    info = benchmark_info("ucf101")
    target = out or benchmark_folder(info, data_root) / info.images
    check_folder(target)
    with progress("extracting", None, "videos") as advance:
        written, kept = extract_midframes(videos, target, workers=workers, advance=lambda total: advance(total=total))
    say(f"{written:,} frames written to {target}, {kept:,} already existed")


@app.command("sample")
def sample(
    target: Target,
    shots: int = typer.Option(16, min=1, help="Training images per class."),
    seed: int = typer.Option(1, min=0, help="Seed of the sample."),
    out: Path | None = typer.Option(None, help="Write the sample as a manifest."),
    hashes: bool = typer.Option(True, help="Hash the images; without hashes, the files need not exist."),
    data_root: DataRoot = None,
) -> None:
    """Sample few-shot images, and optionally write a manifest to train on."""
    from slimprompt.data import check_images, few_shot, make_manifest, short_classes, write_manifest

    check_files(out, read=(Path(target),))
    benchmark = _load(target, data_root)
    sampled = few_shot(benchmark, shots, seed)
    say(
        f"{benchmark.name}, {shots} shots, seed {seed}: {len(sampled.train):,} train and {len(sampled.val):,} val images "
        f"of {len(sampled.class_names)} classes"
    )
    for name, count in short_classes(benchmark, shots):
        say(f"{name}: only {count} images, all are used")
    if out:
        if hashes:
            try:
                check_images(replace(sampled, test=()))
            except InputError as error:
                raise InputError(f"{error}; or write the manifest without hashes (--no-hashes)") from None
        write_manifest(make_manifest(sampled, shots=shots, seed=seed, hashes=hashes), out)
        say(f"manifest written to {out}")


@app.command("pocket")
def pocket(
    out: Path = typer.Option(..., help="Folder to write; must be empty or not exist yet."),
    name: str = typer.Argument("pocket-sketch", help="Rendered benchmark."),
) -> None:
    """Write a rendered benchmark as an ordinary image folder: OUT/{train,test}/<class>/<image>.png."""
    from slimprompt.data import BENCHMARKS
    from slimprompt.data.catalogue import benchmark_info
    from slimprompt.data.folder import write_folder

    check_folder(out)
    info = benchmark_info(name)
    if not info.rendered:
        rendered = ", ".join(info.name for info in BENCHMARKS.values() if info.rendered)
        raise InputError(f"{info.name} is not a rendered benchmark; the rendered ones are {rendered}")
    benchmark = _load(info.name, None)
    write_folder(benchmark, out)
    train, _, test = benchmark.sizes
    say(f"{train:,} train and {test:,} test images of {info.classes} classes in {out.absolute()}")


def _load(target: str, root: Path | None) -> Benchmark:
    """Load a benchmark, folder or CSV file; warnings are printed to standard error."""
    from slimprompt.data.catalogue import open_dataset

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        benchmark = open_dataset(target, root)
    for warning in caught:
        say(f"note: {warning.message}", err=True)
    return benchmark
