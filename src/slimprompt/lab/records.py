"""Run folders: written completely or not at all, and read back.

    <runs>/<fingerprint of the spec>/
        record.json          spec, status, metrics, provenance
        factors.safetensors  B0, A0 before training, B, A after it; the words W of an anchored prompt;
                             the tensors of the head of another method
        manifest.json        the few-shot images: relative path, label, sha256
        curve.csv            epoch, lr, loss, accuracy; only for prompts

A failed run has only its record, with the error. Writers hold a lock on the file `.lock` beside the run folders.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from slimprompt.errors import InputError, problems, unknown
from slimprompt.files import (
    check_regular,
    draft_folder,
    json_checksum,
    json_text,
    lock,
    publish,
    read_json,
    read_text,
    remove_folder,
)
from slimprompt.lab.spec import RunSpec, one_spelling, parse_spec
from slimprompt.methods.table import find_method
from slimprompt.progress import progress
from slimprompt.training.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from slimprompt.data.manifest import Manifest

RECORD, FACTORS, MANIFEST, CURVE = "record.json", "factors.safetensors", "manifest.json", "curve.csv"
_FACTOR_NAMES = ("B0", "A0", "B", "A")
_CURVE_COLUMNS = ["epoch", "lr", "loss", "accuracy"]
_LOCK = ".lock"
COMPLETE, FAILED = "complete", "failed"
_BASE_TO_NEW = ("seen", "unseen", "harmonic")
#: Bytes of the largest record and the largest curve that are read.
_MOST_RECORD, _MOST_CURVE = 4 * 2**20, 128 * 2**20
_FINGERPRINT = re.compile("[0-9a-f]{16}")
#: Values that the message of an unmet condition lists.
_MOST_VALUES = 10


@dataclass(frozen=True)
class Record:
    """One run folder. Accuracies in `metrics` are percentages.

    A run on all classes has accuracy and zero_shot_accuracy; one on base classes has seen (base classes), unseen (new
    classes), harmonic, and the same with the prefix `zero_shot_`. Methods that take no new class names have neither unseen
    nor harmonic. A run that was evaluated on other datasets has accuracy@<dataset> for each.
    """

    spec: RunSpec
    status: str
    folder: Path
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """All other entries of record.json: trainable_parameters, times, peak_memory_mb, versions, machine, …"""

    @property
    def complete(self) -> bool:
        """Whether the run succeeded."""
        return self.status == COMPLETE

    def factors(self) -> dict[str, np.ndarray]:
        """`B0`, `A0` before training and `B`, `A` after it, as float64; P = B A.

        The run of an anchored prompt, P = W + B A, also has `W`. In a deep prompt, A is (depth, rank, width). The run of
        another method has the tensors of its head (`slimprompt.methods.head`); the numbers of the head are in `facts["head"]`.
        """
        import numpy as np
        from safetensors.numpy import load_file

        path = self.folder / FACTORS
        try:
            check_regular(path)
            factors = {name: value.astype("float64") for name, value in load_file(path).items()}
        except Exception as error:  # safetensors has error types of its own
            raise _unreadable(path, error) from None
        expected = _FACTOR_NAMES if self.spec.is_prompt else ()
        if missing := [name for name in expected if name not in factors]:
            raise _unreadable(path, f"{', '.join(missing)} is missing")
        for name, values in factors.items():
            if not np.isfinite(values).all():
                raise _unreadable(path, f"{name} holds numbers that are not finite")
        return factors

    def curve(self) -> pd.DataFrame:
        """One row per epoch: epoch, lr, loss, accuracy.

        After the first epoch the loss may be nan or infinite: recipes with `backtrack` then return to the best factors.
        """
        import numpy as np
        import pandas as pd

        path = self.folder / CURVE
        try:  # pandas.read_csv takes ten times as long for so few lines
            heading, *lines = read_text(path, most=_MOST_CURVE).splitlines()
            rows = [line.split(",") for line in lines if line]
            places = [heading.split(",").index(name) for name in _CURVE_COLUMNS]
            columns = {
                name: np.array([(int if name == "epoch" else float)(row[place]) for row in rows])
                for name, place in zip(_CURVE_COLUMNS, places, strict=True)
            }
            curve = pd.DataFrame(columns)
            finite = np.isfinite(curve.to_numpy(dtype=float))
            finite[1:, _CURVE_COLUMNS.index("loss")] = True
        except (ValueError, IndexError, OverflowError) as error:
            raise _unreadable(path, error) from None
        if curve.empty or not finite.all():
            raise _unreadable(path, "it holds no epochs" if curve.empty else "it holds entries that are not numbers")
        return curve


# --- reading ---------------------------------------------------------------------------------------------------------


class _RecordSchema(BaseModel):
    """The types of the entries that other code relies on; further entries are allowed."""

    model_config = ConfigDict(extra="allow", strict=True)

    spec: dict[str, Any]
    checksum: str
    status: Literal["complete", "failed"]
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    error: str | None = None
    times: dict[str, FiniteFloat] = Field(default_factory=dict)
    trainable_parameters: int | None = None
    peak_memory_mb: FiniteFloat | None = None
    prompt_batch: list[str] = Field(default_factory=list)
    traceback: str | None = None
    settings: dict[str, FiniteFloat] = Field(default_factory=dict)
    n_images: dict[str, int] = Field(default_factory=dict)
    n_classes: dict[str, int] = Field(default_factory=dict)
    chance: dict[str, FiniteFloat] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)
    backbone_fingerprint: str | None = None
    dataset_fingerprints: dict[str, str] = Field(default_factory=dict)


def read_record(folder: Path) -> Record:
    """The record of one run folder; an `InputError` if it is damaged."""
    path = folder / RECORD
    try:
        data = read_json(path, most=_MOST_RECORD)
        _RecordSchema.model_validate(data)
        if data.pop("checksum") != json_checksum(data):
            raise InputError("its checksum does not match its content")
        spec = parse_spec(data.pop("spec"))
        _check_base_to_new(spec, data.get("metrics", {}))
    except ValidationError as error:
        raise _damaged(path, problems(error)[0]) from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if _FINGERPRINT.fullmatch(folder.name) and folder.name != spec.fingerprint:
        raise _damaged(path, f"its spec belongs to the run {spec.fingerprint}")
    return Record(spec, data.pop("status"), folder, data.pop("metrics", {}), data.pop("error", None), data)


def _check_base_to_new(spec: RunSpec, metrics: dict[str, float]) -> None:
    """Base and new classes go together; a method that cannot take new class names has the base classes only."""
    measured = [name for name in _BASE_TO_NEW if name in metrics]
    base_only = not spec.is_prompt and not find_method(spec.method).takes_new_names
    if measured and measured != list(_BASE_TO_NEW[:1] if base_only else _BASE_TO_NEW):
        raise InputError(f"metrics: {', '.join(_BASE_TO_NEW)} go together, but only {', '.join(measured)} is there")


def _unreadable(path: Path, reason: object) -> InputError:
    return InputError(f"{path} cannot be read ({_short(reason)}); remove the run and run it again")


def _short(reason: object) -> str:
    return " ".join(str(reason).split())[:300]


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is not a run record: {_short(reason)}")


def scan_records(root: Path, *, show: bool = False) -> tuple[list[Record], dict[Path, str]]:
    """All run records in `root`, sorted by folder name, and the damaged run folders with their reasons.

    `show` shows the progress.
    """
    if not root.is_dir():
        raise InputError(f"no runs folder at {root}: expected <folder>/<run>/{RECORD}, as `slimprompt study` writes it")
    records: list[Record] = []
    damaged: dict[Path, str] = {}
    folders = _run_folders(root)
    with progress("reading runs", len(folders), "runs", show=show) as advance:
        for folder in folders:
            try:
                records.append(read_record(folder))
            except InputError as error:
                damaged[folder] = str(error)
            advance()
    return records, damaged


def _run_folders(root: Path) -> list[Path]:
    """Folders in `root` that have a record; those whose names start with a dot are still being written."""
    names = sorted(name for name in os.listdir(root) if not name.startswith("."))
    return [root / name for name in names if os.path.exists(f"{root}/{name}/{RECORD}")]


def load_records(root: Path, *, complete_only: bool = True, show: bool = False) -> list[Record]:
    """The run records in `root`, sorted by folder name; damaged ones are left out with a warning. `show` shows the progress."""
    records, damaged = scan_records(root, show=show)
    if damaged:
        first = next(iter(damaged.values()))
        warnings.warn(
            f"{len(damaged)} damaged run folders are left out: {first}. `{runs_command('list', root)}` shows them; "
            "a study that contains them runs them again",
            stacklevel=2,
        )
    return [record for record in records if record.complete or not complete_only]


def complete_runs(root: Path) -> Iterator[Record]:
    """The complete runs in `root`, one after the other; what cannot be read is left out."""
    found = (_try_read(folder) for folder in (_run_folders(root) if root.is_dir() else ()))
    return (record for record in found if record is not None and record.complete)


def find_run(root: Path, spec: RunSpec) -> Record | None:
    """The run of `spec` in `root`; None if it does not exist or its record cannot be read."""
    return _try_read(root / spec.fingerprint)


def select_records(records: Iterable[Record], where: Sequence[str] = ()) -> list[Record]:
    """The records that meet every condition `field=value[,value…]`.

    A field is `status`, `backbone_fingerprint`, a field of the spec (`shots=1,4`) or of its recipe (`recipe.epochs=50`). An empty
    value selects records in which the field is not set.
    """
    conditions = [_Condition.parse(text) for text in where]
    return [record for record in records if all(condition.holds(_fields(record)) for condition in conditions)]


def unmet_conditions(records: Sequence[Record], where: Sequence[str]) -> list[str]:
    """The conditions that no record meets, with the values that the records have: `variant=jont: they have dense, joint`."""
    fields, unmet = [_fields(record) for record in records], []
    for text in where if fields else ():
        condition = _Condition.parse(text)
        if not any(map(condition.holds, fields)):
            present = sorted({str(one[condition.field]) for one in fields if one[condition.field] is not None})
            listing = ", ".join(present[:_MOST_VALUES]) + (", …" if len(present) > _MOST_VALUES else "")
            unmet.append(f"no run has {text}: they have {listing or 'no value'}")
    return unmet


def _fields(record: Record) -> dict[str, Any]:
    """The fields of a run that conditions may name."""
    fingerprint = record.facts.get("backbone_fingerprint")
    return record.spec.flat() | {"status": record.status, "backbone_fingerprint": fingerprint}


class _Condition(NamedTuple):
    """`field=value[,value…]`."""

    field: str
    values: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> _Condition:
        own = [name for name in RunSpec.model_fields if name != "recipe"]
        names = ["status", "backbone_fingerprint", *own, *(f"recipe.{name}" for name in Recipe.model_fields)]
        name, sign, values = text.partition("=")
        if not sign:
            raise InputError(f"{text!r} is not a condition: write field=value, such as shots=16 or recipe.epochs=50")
        if name not in names:
            raise unknown("field of a run", name, names)
        parts = [value.strip() for value in values.split(",")]
        if another := [part for part in parts if "=" in part and part.split("=")[0] in names]:
            raise InputError(f"{text!r} holds two conditions: write --where {another[0]} as a condition of its own")
        given = {*parts, values.strip()}  # a dataset may have commas in its name
        return cls(name, frozenset(map(one_spelling, given) if name == "backbone" else given))

    def holds(self, fields: dict[str, Any]) -> bool:
        """Whether the field has one of the values; a number may be written as 0.002 or 2e-3, and a truth value as true."""
        value = fields[self.field]
        if value is None:
            return "" in self.values
        if isinstance(value, bool):
            return str(value).lower() in {text.lower() for text in self.values}
        return str(value) in self.values or (isinstance(value, float) and value in map(_number, self.values))


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


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
    """Write the run folder of `spec` and read it back.

    A failed run is replaced by its retry. A complete run is never replaced: if two processes execute the same run, the first
    result is kept.

    Parameters
    ----------
    root
        Folder of the run folders.
    spec
        The run.
    record
        Status, metrics or error, and facts.
    factors, manifest, curve
        Contents of the other files of a complete run.
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
                lines = [",".join(_CURVE_COLUMNS), *(",".join(repr(value) for value in row) for row in curve)]
                (draft / CURVE).write_text("\n".join(lines) + "\n", encoding="utf-8")
            content = json.loads(json.dumps({"spec": spec.model_dump(mode="json"), **record}))  # plain JSON values
            text = json_text({**content, "checksum": json_checksum(content)})
            (draft / RECORD).write_text(text, encoding="utf-8")
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


def runs_command(action: str, root: Path, *arguments: str) -> str:
    """The command `slimprompt runs …` for the runs in `root`, as messages show it.

    >>> runs_command("list", Path("my runs"), "--where", "status=failed")
    "slimprompt runs list --runs 'my runs' --where status=failed"
    """
    return shlex.join(["slimprompt", "runs", action, "--runs", str(root), *arguments])


def remove_run(folder: Path) -> None:
    """Delete a run folder."""
    remove_folder(folder)


def is_named_like_a_run(folder: Path) -> bool:
    """Whether this is a folder whose name is a fingerprint, so that it is a run's even if its record is missing or damaged."""
    return folder.is_dir() and _FINGERPRINT.fullmatch(folder.name) is not None
