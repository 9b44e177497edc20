"""Tables as Markdown, LaTeX (booktabs), CSV and an XLSX workbook."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from slimprompt.errors import InputError, choose
from slimprompt.files import write_file
from slimprompt.report.table import Cell, Row, Table
from slimprompt.spreadsheet import cell_value, frame_csv

# ---------------------------------------------------------------- Markdown


def to_markdown(table: Table) -> str:
    """A Markdown table, one per section, with the title above and the notes below it."""
    header = [*table.headers, *(f"{column.full_label} {column.remark}".strip() for column in table.columns)]
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
    for character in ("\\", "|", "*", "_", "<", "`", "["):
        text = text.replace(character, f"\\{character}")
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
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}


def escape_latex(text: str) -> str:
    """Escape the special characters of LaTeX; characters that pdflatex cannot typeset become "?"."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return "".join(one if one.isascii() or 0xA0 < ord(one) < 0x180 else "?" for one in escaped)


def to_latex(table: Table) -> str:
    """A LaTeX `table` environment; it needs the packages booktabs, multirow and adjustbox."""
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
    """Labels of one row; consecutive rows with the same first label share one `multirow` cell."""

    def continues(other: int) -> bool:
        one, before = rows[other], rows[other - 1]
        return not one.rule and (one.section, one.labels[0]) == (before.section, before.labels[0])

    first, *others = (escape_latex(label) for label in rows[index].labels)
    if others and index and continues(index):
        first = ""
    elif others:
        height = 1
        while index + height < len(rows) and continues(index + height):
            height += 1
        first = rf"\multirow{{{height}}}{{*}}{{{first}}}" if height > 1 else first
    return [first, *others]


def _latex_cell(cell: Cell, compare: bool) -> str:
    text = escape_latex(cell.text(compare=compare))
    if not cell.bold:
        return text
    return rf"{{\bfseries\boldmath {text}}}"  # \textbf does not apply to mathematical symbols


def latex_document(tables: Iterable[str]) -> str:
    """A complete document for pdflatex with tables that `to_latex` made."""
    head = [
        r"\documentclass{article}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\usepackage{booktabs,multirow,adjustbox}",
        r"\begin{document}",
    ]
    body = [table + "\\clearpage" for table in tables]
    return "\n".join([*head, *body, r"\end{document}"]) + "\n"


# ---------------------------------------------------------------- CSV and XLSX


def to_frame(table: Table) -> pd.DataFrame:
    """The table as numbers: for each column its value and, if known, sd, n and the published value.

    Returns
    -------
    pandas.DataFrame
        Column "X outside" is 1 if the difference to the published value exceeds √(sd² + published sd²).
    """
    data: dict[str, list[Any]] = {}
    if any(row.section for row in table.rows):
        data["Section"] = [row.section for row in table.rows]
    for index, header in enumerate(table.headers):
        data[header] = [row.labels[index] for row in table.rows]
    for index, column in enumerate(table.columns):
        cells = [row.cells[index] for row in table.rows]
        data[column.full_label] = [_round(cell.value) for cell in cells]
        if any(cell.number is not None for cell in cells):
            if any(cell.sd is not None for cell in cells):
                data[f"{column.full_label} sd"] = [_round(cell.sd) for cell in cells]
            if any(cell.n for cell in cells):
                data[f"{column.full_label} n"] = [cell.n or None for cell in cells]
        if table.compare and any(cell.published is not None for cell in cells):
            data[f"{column.full_label} published"] = [cell.published for cell in cells]
            data[f"{column.full_label} difference"] = [_round(cell.difference) for cell in cells]
            data[f"{column.full_label} outside"] = [
                None if cell.beyond_sd is None else int(cell.beyond_sd) for cell in cells
            ]
    return pd.DataFrame(data)


def _round(value: float | str | None) -> float | str | None:
    return round(value, 4) if isinstance(value, float) else value


def to_workbook(tables: Sequence[Table]) -> bytes:
    """An XLSX workbook with a contents sheet and one sheet per table.

    The best numbers are bold; numbers whose difference to the published value exceeds the spread are red.
    """
    from openpyxl import Workbook

    book = Workbook()
    contents = book.active
    assert contents is not None  # a new workbook has one sheet
    contents.title = "contents"
    contents.append(["sheet", "table"])
    for row, table in enumerate(tables, start=2):
        sheet = book.create_sheet(_sheet_name(table.name, book.sheetnames))
        contents.append([sheet.title, table.title])
        contents.cell(row, 1).hyperlink = f"#'{sheet.title}'!A1"
        _fill_sheet(sheet, table)
    contents.column_dimensions["A"].width, contents.column_dimensions["B"].width = 30, 90
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def _sheet_name(name: str, taken: Sequence[str]) -> str:
    """The name in at most 31 characters, as Excel requires, with a number if another sheet has it."""
    chosen, number = name[:31], 1
    while chosen in taken:
        number += 1
        chosen = f"{name[: 30 - len(str(number))]}~{number}"
    return chosen


def _fill_sheet(sheet: Any, table: Table) -> None:
    from openpyxl.styles import Font
    from openpyxl.utils import get_column_letter

    fonts = {(bold, red): Font(bold=bold, color="C00000" if red else None) for bold in (0, 1) for red in (0, 1)}
    frame = to_frame(table)
    names = list(frame.columns)
    places = [names.index(column.full_label) + 1 for column in table.columns]
    sheet.append([_literal(table.title)])
    sheet.append(names)
    for heading in sheet[2]:
        heading.font = fonts[1, 0]
    rows = zip(table.rows, frame.itertuples(index=False), strict=True)
    for number, (row, values) in enumerate(rows, start=3):  # `sheet.max_row` would look at all cells
        sheet.append([None if pd.isna(value) else _literal(value) for value in values])
        for place, cell in zip(places, row.cells, strict=True):
            written = sheet.cell(number, place)
            digits = f"{0:.{cell.decimals}f}"  # 0.00
            written.number_format = f"+{digits};-{digits}" if cell.signed else digits
            written.font = fonts[int(cell.bold), int(bool(cell.beyond_sd))]
    for note in table.notes:
        sheet.append([_literal(note)])
    sheet.freeze_panes = sheet.cell(3, len(table.headers) + 1)
    for index in range(1, len(names) + 1):
        sheet.column_dimensions[get_column_letter(index)].width = 16


def _literal(value: Any) -> Any:
    """A plain Python value that a spreadsheet does not read as a formula."""
    return value.item() if hasattr(value, "item") else cell_value(value)


# ---------------------------------------------------------------- files


def _markdown_files(tables: Sequence[Table]) -> dict[str, str]:
    return {"tables.md": "# Tables\n\n" + "\n".join(to_markdown(table) for table in tables)}


def _latex_files(tables: Sequence[Table]) -> dict[str, str]:
    texts = {table.name: to_latex(table) for table in tables}
    return {f"{name}.tex": text for name, text in texts.items()} | {"tables.tex": latex_document(texts.values())}


def _csv_files(tables: Sequence[Table]) -> dict[str, str]:
    frames = {table.name: to_frame(table) for table in tables}
    frames["cells"] = pd.concat([table.long() for table in tables], ignore_index=True)
    return {f"{name}.csv": frame_csv(frame) for name, frame in frames.items()}


def _workbook_file(tables: Sequence[Table]) -> dict[str, bytes]:
    return {"tables.xlsx": to_workbook(tables)}


#: Format → function that makes its files. `cells.csv` lists the runs behind every number.
FORMATS: dict[str, Callable[[Sequence[Table]], Mapping[str, str | bytes]]] = {
    "markdown": _markdown_files,
    "latex": _latex_files,
    "csv": _csv_files,
    "xlsx": _workbook_file,
}


def table_files(tables: Sequence[Table], formats: Sequence[str] = tuple(FORMATS)) -> dict[str, str | bytes]:
    """File name → content of the tables in some formats, keys of `FORMATS`."""
    makers = [choose("table format", name, FORMATS) for name in dict.fromkeys(formats)]
    return {name: content for make in makers for name, content in make(tables).items()}


def write_tables(tables: Sequence[Table], folder: Path, formats: Sequence[str] = tuple(FORMATS)) -> list[Path]:
    """Write tables to files.

    Parameters
    ----------
    tables
        The tables.
    folder
        Folder for the files; created if necessary.
    formats
        Keys of `FORMATS`.

    Returns
    -------
    list of Path
        The written files.

    Raises
    ------
    InputError
        If a format is unknown or `folder` is a file.
    """
    files = table_files(tables, formats)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the tables")
    return [write_file(folder / name, content) for name, content in files.items()]
