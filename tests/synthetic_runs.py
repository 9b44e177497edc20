"""Synthetic run folders for tests of the code that reads them.

`write_run` writes one folder, `write_study` a whole small study. The accuracies follow the formula `accuracy_of`, so
tests can compute the expected tables.
"""

from __future__ import annotations

import json
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from slimprompt.files import json_checksum
from slimprompt.lab.spec import RunSpec
from slimprompt.methods.table import METHODS
from slimprompt.prompts.spec import FIXED_BASES, count_parameters

DATASETS = {"dtd": 50.0, "food101": 80.0, "pocket-toy": 60.0}
SHOTS, SEEDS, RANKS, N_CTX, WIDTH = (1, 4), (1, 2, 3), (2, 4), 8, 32
EFFECTS = {"dense": 0.0, "joint": 1.0, "gaussian": 1.5, "orthogonal": 1.0, "svd": 0.5, "learned": 0.25}

#: Points that each method gains over the dense prompt, without noise, and numbers that it trains.
METHOD_EFFECTS = {name: float(index) for index, name in enumerate(METHODS)}
TRAINED_NUMBERS = {name: 1000 * index for index, name in enumerate(METHODS)}


def noise(*parts: object) -> float:
    """A pseudo-random number in [−0.5, 0.5) that depends only on `parts`."""
    return zlib.crc32(repr(parts).encode()) / 2**32 - 0.5


def accuracy_of(spec: RunSpec) -> float:
    """Sum of effects of dataset, shots, arm and seed, plus a little noise."""
    base = DATASETS[spec.dataset] + 2.0 * spec.shots + 0.3 * spec.seed
    if spec.variant == "fixed-A":
        return base - 10.0
    if spec.method in METHODS:
        return base + METHOD_EFFECTS[spec.method]
    arm = spec.basis if spec.basis in EFFECTS else spec.variant
    return base + EFFECTS.get(arm or "", 1.0) + 0.1 * noise(spec.dataset, spec.shots, spec.seed, spec.label)


def metrics_of(spec: RunSpec) -> dict[str, float]:
    """`accuracy` of a run on all classes; `seen`, `unseen` and `harmonic` of a base-to-new run.

    The accuracy on the i-th other dataset (from 1) is i points higher than on the run's own.
    """
    accuracy = accuracy_of(spec)
    if spec.class_subset == "all":
        others = {f"accuracy@{name}": accuracy + index for index, name in enumerate(spec.evaluate_on, start=1)}
        return {"accuracy": accuracy, "zero_shot_accuracy": DATASETS[spec.dataset], **others}
    if spec.method in METHODS and not METHODS[spec.method].takes_new_names:
        return {"seen": accuracy + 5.0}
    seen, unseen = accuracy + 5.0, accuracy - (9.0 if spec.variant == "dense" else 5.0)
    return {"seen": seen, "unseen": unseen, "harmonic": 2 * seen * unseen / (seen + unseen)}


def factors_of(spec: RunSpec) -> dict[str, np.ndarray]:
    """The start depends only on the seed; B stays close to its start, A moves far in a direction of its own."""
    if spec.method in METHODS:
        return {"weights": np.ones((5, WIDTH))}
    rank = spec.rank or spec.n_ctx or 4
    start = np.random.default_rng((spec.seed, 1))
    n_ctx = spec.n_ctx or 4  # a prompt of words has as many context tokens as words
    b0 = start.standard_normal((n_ctx, n_ctx))[:, :rank]
    a0 = start.standard_normal((n_ctx, WIDTH))[:rank]
    own = np.random.default_rng(zlib.crc32(spec.fingerprint.encode()))
    moved_b = spec.variant in ("joint", "fixed-A")
    moved_a = spec.variant != "fixed-A"
    b = b0 + 0.05 * moved_b * own.standard_normal(b0.shape)
    a = a0 + 2.0 * moved_a * own.standard_normal(a0.shape)
    return {"B0": b0, "A0": a0, "B": b, "A": a}


def write_run(
    root: Path,
    fields: dict[str, Any],
    *,
    metrics: dict[str, float] | None = None,
    factors: dict[str, np.ndarray] | None = None,
    **facts: Any,
) -> Path:
    """Write one complete run folder to `root`; metrics and factors follow the formulas above unless given."""
    spec = RunSpec(**fields)
    folder = root / spec.fingerprint
    folder.mkdir(parents=True)
    record = {
        "spec": spec.model_dump(mode="json"),
        "status": "complete",
        "metrics": metrics if metrics is not None else metrics_of(spec),
        "trainable_parameters": TRAINED_NUMBERS.get(spec.method, 0)
        if spec.variant is None
        else count_parameters(spec.variant, n_ctx=spec.n_ctx or 4, width=WIDTH, rank=spec.rank, depth=spec.depth),
        **facts,
    }
    record = json.loads(json.dumps(record))
    (folder / "record.json").write_text(json.dumps(record | {"checksum": json_checksum(record)}))
    chosen = factors if factors is not None else factors_of(spec)
    save_file(
        {name: np.ascontiguousarray(value, dtype="float32") for name, value in chosen.items()},
        folder / "factors.safetensors",
    )
    if spec.is_prompt:
        (folder / "curve.csv").write_text("epoch,loss,accuracy,lr\n0,2.0,10.0,1e-05\n1,1.0,60.0,0.002\n")
    return folder


def study_fields(
    *,
    backbones: tuple[str, ...] = ("RN50", "ViT-B-16"),
    datasets: tuple[str, ...] = tuple(DATASETS),
    shots: tuple[int, ...] = SHOTS,
    seeds: tuple[int, ...] = SEEDS,
    ranks: tuple[int, ...] = RANKS,
) -> list[dict[str, Any]]:
    """Fields of the runs of all studies on a small grid: few-shot, fixed bases, base-to-new and transfer."""
    fields: list[dict[str, Any]] = []
    for backbone, dataset, k, seed in product(backbones, datasets, shots, seeds):
        cell = {"backbone": backbone, "dataset": dataset, "shots": k, "seed": seed}
        fields += [{**cell, "variant": "dense", "n_ctx": m} for m in (N_CTX, 4)]
        low = {**cell, "n_ctx": N_CTX}
        for rank in ranks:
            fields.append({**low, "variant": "joint", "rank": rank})
            fields += [{**low, "variant": "fixed-B", "basis": basis, "rank": rank} for basis in FIXED_BASES]
        new = {**low, "class_subset": "base"}
        fields.append({**new, "variant": "dense"})
        for rank in ranks:
            fields.append({**new, "variant": "joint", "rank": rank})
            fields.append({**new, "variant": "fixed-B", "basis": "orthogonal", "rank": rank})
    for target, source, seed in product(datasets, datasets, seeds):
        cell = {
            "backbone": backbones[-1],
            "dataset": target,
            "shots": shots[-1],
            "seed": seed,
            "n_ctx": N_CTX,
            "rank": 4,
        }
        if source != target:
            fields += [
                {**cell, "variant": side, "basis": "source", "source": source} for side in ("fixed-B", "fixed-A")
            ]
        elif len(datasets) > 1:
            fields += [{**cell, "variant": side, "basis": "random"} for side in ("fixed-B", "fixed-A")]
    return fields


def write_study(root: Path, **grid: Any) -> Path:
    """Write the run folders of `study_fields(**grid)` to `root`."""
    for fields in study_fields(**grid):
        write_run(root, fields)
    return root


def write_methods(
    root: Path,
    *,
    backbones: tuple[str, ...] = ("RN50",),
    datasets: tuple[str, ...] = ("dtd", "food101"),
    shots: tuple[int, ...] = SHOTS,
    seeds: tuple[int, ...] = SEEDS,
) -> Path:
    """Write runs of every method, of joint and anchored prompts, on all and on base classes, and cross-dataset runs.

    Training takes 0.5 seconds.
    """
    low: dict[str, Any] = {"n_ctx": N_CTX, "variant": "joint", "rank": 4}
    anchored = {"variant": "joint", "rank": 4, "words": "a photo of a", "anchored": True}
    for backbone, dataset, k, seed in product(backbones, datasets, shots, seeds):
        cell = {"backbone": backbone, "pretrained": "openai", "dataset": dataset, "shots": k, "seed": seed}
        for how, split in product([*({"method": name} for name in METHODS), low, anchored], ("all", "base")):
            write_run(root, {**cell, **how, "class_subset": split}, times={"training": 0.5})
        others = [name for name in (*datasets, "pocket-toy") if name != dataset]
        for how in ({"method": "zero-shot"}, low):
            write_run(root, {**cell, **how, "evaluate_on": others})
    return root
