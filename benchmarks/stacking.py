"""Runs side by side: what training several prompts as one stack gains over one after the other.

    python benchmarks/stacking.py [--stack 8] [--backbones pocket ViT-B-16] [--steps 10] [--json FILE]

22 variants of one draw (dense, joint at four ranks, four fixed bases at four ranks, fixed-A), the same images and steps, on one thread,
which is how a study's worker runs. In turn, best of two; the last column is the largest relative difference of the final prompts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from text_encoder import names
from torch.nn import functional as F

from slimprompt import Prompt, SharedPrefixTextEncoder, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.training.loop import train
from slimprompt.training.recipe import Recipe

RANKS = (1, 2, 4, 8)


def variants(width: int) -> list[Prompt]:
    """22 of them."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", type=int, default=8)
    parser.add_argument("--backbones", nargs="+", default=["pocket", "ViT-B-16"])
    parser.add_argument("--classes", type=int, nargs="+", default=[20, 47])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", help="write the results here too")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    results = []
    for name in options.backbones:
        weights = {} if name.startswith("pocket") else {"seed": 0, "quick_gelu": True}
        backbone = load_backbone(name, device="cpu", **weights)
        steps = options.steps * (10 if backbone.text_width < 512 else 1)
        recipe = Recipe(epochs=steps, batch_size=None, views=0)
        for n_classes in options.classes:
            encoder = SharedPrefixTextEncoder(backbone, names(n_classes), 16)
            embed = encoder(torch.zeros(16, backbone.text_width)).shape[-1]
            features = F.normalize(torch.randn(16 * n_classes, embed), dim=-1)
            labels = torch.arange(16 * n_classes) % n_classes

            def run(size: int, encoder=encoder, features=features, labels=labels, backbone=backbone, recipe=recipe):
                prompts = variants(backbone.text_width)
                begin = time.perf_counter()
                for at in range(0, len(prompts), size):
                    part = prompts[at : at + size]
                    train(part, encoder, lambda _: features, labels, backbone.logit_scale, recipe, seed=1)
                return time.perf_counter() - begin, [prompt().detach() for prompt in prompts]

            alone = together = float("inf")
            for _ in range(options.repeats):
                seconds, apart = run(1)
                alone = min(alone, seconds)
                seconds, stacked = run(options.stack)
                together = min(together, seconds)
            difference = max(float((a - b).norm() / a.norm()) for a, b in zip(apart, stacked, strict=True))
            row = {
                "backbone": name,
                "classes": n_classes,
                "tokens": encoder.n_tokens,
                "variants": len(apart),
                "stack": options.stack,
                "gain": alone / together,
                "difference": difference,
            }
            results.append(row)
            print(
                f"{name:10s} {n_classes:4d} classes {encoder.n_tokens:5d} tokens  {len(apart)} variants, {options.stack} at once: "
                f"{row['gain']:.2f}x  (difference {difference:.0e})",
                flush=True,
            )
    print(json.dumps(results))
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
