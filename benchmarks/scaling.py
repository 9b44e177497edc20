"""Time and memory of a training step against classes, context length, rank, images, and prompts per batch.

    python benchmarks/scaling.py [--classes 10 100 1000 10000] [--figure docs/notes/scaling.svg] [--json FILE]
    python benchmarks/scaling.py --sweeps chunks

ViT-B/16-size text tower with random weights, 32 images per step (recipe `paper`) unless stated otherwise. Each point runs
in a process of its own, whose peak memory includes the loaded model; the better of two steps counts, by wall time and by CPU
time. Many classes are divided into chunks, and all but the first compute their forward pass again in the backward pass. The sweep
"chunks" divides 1,000 classes into 1 or 8. Seeds and variants that share their images are trained as one prompt batch.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

SWEEPS = ["classes", "chunks", "context tokens", "rank", "images per step", "prompts per batch"]


def measure(
    n_classes: int,
    n_ctx: int,
    rank: int,
    n_images: int,
    n_prompts: int,
    chunk_size: int | None = None,
) -> dict[str, Any]:
    import torch
    from torch.nn import functional as F

    sys.path.insert(0, str(Path(__file__).parent))
    from text_encoder import names

    from slimprompt import SharedPrefixTextEncoder, load_backbone, start_prompt
    from slimprompt.allocator import keep_freed_memory
    from slimprompt.training.loop import train
    from slimprompt.training.recipe import Recipe

    keep_freed_memory()  # as the commands do
    backbone = load_backbone("ViT-B-16", seed=0, device="cpu", activation="quickgelu")
    encoder = SharedPrefixTextEncoder(backbone, names(n_classes), n_ctx, chunk_size=chunk_size)
    prompts = [
        start_prompt("fixed-B", width=512, seed=seed, n_ctx=n_ctx, rank=min(rank, n_ctx), basis="orthogonal")
        for seed in range(n_prompts)
    ]
    features = F.normalize(torch.randn(n_images, 512), dim=-1)
    times: list[tuple[float, float]] = []

    def view(_: int) -> torch.Tensor:
        times.append((time.perf_counter(), time.process_time()))  # called once before every step
        return features

    train(prompts, encoder, view, torch.arange(n_images) % n_classes, 100.0, Recipe(epochs=3, batch_size=None), seed=0)
    seconds, cpu_seconds = (min(b - a for a, b in pairwise(clock)) for clock in zip(*times, strict=True))
    return {
        "classes": n_classes,
        "n_ctx": n_ctx,
        "rank": rank,
        "images": n_images,
        "prompts": n_prompts,
        "chunks": encoder.n_chunks,
        "tokens": encoder.n_tokens,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000, 10000], help="numbers of classes")
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=SWEEPS, help="what to vary")
    parser.add_argument("--figure", help="plot the results to this file (.svg or .png)")
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(**json.loads(options.point))))
        return
    if options.figure and "classes" not in options.sweeps:
        parser.error('--figure shows the sweep "classes": add it to --sweeps')
    base = {"n_classes": 100, "n_ctx": 16, "rank": 4, "n_images": 32, "n_prompts": 1}
    sweeps: dict[str, list[dict[str, int]]] = {
        "classes": [{**base, "n_classes": n} for n in options.classes],
        "chunks": [{**base, "n_classes": 1000, "chunk_size": n} for n in (1000, 125)],
        "context tokens": [{**base, "n_ctx": n} for n in (4, 16, 32, 60)],
        "rank": [{**base, "rank": n} for n in (1, 4, 16)],
        "images per step": [{**base, "n_images": n} for n in (32, 1000, 20000)],
        "prompts per batch": [{**base, "n_classes": 20, "n_prompts": n} for n in (1, 2, 4, 8)],
    }
    results: dict[str, list[dict[str, Any]]] = {}
    for sweep in options.sweeps:
        results[sweep] = []
        for point in sweeps[sweep]:
            out = subprocess.run(
                [sys.executable, __file__, "--point", json.dumps(point)], capture_output=True, text=True, check=True
            )
            row = json.loads(out.stdout.splitlines()[-1])
            chunks = "" if row["chunks"] == 1 else f"  ({row['chunks']} chunks)"
            results[sweep].append(row)
            print(
                f"{sweep:17s} {row['classes']:6d} classes {row['n_ctx']:3d} context {row['rank']:3d} rank {row['images']:6d} images"
                f" {row['prompts']:2d} prompts  {row['tokens']:6d} tokens  {row['seconds']:7.3f} s/step"
                f" {row['cpu_seconds']:7.3f} s CPU"
                f"  {1e3 * row['seconds'] / row['tokens'] / row['prompts']:.2f} ms/token  {row['peak_gib']:.2f} GiB{chunks}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    if options.figure:
        plot(results, Path(options.figure))


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slimprompt"})
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    rows = results["classes"]
    tokens = [row["tokens"] for row in rows]
    left.loglog(tokens, [row["seconds"] for row in rows], "o-", color="#0072B2", label="measured")
    slope = rows[1]["seconds"] / rows[1]["tokens"]
    left.loglog(tokens, [slope * n for n in tokens], "--", color="0.5", label="proportional to tokens")
    right.loglog(tokens, [row["peak_gib"] for row in rows], "s-", color="#D55E00")
    for axis, title in ((left, "seconds per step"), (right, "peak memory of the process, GiB")):
        axis.set(xlabel="tokens per step", title=title)
        axis.grid(alpha=0.3)
        axis.margins(x=0.24, y=0.14)
        for row in rows:
            value = row["seconds"] if axis is left else row["peak_gib"]
            axis.annotate(
                f"{row['classes']:,} classes",
                (row["tokens"], value),
                textcoords="offset points",
                xytext=(-4, 7),
                ha="right",
                fontsize=7,
            )
    right.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    right.minorticks_off()
    left.legend(fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
