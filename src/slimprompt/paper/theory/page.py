"""The theory as files: a page, the statements as a table, the figures, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slimprompt.analysis.verdict import VERDICTS, Verdict, count_verdicts
from slimprompt.paper.theory.figures import Series, plot_figures
from slimprompt.report.folder import check_result_folder, write_result_folder
from slimprompt.report.html import render
from slimprompt.report.plotting import Figure, figure_files
from slimprompt.spreadsheet import csv_text

if TYPE_CHECKING:
    from slimprompt.paper.theory.check import Theory
    from slimprompt.paper.theory.statement import Statement

#: Files with the statements and with the numbers of the figures, and their columns.
STATEMENTS, FIGURES = "statements.csv", "figures.csv"
COLUMNS = ("part", "statement", "claim", "relation", "predicted", "measured", "interval", "verdict", "detail")
FIGURE_COLUMNS = Series._fields


def statement_rows(statements: Iterable[Statement]) -> list[dict[str, str]]:
    """The statements as text, one dict per row with the keys `COLUMNS`."""
    rows = []
    for part, name, claim, relation, predicted, measured, interval, verdict, detail in statements:
        ends = " … ".join(map(number, interval or ()))
        cells = (part, name, claim, relation, number(predicted), number(measured), ends, verdict, detail)
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


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


def verdict_counts(rows: Iterable[dict[str, str]]) -> str:
    """The number of statements with each verdict, as `47 hold, 5 violated, 0 undecided, 1 not applicable`."""
    return count_verdicts(cast(Verdict, row["verdict"]) for row in rows)


def theory_section(rows: Sequence[dict[str, str]], figures: Sequence[Figure]) -> Any:
    """HTML of the statements and the figures, as Markup to be placed in a page under the anchor `theory`."""
    from markupsafe import Markup

    parts = [(part, list(same)) for part, same in groupby(rows, key=lambda row: row["part"])]
    values = {"parts_of_theory": parts, "display": VERDICTS, "counts": verdict_counts(rows), "figures": figures}
    return Markup(render("theory_section.html.j2", values))  # the template escapes all text


def theory_page(theory: Theory, figures: Sequence[Figure]) -> str:
    """The self-contained HTML page."""
    rows = statement_rows(theory.statements)
    parts = enumerate(dict.fromkeys(row["part"] for row in rows), 1)
    values = {
        "title": "Theory of low-rank prompts: numerical checks",
        "setting": theory.setting,
        "contents": [("theory-figures", "Figures"), *((f"theory-part-{index}", part) for index, part in parts)],
        "section": theory_section(rows, figures),
    }
    return render("theory.html.j2", values)


def write_theory(theory: Theory, folder: Path) -> list[Path]:
    """Make `folder` hold exactly `theory.html`, `statements.csv`, `figures.csv` with the numbers of the figures, and these as SVG and PNG."""
    check_result_folder(folder)
    figures = plot_figures(theory.series)
    points = [
        [*names, *("" if value != value else value for value in point)]  # NaN: there is no interval
        for *names, at, values, low, high in theory.series
        for point in zip(at, values, low, high, strict=True)
    ]
    statements = [list(row.values()) for row in statement_rows(theory.statements)]
    files: dict[str, str | bytes] = {
        "theory.html": theory_page(theory, figures),
        STATEMENTS: csv_text(COLUMNS, statements),
        FIGURES: csv_text(FIGURE_COLUMNS, points),
        **dict(figure_files(figures)),
    }
    write_result_folder(folder, files)
    return [folder / name for name in files]
