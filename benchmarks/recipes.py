"""Is recipe `fast` as good as recipe `paper`, in how many text passes?

    python benchmarks/recipes.py --results recipes.jsonl [--recipes paper fast] [--benchmarks pocket-sketch pocket-negative]

Every recipe on the pocket benchmarks, all four variant families (dense, joint, fixed-B, fixed-A), 1/4/16 shots, three seeds: accuracy
on all classes, and seen, new and H with the base half trained. Runs are kept in the results file, so that the command goes on where it
stopped and other recipes can be added: a recipe is a name or a JSON object of its fields. Prints Markdown tables of paired differences
to the first recipe with half of the 90 % interval over matched runs; = where the two are equivalent within one point.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

VARIANTS = {"dense": (None, None), "joint": (4, None), "fixed-B": (4, "orthogonal"), "fixed-A": (4, "svd")}


def recipe_of(text: str) -> Any:
    from slimprompt.training.recipe import RECIPES, Recipe

    return RECIPES[text] if text in RECIPES else Recipe(**json.loads(text))


@lru_cache
def bank(backbone: str) -> Any:
    import torch

    from slimprompt import FeatureBank, load_backbone

    torch.set_num_threads(1)
    return FeatureBank(load_backbone(backbone, device="cpu"))


def task(text: str, backbone: str, benchmark: str, split: str, shots: int, seed: int) -> list[dict[str, Any]]:
    """One draw, all variants side by side."""
    import torch

    from slimprompt import SharedPrefixTextEncoder, start_prompt
    from slimprompt.data import base_new, few_shot, load_benchmark
    from slimprompt.methods.prompt_learning import learn_prompts
    from slimprompt.methods.task import Task
    from slimprompt.training.evaluation import accuracy
    from slimprompt.training.metrics import harmonic_mean

    images, recipe = bank(backbone), recipe_of(text)
    whole = load_benchmark(benchmark)
    draw = few_shot(whole, shots, seed)
    parts = {"accuracy": draw} if split == "all" else dict(zip(("seen", "unseen"), base_new(draw), strict=True))
    train = next(iter(parts.values()))
    pictures, labels = [train.path(item) for item in train.train], [item.label for item in train.train]
    prompts = [
        start_prompt(variant, width=images.backbone.text_width, seed=seed, rank=rank, basis=basis)
        for variant, (rank, basis) in VARIANTS.items()
    ]
    encoders = {
        metric: SharedPrefixTextEncoder(images.backbone, part.class_names, 16) for metric, part in parts.items()
    }
    encoder = next(iter(encoders.values()))
    few = Task(images, pictures, labels, train.class_names, seed)
    few.encode(recipe)
    started = time.process_time()
    curves = [learned.curve for learned in learn_prompts(few, prompts, recipe, make_encoder=lambda *_: encoder)]
    seconds = (time.process_time() - started) / len(prompts)
    rows = []
    for variant, prompt, curve in zip(VARIANTS, prompts, curves, strict=True):
        row: dict[str, Any] = {
            "cpu_seconds": seconds,
            "passes": len(curve) * recipe.steps_per_epoch(len(labels)),
            "loss": curve[-1].loss,
        }
        for metric, part in parts.items():
            text_features = encoders[metric](prompt().detach())
            features = images.features([part.path(item) for item in part.test])
            row[metric] = accuracy(features, text_features, torch.tensor([item.label for item in part.test]))
        if split == "all":  # to choose by
            features = images.features([whole.path(item) for item in whole.val])
            labels_of = torch.tensor([item.label for item in whole.val])
            row["validation"] = accuracy(features, encoder(prompt().detach()), labels_of)
        if split == "base":
            row["harmonic"] = harmonic_mean(row["seen"], row["unseen"])
        rows.append(
            {
                "recipe": text,
                "backbone": backbone,
                "benchmark": benchmark,
                "split": split,
                "shots": shots,
                "seed": seed,
                "variant": variant,
                **row,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("recipes.jsonl"))
    parser.add_argument(
        "--recipes", nargs="+", default=["paper", "fast"], help="names or JSON objects; the first is the reference"
    )
    parser.add_argument("--backbones", nargs="+", default=["pocket"])
    parser.add_argument("--benchmarks", nargs="+", default=["pocket-sketch", "pocket-negative"])
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    done = {tuple(row[key] for key in ("recipe", "backbone", "benchmark", "split", "shots", "seed")) for row in rows}
    tasks = [
        key
        for key in product(
            options.recipes, options.backbones, options.benchmarks, ("all", "base"), options.shots, options.seeds
        )
        if key not in done
    ]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(options.workers) as pool, options.results.open("a") as file:
        for number, future in enumerate(as_completed([pool.submit(task, *key) for key in tasks]), 1):
            for row in future.result():
                file.write(json.dumps(row) + "\n")
                rows.append(row)
            file.flush()
            print(f"\r{number}/{len(tasks)}", end="", flush=True)
    print()
    report(rows, options.recipes)


METRICS = ("loss", "validation", "accuracy", "seen", "unseen", "harmonic")


def report(rows: list[dict[str, Any]], recipes: list[str]) -> None:
    """Markdown: the reference's means, then each other recipe's paired differences to it."""
    cells: dict[tuple, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        key = tuple(row[name] for name in ("backbone", "benchmark", "split", "shots", "seed", "variant"))
        cells[key][row["recipe"]] = row
    first, *others = recipes
    for recipe in [*others] or [first]:
        chosen = {key: cell for key, cell in cells.items() if recipe in cell and first in cell}
        if not chosen:
            print(f"{recipe}: no run that {first} has too")
            continue
        passes = {name: sum(cell[name]["passes"] for cell in chosen.values()) for name in (first, recipe)}
        fewest = min(cell[first]["passes"] / cell[recipe]["passes"] for cell in chosen.values())
        print(
            f"\n{recipe} against {first}: {len(chosen)} matched runs, benchmarks {', '.join(sorted({k[1] for k in chosen}))}"
        )
        print(
            f"text passes {passes[recipe]:,} against {passes[first]:,}: {passes[first] / passes[recipe]:.1f}x fewer, "
            f"at least {fewest:.1f}x\n"
        )
        print("| | " + " | ".join(METRICS) + " |\n|---|" + "---:|" * len(METRICS))
        print(
            f"| {first[:40]}, all | " + " | ".join(_mean(chosen.values(), first, metric) for metric in METRICS) + " |"
        )
        groups = {"all": chosen}
        for place in (5, 3, 1):  # variant, shots, benchmark
            for value in sorted({key[place] for key in chosen}):
                groups[f"{value} shots" if place == 3 else str(value)] = {
                    key: cell for key, cell in chosen.items() if key[place] == value
                }
        for name, group in groups.items():
            print(f"| {name} | " + " | ".join(_difference(group.values(), first, recipe, m) for m in METRICS) + " |")


def _mean(cells: Iterable[dict[str, dict[str, Any]]], recipe: str, metric: str) -> str:
    values = [cell[recipe][metric] for cell in cells if metric in cell[recipe]]
    return f"{sum(values) / len(values):.1f}" if metric != "loss" else f"{sum(values) / len(values):.2f}"


def _difference(cells: Iterable[dict[str, dict[str, Any]]], first: str, recipe: str, metric: str) -> str:
    """Mean paired difference ± half of its 90 % interval; = if that lies within a point (two one-sided tests at 5 %)."""
    import numpy as np
    from scipy.stats import t as student

    values = [
        cell[recipe][metric] - cell[first][metric]
        for cell in cells
        if {metric} <= cell[recipe].keys() & cell[first].keys()
    ]
    if len(values) < 2:
        return "—"
    half = student.ppf(0.95, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    equal = " =" if metric != "loss" and abs(np.mean(values)) + half < 1 else ""
    return f"{np.mean(values):+.2f} ± {half:.2f}{equal}"


if __name__ == "__main__":
    main()
