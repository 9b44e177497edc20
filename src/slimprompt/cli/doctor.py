"""`slimprompt doctor`: check this machine."""

from __future__ import annotations

import typer

from slimprompt.cli.options import DataRoot, ModelOptions, OutputFormat, model_options
from slimprompt.cli.printing import Format, emit, say

_COLOURS = {"ok": "green", "warning": "yellow", "FAILED": "red", "skipped": "bright_black"}


@model_options("backbone", "pretrained", "device", "precision", backbone="pocket")
def doctor(
    data_root: DataRoot = None,
    quick: bool = typer.Option(False, "--quick", help="Leave out hashes of weight files and zero-shot accuracy."),
    format: OutputFormat = Format.table,
    *,
    model_options: ModelOptions,
) -> None:
    """Check this machine: versions, folders, and correctness of the computation.

    Each check is ok, a warning, FAILED or skipped; the exit code is 1 if one failed. Nothing is downloaded, except for the
    weights of a backbone that you name. Add the output to a bug report.

    Example: slimprompt doctor
    Example: slimprompt doctor --backbone ViT-B-16 --pretrained openai --device cuda --precision bf16 --data-root DATA
    """
    from slimprompt.clip.architectures import default_pretrained
    from slimprompt.doctor.checks import CHECKS, run_checks
    from slimprompt.doctor.subject import FAILED, VERDICTS, Subject

    name = str(model_options.backbone)
    pretrained = model_options.pretrained or default_pretrained(name)
    subject = Subject(name, pretrained, model_options.device, model_options.precision, data_root, quick)
    findings = []
    for finding in run_checks(CHECKS, subject):
        findings.append(finding)
        if format is Format.table:  # as soon as it is known, in columns of fixed widths
            verdict = typer.style(f"{finding.verdict:<7}", fg=_COLOURS[finding.verdict])
            say(f"{verdict}  {finding.check:<34}  {finding.details}")
    failed = [finding for finding in findings if finding.verdict == FAILED]
    if format is not Format.table:
        emit([finding._asdict() for finding in findings], format)
    else:
        counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS}
        say("\n" + ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number))
        for finding in failed:
            say(f"{finding.check} failed; what it checks: {finding.shows}", err=True)
    if failed:
        raise typer.Exit(1)
