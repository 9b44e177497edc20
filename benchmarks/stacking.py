"""Gain of training several prompts as one batch over training them one after the other.

    python benchmarks/stacking.py [--batch 8] [--backbones pocket ViT-B-16] [--steps 3] [--json FILE]
    python benchmarks/stacking.py --account [--classes 20 47] [--batch 8]

Trains 22 variants on the same images (dense, joint at four ranks, four fixed bases at four ranks, fixed-A) on one thread,
like the worker of a study. Both ways run in turn, and the best of the repeats counts. "difference" is the largest
relative difference between the prompts of the two ways.

With --account, shows what bounds the gain at ViT-B/16 size: the rate of the products with weights in a text step, relative to
a 2,048 × 2,048 product, for one prompt and for a batch; and the rate of these products without anything between them. No
batch can exceed the rate of the large product by much, so 1 / (rate of one prompt) bounds the gain. CPU time on one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from text_encoder import (
    N_CTX,
    best_times,
    fastest_rate,
    make_step,
    names,
    products_only,
    square_products,
    weight_products,
)
from text_encoder import backbone as vit_b_16
from torch.nn import functional as F

from slimprompt import Backbone, Prompt, SharedPrefixTextEncoder, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.training.loop import train
from slimprompt.training.recipe import Recipe

RANKS = (1, 2, 4, 8)


def variants(width: int) -> list[Prompt]:
    """The 22 initial prompts."""
    start: dict[str, Any] = {"width": width, "seed": 1}
    learned = {
        r: tuple(factor.detach() for factor in start_prompt("joint", width=width, seed=2, rank=r).parameters())
        for r in RANKS
    }
    return [
        start_prompt("dense", **start),
        *(start_prompt("joint", **start, rank=r) for r in RANKS),
        *(start_prompt("fixed-B", **start, rank=r, basis=b) for r in RANKS for b in ("gaussian", "orthogonal", "svd")),
        *(start_prompt("fixed-B", **start, rank=r, basis="learned", trained=learned[r]) for r in RANKS),
        start_prompt("fixed-A", **start, rank=4, basis="svd"),
    ]


def measure(backbone: Backbone, n_classes: int, batch: int, steps: int, repeats: int) -> dict[str, Any]:
    recipe = Recipe(epochs=steps, batch_size=None, views=0)
    encoder = SharedPrefixTextEncoder(backbone, names(n_classes), 16)
    embed_dim = encoder(torch.zeros(16, backbone.text_width)).shape[-1]
    features = F.normalize(torch.randn(16 * n_classes, embed_dim), dim=-1)
    labels = torch.arange(16 * n_classes) % n_classes

    def run(size: int) -> tuple[float, list[torch.Tensor]]:
        prompts = variants(backbone.text_width)
        begin = time.perf_counter()
        for first in range(0, len(prompts), size):
            part = prompts[first : first + size]
            train(part, encoder, lambda _: features, labels, backbone.logit_scale, recipe, seed=1)
        return time.perf_counter() - begin, [prompt().detach() for prompt in prompts]

    separate_seconds = batch_seconds = float("inf")
    for _ in range(repeats):
        seconds, separate = run(1)
        separate_seconds = min(separate_seconds, seconds)
        seconds, batched = run(batch)
        batch_seconds = min(batch_seconds, seconds)
    return {
        "backbone": backbone.name,
        "classes": n_classes,
        "tokens": encoder.n_tokens,
        "variants": len(separate),
        "prompt_batch": batch,
        "gain": separate_seconds / batch_seconds,
        "difference": max(float((a - b).norm() / a.norm()) for a, b in zip(separate, batched, strict=True)),
    }


def account(n_classes: int, batch: int, seconds: float) -> dict[str, Any]:
    """Rates of one prompt and of a batch, and the gains that follow from them."""
    n_tokens = SharedPrefixTextEncoder(vit_b_16(), names(n_classes), N_CTX).n_tokens
    one, many = (weight_products(n_tokens, n_classes, n_prompts) for n_prompts in (1, batch))
    times = best_times(
        {
            **square_products(),
            "step": make_step("kernels", n_classes),
            "products": products_only(one),
            "batch_step": make_step("kernels", n_classes, n_prompts=batch),
            "batch_products": products_only(many),
        },
        seconds,
        clock=time.process_time,
    )
    rate = fastest_rate(times)
    n_operations = sum(2 * rows * inner * columns for rows, inner, columns in one)
    prompts = {"step": 1, "products": 1, "batch_step": batch, "batch_products": batch}
    fractions = {name: n * n_operations / times[name] / rate for name, n in prompts.items()}
    return {
        "classes": n_classes,
        "tokens": n_tokens,
        "prompt_batch": batch,
        **{f"fraction_of_matmul_rate_{name}": fraction for name, fraction in fractions.items()},
        "gain": fractions["batch_step"] / fractions["step"],
        "gain_of_products": fractions["batch_products"] / fractions["products"],
        "bound": 1 / fractions["step"],
    }


def print_account(n_classes: int, batch: int, seconds: float) -> dict[str, Any]:
    row = account(n_classes, batch, seconds)
    step, products, batch_step, batch_products = (
        f"{row[f'fraction_of_matmul_rate_{name}']:.0%}" for name in ("step", "products", "batch_step", "batch_products")
    )
    print(
        f"{n_classes:4d} classes {row['tokens']:5d} tokens: 1 prompt {step} of the matmul rate ({products} products alone), "
        f"batch of {batch} {batch_step} ({batch_products}); gain of a text step {row['gain']:.2f}x "
        f"({row['gain_of_products']:.2f}x products alone), at most {row['bound']:.2f}x",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="prompts per batch")
    parser.add_argument("--backbones", nargs="+", default=["pocket", "ViT-B-16"])
    parser.add_argument("--classes", type=int, nargs="+", default=[20, 47], help="numbers of classes")
    parser.add_argument("--steps", type=int, default=3, help="training steps; ten times as many for a narrow tower")
    parser.add_argument("--repeats", type=int, default=2, help="measurements of each way")
    parser.add_argument("--account", action="store_true", help="only show what bounds the gain at ViT-B/16 size")
    parser.add_argument("--seconds", type=float, default=30, help="CPU time per row of --account; at least two rounds")
    parser.add_argument("--json", help="also write the results to this file")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    results = []
    if options.account:
        results = [print_account(n_classes, options.batch, options.seconds) for n_classes in options.classes]
    for name in [] if options.account else options.backbones:
        weights = {} if name.startswith("pocket") else {"seed": 0, "activation": "quickgelu"}
        backbone = load_backbone(name, device="cpu", **weights)
        steps = options.steps * (10 if backbone.text_width < 512 else 1)
        for n_classes in options.classes:
            row = measure(backbone, n_classes, options.batch, steps, options.repeats)
            results.append(row)
            print(
                f"{name:10s} {n_classes:4d} classes {row['tokens']:5d} tokens  {row['variants']} variants in batches of "
                f"{options.batch}: {row['gain']:.2f}x  (difference {row['difference']:.0e})",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
