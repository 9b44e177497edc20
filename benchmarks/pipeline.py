"""Speed of decoding, making and storing views beside an encoder that takes no time of the processor, as a GPU.

    python benchmarks/pipeline.py [--images 24] [--views 128] [--size 400] [--encoder 0.3] [--json FILE]

The feature bank is compared with the code of version 0.1: views as float tensors of 16 per task, one row of SQLite per feature. Its
encoder is replaced by one that sleeps 0.3 ms per view. "views/s per core" are views per second of processor time of all threads,
which does not depend on what else the machine does. Then the steps of a view are measured one by one, on one thread.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _output import make_parser, print_results
from bank import write_images
from open_clip.transform import PreprocessCfg
from PIL import Image
from torch import Tensor

from slimprompt import FeatureBank, load_backbone
from slimprompt.clip.backbone import Backbone
from slimprompt.images import encoding
from slimprompt.images.bank import train_view_name
from slimprompt.images.decode import decode_image, open_image
from slimprompt.images.encoding import BATCH
from slimprompt.images.prefetch import prefetched
from slimprompt.images.store import FeatureStore
from slimprompt.images.views import crop_box, normalise, train_pixels, view_size
from slimprompt.seeds import stream_seed

OLD_VIEWS_PER_TASK, VIEWS_PER_TASK = 16, 64
EMBED_DIM = 512


def stub_features(n: int, milliseconds: float) -> Tensor:
    """Unit-length features after the time that an encoder on another device takes."""
    time.sleep(n * milliseconds / 1000)
    return torch.full((n, EMBED_DIM), EMBED_DIM**-0.5)


def float_view(image: Image.Image, preprocess: PreprocessCfg, seed: int) -> Tensor:
    """A train view as version 0.1 made it."""
    rng = random.Random(seed)
    left, top, width, height = crop_box(image.width, image.height, rng)
    rows, columns = view_size(preprocess)
    view = image.crop((left, top, left + width, top + height)).resize((columns, rows), Image.Resampling.BICUBIC)
    return float_pixels(view, preprocess, flip=rng.random() < 0.5)


def float_pixels(view: Image.Image, preprocess: PreprocessCfg, *, flip: bool) -> Tensor:
    """The float conversion of version 0.1."""
    pixels = torch.from_numpy(np.array(view, dtype=np.float32).transpose(2, 0, 1)).div_(255)
    if flip:
        pixels = pixels.flip(2)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (preprocess.mean, preprocess.std))
    return (pixels - mean) / std


def old_table(path: Path) -> sqlite3.Connection:
    """The file of version 0.1."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute(
        "CREATE TABLE features (picture TEXT, view TEXT, feature BLOB, PRIMARY KEY (picture, view)) WITHOUT ROWID"
    )
    return database


def old_store(database: sqlite3.Connection, names: list[tuple[str, str]], features: Tensor) -> None:
    """Store a batch as version 0.1 did."""
    rows = [(*name, feature.tobytes()) for name, feature in zip(names, features.numpy(), strict=True)]
    with database:
        database.executemany("INSERT OR IGNORE INTO features VALUES (?, ?, ?)", rows)


def old_build(
    backbone: Backbone, paths: list[Path], views: list[str], database: sqlite3.Connection, milliseconds: float
) -> None:
    """The loop of version 0.1: decode and make float views ahead, then stack, encode and store in turn."""
    tasks = [
        (path, views[start : start + OLD_VIEWS_PER_TASK])
        for path in paths
        for start in range(0, len(views), OLD_VIEWS_PER_TASK)
    ]

    def make(task: tuple[Path, list[str]]) -> list[Tensor]:
        image = open_image(task[0])
        return [float_view(image, backbone.preprocess, stream_seed(0, "view", view, str(task[0]))) for view in task[1]]

    batch: list[tuple[tuple[str, str], Tensor]] = []
    for (path, some), made in prefetched(make, tasks, torch.multiprocessing.cpu_count()):
        for view, pixels in zip(some, made, strict=True):
            batch.append(((str(path), view), pixels))
            if len(batch) == BATCH:
                stacked = torch.stack([one for _, one in batch])
                old_store(database, [name for name, _ in batch], stub_features(len(stacked), milliseconds))
                batch = []


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock, and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - clock, time.process_time() - processor


def milliseconds(function: Callable[[], object], n: int) -> float:
    """Least processor time of several calls, divided by n."""
    return 1000 * min(timed(function)[1] for _ in range(5)) / n


def steps(backbone: Backbone, path: Path, folder: Path) -> dict[str, tuple[float, float]]:
    """Processor time in ms per view of each step: version 0.1 and now. Version 0.1 flips in "to tensor"."""
    preprocess, content, image = backbone.preprocess, path.read_bytes(), open_image(path)
    boxes = [crop_box(image.width, image.height, random.Random(seed)) for seed in range(BATCH)]
    rows, columns = view_size(preprocess)

    def cropped() -> list[Image.Image]:
        return [
            image.crop((x, y, x + w, y + h)).resize((columns, rows), Image.Resampling.BICUBIC) for x, y, w, h in boxes
        ]

    def made_now() -> list[np.ndarray]:
        return [train_pixels(image, preprocess, seed) for seed in range(BATCH)]

    def to_tensors() -> list[Tensor]:
        return [float_pixels(view, preprocess, flip=number % 2 == 0) for number, view in enumerate(old)]

    old, pixels = cropped(), made_now()
    floats = to_tensors()
    buffer = np.empty((BATCH, rows, columns, 3), dtype=np.uint8)

    def fill() -> None:
        for row, view in zip(buffer, pixels, strict=True):
            row[:] = view

    fill()
    features = stub_features(BATCH, 0)
    database, store = old_table(folder / "old.sqlite"), FeatureStore(folder / "new.sqlite", {})
    numbers = iter(range(10**6))

    def old_write() -> None:
        old_store(database, [(f"{next(numbers):064x}", "1/0") for _ in range(BATCH)], features)

    def new_write() -> None:
        store.write([(f"{next(numbers):064x}", "1/0") for _ in range(BATCH)], features.numpy())

    read = milliseconds(path.read_bytes, 1)
    decode = milliseconds(lambda: decode_image(content, "image"), 1)
    filled, stored = milliseconds(fill, BATCH), milliseconds(new_write, BATCH)
    normalised = milliseconds(lambda: normalise(torch.from_numpy(buffer), preprocess), BATCH)
    return {
        "read": (read / OLD_VIEWS_PER_TASK, read / VIEWS_PER_TASK),
        "decode": (decode / OLD_VIEWS_PER_TASK, decode / VIEWS_PER_TASK),
        "crop, resize and flip": (milliseconds(cropped, BATCH), milliseconds(made_now, BATCH)),
        "to tensor": (milliseconds(to_tensors, BATCH), filled),
        "stack": (milliseconds(lambda: torch.stack(floats), BATCH), 0.0),
        "store": (milliseconds(old_write, BATCH), stored),
        "normalise, on the encoder's device": (0.0, normalised),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--views", type=int, default=128, help="train views of each image")
    parser.add_argument("--size", type=int, default=400, help="height of the images")
    parser.add_argument("--encoder", type=float, default=0.3, help="milliseconds of the encoder per view")
    options = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone("ViT-B-32", "random:0", device="cpu")
    # normalising belongs to the encoder's device and is not done
    encoding.encode_pixels = lambda _, pixels: stub_features(len(pixels), options.encoder)
    views = [train_view_name(1, number) for number in range(options.views)]
    n = options.images * options.views
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_images(folder, options.images, options.size)
        train_pixels(open_image(paths[0]), backbone.preprocess, 0)  # warm up
        database = old_table(folder / "before.sqlite")
        before = timed(lambda: old_build(backbone, paths, views, database, options.encoder))
        bank = FeatureBank(backbone, folder / "bank", show_progress=False)
        after = timed(lambda: bank.build(paths, views))
        assert len(bank) == n
        by_step = steps(backbone, paths[0], folder)
    print(f"{n:,} views: version 0.1 {n / before[0]:,.0f} views/s, {n / before[1]:,.0f} views/s per core")
    print(f"now: {n / after[0]:,.0f} views/s, {n / after[1]:,.0f} views/s per core ({before[1] / after[1]:.2f}x)")
    print(f"{'ms per view':36}{'0.1':>8}{'now':>8}")
    for step, times in by_step.items():
        print(f"{step:36}" + "".join(f"{time:8.3f}" for time in times))
    result = {
        "views": n,
        "old_views_per_s": n / before[0],
        "views_per_s": n / after[0],
        "old_views_per_s_per_core": n / before[1],
        "views_per_s_per_core": n / after[1],
        "speedup_per_core": before[1] / after[1],
        "ms_per_view": by_step,
    }
    print_results(result, options.json)


if __name__ == "__main__":
    main()
