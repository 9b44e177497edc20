"""Step time and memory of the shared-prefix text pass against the full pass over the whole context length.

    python benchmarks/text_encoder.py [--classes 47 100 1000] [--repeats 5] [--json FILE]

One step is forward + backward of all class features at ViT-B/16 size (width 512, 12 layers, 77 tokens, random weights; time
does not depend on them). Everything is measured in one run, the two passes in turn, best of the repeats; memory is the peak
of a process of its own. The fraction of the machine's matrix-multiply rate (a 2,048 × 2,048 product) counts only the
multiplications with weights that the step needs; beside it stands what these products alone reach, at their own sizes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from slimprompt import SharedPrefixTextEncoder, load_backbone
from slimprompt.allocator import keep_freed_memory
from slimprompt.text.encoder import full_pass_encoder

WORDS = (
    "banded blotchy braided bubbly bumpy checked cracked dotted fibrous flecked frilly grooved knitted lacy lined marbled "
    "matted meshed paisley pitted pleated porous ridged scaly smeared spiral stained striped studded swirly veined waffled "
    "woven wrinkled zigzag glossy grainy hairy leafy mossy muddy rusty sandy silky snowy"
).split()
NOUNS = "cat aircraft daisy pizza mug trumpet sofa lynx tulip scooter".split()


def names(n: int) -> list[str]:
    """Ragged class names as benchmarks have them: single words up to 50 classes, then two or three."""
    if n <= len(WORDS) + 5:
        return [*WORDS, *NOUNS[:5]][:n]
    return [f"{WORDS[i % 40]} {NOUNS[i // 40 % 10]}{f' {i // 400}' if i >= 400 else ''}" for i in range(n)]


def best(function: Callable[[], object], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def step(
    encoder: Callable[[torch.Tensor], torch.Tensor], context: torch.Tensor, gradient: torch.Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(encoder(context), context, gradient)


def build(kind: str, n_classes: int) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, torch.Tensor, int]:
    backbone = load_backbone("ViT-B-16", seed=0, device="cpu", quick_gelu=True)
    context = (0.02 * torch.randn(16, 512)).requires_grad_()
    gradient = torch.randn(n_classes, 512)
    if kind == "full":
        return full_pass_encoder(backbone, names(n_classes), 16), context, gradient, 77 * n_classes
    encoder = SharedPrefixTextEncoder(backbone, names(n_classes), 16)
    return encoder, context, gradient, encoder.n_tokens


WIDTH, LAYERS, PREFIX = 512, 12, 17


def products(tokens: int, n_classes: int) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of every product with weights that one step needs, forward and backward.

    In the first layer the classes' own queries, keys and values are constants; in the last one only the end-of-text rows go
    further than keys and values.
    """
    sizes = []
    for layer in range(LAYERS):
        computed = PREFIX if layer == 0 else tokens
        asking = n_classes if layer == LAYERS - 1 else tokens
        asked = PREFIX if layer == 0 else asking
        sizes += [(asked, WIDTH, WIDTH), (computed, WIDTH, 2 * WIDTH), (asking, WIDTH, WIDTH)]
        sizes += [(asking, WIDTH, 4 * WIDTH), (asking, 4 * WIDTH, WIDTH)]
    return sizes + [(rows, columns, inner) for rows, inner, columns in sizes]


def products_alone(sizes: list[tuple[int, int, int]]) -> Callable[[], object]:
    """Those products one after the other, each with a weight of its own, as in the tower."""
    weights = [torch.randn(inner, columns) for _, inner, columns in sizes]
    inputs = {size: torch.randn(size) for size in {(rows, inner) for rows, inner, _ in sizes}}

    def run() -> None:
        for (rows, inner, _), weight in zip(sizes, weights, strict=True):
            inputs[rows, inner] @ weight

    return run


def status(field: str) -> int:
    """A line of this process's status, in kB (Linux)."""
    return next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)
    )


def peak_memory(kind: str, n_classes: int) -> float:
    """MB above the loaded model, of one step in a fresh process."""
    out = subprocess.run(
        [sys.executable, __file__, "--memory", kind, str(n_classes)], capture_output=True, text=True, check=False
    )
    return float(out.stdout) if out.returncode == 0 else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[47, 100, 1000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--full-limit",
        type=int,
        default=200,
        help="above this many classes the full pass is timed on this many and scaled",
    )
    parser.add_argument("--json", help="write the results here too")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    if options.memory:
        encoder, context, gradient, _ = build(options.memory[0], int(options.memory[1]))
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading the model
        before = status("VmRSS")
        step(encoder, context, gradient)()
        print((status("VmHWM") - before) / 1000)
        return

    square = torch.randn(2048, 2048)
    results = []
    for n_classes in options.classes:
        shared, context, gradient, tokens = build("shared", n_classes)
        timed = min(n_classes, options.full_limit)
        full, full_context, full_gradient, _ = build("full", timed)
        sizes = products(tokens, n_classes)
        alone = products_alone(sizes)
        peak = shared_time = full_time = alone_time = float("inf")
        for _ in range(options.repeats):  # in turn, so that a busy moment hits all of them
            peak = min(peak, best(lambda: square @ square, 2))
            shared_time = min(shared_time, best(step(shared, context, gradient), 2))
            alone_time = min(alone_time, best(alone, 2))
            full_time = min(
                full_time,
                best(step(full, full_context, full_gradient), 1)
                if timed == n_classes or full_time == float("inf")
                else full_time,
            )
        full_time *= n_classes / timed
        rate, needed = 2 * 2048**3 / peak, sum(2 * rows * inner * columns for rows, inner, columns in sizes)
        shared_memory, full_memory = peak_memory("shared", n_classes), peak_memory("full", timed) * n_classes / timed
        results.append(
            {
                "classes": n_classes,
                "tokens": tokens,
                "full_tokens": 77 * n_classes,
                "step_seconds": shared_time,
                "full_step_seconds": full_time,
                "speedup": full_time / shared_time,
                "fraction_of_matmul_rate": needed / shared_time / rate,
                "fraction_of_matmul_rate_products_alone": needed / alone_time / rate,
                "matmul_gflops": rate / 1e9,
                "memory_mb": shared_memory,
                "full_memory_mb": full_memory,
                "memory_ratio": full_memory / shared_memory,
                "full_pass_scaled_from": timed,
            }
        )
        row = results[-1]
        print(
            f"{n_classes:5d} classes  {tokens:6d} tokens instead of {77 * n_classes:6d}  step {shared_time:6.3f} s  full {full_time:7.3f} s"
            f"{'' if timed == n_classes else '*'}  {row['speedup']:5.1f}x faster  {100 * row['fraction_of_matmul_rate']:3.0f} % of the matmul rate (its products alone {100 * row['fraction_of_matmul_rate_products_alone']:.0f} %)"
            f"  memory {shared_memory:6.0f} MB instead of {full_memory:7.0f} ({row['memory_ratio']:.1f}x)",
            flush=True,
        )
    if any(row["full_pass_scaled_from"] != row["classes"] for row in results):
        print(f"* full pass measured on {options.full_limit} classes and scaled")
    report = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "results": results,
    }
    print(json.dumps(report))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
