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
    shows: str
    """What a verdict of "ok" means."""
    run: Callable[[Subject], Iterator[Outcome]]
    needs_backbone: bool = False
    """Skipped if the backbone cannot be loaded."""


CHECKS = (
    Check("versions", "Python, slimprompt and the libraries that results depend on", machine.check_versions),
    Check("machine", "system, processor, memory, GPUs and threads", machine.check_devices),
    Check("cache directory", "image features can be stored", machine.check_cache),
    Check("data root", "which benchmarks are present, and how many of their images", machine.check_data),
    Check("OpenAI weights", "which weight files of the paper's backbones are on this machine", machine.check_weights),
    Check("backbone", "the chosen backbone can be loaded on the device", numerics.check_backbone, True),
    Check(
        "text features",
        "class features and gradients equal those of open_clip's full pass on the device",
        numerics.check_text,
        True,
    ),
    Check(
        "training step",
        "one step of the training loop equals the step written out with autograd on the CPU in fp32",
        numerics.check_training,
        True,
    ),
    Check(
        "image features",
        "the feature bank gives the features of the image tower on one image at a time",
        numerics.check_images,
        True,
    ),
    Check(
        "zero-shot accuracy",
        "OpenAI's weights give the published accuracy on benchmarks that are present",
        zero_shot.check_zero_shot,
        True,
    ),
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
