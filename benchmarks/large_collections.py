"""Overhead and memory of `slimprompt predict --out` on a large collection.

    python benchmarks/large_collections.py overhead [--backbones ViT-B-32 pocket] [--images 512] [--size 400] [--json FILE]
    python benchmarks/large_collections.py memory [--images 1000 50000] [--json FILE]

`overhead` compares the whole command on JPEG files (listing, decoding, encoding, rows, parts, one output file; the model is
loaded before) with the image tower alone, on as many ready pixel tensors. Both are timed in turn. The tower has random weights
and uses one core less than there are, unless --threads says otherwise: images are decoded meanwhile, as they are beside a GPU.

`memory` predicts collections of several sizes with the pocket model, each in a process of its own, after 1,024 images to warm up.
The images are hard links to 256 rendered files, 1,000 in a folder.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from _output import make_parser, print_results
from bank import write_images
from PIL import Image

from slimprompt import Backbone, Classifier, load_backbone
from slimprompt.collections.inputs import open_collection
from slimprompt.collections.predict import LocalPredictor, PredictionSpec, predict_collection
from slimprompt.images.encoding import BATCH
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

_WARM_UP = 1024


def load(name: str) -> Backbone:
    return load_backbone(name, None if name == "pocket" else "random:0", device="cpu")


def save_model(name: str, folder: Path) -> LocalPredictor:
    """Zero-shot classification on a model with random weights, or on the pocket model, ready to predict."""
    backbone = load(name)
    names = POCKET_BENCHMARKS["pocket-sketch"].class_names
    Classifier.zero_shot(backbone, names).save(folder)
    return LocalPredictor(PredictionSpec(str(folder), device="cpu"))


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@contextmanager
def tower_seconds() -> Iterator[list[float]]:
    """While inside, the seconds of each call of an image tower are added to the list."""
    found: list[float] = []
    encode = Backbone.encode_images

    def timed(backbone: Backbone, pixels: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        features = encode(backbone, pixels)
        found.append(time.perf_counter() - start)
        return features

    Backbone.encode_images = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Backbone.encode_images = encode  # type: ignore[method-assign]


def measure_overhead(name: str, n_images: int, size: int, repeats: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "images"
        folder.mkdir()
        write_images(folder, n_images, size)
        predictor, backbone = save_model(name, Path(place) / "model"), load(name)
        collection, out = open_collection([folder]), Path(place) / "p.csv"
        batch = torch.randn(BATCH, *backbone.eval_view(Image.new("RGB", (64, 64))).shape)

        def tower() -> None:
            for _ in range(0, n_images, BATCH):
                backbone.encode_images(batch)

        def command() -> None:
            predict_collection(collection, out, lambda: predictor, overwrite=True)

        tower(), command()  # warm up
        times = []
        for _ in range(repeats):
            alone = seconds(tower)
            with tower_seconds() as inside:
                times.append((alone, seconds(command), sum(inside)))
    alone, whole, _ = (statistics.median(column) for column in zip(*times, strict=True))
    overhead = statistics.median(command / tower - 1 for tower, command, _ in times)
    outside = statistics.median((command - inside) / command for _, command, inside in times)
    print(
        f"{name}: tower alone {n_images / alone:,.1f} images/s, command {n_images / whole:,.1f} images/s, "
        f"overhead {100 * overhead:.1f} %; {100 * outside:.1f} % of the command outside of the tower (median of {repeats})"
    )
    return {
        "backbone": name,
        "images": n_images,
        "tower": n_images / alone,
        "command": n_images / whole,
        "overhead": overhead,
        "outside_tower": outside,
    }


def link_images(folder: Path, n_images: int) -> None:
    """`n_images` hard links to 256 rendered images, 1,000 in a folder."""
    world, files = POCKET_BENCHMARKS["pocket-sketch"], folder.parent / "rendered"
    files.mkdir(exist_ok=True)
    for number in range(256):
        path = files / f"{number}.png"
        if not path.exists():
            Image.fromarray(world.image(number % len(world.class_names), number)).save(path, compress_level=1)
    for number in range(n_images):
        path = folder / f"{number // 1000:04d}" / f"{number % 1000:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(files / f"{number % 256}.png", path)


def largest_memory(function: Callable[[], object]) -> float:
    """The largest resident memory of this process in MB while a function runs, sampled ten times per second.

    The system's own record would not do: it includes loading the model, which needs more than predicting.
    """
    process, stopped, found = psutil.Process(), threading.Event(), [0]

    def watch() -> None:
        while not stopped.wait(0.1):
            found.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    function()
    stopped.set()
    watcher.join()
    return max(*found, process.memory_info().rss) / 2**20


def predict_alone(place: Path) -> None:
    """The child process of `measure_memory`: print the largest memory while warming up, and afterwards."""
    predictor = save_model("pocket", place / "model")
    peaks = [
        largest_memory(
            lambda: predict_collection(open_collection([place / name]), place / f"{name}.parquet", lambda: predictor)
        )
        for name in ("warm-up", "images")
    ]
    print(json.dumps(peaks))


def measure_memory(n_images: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        link_images(Path(place) / "warm-up", _WARM_UP)
        link_images(Path(place) / "images", n_images)
        child = [sys.executable, __file__, "child", place]
        done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
    before, after = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{n_images:,} images: {before:,.0f} MB at most in the first {_WARM_UP:,} images, {after:,.0f} MB afterwards ({after - before:+,.1f} MB)"
    )
    return {"images": n_images, "before": before, "peak": after, "growth": after - before}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("what", choices=["overhead", "memory", "child"])
    parser.add_argument("place", nargs="?", type=Path, help="of the child process of memory")
    parser.add_argument("--backbones", nargs="+", default=["ViT-B-32", "pocket"])
    parser.add_argument("--images", nargs="+", type=int, help="default: 512 for overhead, 1,000 and 50,000 for memory")
    parser.add_argument("--size", type=int, default=400, help="overhead: height of the images")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 1) - 1), help="of the tower")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "child":
        predict_alone(options.place)
        return
    if options.what == "memory":
        results: list[object] = [measure_memory(n_images) for n_images in options.images or [1000, 50_000]]
    else:
        (n_images,) = options.images or [512]
        results = [measure_overhead(name, n_images, options.size, options.repeats) for name in options.backbones]
    print_results({"threads": options.threads, "results": results}, options.json)


if __name__ == "__main__":
    main()
