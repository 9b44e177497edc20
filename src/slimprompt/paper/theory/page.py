"""The theory page: all statements with both sides and a verdict, and the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from slimprompt.errors import InputError
from slimprompt.files import write_file
from slimprompt.paper.theory.check import Theory
from slimprompt.paper.theory.figures import theory_figures
from slimprompt.paper.theory.statement import Statement
from slimprompt.paper.verdict import STATEMENT_VERDICTS, VERDICTS, count_verdicts
from slimprompt.report.html import render, write_page
from slimprompt.report.plotting import Figure, write_figures
from slimprompt.spreadsheet import csv_text

COLUMNS = ("part", "statement", "claim", "relation", "predicted", "measured", "interval", "verdict", "detail")


def statement_rows(statements: Sequence[Statement]) -> list[dict[str, str]]:
    """The statements as text, one dict per row with the keys `COLUMNS`."""
    return [
        {
            "part": one.part,
            "statement": one.name,
            "claim": one.claim,
            "relation": one.relation,
            "predicted": number(one.predicted),
            "measured": number(one.measured),
            "interval": "" if one.interval is None else f"{number(one.interval.low)} … {number(one.interval.high)}",
            "verdict": one.verdict,
            "detail": one.detail,
        }
        for one in statements
    ]


def number(value: float | None) -> str:
    """Four significant digits, or all digits of an integer; empty for None.

    >>> number(0.25), number(2048.0), number(1.234567e-7), number(None)
    ('0.25', '2048', '1.235e-07', '')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def verdict_counts(statements: Sequence[Statement]) -> str:
    """The number of statements with each verdict, as `47 hold, 5 violated, 0 not testable`."""
    return count_verdicts((one.verdict for one in statements), STATEMENT_VERDICTS)


def theory_section(theory: Theory, figures: Sequence[Figure]) -> str:
    """HTML of the section with statements and figures, to be placed in another page."""
    return render("theory_section.html.j2", _values(theory, figures))


def theory_page(theory: Theory, figures: Sequence[Figure]) -> str:
    """The self-contained HTML page."""
    return render("theory.html.j2", _values(theory, figures))


def _values(theory: Theory, figures: Sequence[Figure]) -> dict[str, Any]:
    """Values of the templates."""
    rows = statement_rows(theory.statements)
    parts = [(part, list(same)) for part, same in groupby(rows, key=lambda row: row["part"])]
    surrogate = theory.surrogate
    return {
        "title": "Theory of low-rank prompts: numerical checks",
        "contents": [
            ("theory-figures", "Figures"),
            *((f"theory-part-{index}", part) for index, (part, _) in enumerate(parts, 1)),
        ],
        "parts_of_theory": parts,
        "display": VERDICTS,
        "counts": verdict_counts(theory.statements),
        "figures": figures,
        "setting": f"m = {surrogate.m}, d = {surrogate.d}, r = {surrogate.rank}",
        "loss": theory.loss.title if theory.loss else "",
    }


def write_theory(theory: Theory, folder: Path) -> list[Path]:
    """Write the page with its table and figures.

    Parameters
    ----------
    theory
        Checked statements.
    folder
        Target folder; it is created.

    Returns
    -------
    list of Path
        `theory.html`, `statements.csv`, and the figures as SVG and PNG.

    Raises
    ------
    InputError
        If `folder` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the page")
    folder.mkdir(parents=True, exist_ok=True)
    figures = theory_figures(theory)
    rows = [[row[name] for name in COLUMNS] for row in statement_rows(theory.statements)]
    return [
        write_page(folder / "theory.html", theory_page(theory, figures)),
        write_file(folder / "statements.csv", csv_text(COLUMNS, rows)),
        *write_figures(figures, folder),
    ]
