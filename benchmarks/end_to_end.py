"""Time of a whole few-shot run: plain CoOp, and recipes `paper`, `auto` and `fast`, on the same data and model size.

    python benchmarks/end_to_end.py [--classes 47 100] [--shots 16] [--plain-steps 2] [--json FILE]

ViT-B/16 with random weights (they do not affect the time), noise images, fp32, one process. Parts that would take hours are
measured on a few steps or images and extrapolated by their exact counts:

- plain CoOp encodes a batch of augmented images and all classes over 77 tokens in every step, both by open_clip's own passes;
- recipe `paper` encodes every view once for all variants of a seed and uses the shared-prefix text pass;
- recipes `auto` and `fast` take few steps on a few views per image; the steps of some epochs are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from slimprompt.training.recipe import RECIPES, Recipe, auto_recipe

PAPER = RECIPES["paper"]
BATCH = 32
MEASURED_EPOCHS = 4


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
    text: dict[str, float]
    """All training steps of a recipe, by its name."""


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


def measure(
    backbone: Backbone, n_classes: int, n_images: int, recipes: Mapping[str, Recipe], plain_steps: int
) -> Times:
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

    def text_seconds(recipe: Recipe) -> float:
        features = F.normalize(torch.randn(len(recipe.views_at(0)) * n_images, 512), dim=-1)
        some = recipe.model_copy(update={"epochs": MEASURED_EPOCHS, "tolerance": 0.0})  # no early stop
        seconds = _once(lambda: train([slim], shared, lambda _: features, labels, 100.0, some, seed=0))
        return seconds * recipe.epochs / MEASURED_EPOCHS

    text = {name: text_seconds(recipe) for name, recipe in recipes.items()}
    return Times(plain_image / BATCH, image_time / BATCH, full_text, shared_text, text)


def extrapolate(
    times: Times, n_classes: int, n_images: int, recipes: Mapping[str, Recipe], n_variants: int
) -> dict[str, float]:
    """Times of whole runs; with shared image features, each of `n_variants` runs pays its share of the encoding."""
    paper_steps = PAPER.epochs * PAPER.steps_per_epoch(n_images)
    plain = paper_steps * (BATCH * times.plain_image + times.full_text)
    paper_images, paper_text = PAPER.epochs * n_images * times.image, paper_steps * times.shared_text
    row = {
        "classes": n_classes,
        "images": n_images,
        "plain_coop_hours": plain / 3600,
        "paper_hours": (paper_images + paper_text) / 3600,
        "text_steps_paper": paper_steps,
        "plain_image_seconds": times.plain_image,
        "image_seconds": times.image,
        "text_side_speedup": times.full_text / times.shared_text,
        "paper_speedup": plain / (paper_images + paper_text),
        "paper_speedup_shared_images": plain / (paper_images / n_variants + paper_text),
    }
    for name, recipe in recipes.items():
        images, text = len(recipe.views_at(0)) * n_images * times.image, times.text[name]
        row |= {
            f"{name}_minutes": (images + text) / 60,
            f"text_steps_{name}": recipe.steps(n_images),
            f"{name}_text_seconds": text,
            f"{name}_speedup": plain / (images + text),
            f"{name}_speedup_shared_images": plain / (images / n_variants + text),
        }
    return row


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
    recipes = {"auto": auto_recipe(options.shots), "fast": RECIPES["fast"]}
    results = []
    for n_classes in options.classes:
        n_images = n_classes * options.shots
        times = measure(backbone, n_classes, n_images, recipes, options.plain_steps)
        row = extrapolate(times, n_classes, n_images, recipes, options.variants)
        results.append(row)
        print(
            f"{n_classes} classes, {n_images} images: plain CoOp {row['plain_coop_hours']:.1f} h (measured on "
            f"{options.plain_steps} of {row['text_steps_paper']} steps)\n"
            f"  text side {row['text_side_speedup']:.1f}x faster per step\n"
            f"  recipe paper {row['paper_hours']:.2f} h, {row['paper_speedup']:.1f}x; with image features shared by "
            f"{options.variants} variants {row['paper_speedup_shared_images']:.1f}x"
        )
        for name, recipe in recipes.items():
            print(
                f"  recipe {name} {row[f'{name}_minutes']:.1f} min ({row[f'text_steps_{name}']} text passes, "
                f"{len(recipe.views_at(0))} views), {row[f'{name}_speedup']:.0f}x; with shared image features "
                f"{row[f'{name}_speedup_shared_images']:.0f}x",
                flush=True,
            )
    print_results(results, options.json)


if __name__ == "__main__":
    main()
