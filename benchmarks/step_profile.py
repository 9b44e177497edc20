"""Profile of a text step by kind of operation.

    python benchmarks/step_profile.py [--classes 100] [--steps 5] [--backbone ViT-B-16] [--json FILE]

Shares of the forward and backward pass of all class features, measured with torch's profiler. "Python and dispatch" is
the time outside these operations; it includes the overhead of the profiler, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
from text_encoder import names
from torch.profiler import ProfilerActivity, profile

from slimprompt import SharedPrefixTextEncoder, load_backbone
from slimprompt.allocator import keep_freed_memory

KINDS = {
    "products with weights": ("mm", "addmm", "addmm_", "linear", "mkldnn::_linear_pointwise"),
    "attention products": ("bmm", "baddbmm", "baddbmm_"),
    "softmax": ("_softmax", "_softmax_backward_data"),
    "activation": ("silu", "silu_backward", "gelu", "gelu_backward"),
    "layer norm": ("native_layer_norm", "native_layer_norm_backward"),
    "gathering and scattering rows": ("index_select", "cat", "index_fill_", "index_add_", "index_add"),
    "sums and copies": ("add", "add_", "copy_", "mul", "mul_", "sum", "fill_", "zero_"),
    "allocation": ("empty", "empty_strided", "empty_like", "resize_", "new_empty"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=100, help="number of classes")
    parser.add_argument("--steps", type=int, default=5, help="number of profiled steps")
    parser.add_argument("--backbone", default="ViT-B-16", help="ViT-B-16 (random weights) or pocket")
    parser.add_argument("--json", help="also write the results to this file")
    options = parser.parse_args()
    keep_freed_memory()
    weights = {} if options.backbone.startswith("pocket") else {"seed": 0, "activation": "quickgelu"}
    backbone = load_backbone(options.backbone, device="cpu", **weights)
    encoder = SharedPrefixTextEncoder(backbone, names(options.classes), 16)
    context = (0.02 * torch.randn(16, backbone.text_width)).requires_grad_()

    def step() -> None:
        features = encoder(context)
        torch.autograd.grad(features, context, torch.ones_like(features))

    for _ in range(3):
        step()
    kinds = {name: kind for kind, all_names in KINDS.items() for name in all_names}
    shares: dict[str, float] = defaultdict(float)
    # Each step has a profile of its own: the events of a longer one lie between the freed activations, which are then not
    # reused, and the time of new memory would count as that of the operations that write to it.
    for _ in range(options.steps):
        with profile(activities=[ProfilerActivity.CPU]) as measured:
            step()
        for event in measured.key_averages():
            shares[kinds.get(event.key.removeprefix("aten::"), "Python and dispatch")] += event.self_cpu_time_total
    total = sum(shares.values())
    print(
        f"{options.backbone}, {options.classes} classes, {encoder.n_tokens} tokens, {torch.get_num_threads()} threads: "
        f"{total / options.steps / 1000:.0f} ms per profiled step"
    )
    for kind, time in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"  {100 * time / total:5.1f} %  {kind}")
    if options.json:
        Path(options.json).write_text(json.dumps({kind: time / total for kind, time in shares.items()}, indent=1))


if __name__ == "__main__":
    main()
