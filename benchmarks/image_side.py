"""Time and memory of a training step with prompts of the image tower, against plain passes through open_clip's blocks.

    python benchmarks/image_side.py [--backbone ViT-B-16] [--batch 32] [--blocks 0 6 9 11] [--rows 4] [--rounds 5] [--json FILE]

A step is forward and backward of a batch, with `--rows` rows before each block from J on, random weights, fp32. Three ways:

- stored: the tower of this package on the stored inputs of block J;
- same: a loop over open_clip's own blocks from pixels, with the rows put in by hand before the same blocks;
- all: the same loop with rows before every block, as methods do that adapt the whole tower.

They are timed in turn within one process, each of them first in turn; the results are ratios of total times. Memory is the largest
resident set during two steps in a process of its own, above that before them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from _output import make_parser, print_results
from torch import Tensor

from slimprompt import load_backbone
from slimprompt.allocator import keep_freed_memory
from slimprompt.clip.image_reference import plain_image_features
from slimprompt.clip.image_tower import features_from_block, input_of_block
from slimprompt.clip.products import differentiable_linear


def make_steps(options: argparse.Namespace, block: int) -> dict[str, Callable[[], Tensor]]:
    """A function per way, which makes one step and returns the gradient of its rows."""
    torch.manual_seed(0)
    tower: Any = load_backbone(options.backbone, "random:0", device="cpu", activation="quickgelu").image_tower
    height, width = tower.image_size
    pixels = torch.randn(options.batch, 3, height, width)
    n_blocks, n_rows = len(tower.transformer.resblocks), options.rows
    every = 0.02 * torch.randn(n_blocks, n_rows, len(tower.class_embedding))
    with torch.no_grad():
        stored = input_of_block(tower, pixels, block)

    def step(encode: Callable[[Tensor], Tensor], first: int) -> Tensor:
        rows = every[first:].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(encode(rows).square().sum(), rows)
        return gradient

    return {
        "stored": lambda: step(
            lambda rows: features_from_block(tower, stored, block, rows, differentiable_linear), block
        ),
        "same": lambda: step(lambda rows: plain_image_features(tower, pixels, block, rows), block),
        "all": lambda: step(lambda rows: plain_image_features(tower, pixels, 0, rows), 0),
    }


def measure(options: argparse.Namespace, block: int) -> dict[str, object]:
    steps = make_steps(options, block)
    times: dict[str, list[float]] = {name: [] for name in steps}
    gradients = {}
    for number in range(1 + options.rounds):  # the first round is a warm-up
        names = list(steps)
        for name in names[number % 3 :] + names[: number % 3]:
            begin = time.perf_counter()
            gradients[name] = steps[name]()
            times[name].append(time.perf_counter() - begin)
    total = {name: sum(some[1:]) for name, some in times.items()}
    error = (gradients["stored"] - gradients["same"]).norm() / gradients["same"].norm()
    memory = {name: peak_memory(options, block, name) for name in steps}
    return {
        "block": block,
        "seconds": total["stored"] / options.rounds,
        "faster_than_all": total["all"] / total["stored"],
        "faster_than_same": total["same"] / total["stored"],
        "memory_of_all": memory["stored"] / memory["all"],
        "memory_of_same": memory["stored"] / memory["same"],
        "difference_of_gradients": float(error),
    }


def peak_memory(options: argparse.Namespace, block: int, name: str) -> int:
    """Bytes that two steps take, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_peak_memory, args=(options, block, name, send))
    process.start()
    found: int = receive.recv()
    process.join()
    return found


def _peak_memory(options: argparse.Namespace, block: int, name: str, send: Any) -> None:
    import psutil

    step, process = make_steps(options, block)[name], psutil.Process()
    before = highest = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2):
        step()
    done.set()
    watcher.join()
    send.send(max(1, highest - before))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--backbone", default="ViT-B-16")
    parser.add_argument("--batch", type=int, default=32, help="images per step")
    parser.add_argument("--blocks", type=int, nargs="+", default=[0, 6, 9, 11], help="first blocks J with rows")
    parser.add_argument("--rows", type=int, default=4, help="rows per block")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    results = []
    print(
        "| J | step (s) | against all blocks from pixels | against the same blocks from pixels | memory of all | of the same |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    for block in options.blocks:
        row = measure(options, block)
        results.append(row)
        print(
            "| {block} | {seconds:.2f} | {faster_than_all:.1f}x | {faster_than_same:.1f}x | {memory_of_all:.0%} | "
            "{memory_of_same:.0%} |".format(**row),  # type: ignore[str-format]
            flush=True,
        )
    print_results(results, options.json)


if __name__ == "__main__":
    main()
