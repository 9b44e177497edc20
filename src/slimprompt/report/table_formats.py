"""Tables as Markdown, LaTeX (booktabs), CSV and one XLSX workbook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from slimprompt.errors import InputError, unknown
from slimprompt.report.table import Cell, Row, Table

# ---------------------------------------------------------------- Markdown


def to_markdown(table: Table) -> str:
    """A pipe table: one header line, bold for the best, sections and notes as text."""
    header = [*table.headers, *(f"{column.flat} {column.remark}".strip() for column in table.columns)]
    lines = [f"### {_md(table.title)}", ""]
    for section, rows in groupby(table.rows, key=lambda row: row.section):
        if section:
            lines += [f"**{_md(section)}**", ""]
        lines.append("| " + " | ".join(_md(text) for text in header) + " |")
        lines.append("|" + " --- |" * len(table.headers) + " ---: |" * len(table.columns))
        for row in rows:
            cells = [_bold_md(cell, table.compare) for cell in row.cells]
            lines.append("| " + " | ".join([*(_md(label) for label in row.labels), *cells]) + " |")
        lines.append("")
    lines += [f"{_md(note)}  " for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def _bold_md(cell: Cell, compare: bool) -> str:
    text = _md(cell.text(compare=compare))
    return f"**{text}**" if cell.bold else text


def _md(text: str) -> str:
    for sign in ("\\", "|", "*", "_", "<", "`", "["):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")


# ---------------------------------------------------------------- LaTeX

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "√": r"$\surd$",
    "²": r"$^2$",
    "×": r"$\times$",
    "°": r"$^\circ$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
}


def escape_latex(text: str) -> str:
    """The text with every sign that LaTeX reads as a command made plain; signs it cannot set become "?"."""
    found = "".join(_LATEX.get(sign, sign) for sign in text)
    return "".join(sign if sign.isascii() or 0xA0 < ord(sign) < 0x180 else "?" for sign in found)


def to_latex(table: Table) -> str:
    """A `table` environment; needs booktabs, multirow and adjustbox."""
    n_labels, n_columns = len(table.headers), len(table.columns)
    lines = [
        r"\begin{table}[p]",
        r"\centering",
        r"\scriptsize",
        rf"\caption{{{escape_latex(table.title)}. {' '.join(escape_latex(note) for note in table.notes)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\begin{adjustbox}{max width=\linewidth,max totalheight=0.85\textheight}",
        rf"\begin{{tabular}}{{{'l' * n_labels}{'c' * n_columns}}}",
        r"\toprule",
        *_latex_header(table),
    ]
    section = ""
    for index, row in enumerate(table.rows):
        if row.section != section:
            section = row.section
            title = rf"\multicolumn{{{n_labels + n_columns}}}{{l}}{{\textit{{{escape_latex(section)}}}}}\\"
            lines += [r"\midrule", title, r"\midrule"]
        elif row.rule:
            lines.append(r"\midrule")
        labels = _latex_labels(table.rows, index)
        cells = [_latex_cell(cell, table.compare) for cell in row.cells]
        lines.append(" & ".join([*labels, *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}", r"\end{table}"]) + "\n"


def _latex_header(table: Table) -> list[str]:
    n_labels = len(table.headers)
    lines = []
    if any(column.group for column in table.columns):
        parts, rules, start = [], [], n_labels + 1
        for group, columns in groupby(table.columns, key=lambda column: column.group):
            width = len(list(columns))
            parts.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(group)}}}")
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
            start += width
        lines.append(" & ".join(["" for _ in table.headers] + parts) + r" \\")
        lines.append("".join(rules))
    names = [*table.headers, *(column.label for column in table.columns)]
    lines.append(" & ".join(escape_latex(name) for name in names) + r" \\")
    if any(column.remark for column in table.columns):
        remarks = [rf"{{\tiny {escape_latex(column.remark)}}}" if column.remark else "" for column in table.columns]
        lines.append(" & ".join(["" for _ in table.headers] + remarks) + r" \\")
    return lines


def _latex_labels(rows: Sequence[Row], index: int) -> list[str]:
    """Labels of one row; the first is written once for the run of rows that share it."""
    row = rows[index]
    if len(row.labels) == 1:
        return [escape_latex(row.labels[0])]
    mine = (row.section, row.labels[0])
    if index and (rows[index - 1].section, rows[index - 1].labels[0]) == mine and not row.rule:
        first = ""
    else:
        height = 1
        while (
            index + height < len(rows)
            and (rows[index + height].section, rows[index + height].labels[0]) == mine
            and not rows[index + height].rule
        ):
            height += 1
        name = escape_latex(row.labels[0])
        first = rf"\multirow{{{height}}}{{*}}{{{name}}}" if height > 1 else name
    return [first, *(escape_latex(label) for label in row.labels[1:])]


def _latex_cell(cell: Cell, compare: bool) -> str:
    text = escape_latex(cell.text(compare=compare))
    if not cell.bold:
        return text
    return rf"{{\bfseries\boldmath {text}}}"  # \textbf alone does not reach the signs set as mathematics


def latex_document(tables: Iterable[Table]) -> str:
    """A whole document with all the tables, ready for pdflatex."""
    head = [
        r"\documentclass{article}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\usepackage{booktabs,multirow,adjustbox}",
        r"\begin{document}",
    ]
    body = [to_latex(table) + "\\clearpage" for table in tables]
    return "\n".join([*head, *body, r"\end{document}"]) + "\n"


# ---------------------------------------------------------------- CSV and XLSX


def to_frame(table: Table) -> pd.DataFrame:
    """The paper's layout with numbers: per column its value, and beside it what there is of sd, n, published, difference.

    `outside` is 1 where the difference exceeds the combined standard deviation.
    """
    has_section = any(row.section for row in table.rows)
    data: dict[str, list[Any]] = {}
    if has_section:
        data["Section"] = [row.section for row in table.rows]
    for index, header in enumerate(table.headers):
        data[header] = [row.labels[index] for row in table.rows]
    for index, column in enumerate(table.columns):
        cells = [row.cells[index] for row in table.rows]
        data[column.flat] = [_rounded(cell) for cell in cells]
        if any(cell.number is not None for cell in cells):
            if any(cell.sd is not None for cell in cells):
                data[f"{column.flat} sd"] = [None if cell.sd is None else round(cell.sd, 4) for cell in cells]
            if any(cell.n for cell in cells):
                data[f"{column.flat} n"] = [cell.n or None for cell in cells]
        if table.compare and any(cell.published is not None for cell in cells):
            data[f"{column.flat} published"] = [cell.published for cell in cells]
            data[f"{column.flat} difference"] = [
                None if (d := cell.difference) is None else round(d, 4) for cell in cells
            ]
            data[f"{column.flat} outside"] = [None if cell.outside is None else int(cell.outside) for cell in cells]
    return pd.DataFrame(data)


def _rounded(cell: Cell) -> float | str | None:
    return cell.value if cell.number is None else round(cell.number, 4)


def write_workbook(tables: Sequence[Table], path: Path) -> None:
    """One sheet per table, after a sheet of contents; best numbers in bold, differences outside the spread in red."""
    from openpyxl import Workbook
    from openpyxl.styles import Font
    from openpyxl.utils import get_column_letter

    book = Workbook()
    contents = book.active
    assert contents is not None  # a new workbook has one sheet
    contents.title = "contents"
    contents.append(["sheet", "table"])
    for table in tables:
        sheet = book.create_sheet(table.name[:31])
        contents.append([sheet.title, table.title])
        contents.cell(contents.max_row, 1).hyperlink = f"#'{sheet.title}'!A1"
        sheet.append([_plain(table.title)])
        frame = to_frame(table)
        sheet.append(list(frame.columns))
        for cell in sheet[2]:
            cell.font = Font(bold=True)
        places = [list(frame.columns).index(column.flat) + 1 for column in table.columns]
        for row, values in zip(table.rows, frame.itertuples(index=False), strict=True):
            sheet.append([None if _is_nan(value) else _plain(value) for value in values])
            for place, entry in zip(places, row.cells, strict=True):
                written = sheet.cell(sheet.max_row, place)
                digits = "0." + "0" * entry.decimals
                written.number_format = f"+{digits};-{digits}" if entry.signed else digits
                written.font = Font(bold=entry.bold, color="C00000" if entry.outside else None)
        for note in table.notes:
            sheet.append([_plain(note)])
        sheet.freeze_panes = sheet.cell(3, len(table.headers) + 1)
        for index in range(1, len(frame.columns) + 1):
            sheet.column_dimensions[get_column_letter(index)].width = 16
    contents.column_dimensions["A"].width, contents.column_dimensions["B"].width = 30, 90
    book.save(path)


def _is_nan(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _plain(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is kept a text."""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "@") else value
    return value.item() if hasattr(value, "item") else value


# ---------------------------------------------------------------- files


def _write_markdown(tables: Sequence[Table], folder: Path) -> list[Path]:
    path = folder / "tables.md"
    path.write_text("# Tables\n\n" + "\n".join(to_markdown(table) for table in tables), encoding="utf-8")
    return [path]


def _write_latex(tables: Sequence[Table], folder: Path) -> list[Path]:
    written = []
    for table in tables:
        path = folder / f"{table.name}.tex"
        path.write_text(to_latex(table), encoding="utf-8")
        written.append(path)
    whole = folder / "tables.tex"
    whole.write_text(latex_document(tables), encoding="utf-8")
    return [*written, whole]


def _write_csv(tables: Sequence[Table], folder: Path) -> list[Path]:
    written = []
    for table in tables:
        path = folder / f"{table.name}.csv"
        to_frame(table).to_csv(path, index=False)
        written.append(path)
    cells = folder / "cells.csv"
    pd.concat([table.long() for table in tables], ignore_index=True).to_csv(cells, index=False)
    return [*written, cells]


def _write_workbook(tables: Sequence[Table], folder: Path) -> list[Path]:
    path = folder / "tables.xlsx"
    write_workbook(tables, path)
    return [path]


#: Format → what writes it. Every number's runs are in `cells.csv`.
FORMATS: dict[str, Callable[[Sequence[Table], Path], list[Path]]] = {
    "markdown": _write_markdown,
    "latex": _write_latex,
    "csv": _write_csv,
    "xlsx": _write_workbook,
}


def write_tables(tables: Sequence[Table], folder: Path, formats: Sequence[str] = tuple(FORMATS)) -> list[Path]:
    """Write the tables below `folder` in the given formats; returns the files."""
    for name in formats:
        if name not in FORMATS:
            raise unknown("table format", name, FORMATS)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the tables")
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name in dict.fromkeys(formats) for path in FORMATS[name](tables, folder)]
