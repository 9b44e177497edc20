"""What runs were made with: the weights of their backbone and the images of their datasets.

A spec names them; only the fingerprints in the record tell whether they still are what they were. The runs of one folder are
compared with each other, so they must have been made with the same inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slimprompt.errors import InputError
from slimprompt.lab.records import Record, runs_command
from slimprompt.lab.spec import RunSpec

#: Entry of a record → what it is the fingerprint of.
_KINDS = {"backbone_fingerprint": "weights", "dataset_fingerprints": "images"}


class Input(NamedTuple):
    """Something that runs read, and that may change under its name."""

    name: str
    fact: str
    """The entry of records that has its fingerprint."""


def inputs(spec: RunSpec, facts: Mapping[str, Any]) -> dict[Input, str]:
    """The fingerprint of each input of a run, from the facts of its record."""
    found = {Input(_model_title(spec), "backbone_fingerprint"): facts.get("backbone_fingerprint")}
    datasets = facts.get("dataset_fingerprints", {})
    found |= {Input(name, "dataset_fingerprints"): fingerprint for name, fingerprint in datasets.items()}
    return {one: fingerprint for one, fingerprint in found.items() if fingerprint}


def _model_title(spec: RunSpec) -> str:
    return " ".join(filter(None, (spec.backbone, spec.pretrained)))


class KnownInputs:
    """The inputs of complete runs; for each fingerprint, one of the runs that were made with it."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._runs: dict[Input, dict[str, Record]] = defaultdict(dict)
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Note the inputs of one more run."""
        for one, fingerprint in inputs(record.spec, record.facts).items():
            self._runs[one].setdefault(fingerprint, record)

    def of(self, specs: Iterable[RunSpec]) -> KnownInputs:
        """Those that these runs read."""
        names = {name for spec in specs for name in (_model_title(spec), spec.dataset, *spec.evaluate_on)}
        known = KnownInputs()
        known._runs.update({one: dict(runs) for one, runs in self._runs.items() if one.name in names})
        return known

    def check_each_other(self) -> None:
        """Raise an `InputError` if the runs were not all made with the same inputs."""
        for one, runs in self._runs.items():
            (fingerprint, first), *_ = runs.items()
            self._check(one, fingerprint, f"those of {first.spec.fingerprint}")

    def check_own_images(self) -> None:
        """Raise an `InputError` if folders or CSV files of the user's own images are no longer those that the runs were made with."""
        from slimprompt.data import BENCHMARKS, load_folder

        own = [one for one in self._runs if one.fact == "dataset_fingerprints" and one.name not in BENCHMARKS]
        self.check({one: load_folder(one.name).fingerprint for one in own})

    def check(self, present: Mapping[Input, str]) -> None:
        """Raise an `InputError` if a run was made with other inputs than the present ones."""
        for one, fingerprint in present.items():
            self._check(one, fingerprint, "the present ones")

    def _check(self, one: Input, fingerprint: str, than: str) -> None:
        for other, record in self._runs.get(one, {}).items():
            if other != fingerprint:
                raise InputError(
                    f"{record.folder.parent} holds runs that were made with other {_KINDS[one.fact]} of {one.name} than {than}, such as "
                    f"{record.spec.fingerprint}. Remove them (`{_removal(one, record)}`) or choose another --runs folder"
                )


def _removal(one: Input, record: Record) -> str:
    """The command that removes the runs that were made with the same input as `record`."""
    spec = record.spec
    if one.fact == "backbone_fingerprint":
        where = f"{one.fact}={record.facts[one.fact]}"
    else:
        where = f"dataset={one.name}" if one.name == spec.dataset else f"evaluate_on={spec.flat()['evaluate_on']}"
    return runs_command("rm", record.folder.parent, "--where", where)
