"""Images per second of building a feature bank against a plain loop, and the cost of a second look.

    python benchmarks/bank.py [--images 256] [--size 400] [--backbone ViT-B-32] [--json FILE]

The plain loop decodes and encodes one batch after the other; the bank decodes the next ones meanwhile on all cores. Pictures are
noise with smooth parts, saved as JPEG, so that decoding costs what photographs cost. All in one run, as ratios.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from slimprompt import FeatureBank, load_backbone
from slimprompt.images.files import open_image


def draw(folder: Path, n: int, size: int) -> list[Path]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--size", type=int, default=400, help="height of the pictures")
    parser.add_argument("--backbone", default="ViT-B-32")
    parser.add_argument("--json", help="write the results here too")
    options = parser.parse_args()
    backbone = (
        load_backbone(options.backbone, "random:0", device="cpu")
        if options.backbone != "pocket"
        else load_backbone("pocket", device="cpu")
    )
    with tempfile.TemporaryDirectory() as name:
        paths = draw(Path(name), options.images, options.size)
        backbone.encode_images(torch.stack([backbone.eval_view(open_image(path)) for path in paths[:32]]))  # warm up

        start = time.perf_counter()
        for first in range(0, len(paths), 32):
            backbone.encode_images(
                torch.stack([backbone.eval_view(open_image(path)) for path in paths[first : first + 32]])
            )
        plain = time.perf_counter() - start

        start = time.perf_counter()
        pixels = torch.stack([backbone.eval_view(open_image(path)) for path in paths[:32]])
        for _ in range(0, len(paths), 32):
            backbone.encode_images(pixels)
        encoding = time.perf_counter() - start

        start = time.perf_counter()
        FeatureBank(backbone, Path(name) / "bank").features(paths)
        built = time.perf_counter() - start
        start = time.perf_counter()
        FeatureBank(backbone, Path(name) / "bank").features(paths)
        read = time.perf_counter() - start
    n = len(paths)
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
    print(f"{backbone.name}: plain loop {n / plain:.0f} images/s, bank {n / built:.0f} images/s ({plain / built:.2f}x; the encoder alone "
          f"would take {100 * encoding / built:.0f} % of that time), second look {n / read:,.0f} images/s ({built / read:.0f}x)")  # fmt: skip
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
