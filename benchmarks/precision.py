"""Speed and accuracy of the precisions of the frozen model on this machine.

    python benchmarks/precision.py [--backbone ViT-B-16] [--precisions fp32 bf16] [--accuracy pocket] [--json FILE]

Times batches of 32 images and training steps of a fixed-B prompt with 100 classes, in turn within one process; the results are ratios
to the first precision. Then trains prompts by recipe `auto` on the pocket benchmarks with each precision, on the same samples, and
prints the mean paired difference of the test accuracy to the first precision with half of its 90 % interval. `--accuracy` names the
model for this, for instance local-dir:pocket-100, which tools/train_at_clip_scale.py writes; with `none` it is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from _output import make_parser, print_results
from scipy.stats import t as student

from slimprompt import FeatureBank, PromptClassifier, SharedPrefixTextEncoder, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.data import few_shot, load_benchmark
from slimprompt.methods.task import Task
from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS
from slimprompt.training.evaluation import accuracy


def towers(name: str, precision: str) -> dict[str, Callable[[], Any]]:
    """One batch of images, and one training step without its loss, at this precision."""
    backbone = load_backbone(name, "random:0", device="cpu", activation="quickgelu", precision=precision)
    pixels = torch.randn(32, 3, *backbone.model.visual.image_size)
    encode = SharedPrefixTextEncoder(backbone, [f"large red square {number}" for number in range(100)], 16)
    prompt = start_prompt("fixed-B", width=backbone.text_width, seed=1, rank=4, basis="orthogonal")

    def images() -> None:
        with torch.inference_mode():
            backbone.encode_images(pixels)

    return {"images": images, "text": lambda: encode(prompt()).float().square().sum().backward()}


def measure_speed(name: str, precisions: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Speed of both towers at each precision, relative to the first one."""
    calls = {precision: towers(name, precision) for precision in precisions}
    seconds: dict[tuple[str, str], float] = dict.fromkeys(product(precisions, ("images", "text")), 0.0)
    for number in range(1 + rounds):  # the first round is a warm-up
        for precision, tower in seconds:
            begin = time.perf_counter()
            calls[precision][tower]()
            seconds[precision, tower] += (time.perf_counter() - begin) * (number > 0)
    first = precisions[0]
    return {
        precision: {tower: seconds[first, tower] / seconds[precision, tower] for tower in ("images", "text")}
        for precision in precisions
    }


def test_accuracy(bank: FeatureBank, benchmark: str, shots: int, seed: int) -> float:
    """Accuracy in percent of a prompt that is trained and evaluated with the bank's backbone."""
    sample = few_shot(load_benchmark(benchmark), shots, seed)
    names = sample.class_names
    paths, labels = [sample.path(item) for item in sample.train], [item.label for item in sample.train]
    classifier = PromptClassifier(bank.backbone, seed=seed)
    classifier.fit_task(Task(bank, paths, labels, names, seed, sample.decode, sample.templates[:1]))
    features = bank.features([sample.path(item) for item in sample.test], decode=sample.decode)
    return accuracy(features, classifier.concept_features(), torch.tensor([item.label for item in sample.test]))


def measure_accuracy(name: str, precisions: list[str], shots: list[int], seeds: list[int]) -> dict[str, Any]:
    """Paired differences of the test accuracy to the first precision: mean, half of the 90 % interval, largest, and their number."""
    samples = list(product(POCKET_BENCHMARKS, shots, seeds))
    found = {}
    for precision in precisions:
        bank = FeatureBank(load_backbone(name, device="cpu", precision=precision), show_progress=False)
        found[precision] = np.array([test_accuracy(bank, *sample) for sample in samples])
    results: dict[str, Any] = {"first": float(found[precisions[0]].mean()), "runs": len(samples)}
    for precision in precisions[1:]:
        gaps = found[precision] - found[precisions[0]]
        half = student.ppf(0.95, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
        results[precision] = {"mean": float(gaps.mean()), "half": float(half), "largest": float(np.abs(gaps).max())}
    return results


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--backbone", default="ViT-B-16", help="architecture whose speed is measured, with random weights"
    )
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--accuracy", default="pocket", help="model whose accuracy is measured, or none")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    results: dict[str, Any] = {"speed": measure_speed(options.backbone, options.precisions, options.rounds)}
    for precision, ratios in results["speed"].items():
        print(f"{precision}: images {ratios['images']:.2f}x, text {ratios['text']:.2f}x of {options.precisions[0]}")
    if options.accuracy != "none":
        found = measure_accuracy(options.accuracy, options.precisions, options.shots, options.seeds)
        print(f"{options.precisions[0]}: {found['first']:.1f} % over {found['runs']} runs")
        for precision in options.precisions[1:]:
            print("{0}: {mean:+.2f} ± {half:.2f} points, at most {largest:.2f}".format(precision, **found[precision]))
        results["accuracy"] = found
    print_results(results, options.json)


if __name__ == "__main__":
    main()
