"""The table of checks in the order in which they run, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from slimprompt.doctor import machine, numerics, zero_shot
from slimprompt.doctor.subject import FAILED, SKIPPED, Outcome, Subject
from slimprompt.errors import InputError, one_line


class Check(NamedTuple):
    """One row of the table of checks."""

    name: str
    run: Callable[[Subject], Iterator[Outcome]]
    """The first sentence of its docstring is what a verdict of "ok" shows."""
    needs_backbone: bool = False
    """Skipped if the backbone cannot be loaded."""

    @property
    def shows(self) -> str:
        """What a verdict of "ok" shows."""
        return (self.run.__doc__ or "").partition(".")[0]


CHECKS = (
    Check("versions", machine.check_versions),
    Check("machine", machine.check_devices),
    Check("cache directory", machine.check_cache),
    Check("data root", machine.check_data),
    Check("OpenAI weights", machine.check_weights),
    Check("backbone", numerics.check_backbone, True),
    Check("text features", numerics.check_text, True),
    Check("training step", numerics.check_training, True),
    Check("image features", numerics.check_images, True),
    Check("zero-shot accuracy", zero_shot.check_zero_shot, True),
)


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
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            yield Finding(check.name, check.shows, FAILED, kind + one_line(str(error)))
