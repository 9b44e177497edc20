"""Time of the image tower: the shortened pass (`clip/image_tower.py`) against open_clip's own.

    python benchmarks/image_tower.py [--backbones ViT-B-32 ViT-B-16 ViT-L-14] [--images 32] [--rounds 10] [--json FILE]

Batches of the size that the feature bank encodes, random weights, fp32. The passes are timed in turn within one process, each of
them first in every other round; the result is the ratio of their total times, with the largest difference of a feature value.
"""

from __future__ import annotations

import time

import torch
from _output import make_parser, print_results
from torch.nn import functional as F

from slimprompt import load_backbone
from slimprompt.allocator import keep_freed_memory


def measure(name: str, n_images: int, rounds: int) -> dict[str, object]:
    backbone = load_backbone(name, "random:0", device="cpu", activation="quickgelu")
    height, width = backbone.model.visual.image_size
    pixels = torch.randn(n_images, 3, height, width)
    passes = {
        "open_clip": lambda: F.normalize(backbone.model.encode_image(pixels), dim=-1),
        "slimprompt": lambda: backbone.encode_images(pixels),
    }
    times: dict[str, list[float]] = {kind: [] for kind in passes}
    features = {}
    with torch.inference_mode():
        for number in range(1 + rounds):  # the first round is a warm-up
            for kind in list(passes)[:: 1 if number % 2 else -1]:
                start = time.perf_counter()
                features[kind] = passes[kind]()
                times[kind].append(time.perf_counter() - start)
    totals = {kind: sum(some[1:]) for kind, some in times.items()}
    return {
        "backbone": name,
        "speedup": totals["open_clip"] / totals["slimprompt"],
        "images_per_second": rounds * n_images / totals["slimprompt"],
        "largest_difference": float((features["open_clip"] - features["slimprompt"]).abs().max()),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--backbones", nargs="+", default=["ViT-B-32", "ViT-B-16", "ViT-L-14"])
    parser.add_argument("--images", type=int, default=32, help="images per batch")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    results = []
    for name in options.backbones:
        results.append(measure(name, options.images, options.rounds))
        print("{backbone}: {speedup:.2f}x, features differ by at most {largest_difference:.1e}".format(**results[-1]))
    print_results(results, options.json)


if __name__ == "__main__":
    main()
