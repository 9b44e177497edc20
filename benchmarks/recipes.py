"""Accuracy and number of text passes of recipes, such as `fast` and `auto`, compared with recipe `paper`.

    python benchmarks/recipes.py --results recipes.jsonl [--recipes paper fast] [--benchmarks pocket-sketch pocket-negative]

Runs every recipe on the pocket benchmarks with four variants (dense, joint, fixed-B, fixed-A), 1/4/16 shots and three seeds.
Measures the accuracy on all classes, and seen, new and H when trained on the base classes. The test splits have 96 images per
class instead of the 24 of the pocket benchmarks, for narrower intervals. Results are appended to a file: re-run the same
command to resume, or add recipes, given by name or as a JSON object of fields that replace those of `fast`. Prints Markdown
tables of paired differences to the first recipe with half of their 90 % interval over matched runs; "=" marks equivalence
within one point.

`STYLES` has benchmarks in other styles. A recipe is reported on styles that were not looked at when it was chosen.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

VARIANTS = {"dense": (None, None), "joint": (4, None), "fixed-B": (4, "orthogonal"), "fixed-A": (4, "svd")}
#: Name → description, medium, modifiers and number of classes. Pre-training never combines three modifiers.
STYLES = {
    # Recipes were chosen on these.
    "chalkboard": ("blurry, noisy negatives of sketches", "sketch", ("negative", "blurry", "noisy"), 20),
    "archive": ("faded, blurry, noisy photos", "photo", ("faded", "blurry", "noisy"), 26),
    "arcade": ("faded, blurry, pixelated cartoons", "cartoon", ("faded", "blurry", "pixelated"), 32),
    # A candidate was reported on these; they are no longer unseen.
    "fresco": ("dark, faded, noisy paintings", "painting", ("dark", "faded", "noisy"), 14),
    "xray": ("dark, blurry negatives of photos", "photo", ("dark", "negative", "blurry"), 16),
    "stencil": ("faded, noisy, pixelated sketches", "sketch", ("faded", "noisy", "pixelated"), 18),
    # Recipe `paper-10x` was reported on these.
    "lantern": ("dark, noisy negatives of paintings", "painting", ("negative", "dark", "noisy"), 20),
    "postcard": ("faded, blurry, pixelated paintings", "painting", ("faded", "blurry", "pixelated"), 26),
    "broadcast": ("dark, noisy, pixelated cartoons", "cartoon", ("dark", "noisy", "pixelated"), 32),
    # Recipe `auto` was reported on these.
    "microfilm": ("noisy, pixelated negatives of photos", "photo", ("negative", "noisy", "pixelated"), 20),
    "dusk": ("dark, blurry, pixelated paintings", "painting", ("dark", "blurry", "pixelated"), 24),
    "matinee": ("faded, blurry negatives of cartoons", "cartoon", ("negative", "faded", "blurry"), 28),
    "etching": ("dark, blurry, noisy sketches", "sketch", ("dark", "blurry", "noisy"), 18),
    "poster": ("dark, faded, pixelated photos", "photo", ("dark", "faded", "pixelated"), 22),
    "batik": ("noisy, pixelated negatives of paintings", "painting", ("negative", "noisy", "pixelated"), 26),
    # Its number of views at 16 shots was reported on these.
    "nightclub": ("dark, faded, blurry cartoons", "cartoon", ("dark", "faded", "blurry"), 20),
    "blueprint": ("faded, pixelated negatives of sketches", "sketch", ("negative", "faded", "pixelated"), 24),
    "tintype": ("dark, faded, noisy photos", "photo", ("dark", "faded", "noisy"), 28),
    "mural": ("blurry, noisy, pixelated paintings", "painting", ("blurry", "noisy", "pixelated"), 18),
    # `auto` without dropped views was reported on these.
    "doorbell": ("dark, blurry, pixelated photos", "photo", ("dark", "blurry", "pixelated"), 22),
    "woodcut": ("dark, noisy, pixelated sketches", "sketch", ("dark", "noisy", "pixelated"), 26),
    "flashback": ("faded, noisy, pixelated cartoons", "cartoon", ("faded", "noisy", "pixelated"), 18),
    "eclipse": ("dark, blurry negatives of paintings", "painting", ("negative", "dark", "blurry"), 24),
    "receipt": ("faded, blurry, pixelated sketches", "sketch", ("faded", "blurry", "pixelated"), 28),
    "afterimage": ("faded, blurry negatives of photos", "photo", ("negative", "faded", "blurry"), 20),
}
METRICS = ("loss", "validation", "accuracy", "seen", "unseen", "harmonic")


class Job(NamedTuple):
    """One few-shot sample and one recipe; the variants are trained as one prompt batch."""

    recipe: str
    backbone: str
    benchmark: str
    split: str
    """Class subset to train on: all or base."""
    shots: int
    seed: int
    test_images: int
    """Images per class in the test split."""


class Cell(NamedTuple):
    """A run without its recipe: what two recipes are compared on."""

    backbone: str
    benchmark: str
    split: str
    shots: int
    seed: int
    test_images: int
    variant: str


#: Recipe → row of results, for each cell.
Cells = Mapping[Cell, dict[str, dict[str, Any]]]


def parse_recipe(text: str, shots: int) -> Any:
    from slimprompt.training.recipe import RECIPES, make_recipe, replace_fields

    return replace_fields(RECIPES["fast"], json.loads(text)) if text.startswith("{") else make_recipe(text, shots)


@lru_cache
def open_benchmark(name: str, test_images: int) -> Any:
    """A pocket benchmark or one of `STYLES`; the train images of a pocket benchmark do not depend on the number of test images."""
    from slimprompt.data import Benchmark
    from slimprompt.data.readers import read_split_file
    from slimprompt.errors import choose
    from slimprompt.files import cache_dir
    from slimprompt.pocket.benchmarks import POCKET_BENCHMARKS, PocketBenchmark, render_benchmark
    from slimprompt.pocket.images import Style

    if name in STYLES:
        title, medium, modifiers, n_classes = STYLES[name]
        pocket = PocketBenchmark(name, title, Style(medium, frozenset(modifiers)), n_classes)
    else:
        pocket = choose("benchmark", name, POCKET_BENCHMARKS)
    rendered = replace(pocket, test=test_images)
    folder = render_benchmark(rendered, cache_dir() / "data" / f"recipes-{test_images}")
    return Benchmark(name, folder / "images", *read_split_file(folder / "split.json"))


@lru_cache
def open_bank(backbone: str) -> Any:
    import torch

    from slimprompt import FeatureBank, load_backbone

    torch.set_num_threads(1)
    return FeatureBank(load_backbone(backbone, device="cpu"))


@lru_cache
def encoder(backbone: str, class_names: tuple[str, ...], n_ctx: int = 16, position: Any = "end", depth: int = 1) -> Any:
    from slimprompt import SharedPrefixTextEncoder

    return SharedPrefixTextEncoder(open_bank(backbone).backbone, class_names, n_ctx, position, depth=depth)


def run(job: Job, deadline: float) -> list[dict[str, Any]]:
    """Train and evaluate all variants of a job; one row each. A job is not started after the deadline."""
    if time.time() > deadline:
        return []
    from slimprompt import start_prompt
    from slimprompt.data import base_new, few_shot
    from slimprompt.methods.prompt import learn_prompts
    from slimprompt.methods.task import Task
    from slimprompt.training.metrics import harmonic_mean

    bank, recipe = open_bank(job.backbone), parse_recipe(job.recipe, job.shots)
    whole = open_benchmark(job.benchmark, job.test_images)
    sample = few_shot(whole, job.shots, job.seed)
    base, new = (sample, None) if job.split == "all" else base_new(sample)
    prompts = [
        start_prompt(variant, width=bank.backbone.text_width, seed=job.seed, rank=rank, basis=basis)
        for variant, (rank, basis) in VARIANTS.items()
    ]
    labels = [item.label for item in base.train]
    task = Task(bank, [base.path(item) for item in base.train], labels, base.class_names, job.seed)
    task.encode(recipe)
    encoder(job.backbone, base.class_names)  # the time below is that of the training alone
    started = time.process_time()
    learned = learn_prompts(task, prompts, recipe, make_encoder=lambda *key: encoder(job.backbone, *key))
    seconds = (time.process_time() - started) / len(prompts)
    rows = []
    for variant, prompt, result in zip(VARIANTS, prompts, learned, strict=True):
        passes = len(result.curve) * recipe.steps_per_epoch(len(labels))
        row = {"cpu_seconds": seconds, "passes": passes, "loss": result.curve[-1].loss}
        if new is None:
            row["accuracy"] = evaluate(job.backbone, prompt, base, "test")
            row["validation"] = evaluate(job.backbone, prompt, whole, "val")
        else:
            row["seen"] = evaluate(job.backbone, prompt, base, "test")
            row["unseen"] = evaluate(job.backbone, prompt, new, "test")
            row["harmonic"] = harmonic_mean(row["seen"], row["unseen"])
        rows.append({**job._asdict(), "variant": variant, **row})
    return rows


def evaluate(backbone: str, prompt: Any, benchmark: Any, split: str) -> float:
    """Accuracy in percent on one split of a benchmark."""
    import torch

    from slimprompt.training.evaluation import accuracy

    items = getattr(benchmark, split)
    features = eval_features(backbone, tuple(benchmark.path(item) for item in items))
    text = encoder(backbone, benchmark.class_names)(prompt().detach())
    return accuracy(features, text, torch.tensor([item.label for item in items]))


@lru_cache
def eval_features(backbone: str, paths: tuple[Path, ...]) -> Any:
    return open_bank(backbone).features(paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("recipes.jsonl"))
    parser.add_argument(
        "--recipes", nargs="+", default=["paper", "fast"], help="names or JSON objects; the first is the reference"
    )
    parser.add_argument(
        "--backbones", nargs="+", default=["pocket"], help="names, or folders of models as local-dir:FOLDER"
    )
    parser.add_argument("--benchmarks", nargs="+", default=["pocket-sketch", "pocket-negative"])
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--test-images", type=int, default=96, help="images per class in the test splits")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no training after this time; re-run to resume"
    )
    options = parser.parse_args()
    deadline = time.time() + 60 * options.minutes
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    done = {Job._make(row.get(name) for name in Job._fields) for row in rows}
    # All recipes of a sample in turn, so that the runs of an interrupted command are matched.
    samples = product(options.seeds, options.backbones, options.benchmarks, options.shots, ("all", "base"))
    jobs = [
        Job(recipe, backbone, benchmark, split, shots, seed, options.test_images)
        for seed, backbone, benchmark, shots, split in samples
        for recipe in options.recipes
    ]
    jobs = [job for job in jobs if job not in done]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(options.workers) as pool, options.results.open("a") as file:
        for number, future in enumerate(as_completed([pool.submit(run, job, deadline) for job in jobs]), 1):
            for row in future.result():
                file.write(json.dumps(row) + "\n")
                rows.append(row)
            file.flush()
            print(f"\r{number}/{len(jobs)}", end="", flush=True)
    print()
    print_report(rows, options.recipes)


def print_report(rows: list[dict[str, Any]], recipes: list[str]) -> None:
    """Print Markdown tables: the means of the first recipe, and the paired differences of each other recipe to it."""
    cells: dict[Cell, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        cells[Cell._make(row.get(name) for name in Cell._fields)][row["recipe"]] = row
    first, *others = recipes
    for recipe in others or [first]:
        matched = {cell: found for cell, found in cells.items() if recipe in found and first in found}
        if not matched:
            print(f"{recipe}: no runs in common with {first}")
            continue
        passes = {name: sum(found[name]["passes"] for found in matched.values()) for name in (first, recipe)}
        fewest = min(found[first]["passes"] / found[recipe]["passes"] for found in matched.values())
        benchmarks = ", ".join(sorted({cell.benchmark for cell in matched}))
        print(f"\n{recipe} compared with {first}: {len(matched)} matched runs, benchmarks {benchmarks}")
        print(
            f"text passes {passes[recipe]:,} instead of {passes[first]:,}: {passes[first] / passes[recipe]:.1f}x fewer, "
            f"at least {fewest:.1f}x\n"
        )
        print("| | " + " | ".join(METRICS) + " |\n|---|" + "---:|" * len(METRICS))
        print(f"| {first[:40]}, all | " + " | ".join(_mean(matched.values(), first, m) for m in METRICS) + " |")
        for name, group in _groups(matched).items():
            print(f"| {name} | " + " | ".join(_difference(group.values(), first, recipe, m) for m in METRICS) + " |")


def _groups(cells: Cells) -> Mapping[str, Cells]:
    """All cells, then the cells of each variant, number of shots, benchmark, and number of shots with variant."""
    keys: list[Callable[[Cell], str]] = [
        lambda cell: "all",
        lambda cell: cell.variant,
        lambda cell: f"{cell.shots} shots",
        lambda cell: cell.benchmark,
        lambda cell: f"{cell.shots} shots, {cell.variant}",
    ]
    groups: dict[str, dict[Cell, dict[str, dict[str, Any]]]] = {}
    for key in keys:
        for cell in sorted(cells, key=lambda cell: (cell.shots, list(VARIANTS).index(cell.variant))):
            groups.setdefault(key(cell), {})[cell] = cells[cell]
    return groups


def _mean(cells: Iterable[dict[str, dict[str, Any]]], recipe: str, metric: str) -> str:
    values = [found[recipe][metric] for found in cells if metric in found[recipe]]
    return f"{sum(values) / len(values):.1f}" if metric != "loss" else f"{sum(values) / len(values):.2f}"


def _difference(cells: Iterable[dict[str, dict[str, Any]]], first: str, recipe: str, metric: str) -> str:
    """Mean paired difference ± half of its 90 % interval; "=" if within one point (two one-sided tests at 5 %)."""
    import numpy as np
    from scipy.stats import t as student

    values = [
        found[recipe][metric] - found[first][metric]
        for found in cells
        if metric in found[recipe] and metric in found[first]
    ]
    if len(values) < 2:
        return "—"
    half = student.ppf(0.95, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    equal = " =" if metric != "loss" and abs(np.mean(values)) + half < 1 else ""
    return f"{np.mean(values):+.2f} ± {half:.2f}{equal}"


if __name__ == "__main__":
    main()
