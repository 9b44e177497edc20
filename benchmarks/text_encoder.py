"""Time and memory of a text step: kernels against the plain shared-prefix reference and against open_clip's full pass.

    python benchmarks/text_encoder.py [--classes 20 47 100 1000] [--depth 1] [--seconds 15] [--json FILE]
    python benchmarks/text_encoder.py --texts
    python benchmarks/text_encoder.py --shared-beginnings

A step is the forward and backward pass of all class features at ViT-B/16 size (width 512, 12 layers, 77 tokens, random
weights, which do not affect the time). With --depth D, the first D layers have a context of their own. Prints two Markdown
tables.

Text step: the passes are timed in turn within one process, and the best time of each counts. Memory is the peak of one
step in a separate process. "Of torch's rate" is the rate of the weight products that a step needs, relative to torch's own
2,048 × 2,048 product; "of the fastest rate" is relative to the faster of that and the product of `clip/products.py`, which
the kernels use; "products alone" is the rate of these products without anything between them, relative to the same.

Freed memory: the kernel step with and without `allocator.keep_freed_memory`, each in separate processes.

With --texts, times the features of complete texts, "a photo of a <class of ImageNet>.", as zero-shot classification needs them:
`text.encoder.encode_texts` against open_clip's `encode_text`, once each.

With --shared-beginnings, nothing is timed: for the class names of each benchmark in the data root (SLIMPROMPT_DATA) and for
open_clip's names of ImageNet's classes, prints the tokens per step, and how many there would be if class names that begin with
the same tokens shared these as well.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import torch
from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

from slimprompt import Backbone, SharedPrefixTextEncoder, load_backbone
from slimprompt.allocator import keep_freed_memory
from slimprompt.clip.products import linear, packed
from slimprompt.data.benchmarks import BENCHMARKS
from slimprompt.data.catalogue import benchmark_folder, load_benchmark
from slimprompt.text.encoder import encode_texts
from slimprompt.text.reference import full_pass_encoder, shared_prefix_reference
from slimprompt.text.tokens import prompt_tokens

N_CTX, WIDTH, LAYERS, PREFIX, LENGTH = 16, 512, 12, 17, 77
WORDS = (
    "banded blotchy braided bubbly bumpy checked cracked dotted fibrous flecked frilly grooved knitted lacy lined marbled "
    "matted meshed paisley pitted pleated porous ridged scaly smeared spiral stained striped studded swirly veined waffled "
    "woven wrinkled zigzag glossy grainy hairy leafy mossy muddy rusty sandy silky snowy"
).split()
NOUNS = "cat aircraft daisy pizza mug trumpet sofa lynx tulip scooter".split()
ENCODERS: dict[str, Callable[..., Callable[[torch.Tensor], torch.Tensor]]] = {
    "kernels": SharedPrefixTextEncoder,
    "reference": shared_prefix_reference,
    "full": full_pass_encoder,
}


def names(n: int) -> list[str]:
    """Class names of different lengths: single words up to 50 classes, then two or three words."""
    if n <= len(WORDS) + 5:
        return [*WORDS, *NOUNS[:5]][:n]
    return [f"{WORDS[i % 40]} {NOUNS[i // 40 % 10]}{f' {i // 400}' if i >= 400 else ''}" for i in range(n)]


@lru_cache(maxsize=1)
def backbone() -> Backbone:
    return load_backbone("ViT-B-16", seed=0, device="cpu", activation="quickgelu")


def make_step(kind: str, n_classes: int, depth: int = 1, n_prompts: int | None = None) -> Callable[[], object]:
    """Forward and backward pass of one of the `ENCODERS`, for one prompt or for a batch of `n_prompts`."""
    encode = ENCODERS[kind](backbone(), names(n_classes), N_CTX, depth=depth)
    batch = () if n_prompts is None else (n_prompts,)
    shape = (*batch, N_CTX, WIDTH) if depth == 1 else (*batch, depth, N_CTX, WIDTH)
    context = (0.02 * torch.randn(shape)).requires_grad_()
    grad = torch.randn(*batch, n_classes, WIDTH)
    return lambda: torch.autograd.grad(encode(context), context, grad)


def best_times(
    functions: dict[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Best time of each function. They run in turn, so that other load on the machine affects all of them equally.

    In its turn, a function runs for at least half a second: the first call after a function that freed gigabytes may have to map its memory
    anew, which steps of a training do not. On one thread, `time.process_time` as the clock leaves out the time in which other processes had the core.
    """
    best = dict.fromkeys(functions, float("inf"))
    begin, rounds = clock(), 0
    while rounds < 2 or clock() - begin < seconds:
        for name, function in functions.items():
            turn = clock()
            while clock() - turn < 0.5:
                start = clock()
                function()
                best[name] = min(best[name], clock() - start)
        rounds += 1
    return best


def weight_products(n_tokens: int, n_classes: int, n_prompts: int = 1) -> list[tuple[int, int, int]]:
    """(rows, inner, columns) of every product with weights that a step needs, forward and backward.

    In the first layer only the prefix needs queries, keys and values; in the last layer only the end-of-text rows are
    query rows. In the other layers, queries, keys and values are one product.
    """
    sizes = []
    for layer in range(LAYERS):
        key_rows = PREFIX if layer == 0 else n_tokens
        query_rows = n_classes if layer == LAYERS - 1 else key_rows
        out_rows = n_classes if layer == LAYERS - 1 else n_tokens
        if query_rows == key_rows:
            sizes.append((key_rows, WIDTH, 3 * WIDTH))
        else:
            sizes += [(query_rows, WIDTH, WIDTH), (key_rows, WIDTH, 2 * WIDTH)]
        sizes += [(out_rows, WIDTH, WIDTH), (out_rows, WIDTH, 4 * WIDTH), (out_rows, 4 * WIDTH, WIDTH)]
    sizes = [(n_prompts * rows, inner, columns) for rows, inner, columns in sizes]
    return sizes + [(rows, columns, inner) for rows, inner, columns in sizes]


def products_only(sizes: list[tuple[int, int, int]]) -> Callable[[], object]:
    """The products in succession, each with its own packed weight, as in the tower."""
    weights = [packed(torch.randn(columns, inner)) for _, inner, columns in sizes]
    inputs = {size: torch.randn(size) for size in {(rows, inner) for rows, inner, _ in sizes}}

    def run() -> None:
        for (rows, inner, _), weight in zip(sizes, weights, strict=True):
            linear(inputs[rows, inner], weight)

    return run


def square_products() -> dict[str, Callable[[], object]]:
    """A 2,048 × 2,048 product, by torch and by `slimprompt.clip.products` (functions to be timed)."""
    square = torch.randn(2048, 2048)
    packed_square = packed(square)
    return {"torch_square": lambda: square @ square, "packed_square": lambda: linear(square, packed_square)}


def fastest_rate(times: dict[str, float]) -> float:
    """Operations per second of the faster of the two `square_products`."""
    return 2 * 2048**3 / min(times["torch_square"], times["packed_square"])


def in_subprocess(measurement: str, *arguments: object) -> float:
    """Result of `peak_memory` or `step_time` in a new process; NaN if it fails."""
    command = [sys.executable, __file__, "--measure", measurement, *map(str, arguments)]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(out.stdout) if out.returncode == 0 else float("nan")


def peak_memory(kind: str, n_classes: str, depth: str) -> float:
    """Peak memory of one step above the loaded model, in MB (Linux)."""
    keep_freed_memory()
    step = make_step(kind, int(n_classes), int(depth))
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which loading the model raised
    before = _status_kb("VmRSS")
    step()
    return (_status_kb("VmHWM") - before) / 1000


def _status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def step_time(allocator: str, n_classes: str) -> float:
    """Best time of a kernel step, in seconds, with freed memory "kept" or "returned" to the operating system."""
    if allocator == "kept":
        keep_freed_memory()
    return best_times({"step": make_step("kernels", int(n_classes))}, seconds=5)["step"]


def measure_step(n_classes: int, depth: int, seconds: float, full_limit: int) -> dict[str, float]:
    """One row of the first table."""
    n_full = min(n_classes, full_limit)  # the time of the full pass is proportional to the number of classes
    n_tokens = SharedPrefixTextEncoder(backbone(), names(n_classes), N_CTX).n_tokens
    sizes = weight_products(n_tokens, n_classes)
    times = best_times(
        {
            **square_products(),
            "kernels": make_step("kernels", n_classes, depth),
            "reference": make_step("reference", n_classes, depth),
            "products": products_only(sizes),
            "full": make_step("full", n_full, depth),
        },
        seconds,
    )
    torch_rate, rate = 2 * 2048**3 / times["torch_square"], fastest_rate(times)
    n_operations = sum(2 * rows * inner * columns for rows, inner, columns in sizes)
    full_seconds = times["full"] * n_classes / n_full
    return {
        "classes": n_classes,
        "depth": depth,
        "tokens": n_tokens,
        "full_tokens": LENGTH * n_classes,
        "step_seconds": times["kernels"],
        "reference_step_seconds": times["reference"],
        "full_step_seconds": full_seconds,
        "kernels_against_reference": times["reference"] / times["kernels"],
        "kernels_against_full_pass": full_seconds / times["kernels"],
        "fraction_of_torch_rate": n_operations / times["kernels"] / torch_rate,
        "fraction_of_fastest_rate": n_operations / times["kernels"] / rate,
        "fraction_of_fastest_rate_products_alone": n_operations / times["products"] / rate,
        "torch_gflops": torch_rate / 1e9,
        "fastest_gflops": rate / 1e9,
        "memory_mb": in_subprocess("memory", "kernels", n_classes, depth),
        "full_memory_mb": in_subprocess("memory", "full", n_full, depth) * n_classes / n_full,
        "full_pass_scaled_from": n_full,
    }


def measure_allocator(n_classes: int) -> dict[str, float]:
    """One row of the second table."""
    returned, kept = (in_subprocess("time", setting, n_classes) for setting in ("returned", "kept"))
    return {
        "classes": n_classes,
        "step_seconds_returned": returned,
        "step_seconds_kept": kept,
        "gain": returned / kept,
    }


def measure_texts() -> None:
    """Table of the time of complete texts."""
    print("| texts | open_clip | encode_texts | speedup | largest difference |\n" + "|---:" * 5 + "|")
    for n in (10, 100, 1000):
        texts = [f"a photo of a {name}." for name in IMAGENET_CLASSNAMES[:n]]
        passes = {"open_clip": backbone().encode_texts, "slimprompt": partial(encode_texts, backbone())}
        features, seconds = {}, {}
        for name, encode in passes.items():
            encode(texts[:2])  # warm-up
            begin = time.perf_counter()
            features[name] = encode(texts)
            seconds[name] = time.perf_counter() - begin
        difference = (features["open_clip"] - features["slimprompt"]).abs().max()
        print(
            f"| {n:,} | {seconds['open_clip']:.2f} s | {seconds['slimprompt']:.2f} s"
            f" | {seconds['open_clip'] / seconds['slimprompt']:.1f}× | {difference:.1e} |",
            flush=True,
        )


def shared_beginnings() -> None:
    """Table of token counts: one prefix for all classes, and a tree of all shared beginnings."""
    lists = {"imagenet (open_clip)": list(IMAGENET_CLASSNAMES)}
    for info in BENCHMARKS.values():
        if not info.rendered and not info.source.missing(benchmark_folder(info)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of splits that are not the published ones
                lists[info.name] = list(load_benchmark(info.name).class_names)
    print("| class names of | classes | tokens | tokens in a tree | fewer |\n|---|---:|---:|---:|---:|")
    for name, class_names in sorted(lists.items()):
        sequences = prompt_tokens(backbone(), class_names, N_CTX)
        n_tokens = PREFIX + sum(len(ids) - PREFIX for ids in sequences)
        n_tree = len({tuple(ids[:end]) for ids in sequences for end in range(1, len(ids) + 1)})
        print(f"| {name} | {len(class_names):,} | {n_tokens:,} | {n_tree:,} | {1 - n_tree / n_tokens:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[20, 47, 100, 1000], help="numbers of classes")
    parser.add_argument("--depth", type=int, nargs="+", default=[1], help="layers with a context of their own")
    parser.add_argument("--seconds", type=float, default=15, help="time per number of classes; at least two rounds")
    parser.add_argument(
        "--allocator-classes", type=int, nargs="+", default=[100, 1000], help="numbers of classes of the second table"
    )
    parser.add_argument(
        "--full-limit", type=int, default=100, help="maximum number of classes of the full pass; scaled beyond"
    )
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--texts", action="store_true", help="only time the features of complete texts")
    parser.add_argument("--shared-beginnings", action="store_true", help="only count tokens of real class names")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measurement, *arguments = options.measure
        print({"memory": peak_memory, "time": step_time}[measurement](*arguments))
        return
    if options.shared_beginnings:
        shared_beginnings()
        return

    keep_freed_memory()  # as the commands do
    if options.texts:
        measure_texts()
        return
    print(
        "| classes | depth | tokens | tokens, full pass | step | kernels against reference | kernels against full pass"
        " | memory | memory, full pass | of torch's rate | of the fastest rate | products alone |\n"
        + "|---:" * 12
        + "|",
        flush=True,
    )
    steps = []
    for n_classes, depth in product(options.classes, options.depth):
        row = measure_step(n_classes, depth, options.seconds, options.full_limit)
        steps.append(row)
        print(
            f"| {n_classes:,} | {depth} | {row['tokens']:,} | {row['full_tokens']:,} | {row['step_seconds']:.3f} s"
            f" | {row['kernels_against_reference']:.2f}× | {row['kernels_against_full_pass']:.1f}×"
            f" | {row['memory_mb']:,.0f} MB | {row['full_memory_mb']:,.0f} MB"
            f" | {row['fraction_of_torch_rate']:.0%} | {row['fraction_of_fastest_rate']:.0%}"
            f" | {row['fraction_of_fastest_rate_products_alone']:.0%} |",
            flush=True,
        )
    if max(options.classes) > options.full_limit:
        print(f"\nThe full pass was measured on at most {options.full_limit} classes and scaled.")

    print("\n| classes | step, memory returned | step, memory kept | gain |\n" + "|---:" * 4 + "|", flush=True)
    allocations = []
    for n_classes in options.allocator_classes:
        row = measure_allocator(n_classes)
        allocations.append(row)
        print(
            f"| {n_classes:,} | {row['step_seconds_returned']:.3f} s | {row['step_seconds_kept']:.3f} s"
            f" | {row['gain']:.2f}× |",
            flush=True,
        )
    if options.json:
        machine = platform.processor() or platform.machine()
        environment = {"machine": machine, "threads": torch.get_num_threads(), "torch": torch.__version__}
        report = {**environment, "steps": steps, "freed_memory": allocations}
        Path(options.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
