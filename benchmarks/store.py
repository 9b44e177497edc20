"""Size and speed of the feature store, beside plain files and beside the training that reads from it.

    python benchmarks/store.py [--images 1600] [--views 200] [--embed-dim 512] [--json FILE]

A run's features are written and then read as training reads them, one view of all images after the other, from the page cache.
Plain files are one `.npy` file per view, the fastest that can be read. The time of training is that of the steps of the recipe
`paper`, batches of 32 images: the text tower of ViT-B/16 with 100 classes, forward and backward. Then rows of 197 × 768 numbers,
the input of a transformer block, are written and read. All times are processor time on one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _output import make_parser, print_results

from slimprompt import load_backbone
from slimprompt.files import sha256
from slimprompt.images.store import FeatureStore
from slimprompt.text.encoder import SharedPrefixTextEncoder

IMAGES_AT_A_TIME = 16
BLOCK = (197, 768)


def seconds(function: Callable[[], object]) -> float:
    """Processor time of one call, which does not depend on what else the machine does."""
    start = time.process_time()
    function()
    return time.process_time() - start


def random_rows(n: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random rows (n, *shape)."""
    return np.random.default_rng(seed).standard_normal((n, *shape), dtype=np.float32)


def measure_store(path: Path, images: list[str], views: list[str], shape: tuple[int, ...]) -> dict[str, float]:
    """Bytes per row, and seconds to write everything, to find what is missing, and to read everything by a new store."""
    store, write = FeatureStore(path, {}), 0.0
    for start in range(0, len(images), IMAGES_AT_A_TIME):
        names = [(image, view) for image in images[start : start + IMAGES_AT_A_TIME] for view in views]
        rows = random_rows(len(names), shape, start)
        write += seconds(lambda names=names, rows=rows: store.write(names, rows))
    store = FeatureStore(path, {})
    return {
        "bytes_per_row": path.stat().st_size / len(images) / len(views),
        "write_s": write,
        "missing_s": seconds(lambda: store.missing(images, views)),
        "read_s": seconds(lambda: [store.read(images, view) for view in views]),
    }


def read_plain_files(folder: Path, n_images: int, n_views: int, embed_dim: int) -> float:
    """Seconds to read one `.npy` file per view."""
    for view in range(n_views):
        np.save(folder / f"{view}.npy", random_rows(n_images, (embed_dim,), view))
    return seconds(lambda: [np.load(folder / f"{view}.npy") for view in range(n_views)])


def step_seconds() -> float:
    """Seconds of one training step: the fastest of three."""
    backbone = load_backbone("ViT-B-16", "random:0", device="cpu")
    encode = SharedPrefixTextEncoder(backbone, [f"large red square {number}" for number in range(100)], 16)
    context = torch.randn(16, backbone.text_width, requires_grad=True)
    return min(seconds(lambda: encode(context).sum().backward()) for _ in range(3))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--embed-dim", type=int, default=512)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = [sha256(b"%d" % number) for number in range(options.images)]
    views = [f"1/{number}" for number in range(options.views)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = measure_store(folder / "features.sqlite", images, views, (options.embed_dim,))
        result["plain_read_s"] = read_plain_files(folder, len(images), len(views), options.embed_dim)
        blocks = measure_store(folder / "blocks.sqlite", images[:IMAGES_AT_A_TIME], views[:10], BLOCK)
    result["step_s"] = step_seconds()
    result["training_s"] = result["step_s"] * (options.images // 32) * options.views
    result["share_of_training"] = (result["missing_s"] + result["read_s"]) / result["training_s"]
    result |= {f"block_{name}": value for name, value in blocks.items()}
    n_blocks = len(images[:IMAGES_AT_A_TIME]) * len(views[:10])
    print(
        f"{len(images) * len(views):,} features: {result['bytes_per_row']:,.0f} bytes each, written in {result['write_s']:.1f} s, "
        f"missing ones found in {result['missing_s']:.2f} s, read in {result['read_s']:.2f} s "
        f"({1000 * result['read_s'] / len(views):.1f} ms per view, {result['read_s'] / result['plain_read_s']:.1f}x plain files): "
        f"{100 * result['share_of_training']:.3f} % of the training"
    )
    print(
        f"{n_blocks} rows of {4 * np.prod(BLOCK):,} bytes: {result['block_bytes_per_row']:,.0f} bytes each, written at "
        f"{n_blocks / result['block_write_s']:,.0f}, read at {n_blocks / result['block_read_s']:,.0f} per second"
    )
    print_results(result, options.json)


if __name__ == "__main__":
    main()
