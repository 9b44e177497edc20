"""What runs were made with: the weights of their backbone.

A spec names them; only the fingerprint in the record tells whether they still are what they were. The runs of one folder are
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
_KINDS = {"backbone_fingerprint": "weights"}


class Input(NamedTuple):
    """Something that runs read, and that may change under its name."""

    name: str
    fact: str
    """The entry of records that has its fingerprint."""


def inputs(spec: RunSpec, facts: Mapping[str, Any]) -> dict[Input, str]:
    """The fingerprint of each input of a run, from the facts of its record."""
    weights = facts.get("backbone_fingerprint")
    backbone = " ".join(filter(None, (spec.backbone, spec.pretrained)))
    return {Input(backbone, "backbone_fingerprint"): weights} if weights else {}


class KnownInputs:
    """The inputs of complete runs; for each fingerprint, one of the runs that were made with it."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._runs: dict[Input, dict[str, Record]] = defaultdict(dict)
        for record in records:
            for one, fingerprint in inputs(record.spec, record.facts).items():
                self._runs[one].setdefault(fingerprint, record)

    def check_each_other(self) -> None:
        """Raise an `InputError` if the runs were not all made with the same inputs."""
        for one, runs in self._runs.items():
            (fingerprint, first), *_ = runs.items()
            self._check(one, fingerprint, f"those of {first.spec.fingerprint}")

    def check(self, present: Mapping[Input, str]) -> None:
        """Raise an `InputError` if a run was made with other inputs than the present ones."""
        for one, fingerprint in present.items():
            self._check(one, fingerprint, "the present ones")

    def _check(self, one: Input, fingerprint: str, than: str) -> None:
        for other, record in self._runs.get(one, {}).items():
            if other != fingerprint:
                raise InputError(
                    f"{record.folder.parent} holds runs that were made with other {_KINDS[one.fact]} of {one.name} than {than}, such as "
                    f"{record.spec.fingerprint}. Remove them (`{_removal(record)}`) or choose another --runs folder"
                )


def _removal(record: Record) -> str:
    """The command that removes the runs that were made with the same input as `record`."""
    where = f"backbone_fingerprint={record.facts['backbone_fingerprint']}"
    return runs_command("rm", record.folder.parent, "--where", where)
