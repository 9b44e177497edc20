"""Size and speed of the feature store, and the error of storing features in fp16.

    python benchmarks/store.py [--images 1600] [--views 200] [--embed-dim 512] [--json FILE]

A run's features are written and then read by a new store as training reads them, one view of all images after the other, while the
files are in the page cache. The rows of SQLite of version 0.1 are measured on a part of them. The error of fp16 is that of the
pocket model on its own test images: cosines with the zero-shot class features, and logits, which are cosines times the logit scale.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from _output import make_parser, print_results
from pipeline import old_store, old_table, timed

from slimprompt import FeatureBank, load_backbone
from slimprompt.data import load_benchmark
from slimprompt.files import sha256
from slimprompt.images.store import FeatureStore
from slimprompt.methods.zero_shot import zero_shot_features

IMAGES_AT_A_TIME = 16


def unit_rows(n: int, embed_dim: int, seed: int) -> np.ndarray:
    """Random unit-length rows (n, embed_dim)."""
    rows = np.random.default_rng(seed).standard_normal((n, embed_dim), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measure_store(folder: Path, images: list[str], views: list[str], embed_dim: int) -> dict[str, float]:
    """Bytes per feature, and seconds of the clock and of the processor to find what is missing and to read everything."""
    store = FeatureStore(folder / "store", {})
    for start in range(0, len(images), IMAGES_AT_A_TIME):
        names = [(image, view) for image in images[start : start + IMAGES_AT_A_TIME] for view in views]
        some, of_views = zip(*names, strict=True)
        store.write(some, of_views, unit_rows(len(names), embed_dim, start))
    store.close()
    size = sum(path.stat().st_size for path in (folder / "store").iterdir())
    store = FeatureStore(folder / "store", {})
    missing = timed(lambda: store.missing(images, views))

    def read_all() -> None:
        for view in views:
            store.read(images, view)

    read = timed(read_all)
    store.close()
    return {
        "bytes_per_feature": size / len(images) / len(views),
        "missing_s": missing[0],
        "read_s": read[0],
        "missing_processor_s": missing[1],
        "read_processor_s": read[1],
    }


def measure_old(folder: Path, images: list[str], views: list[str], embed_dim: int) -> dict[str, float]:
    """Bytes and seconds per feature of version 0.1, with two queries for each feature."""
    database = old_table(folder / "old.sqlite")
    for image in images:
        old_store(database, [(image, view) for view in views], torch.from_numpy(unit_rows(len(views), embed_dim, 0)))

    def read(view: str) -> np.ndarray:
        sql = "SELECT feature FROM features WHERE picture = ? AND view = ?"
        found = [database.execute(sql, (image, view)).fetchall() for _ in range(2) for image in images]
        return np.stack([np.frombuffer(rows[0][0], dtype=np.float32) for rows in found[len(images) :]])

    def read_all() -> None:
        for view in views:
            read(view)

    seconds = timed(read_all)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    n = len(images) * len(views)
    size = (folder / "old.sqlite").stat().st_size
    return {"old_bytes_per_feature": size / n, "old_read_s": seconds[0] / n, "old_read_processor_s": seconds[1] / n}


def half_precision_error(folder: Path) -> dict[str, float]:
    """Largest errors of cosines and logits if features are stored in fp16, and how many predictions differ."""
    backbone = load_backbone("pocket", device="cpu")
    benchmark = load_benchmark("pocket-gallery")
    paths = [benchmark.path(item) for item in benchmark.test]
    classes = zero_shot_features(backbone, benchmark.class_names, benchmark.templates[:1])
    exact, half = (
        FeatureBank(backbone, folder, show_progress=False, store_precision=precision).features(paths) @ classes.T
        for precision in ("fp32", "fp16")
    )
    error = float((exact - half).abs().max())
    return {
        "fp16_cosine_error": error,
        "fp16_logit_error": error * backbone.logit_scale,
        "fp16_changed_predictions": int((exact.argmax(1) != half.argmax(1)).sum()),
        "fp16_images": len(paths),
        "logit_scale": backbone.logit_scale,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--embed-dim", type=int, default=512)
    options = parser.parse_args()
    images = [sha256(b"%d" % number) for number in range(options.images)]
    views = [f"1/{number}" for number in range(options.views)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        result = measure_store(folder, images, views, options.embed_dim)
        result["total_s"] = time.perf_counter() - start
        result |= measure_old(folder, images[:160], views[:20], options.embed_dim)
        result |= half_precision_error(folder / "half")
    n = options.images * options.views
    print(
        f"{n:,} features: {result['bytes_per_feature']:,.0f} bytes each (version 0.1: {result['old_bytes_per_feature']:,.0f}), "
        f"missing ones found in {result['missing_s']:.2f} s, read in {result['read_s']:.2f} s, {result['read_processor_s']:.2f} s of "
        f"the processor (version 0.1: {n * result['old_read_s']:.1f} s, {n * result['old_read_processor_s']:.1f} s, extrapolated)"
    )
    print(
        f"fp16: largest error of a cosine {result['fp16_cosine_error']:.1e}, of a logit {result['fp16_logit_error']:.1e} (scale "
        f"{result['logit_scale']:.0f}), {result['fp16_changed_predictions']} of {result['fp16_images']} predictions differ"
    )
    print_results(result, options.json)


if __name__ == "__main__":
    main()
