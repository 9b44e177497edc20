"""Observations of runs that were never made, for cases that can be solved by hand."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from slimprompt.analysis.frame import CELL

#: Seed → what is added to the value.
SEEDS = {1: -0.1, 2: 0.0, 3: 0.1}


def observed(
    entries: Iterable[tuple[Any, ...]], *, seeds: Mapping[int, float] = SEEDS, backbone: str = "pocket"
) -> pd.DataFrame:
    """(dataset, label, shots, metric, value[, source]) → a frame like that of `observations`. Low-rank prompts have 16 tokens."""
    rows = []
    for dataset, label, shots, metric, value, *source in entries:
        variant, *basis, size = label.split()
        length = int(size[1:])
        how = (label, variant, basis[0] if basis else "", length)
        cell = (backbone, dataset, *how, shots, metric, source[0] if source else "")
        n_ctx = length if variant == "dense" else 16
        rows += [(*cell, seed, value + more, f"{label} {dataset} {seed}", n_ctx, None) for seed, more in seeds.items()]
    return pd.DataFrame(rows, columns=[*CELL, "seed", "value", "run", "n_ctx", "parameters"])


def counted(*rows: tuple[str, int, int]) -> pd.DataFrame:
    """(label, tokens, trained parameters) → observations."""
    parts = [observed([("a", label, 1, "accuracy", 50.0)]).assign(n_ctx=m, parameters=p) for label, m, p in rows]
    return pd.concat(parts)
