"""Time of a whole few-shot run: plain CoOp, recipe `paper` and recipe `fast` on the same data and model size.

    python benchmarks/end_to_end.py [--classes 47 100] [--shots 16] [--plain-steps 2] [--json FILE]

ViT-B/16 with random weights (they do not affect the time), noise images, fp32, one process. Parts that would take hours are
measured on a few steps or images and extrapolated by their exact counts:

- plain CoOp encodes a batch of augmented images and all classes over 77 tokens in every step, both by open_clip's own passes;
- recipe `paper` encodes every view once for all variants of a seed and uses the shared-prefix text pass;
- recipe `fast` takes few steps on a few views per image; all of its steps are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from _output import make_parser, print_results
from PIL import Image
from text_encoder import names
from torch.nn import functional as F

from slimprompt import Backbone, SharedPrefixTextEncoder, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.images.views import train_view
from slimprompt.text.reference import full_pass_encoder
from slimprompt.training.loop import train
from slimprompt.training.recipe import RECIPES

PAPER, FAST = RECIPES["paper"], RECIPES["fast"]
N_FAST_VIEWS = len(FAST.views_at(0))
BATCH = 32


class Times(NamedTuple):
    """Measured seconds."""

    plain_image: float
    """One train view of one image: cropping, and encoding by open_clip's own pass."""
    image: float
    """The same with the pass of this project."""
    full_text: float
    """One training step with the full text pass."""
    shared_text: float
    """One training step with the shared-prefix text pass."""
    fast_text: float
    """All training steps of recipe `fast`."""


def in_turn(functions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Mean wall time of each function, called in turn after one warm-up call each."""
    for function in functions:
        function()
    return [
        sum(times) / repeats for times in zip(*([_once(f) for f in functions] for _ in range(repeats)), strict=True)
    ]


def _once(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(backbone: Backbone, n_classes: int, n_images: int, plain_steps: int) -> Times:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8))
    labels = torch.arange(n_images) % n_classes
    dense = start_prompt("dense", width=512, seed=0)
    slim = start_prompt("fixed-B", width=512, seed=0, rank=4, basis="orthogonal")
    full = full_pass_encoder(backbone, names(n_classes), 16)
    shared = SharedPrefixTextEncoder(backbone, names(n_classes), 16)

    def image_batch(encode: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        views = [train_view(image, backbone.preprocess, seed) for seed in range(BATCH)]
        with torch.inference_mode():
            return encode(torch.stack(views))

    batch = image_batch(backbone.encode_images).clone()

    def step(prompt, encode):
        text = F.normalize(encode(prompt()), dim=-1)
        F.cross_entropy(100 * batch @ text.T, labels[:BATCH]).backward()

    plain_image, image_time = in_turn(
        [lambda: image_batch(backbone.model.encode_image), lambda: image_batch(backbone.encode_images)], plain_steps
    )
    (full_text,) = in_turn([lambda: step(dense, full)], plain_steps)
    (shared_text,) = in_turn([lambda: step(slim, shared)], 3)
    features = F.normalize(torch.randn(N_FAST_VIEWS * n_images, 512), dim=-1)
    all_steps = FAST.model_copy(update={"tolerance": 0.0})  # no early stop
    start = time.perf_counter()
    train([slim], shared, lambda _: features, labels, 100.0, all_steps, seed=0)
    return Times(plain_image / BATCH, image_time / BATCH, full_text, shared_text, time.perf_counter() - start)


def extrapolate(times: Times, n_classes: int, n_images: int, n_variants: int) -> dict[str, float]:
    """Times of whole runs; with shared image features, each of `n_variants` runs pays its share of the encoding."""
    paper_steps = PAPER.epochs * PAPER.steps_per_epoch(n_images)
    plain = paper_steps * (BATCH * times.plain_image + times.full_text)
    paper_images, paper_text = PAPER.epochs * n_images * times.image, paper_steps * times.shared_text
    fast_images = N_FAST_VIEWS * n_images * times.image
    return {
        "classes": n_classes,
        "images": n_images,
        "plain_coop_hours": plain / 3600,
        "paper_hours": (paper_images + paper_text) / 3600,
        "fast_minutes": (fast_images + times.fast_text) / 60,
        "text_steps_paper": paper_steps,
        "text_steps_fast": FAST.epochs * FAST.steps_per_epoch(n_images),
        "plain_image_seconds": times.plain_image,
        "image_seconds": times.image,
        "fast_text_seconds": times.fast_text,
        "text_side_speedup": times.full_text / times.shared_text,
        "paper_speedup": plain / (paper_images + paper_text),
        "paper_speedup_shared_images": plain / (paper_images / n_variants + paper_text),
        "fast_speedup": plain / (fast_images + times.fast_text),
        "fast_speedup_shared_images": plain / (fast_images / n_variants + times.fast_text),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[47, 100])
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--plain-steps", type=int, default=2, help="steps of plain CoOp to measure")
    parser.add_argument(
        "--variants", type=int, default=22, help="variants of a seed that share image features (the paper has 22)"
    )
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    backbone = load_backbone("ViT-B-16", "random:0", device="cpu", activation="quickgelu")
    results = []
    for n_classes in options.classes:
        n_images = n_classes * options.shots
        row = extrapolate(
            measure(backbone, n_classes, n_images, options.plain_steps), n_classes, n_images, options.variants
        )
        results.append(row)
        print(
            f"{n_classes} classes, {n_images} images: plain CoOp {row['plain_coop_hours']:.1f} h (measured on "
            f"{options.plain_steps} of {row['text_steps_paper']} steps)\n"
            f"  text side {row['text_side_speedup']:.1f}x faster per step\n"
            f"  recipe paper {row['paper_hours']:.2f} h, {row['paper_speedup']:.1f}x; with image features shared by "
            f"{options.variants} variants {row['paper_speedup_shared_images']:.1f}x\n"
            f"  recipe fast {row['fast_minutes']:.1f} min ({row['text_steps_fast']} text passes, {N_FAST_VIEWS} views), "
            f"{row['fast_speedup']:.0f}x; with shared image features {row['fast_speedup_shared_images']:.0f}x",
            flush=True,
        )
    print_results(results, options.json)


if __name__ == "__main__":
    main()
