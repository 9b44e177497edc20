"""Accuracy of a prompt and of all methods on the pocket benchmarks.

    python benchmarks/methods.py --results methods.jsonl [--methods prompt gda] [--benchmarks pocket-sketch pocket-comic]
        [--shots 1 4 16] [--seeds 1 2 3]

Fits the default prompt of `slimprompt fit` (fixed-B, rank 4, recipe `auto`) and every method of `slimprompt.methods.table` on the
same images, the methods with two train views of each, as `fit --compare` does, and measures them on the test images. Results are
appended to a file: re-run the same command to resume. Prints a Markdown table: accuracy in percent, averaged over the benchmarks within each seed, mean ± standard deviation
over the seeds. The pocket model is a toy; these are not results about CLIP.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PROMPT = {"variant": "fixed-B", "rank": 4, "basis": "orthogonal"}


@lru_cache
def open_bank() -> Any:
    import torch

    from slimprompt import FeatureBank, load_backbone

    torch.set_num_threads(1)
    return FeatureBank(load_backbone("pocket", device="cpu"), show_progress=False)


def measure(methods: Sequence[str], benchmark: str, shots: int, seed: int) -> dict[str, float]:
    """Accuracy in percent by method."""
    from slimprompt import start_prompt
    from slimprompt.data import few_shot, load_benchmark
    from slimprompt.fit import labelled_images
    from slimprompt.methods.prompt import learn_prompts
    from slimprompt.methods.table import METHODS
    from slimprompt.methods.task import make_task
    from slimprompt.training.evaluation import make_eval_set
    from slimprompt.training.recipe import auto_recipe

    bank, whole = open_bank(), load_benchmark(benchmark)
    train = few_shot(whole, shots, seed).train
    task = make_task(bank, labelled_images(whole, train), seed)
    images = [whole.path(item) for item in whole.test]
    test = make_eval_set(bank, images, [item.label for item in whole.test], whole.class_names, whole.decode)
    found = {}
    for name in methods:
        if name == "prompt":
            prompt = start_prompt(width=bank.backbone.text_width, seed=seed, **PROMPT)
            (fitted,) = learn_prompts(task, [prompt], auto_recipe(shots), show_progress=False)
        else:
            fitted = METHODS[name].fit(task)
        found[name] = 100 * float(fitted.head.correct(test).double().mean())
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line per method, one column per number of shots."""
    values: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for method, accuracy in row["accuracy"].items():
            values[method, row["shots"]][row["seed"]].append(accuracy)
    shots = sorted({row["shots"] for row in rows})
    lines = ["| method | " + " | ".join(f"{count} shot{'s' if count > 1 else ''}" for count in shots) + " |"]
    lines.append("|---|" + "---|" * len(shots))
    for method in rows[0]["accuracy"]:
        cells = []
        for count in shots:
            by_seed = [mean(group) for group in values[method, count].values()]
            spread = f" ± {stdev(by_seed):.1f}" if len(by_seed) > 1 and method != "zero-shot" else ""
            cells.append(f"{mean(by_seed):.1f}{spread}")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    from slimprompt.methods.table import METHODS
    from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="file of results, one JSON object per line")
    parser.add_argument("--methods", nargs="+", default=["prompt", *METHODS], choices=["prompt", *METHODS])
    parser.add_argument("--benchmarks", nargs="+", default=list(POCKET_BENCHMARKS))
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    chosen = parser.parse_args()
    lines = chosen.results.read_text().splitlines() if chosen.results.exists() else []
    done = {(row["benchmark"], row["shots"], row["seed"]): row for row in map(json.loads, lines)}
    wanted = list(product(chosen.benchmarks, chosen.shots, chosen.seeds))
    for key in wanted:
        if key not in done:
            done[key] = {
                **dict(zip(("benchmark", "shots", "seed"), key, strict=True)),
                "accuracy": measure(chosen.methods, *key),
            }
            with chosen.results.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
    print(table([done[key] for key in wanted]))


if __name__ == "__main__":
    main()
