"""A whole few-shot run: plain CoOp against recipe `paper` and recipe `fast`, on the same data and model size.

    python benchmarks/end_to_end.py [--classes 47 100] [--shots 16] [--plain-steps 2] [--json FILE]

ViT-B/16 with random weights (time does not depend on them), drawn pictures, fp32, all in one process. Parts that would take
hours are measured on a bounded number of steps or images and extrapolated by their exact counts, which are printed:
plain CoOp encodes a batch of augmented images and all classes over 77 tokens in every step; recipe `paper` encodes every view
once (shared by all variants of the seed) and takes the shared-prefix text pass; recipe `fast` takes few steps over a few views,
all of which are taken here.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from text_encoder import names
from torch.nn import functional as F

from slimprompt import SharedPrefixTextEncoder, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.images.views import train_view
from slimprompt.text.reference import full_pass_encoder
from slimprompt.training.loop import train
from slimprompt.training.recipe import RECIPES


def seconds(function: Callable[[], object], repeats: int) -> float:
    function()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[47, 100])
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--plain-steps", type=int, default=2, help="steps of plain CoOp to measure")
    parser.add_argument(
        "--variants",
        type=int,
        default=22,
        help="variants of a seed that share the image features (the paper's grid has 22)",
    )
    parser.add_argument("--json", help="write the results here too")
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    backbone = load_backbone("ViT-B-16", "random:0", device="cpu", quick_gelu=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8))
    paper, fast = RECIPES["paper"], RECIPES["fast"]
    fast_views = len(fast.views_at(0))
    results = []
    for n_classes in options.classes:
        n_images = n_classes * options.shots
        labels = torch.arange(n_images) % n_classes
        dense = start_prompt("dense", width=512, seed=0)
        slim = start_prompt("fixed-B", width=512, seed=0, rank=4, basis="orthogonal")
        full, shared = (
            full_pass_encoder(backbone, names(n_classes), 16),
            SharedPrefixTextEncoder(backbone, names(n_classes), 16),
        )

        def step(prompt, encode, features, target):
            text = F.normalize(encode(prompt()), dim=-1)
            F.cross_entropy(100 * features @ text.T, target).backward()

        def image_batch(size: int = 32) -> torch.Tensor:
            return backbone.encode_images(
                torch.stack([train_view(picture, backbone.preprocess, seed) for seed in range(size)])
            )

        batch = image_batch()
        image_time = seconds(image_batch, options.plain_steps) / 32
        full_text = seconds(lambda: step(dense, full, batch, labels[:32]), options.plain_steps)
        shared_text = seconds(lambda: step(slim, shared, batch, labels[:32]), 3)
        everything = F.normalize(torch.randn(fast_views * n_images, 512), dim=-1)
        every_step = fast.model_copy(update={"tolerance": 0.0})
        begin = time.perf_counter()
        train([slim], shared, lambda _, features=everything: features, labels, 100.0, every_step, seed=0)
        fast_text = time.perf_counter() - begin

        paper_steps = paper.epochs * paper.steps_per_epoch(n_images)
        fast_steps = fast.epochs * fast.steps_per_epoch(n_images)
        plain = paper_steps * (32 * image_time + full_text)
        paper_images, fast_images = (
            paper.epochs * n_images * image_time,
            fast_views * n_images * image_time,
        )
        paper_run = paper_images + paper_steps * shared_text
        fast_run = fast_images + fast_text
        shared_paper_run = paper_images / options.variants + paper_steps * shared_text
        shared_fast_run = fast_images / options.variants + fast_text
        row = {
            "classes": n_classes,
            "images": n_images,
            "plain_coop_hours": plain / 3600,
            "paper_hours": paper_run / 3600,
            "fast_minutes": fast_run / 60,
            "text_steps_paper": paper_steps,
            "text_steps_fast": fast_steps,
            "image_seconds": image_time,
            "fast_text_seconds": fast_text,
            "text_side_speedup": full_text / shared_text,
            "paper_speedup": plain / paper_run,
            "paper_speedup_shared_images": plain / shared_paper_run,
            "fast_speedup": plain / fast_run,
            "fast_speedup_shared_images": plain / shared_fast_run,
        }
        results.append(row)
        print(
            f"{n_classes} classes, {n_images} images: plain CoOp {row['plain_coop_hours']:.1f} h (from {options.plain_steps} steps; {paper_steps} in all)\n"
            f"  text side {row['text_side_speedup']:.1f}x faster per step\n"
            f"  recipe paper {row['paper_hours']:.2f} h, {row['paper_speedup']:.1f}x; with its image features shared by {options.variants} variants "
            f"{row['paper_speedup_shared_images']:.1f}x\n"
            f"  recipe fast {row['fast_minutes']:.1f} min ({fast_steps} text passes, {fast_views} views), {row['fast_speedup']:.0f}x; shared "
            f"{row['fast_speedup_shared_images']:.0f}x",
            flush=True,
        )
    print(json.dumps(results))
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
