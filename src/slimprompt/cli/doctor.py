"""`slimprompt doctor`: check this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slimprompt.cli.options import DataRoot, ModelOptions, model_options
from slimprompt.cli.printing import print_json, say

if TYPE_CHECKING:
    from slimprompt.doctor.check import Finding

_COLOURS = {"ok": "green", "warning": "yellow", "FAILED": "red", "skipped": "bright_black"}


@model_options("backbone", "pretrained", "device", "precision", backbone="pocket")
def doctor(
    data_root: DataRoot = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the paper's grid, hashes of weight files and zero-shot accuracy.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    model_options: ModelOptions,
) -> None:
    """Check this machine: versions, folders, correctness of the computation, and speed.

    Each check is ok, a warning, FAILED or skipped; the exit code is 1 if one failed. Nothing is downloaded, except for the
    weights of a backbone that you name. Add the output to a bug report.

    Example: slimprompt doctor
    Example: slimprompt doctor --backbone ViT-B-16 --pretrained openai --device cuda --precision bf16 --data-root DATA
    """
    from slimprompt.clip.architectures import default_pretrained
    from slimprompt.doctor.check import FAILED, VERDICTS, Subject, run_checks
    from slimprompt.doctor.checks import CHECKS

    name = str(model_options.backbone)
    pretrained = model_options.pretrained or default_pretrained(name)
    subject = Subject(name, pretrained, model_options.device, model_options.precision, data_root, quick)
    findings = []
    for finding in run_checks(CHECKS, subject):
        findings.append(finding)
        if not as_json:
            _print(finding)
    failed = [finding for finding in findings if finding.verdict == FAILED]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS}
        say("\n" + ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number))
        for finding in failed:
            say(f"{finding.check} failed; it should show that {finding.shows}", err=True)
    if failed:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    """Print one row as soon as it is known; the columns have fixed widths."""
    verdict = typer.style(f"{finding.verdict:<7}", fg=_COLOURS[finding.verdict])
    say(f"{verdict}  {finding.check:<34}  {finding.details}")
