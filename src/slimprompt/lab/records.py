"""Run folders: written whole or not at all, and read back.

    <runs>/<fingerprint of the spec>/
        record.json          spec, status, metrics, and everything that should be known about the run
        factors.safetensors  B0, A0 at the start, B, A at the end
        manifest.json        the few-shot images: relative path, label, sha256
        curve.csv            epoch, lr, loss, accuracy

A failed run has only its record, with the error. Beside the run folders stands `.lock`, an empty file that writers hold in turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimprompt.errors import InputError, unknown
from slimprompt.lab.spec import RunSpec, parse_spec
from slimprompt.storage import draft_folder, lock, publish, remove_folder
from slimprompt.training.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from slimprompt.data.manifest import Manifest

RECORD, FACTORS, MANIFEST, CURVE = "record.json", "factors.safetensors", "manifest.json", "curve.csv"
_LOCK = ".lock"
COMPLETE, FAILED = "complete", "failed"


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
        return self.status == COMPLETE

    def factors(self) -> dict[str, np.ndarray]:
        """`B0, A0` at the start and `B, A` at the end, as float64; P = B A."""
        from safetensors.numpy import load_file

        try:
            return {name: value.astype("float64") for name, value in load_file(self.folder / FACTORS).items()}
        except Exception as error:
            raise InputError(
                f"{self.folder / FACTORS} cannot be read ({error}); remove the run and make it again"
            ) from None

    def curve(self) -> pd.DataFrame:
        """One row per epoch: epoch, lr, loss, accuracy."""
        import pandas as pd

        return pd.read_csv(self.folder / CURVE)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_record(folder: Path) -> Record:
    """The record of one run folder."""
    try:
        data = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        spec = parse_spec(data.pop("spec"))
        return Record(spec, data.pop("status"), folder, data.pop("metrics", {}), data.pop("error", None), data)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{folder / RECORD} is not a run record: {error}") from None


def load_records(root: Path, *, complete_only: bool = True) -> list[Record]:
    """All run records directly below `root`, in the order of their folder names."""
    if not root.is_dir():
        raise InputError(f"no runs folder at {root}: expected <folder>/<run>/{RECORD}, as `slimprompt study` writes it")
    # A folder that is still being written starts with a dot.
    folders = sorted(path.parent for path in root.glob(f"*/{RECORD}") if not path.parent.name.startswith("."))
    # One that is gone by now was removed, or is just being replaced by its retry.
    records = [read_record(folder) for folder in folders if folder.exists()]
    return [record for record in records if record.complete or not complete_only]


def find_run(root: Path, spec: RunSpec) -> Record | None:
    """The run of `spec` below `root`; None if it is not there or its record cannot be read, so that it must be made."""
    return _try_read(root / spec.fingerprint)


def select_records(records: Iterable[Record], where: Sequence[str] = ()) -> list[Record]:
    """The records that meet every condition `field=value[,value…]`.

    A field is one of the spec (`shots=1,4`), of its recipe (`recipe.epochs=50`) or `status`; an empty value is "not set".
    """
    names = [
        "status",
        *(name for name in RunSpec.model_fields if name != "recipe"),
        *(f"recipe.{n}" for n in Recipe.model_fields),
    ]
    conditions: list[tuple[str, set[str]]] = []
    for text in where:
        name, sign, values = text.partition("=")
        if not sign:
            raise InputError(f"{text!r} is not a condition: write field=value, such as shots=16 or recipe.epochs=50")
        if name not in names:
            raise unknown("field of a run", name, names)
        conditions.append((name, {value.strip() for value in values.split(",")}))

    def fields(record: Record) -> dict[str, str]:
        return {name: "" if value is None else str(value) for name, value in record.spec.flat().items()} | {
            "status": record.status
        }

    return [
        record
        for record, values in ((record, fields(record)) for record in records)
        if all(values[name] in allowed for name, allowed in conditions)
    ]


# --- writing ---------------------------------------------------------------------------------------------------------


def store_run(
    root: Path,
    spec: RunSpec,
    record: dict[str, Any],
    *,
    factors: dict[str, np.ndarray] | None = None,
    manifest: Manifest | None = None,
    curve: Sequence[Sequence[float]] = (),
) -> Record:
    """Write the run folder of `spec` and read it back; `record` holds status, metrics, error and the facts.

    Everything is written to a draft beside it, which is then renamed. A failed run gives way to its retry; a complete one
    stays as it is, so that of two processes that made the same run the first counts.
    """
    target = root / spec.fingerprint
    try:
        with draft_folder(target) as draft:
            if factors is not None:
                from safetensors.numpy import save

                (draft / FACTORS).write_bytes(save(factors))
            if manifest is not None:
                from slimprompt.data.manifest import write_manifest

                write_manifest(manifest, draft / MANIFEST)
            if curve:
                lines = ["epoch,lr,loss,accuracy", *(",".join(repr(value) for value in row) for row in curve)]
                (draft / CURVE).write_text("\n".join(lines) + "\n", encoding="utf-8")
            text = json.dumps({"spec": spec.model_dump(mode="json"), **record}, indent=1, ensure_ascii=False)
            (draft / RECORD).write_text(text + "\n", encoding="utf-8")
            with lock(root / _LOCK):  # two writers of one run: the first complete one counts
                present = _try_read(target)
                if present is None or not present.complete:
                    publish(draft, target)
                return read_record(target)
    except InputError as error:
        raise InputError(f"{error}; what was written before is intact") from None


def _try_read(folder: Path) -> Record | None:
    try:
        return read_record(folder)
    except InputError:
        return None


def remove_run(record: Record) -> None:
    """Delete a run folder."""
    remove_folder(record.folder)
