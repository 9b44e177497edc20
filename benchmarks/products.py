"""Rate of products with frozen weights: `clip/products.py` against torch's own function, which calls MKL.

    python benchmarks/products.py [--width 512] [--rows 17 89 183 479 3152] [--seconds 1] [--json FILE]

The four products of a transformer block of this width, forward, on all threads: the number of operations divided by the total of
the best times, relative to torch's `linear`. "Packed" weights are those of training (`FrozenLinear`).
"""

from __future__ import annotations

import torch
from _output import make_parser, print_results
from text_encoder import best_times
from torch.nn import functional as F

from slimprompt.allocator import keep_freed_memory
from slimprompt.clip.products import linear, packed, uses_onednn


def measure(width: int, rows: int, seconds: float) -> dict[str, float]:
    totals: dict[str, float] = {"torch": 0.0, "linear": 0.0, "packed": 0.0}
    n_operations = 0
    for inner, columns in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
        x, weight, bias = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
        packed_weight = packed(weight)
        best = best_times(
            {
                "torch": lambda: F.linear(x, weight, bias),
                "linear": lambda: linear(x, weight, bias),
                "packed": lambda: linear(x, packed_weight, bias),
            },
            seconds,
        )
        totals = {kind: total + best[kind] for kind, total in totals.items()}
        n_operations += 2 * rows * inner * columns
    return {
        "width": width,
        "rows": rows,
        "torch_gflops": n_operations / totals["torch"] / 1e9,
        "linear_against_torch": totals["torch"] / totals["linear"],
        "packed_against_torch": totals["torch"] / totals["packed"],
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, nargs="+", default=[17, 89, 183, 479, 3152])
    parser.add_argument("--seconds", type=float, default=1, help="time per product")
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    library = "oneDNN" if uses_onednn(torch.device("cpu"), torch.float32) else "torch's own function"
    print(
        f"slimprompt calls {library} here; torch: {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads\n"
    )
    print("| rows | torch, GFLOP/s | plain weights | packed weights |\n|---:|---:|---:|---:|")
    results = []
    with torch.inference_mode():
        for rows in options.rows:
            results.append(measure(options.width, rows, options.seconds))
            print(
                "| {rows:,} | {torch_gflops:.0f} | {linear_against_torch:.2f}× | {packed_against_torch:.2f}× |".format(
                    **results[-1]
                ),
                flush=True,
            )
    print_results(results, options.json)


if __name__ == "__main__":
    main()
