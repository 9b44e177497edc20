"""Accuracy of prompts from words, anchored prompts, keep-close losses and deep prompts on pocket benchmarks.

    python benchmarks/beyond.py --runs runs-beyond [--benchmarks pocket-comic pocket-night] [--shots 1 4 16] [--seeds 1 2 3]

Trains every kind of prompt in `KINDS` on the base classes and evaluates it on base and new classes, as `slimprompt study`
does; runs that are in the folder are not repeated. Prints a Markdown table with one row per kind: accuracy on base and new
classes and their harmonic mean H for each number of shots, averaged over benchmarks and seeds, and the paired difference in
H to the first kind of its group with half of its 90 % interval over matched runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from _output import make_parser

WORDS = {"words": "a photo of a"}
DENSE = {"variant": "dense", "n_ctx": 4}
LOW_RANK = {"variant": "fixed-B", "basis": "orthogonal", "rank": 2, "n_ctx": 4}
DEEP = {"variant": "fixed-B", "basis": "orthogonal", "rank": 4, "n_ctx": 16}
#: Group → kind → fields of its run; fields of the recipe start with "recipe.". The first kind of a group is its reference.
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "dense, 4 tokens": {
        "free": DENSE,
        "word start": {**DENSE, **WORDS},
        "anchored": {**DENSE, **WORDS, "anchored": True},
        "free, anchor 8": {**DENSE, "recipe.anchor": 8.0},
        "word start, anchor 8": {**DENSE, **WORDS, "recipe.anchor": 8.0},
        "free, prograd": {**DENSE, "recipe.prograd": True},
        "word start, prograd": {**DENSE, **WORDS, "recipe.prograd": True},
    },
    "fixed-B r2, 4 tokens": {
        "free": LOW_RANK,
        "word start": {**LOW_RANK, **WORDS},
        "anchored": {**LOW_RANK, **WORDS, "anchored": True},
        "anchored, anchor 8": {**LOW_RANK, **WORDS, "anchored": True, "recipe.anchor": 8.0},
    },
    "fixed-B r4, 16 tokens": {
        "depth 1": DEEP,
        "depth 2": {**DEEP, "depth": 2},
        "depth 4": {**DEEP, "depth": 4},
    },
}


METRICS = ("seen", "unseen", "harmonic", "zero_shot_harmonic")


def make_spec(kind: dict[str, Any], recipe: str, **axes: Any) -> Any:
    from slimprompt.lab.spec import RunSpec
    from slimprompt.training.recipe import make_recipe

    own = {name.removeprefix("recipe."): value for name, value in kind.items() if name.startswith("recipe.")}
    fields = {name: value for name, value in kind.items() if not name.startswith("recipe.")}
    return RunSpec(**axes, **fields, class_subset="base", recipe=make_recipe(recipe, axes["shots"], own))


def difference(values: Sequence[float], references: Sequence[float]) -> str:
    """Mean paired difference ± half of its 90 % interval."""
    import numpy as np
    from scipy.stats import t as student

    found = np.subtract(values, references)
    half = student.ppf(0.95, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.nan
    return f"{found.mean():+.1f} ± {half:.1f}"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs-beyond"))
    parser.add_argument("--backbone", default="pocket")
    parser.add_argument("--benchmarks", nargs="+", default=["pocket-comic", "pocket-night"])
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()

    from slimprompt.lab.environment import RunEnvironment
    from slimprompt.lab.executors.processes import ProcessExecutor
    from slimprompt.lab.study import open_study, outcome_of, run_study

    cells = list(product(options.benchmarks, options.seeds))

    def specs(kind: dict[str, Any], shots: int) -> list[Any]:
        common = {"backbone": options.backbone, "shots": shots}
        return [make_spec(kind, options.recipe, **common, dataset=name, seed=seed) for name, seed in cells]

    kinds = [(group, name, kind) for group, found in KINDS.items() for name, kind in found.items()]
    everything = [spec for _, _, kind in kinds for shots in options.shots for spec in specs(kind, shots)]
    environment = RunEnvironment(runs=options.runs, device="cpu")
    study = open_study(everything, options.runs)
    outcome = outcome_of(study, run_study(study, ProcessExecutor(environment, options.workers)))
    if outcome.failed:
        raise SystemExit(f"{outcome.failed[0].spec.title}: {outcome.failed[0].error}")
    results = {record.spec: record for record in (*outcome.present, *outcome.complete)}

    rows = []
    headings = "".join(f" {shots}-shot base / new / H | difference in H |" for shots in options.shots)
    print(f"| | trained numbers |{headings}\n|---|---:|" + "---:|---:|" * len(options.shots))
    for group, name, kind in kinds:
        reference, cells_of_row = next(iter(KINDS[group].values())), ""
        for shots in options.shots:
            found, first = ([results[spec] for spec in specs(one, shots)] for one in (kind, reference))
            values = {metric: [record.metrics[metric] for record in found] for metric in METRICS}
            against = difference(values["harmonic"], [record.metrics["harmonic"] for record in first])
            row = {"group": group, "kind": name, "shots": shots, "against_first": against}
            row |= {metric: mean(numbers) for metric, numbers in values.items()}
            rows.append(row)
            cells_of_row += f" {row['seen']:.1f} / {row['unseen']:.1f} / {row['harmonic']:.1f} |"
            cells_of_row += f" {'–' if kind is reference else against} |"
        print(f"| {group}: {name} | {found[0].facts['trainable_parameters']:,} |{cells_of_row}")
    print(f"\nZero-shot: H = {mean(row['zero_shot_harmonic'] for row in rows):.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
