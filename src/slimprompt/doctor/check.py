"""What a check is, what it reports, and how a list of checks is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slimprompt.data.catalogue import DATA_ROOT
from slimprompt.errors import InputError

if TYPE_CHECKING:
    from slimprompt.clip.backbone import Backbone

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"
VERDICTS = (OK, WARNING, FAILED, SKIPPED)


class Outcome(NamedTuple):
    """One result of a check: its verdict, details for the reader, and the part of the check it is about, if any."""

    verdict: str
    details: str
    part: str = ""


@dataclass(frozen=True)
class Subject:
    """What is checked: a backbone on a device, and the folders of this machine."""

    name: str = "pocket"
    pretrained: str | None = None
    device: str = "auto"
    precision: str = "fp32"
    data_root: Path | None = None
    quick: bool = False

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone on the chosen device, loaded once."""
        from slimprompt.clip.backbone import load_backbone

        return load_backbone(self.name, self.pretrained, device=self.device, precision=self.precision)

    @cached_property
    def reference_backbone(self) -> Backbone:
        """The same weights on the CPU in fp32."""
        from slimprompt.clip.backbone import load_backbone

        if (self.backbone.device.type, self.precision) == ("cpu", "fp32"):
            return self.backbone
        return load_backbone(self.name, self.pretrained, device="cpu", precision="fp32")

    @property
    def benchmarks(self) -> Path | None:
        """Folder of the benchmarks, or None if there is none."""
        given = self.data_root or os.environ.get(DATA_ROOT)
        return Path(given).expanduser() if given else None


class Check(NamedTuple):
    """One row of the table of checks."""

    name: str
    shows: str
    """What a verdict of "ok" means."""
    run: Callable[[Subject], Iterator[Outcome]]
    needs_backbone: bool = False
    """Skipped if the backbone cannot be loaded."""


class Finding(NamedTuple):
    """One row of the printed table."""

    check: str
    shows: str
    verdict: str
    details: str


def run_checks(checks: Sequence[Check], subject: Subject) -> Iterator[Finding]:
    """Run checks in order and yield their findings as they are known.

    A check that raises is a finding with verdict "FAILED" and the error in one line; the other checks still run.
    """
    backbone_failed = False
    for check in checks:
        if check.needs_backbone and backbone_failed:
            yield Finding(check.name, check.shows, SKIPPED, "the backbone could not be loaded")
            continue
        try:
            for outcome in check.run(subject):
                name = f"{check.name}: {outcome.part}" if outcome.part else check.name
                yield Finding(name, check.shows, outcome.verdict, outcome.details)
        except Exception as error:
            backbone_failed = backbone_failed or (check.needs_backbone and "backbone" not in vars(subject))
            yield Finding(check.name, check.shows, FAILED, _message(error))


def _message(error: Exception) -> str:
    """The message of an error in one line; unexpected errors are preceded by their type."""
    message = " ".join(str(error).split())
    return message if isinstance(error, InputError) else f"{type(error).__name__}: {message}"
