"""Run folders, read back: what a run was, what came out, and its factors and curve."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError
from slimprompt.experiments.spec import RunSpec, parse_spec

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

RECORD, FACTORS, MANIFEST, CURVE = "record.json", "factors.safetensors", "manifest.json", "curve.csv"


@dataclass(frozen=True)
class Record:
    """One run folder. Accuracies in `metrics` are percentages.

    split "all": accuracy, zero_shot_accuracy; split "base": seen, unseen, harmonic and the same with `zero_shot_`.
    """

    spec: RunSpec
    status: str
    folder: Path
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Everything else in record.json: trainable_parameters, times, peak_memory_mb, versions, machine, …"""

    @property
    def complete(self) -> bool:
        """Whether the run ended well."""
        return self.status == "complete"

    def factors(self) -> dict[str, np.ndarray]:
        """`B0, A0` at the start and `B, A` at the end, as float64; P = B A."""
        from safetensors.numpy import load_file

        return {name: value.astype("float64") for name, value in load_file(self.folder / FACTORS).items()}

    def curve(self) -> pd.DataFrame:
        """One row per epoch: epoch, loss, accuracy, lr."""
        import pandas as pd

        return pd.read_csv(self.folder / CURVE)


def read_record(folder: Path) -> Record:
    """The record of one run folder."""
    try:
        data = json.loads((folder / RECORD).read_text())
        spec = parse_spec(data.pop("spec"))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder / RECORD} is not a run record: {error}") from None
    return Record(spec, data.pop("status"), folder, data.pop("metrics", {}), data.pop("error", None), data)


def load_records(root: Path, *, complete_only: bool = True) -> list[Record]:
    """All run records directly below `root`, in the order of their folder names."""
    if not root.is_dir():
        raise InputError(f"no runs folder at {root}: expected <folder>/<run>/{RECORD}, as `slimprompt study` writes it")
    records = [read_record(path.parent) for path in sorted(root.glob(f"*/{RECORD}"))]
    return [record for record in records if record.complete or not complete_only]
