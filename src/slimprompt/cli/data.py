"""`slimprompt data`: what is there, whether it is whole, how to get it."""

from __future__ import annotations

import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimprompt.errors import InputError

if TYPE_CHECKING:
    from slimprompt.data import Benchmark
    from slimprompt.data.catalogue import BenchmarkInfo

app = typer.Typer(help="Benchmarks and your own images: list, check, fetch, draw.", no_args_is_help=True)

DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder that holds the benchmarks' folders; default: $SLIMPROMPT_DATA."),
]
Target = Annotated[str, typer.Argument(metavar="NAME", help="Benchmark, or a folder or CSV file of your own images.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Threads; default: one per core.")]


@app.command("list")
def list_benchmarks(data_root: DataRoot = None) -> None:
    """Every known benchmark: its size and licence, and what of it is here."""
    from rich.console import Console
    from rich.table import Table

    from slimprompt.data import CATALOGUE

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("benchmark", no_wrap=True)
    for heading in ("classes", "images", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    for row in CATALOGUE.values():
        table.add_row(row.name, str(row.classes), f"{sum(row.sizes):,}", row.size, _state(row, data_root), row.licence)
    Console().print(table)
    typer.echo(
        "\nLicences in a word; the terms of use are on each benchmark's home page (slimprompt data download NAME)."
    )


def _state(row: BenchmarkInfo, root: Path | None) -> str:
    from slimprompt.data.catalogue import benchmark_folder, find_source, load_benchmark
    from slimprompt.data.check import missing_images

    try:
        folder = benchmark_folder(row, root)
    except InputError:
        return "no data root"
    source = find_source(row, folder)
    if source is None:
        return "drawn when used" if row.drawn else "missing"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            benchmark = load_benchmark(row.name, root)
    except InputError:
        return "damaged"
    n_missing, n_all = len(missing_images(benchmark)), _size(benchmark)
    if n_missing == n_all:
        return "annotations only"
    whole = "complete" if n_missing == 0 else f"{n_all - n_missing:,}/{n_all:,}"
    return f"{whole}, own split" if source.drawn_here else whole


@app.command("check")
def check(
    target: Target,
    data_root: DataRoot = None,
    workers: Workers = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the counts of every class.")] = False,
    hashes: Annotated[Path | None, typer.Option("--hashes", help="Write all file hashes as a manifest.")] = None,
    against: Annotated[Path | None, typer.Option("--against", help="Compare the files with this manifest.")] = None,
) -> None:
    """Open and hash every image of a benchmark, or of your own folder or CSV file."""
    from slimprompt.data import check_benchmark, read_manifest, write_manifest
    from slimprompt.data.manifest import verify_manifest

    expected = read_manifest(against) if against else None
    benchmark = _load(target, data_root)
    started = time.perf_counter()
    from slimprompt.progress import progress

    with progress("checking", _size(benchmark), "files") as advance:
        report = check_benchmark(benchmark, workers=workers, advance=advance)
    seconds = time.perf_counter() - started

    train, val, test = len(benchmark.train), len(benchmark.val), len(benchmark.test)
    typer.echo(f"{benchmark.name}: {len(benchmark.class_names)} classes in {benchmark.images}")
    typer.echo(f"{train + val + test:,} images: train {train:,}, val {val:,}, test {test:,}")
    ignored = getattr(benchmark, "ignored", 0)
    if ignored:
        typer.echo(f"{ignored:,} other files ignored")
    _print_counts(report.counts(), verbose)
    typer.echo(
        f"{len(report.sha256):,} files in {seconds:.1f} s ({len(report.sha256) / max(seconds, 1e-9):,.0f} files/s)"
    )
    typer.echo(f"sha256 over all files: {report.digest}")
    for problems, what in ((list(report.missing), "missing"), (list(report.unreadable.values()), "unreadable")):
        if problems:
            typer.echo(f"{len(problems):,} {what}:", err=True)
            for problem in problems if verbose else problems[:5]:
                typer.echo(f"  {problem}", err=True)
            if len(problems) > 5 and not verbose:
                typer.echo(f"  … and {len(problems) - 5:,} more (all with --verbose)", err=True)
    if hashes:
        write_manifest(report.manifest(), hashes)
        typer.echo(f"hashes written to {hashes}")
    if not report.ok:
        raise typer.Exit(1)
    if expected:
        verify_manifest(expected, benchmark.images)
        typer.echo(f"the files are those of {against}")
    typer.echo("all present and readable")


def _print_counts(counts: dict[str, tuple[int, int, int]], verbose: bool) -> None:
    if verbose:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("class", overflow="fold")
        for part in ("train", "val", "test"):
            table.add_column(part, justify="right")
        for name, numbers in counts.items():
            table.add_row(name, *(str(number) for number in numbers))
        Console(markup=False).print(table)
        return
    ranges = []
    for part, numbers in zip(("train", "val", "test"), zip(*counts.values(), strict=True), strict=True):
        low, high = min(numbers), max(numbers)
        ranges.append(f"{part} {low}" if low == high else f"{part} {low} to {high}")
    typer.echo(f"per class: {', '.join(ranges)} (every class with --verbose)")


@app.command("download")
def download(
    name: Annotated[str, typer.Argument(help="Benchmark.")],
    data_root: DataRoot = None,
) -> None:
    """Fetch a benchmark as far as it can be fetched, and say what is left to do by hand."""
    from slimprompt.data.catalogue import benchmark_folder, benchmark_info
    from slimprompt.data.check import missing_images
    from slimprompt.data.download import by_hand, download_annotations, download_images

    row = benchmark_info(name)
    if data_root:
        try:
            data_root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the data root {data_root}: {error.strerror}") from None
    folder = benchmark_folder(row, data_root)
    if row.drawn:
        typer.echo(f"{row.name} is drawn, not fetched: {_load(row.name, data_root).images}")
        return
    typer.echo(f"{row.title}: about {row.size}, licence: {row.licence}; terms of use: {row.site}")
    problems = []
    try:
        fetched = download_images(row, folder)
        typer.echo(f"images: {'fetched into' if fetched else 'already in'} {folder / row.images}")
    except InputError as error:
        problems.append(str(error))
    try:
        names = download_annotations(row, folder)
        typer.echo(f"annotations: {'fetched ' + ', '.join(names) if names else 'nothing to fetch'}")
    except InputError as error:
        problems.append(str(error))
    for problem in problems:
        typer.echo(f"not done: {problem}", err=True)
    for step in by_hand(row, folder) if problems else ():
        typer.echo(f"by hand: {step}", err=True)
    if not problems:
        n_missing = len(missing_images(_load(row.name, data_root)))
        if not n_missing:
            typer.echo(f"every image is there; open them all once with: slimprompt data check {row.name}")
            return
        typer.echo(f"{n_missing:,} images of the split are missing in {folder / row.images}", err=True)
    raise typer.Exit(1)


@app.command("extract-midframes")
def extract(
    videos: Annotated[Path, typer.Argument(help="Folder with <class>/<video>, such as the unpacked UCF-101.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the frames; default: UCF101's place in the data root.")
    ] = None,
    data_root: DataRoot = None,
    workers: Workers = None,
) -> None:
    """Write the middle frame of every video as a JPEG file, in the layout that UCF101's split uses."""
    from slimprompt.data.catalogue import benchmark_folder, benchmark_info
    from slimprompt.data.download import extract_midframes

    row = benchmark_info("ucf101")
    target = out or benchmark_folder(row, data_root) / row.images
    from slimprompt.progress import progress

    with progress("extracting", None, "videos") as advance:
        written, kept = extract_midframes(videos, target, workers=workers, advance=lambda total: advance(total=total))
    typer.echo(f"{written:,} frames written to {target}, {kept:,} were there already")


@app.command("draw")
def draw(
    target: Target,
    shots: Annotated[int, typer.Option("--shots", min=1, help="Training images per class.")] = 16,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draw.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Write the draw as a manifest.")] = None,
    hashes: Annotated[bool, typer.Option(help="Hash the images; without, none needs to be there.")] = True,
    data_root: DataRoot = None,
) -> None:
    """Make the few-shot draw of a seed, and write it as a manifest that a run can be given."""
    from slimprompt.data import check_images, few_shot, make_manifest, short_classes, write_manifest

    benchmark = _load(target, data_root)
    drawn = few_shot(benchmark, shots, seed)
    typer.echo(
        f"{benchmark.name}, {shots} shots, seed {seed}: {len(drawn.train):,} train and {len(drawn.val):,} val images "
        f"of {len(drawn.class_names)} classes"
    )
    for name, count in short_classes(benchmark, shots).items():
        typer.echo(f"{name}: has {count} images only, all are taken")
    if out:
        if hashes:
            try:
                check_images(replace(drawn, test=()))
            except InputError as error:
                raise InputError(f"{error}; or write the draw without hashes (--no-hashes)") from None
        write_manifest(make_manifest(drawn, shots=shots, seed=seed, hashes=hashes), out)
        typer.echo(f"manifest written to {out}")


@app.command("pocket")
def pocket(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; must not exist yet or be empty.")],
    name: Annotated[str, typer.Argument(help="Which of the drawn benchmarks.")] = "pocket-sketch",
) -> None:
    """Write a drawn benchmark as an ordinary image folder: OUT/{train,test}/<class>/<image>.png."""
    from slimprompt.data.catalogue import CATALOGUE, benchmark_info
    from slimprompt.storage import draft_folder, publish

    row = benchmark_info(name)
    if not row.drawn:
        drawn = ", ".join(row.name for row in CATALOGUE.values() if row.drawn)
        raise InputError(f"{row.name} is not a drawn benchmark; the drawn ones are {drawn}")
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists already and is not an empty folder; give another --out")
    benchmark = _load(row.name, None)
    with draft_folder(out) as draft:
        for part, items in (("train", benchmark.train), ("test", benchmark.test)):
            for item in items:
                folder = draft / part / item.class_name.replace(" ", "_")
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(benchmark.path(item), folder / Path(item.path).name)
        publish(draft, out)
    typer.echo(
        f"{len(benchmark.train):,} train and {len(benchmark.test):,} test images of {row.classes} classes in {out}"
    )


def _load(target: str, root: Path | None) -> Benchmark:
    """A benchmark by name, else a folder or CSV file; what the reader warns of goes to the error stream."""
    from slimprompt.data.catalogue import open_dataset

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        benchmark = open_dataset(target, root)
    for warning in caught:
        typer.echo(f"note: {warning.message}", err=True)
    return benchmark


def _size(benchmark: Benchmark) -> int:
    return len(benchmark.train) + len(benchmark.val) + len(benchmark.test)
