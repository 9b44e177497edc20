"""Speed of building and reading a feature bank, compared with a plain loop.

    python benchmarks/bank.py [--images 256] [--size 400] [--backbone ViT-B-32] [--json FILE]

The plain loop decodes and encodes one batch after the other; the bank decodes the next batches on other threads
meanwhile. The images are JPEG files of noise with smooth regions, which take about as long to decode as photographs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _output import make_parser, print_results
from PIL import Image

from slimprompt import FeatureBank, load_backbone
from slimprompt.images.decode import open_image

BATCH = 32


def write_images(folder: Path, n: int, size: int) -> list[Path]:
    """Write `n` JPEG files of height `size` and aspect ratio 4:3."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (size // 20, size // 15, 3), dtype=np.uint8)).resize(
            (size * 4 // 3, size), Image.Resampling.BICUBIC
        )
        noise = np.clip(np.asarray(coarse, dtype=np.int16) + rng.integers(-12, 13, (size, size * 4 // 3, 3)), 0, 255)
        paths.append(folder / f"{i}.jpg")
        Image.fromarray(noise.astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--size", type=int, default=400, help="height of the images")
    parser.add_argument("--backbone", default="ViT-B-32")
    options = parser.parse_args()
    weights = None if options.backbone == "pocket" else "random:0"
    backbone = load_backbone(options.backbone, weights, device="cpu")
    with tempfile.TemporaryDirectory() as name:
        paths = write_images(Path(name), options.images, options.size)
        n = len(paths)

        def pixels(first: int) -> torch.Tensor:
            return torch.stack([backbone.eval_view(open_image(path)) for path in paths[first : first + BATCH]])

        def encode_one_batch_repeatedly() -> None:
            batch = pixels(0)
            for _ in range(0, n, BATCH):
                backbone.encode_images(batch)

        backbone.encode_images(pixels(0))  # warm up
        plain = seconds(lambda: [backbone.encode_images(pixels(first)) for first in range(0, n, BATCH)])
        encoding = seconds(encode_one_batch_repeatedly)
        built = seconds(lambda: FeatureBank(backbone, Path(name) / "bank").features(paths))
        read = seconds(lambda: FeatureBank(backbone, Path(name) / "bank").features(paths))
    print(
        f"{backbone.name}: plain loop {n / plain:.0f} images/s, bank {n / built:.0f} images/s ({plain / built:.2f}x; "
        f"encoding takes {100 * encoding / built:.0f} % of the time), reading stored features {n / read:,.0f} images/s "
        f"({built / read:.0f}x)"
    )
    result = {
        "backbone": backbone.name,
        "images": n,
        "threads": torch.get_num_threads(),
        "plain_loop_images_per_s": n / plain,
        "bank_images_per_s": n / built,
        "speedup_over_plain_loop": plain / built,
        "share_of_encoding_alone": encoding / built,
        "second_look_images_per_s": n / read,
        "second_look_share_of_building": read / built,
    }
    print_results(result, options.json)


if __name__ == "__main__":
    main()
